package org.apache.hudi.sink.compact;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.api.functions.source.RichSourceFunction;

/**
 * Stands in for Hudi's job of this name, which is in a bundle of its own: the same class, arguments and way to run. It
 * compacts nothing. While it works it writes a line to `work` below the table's path again and again, and at its end the
 * file `done`. `--hoodie-conf stand.in.seconds=S` says how long it works, `stand.in.plans=0` that it finds nothing to
 * run, `stand.in.fails=MESSAGE` that it fails then, `stand.in.lingers=S` that it works on for so long when it is
 * cancelled.
 */
public class HoodieFlinkCompactor {
    private static final long TURN_MS = 100;

    public static void main(String[] args) throws Exception {
        Map<String, String> conf = new HashMap<>();
        String path = null;
        for (int i = 0; i + 1 < args.length; i++) {
            if (args[i].equals("--path")) {
                path = args[i + 1];
            } else if (args[i].equals("--hoodie-conf")) {
                String[] pair = args[i + 1].split("=", 2);
                conf.put(pair[0], pair[1]);
            }
        }
        if (path == null) {
            throw new IllegalArgumentException("the following option is required: [--path]");
        }
        if (conf.getOrDefault("stand.in.plans", "1").equals("0")) {
            System.out.println("No compaction plan for this table");
            return;
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        double seconds = Double.parseDouble(conf.getOrDefault("stand.in.seconds", "1"));
        double lingers = Double.parseDouble(conf.getOrDefault("stand.in.lingers", "0"));
        env.addSource(new Work(path, seconds, lingers, conf.get("stand.in.fails")))
                .name("compaction_source")
                .addSink(new Forget())
                .name("compaction_commit");
        env.execute("flink_hudi_compaction_20260101000000000");
    }

    private static class Forget implements SinkFunction<Long> {
        @Override
        public void invoke(Long turn, Context context) {
            // The work is in the source.
        }
    }

    private static class Work extends RichSourceFunction<Long> {
        private final String path;
        private final double seconds;
        private final double lingers;
        private final String failure;
        private volatile long cancelledMs = Long.MAX_VALUE;

        Work(String path, double seconds, double lingers, String failure) {
            this.path = path;
            this.seconds = seconds;
            this.lingers = lingers;
            this.failure = failure;
        }

        @Override
        public void run(SourceContext<Long> context) throws Exception {
            long endMs = System.currentTimeMillis() + (long) (seconds * 1000);
            while (System.currentTimeMillis() < endMs && !hasToEnd()) {
                write("work", System.currentTimeMillis() + "\n");
                try {
                    Thread.sleep(TURN_MS);
                } catch (InterruptedException ignored) {
                    // Flink interrupts a task that lingers again and again.
                }
            }
            if (cancelledMs < Long.MAX_VALUE) {
                return;
            }
            if (failure != null) {
                throw new IllegalStateException("wrapped", new IOException(failure));
            }
            write("done", "1\n");
        }

        @Override
        public void cancel() {
            cancelledMs = Math.min(cancelledMs, System.currentTimeMillis());
        }

        private boolean hasToEnd() {
            return cancelledMs < Long.MAX_VALUE && System.currentTimeMillis() > cancelledMs + (long) (lingers * 1000);
        }

        private void write(String name, String text) throws IOException {
            Path file = Paths.get(path, name);
            Files.createDirectories(file.getParent());
            Files.write(
                    file,
                    text.getBytes(StandardCharsets.UTF_8),
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        }
    }
}

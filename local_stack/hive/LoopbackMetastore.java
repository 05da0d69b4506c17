import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.TUGIBasedProcessor;
import org.apache.hadoop.hive.thrift.TUGIContainingTransport;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** Hive's metastore as its own main class starts it, but on the loopback address only, which Hive 2.3 has no setting for. */
public final class LoopbackMetastore {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        HiveConf conf = new HiveConf();
        IHMSHandler handler = HiveMetaStore.newRetryingHMSHandler(
            new HiveMetaStore.HMSHandler("metastore", conf, false), conf, true);
        TServerSocket socket = new TServerSocket(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port));
        TThreadPoolServer server = new TThreadPoolServer(new TThreadPoolServer.Args(socket)
            .processor(new TUGIBasedProcessor<>(handler))
            .transportFactory(new TUGIContainingTransport.Factory())
            .protocolFactory(new TBinaryProtocol.Factory())
            .minWorkerThreads(2)
            .maxWorkerThreads(100));
        Files.createFile(Path.of(arguments[1]));
        server.serve();
    }
}

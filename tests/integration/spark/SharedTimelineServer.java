import org.apache.hudi.common.config.HoodieCommonConfig;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.engine.HoodieLocalEngineContext;
import org.apache.hudi.common.table.view.FileSystemViewManager;
import org.apache.hudi.common.table.view.FileSystemViewStorageConfig;
import org.apache.hudi.hadoop.fs.HadoopFSUtils;
import org.apache.hudi.timeline.service.TimelineService;

/** Hudi's timeline server by itself, on the port that is given. Its own `main` ends at once. */
public class SharedTimelineServer {
  public static void main(String[] args) throws Exception {
    var conf = HadoopFSUtils.getStorageConf();
    var config = TimelineService.Config.builder().serverPort(Integer.parseInt(args[0])).build();
    var views = FileSystemViewManager.createViewManager(
        new HoodieLocalEngineContext(conf),
        HoodieMetadataConfig.newBuilder().enable(false).build(),
        FileSystemViewStorageConfig.newBuilder().build(),
        HoodieCommonConfig.newBuilder().build());
    new TimelineService(conf, config, views).startService();
    Thread.currentThread().join();
  }
}

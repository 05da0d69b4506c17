import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.CountDownLatch;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.namenode.NameNode;

/**
 * One NameNode and one DataNode on the loopback address, in this JVM, until it is stopped.
 *
 * <p>Arguments: folder, RPC port, HTTP port, then Hadoop settings as key=value. The folder is formatted when it holds no
 * NameNode yet, so that a second start finds the files of the first. Its file READY appears when files can be written.
 */
public final class MiniHdfs {
  private MiniHdfs() {}

  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]).toAbsolutePath();
    int rpcPort = Integer.parseInt(arguments[1]);
    int httpPort = Integer.parseInt(arguments[2]);

    Configuration settings = new Configuration();
    settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, folder.resolve("cluster").toString());
    settings.set("dfs.replication", "1");
    // The tests have no HDFS user; every user may write.
    settings.set("dfs.permissions.enabled", "false");
    for (int i = 3; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      settings.set(pair[0], pair[1]);
    }

    boolean isFirstStart = Files.notExists(folder.resolve("cluster"));
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings)
            .nameNodePort(rpcPort)
            .nameNodeHttpPort(httpPort)
            .numDataNodes(1)
            .format(isFirstStart)
            .build();
    Runtime.getRuntime().addShutdownHook(new Thread(cluster::shutdown));
    cluster.waitActive();
    announce(folder.resolve("READY"), cluster.getNameNode());
    new CountDownLatch(1).await();
  }

  /** The file is moved into place, so that no reader sees half of it. */
  private static void announce(Path ready, NameNode nameNode) throws Exception {
    InetSocketAddress rpc = nameNode.getNameNodeAddress();
    InetSocketAddress http = nameNode.getHttpAddress();
    Path part = ready.resolveSibling("READY.part");
    Files.writeString(part, "hdfs://127.0.0.1:" + rpc.getPort() + "\nhttp://127.0.0.1:" + http.getPort() + "\n");
    Files.move(part, ready, StandardCopyOption.ATOMIC_MOVE);
  }
}

package org.apache.hadoop.io;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.RandomAccessFile;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Takes the place of Hadoop's class in a NodeManager with Kerberos. That one compares a log's owner by native code, which
 * is in Hadoop's distribution and not in its jars, and without it the NodeManager ends with the first application. Here
 * all containers belong to one user, so there is nothing to compare.
 */
public final class SecureIOUtils {
  private SecureIOUtils() {}

  public static RandomAccessFile openForRandomRead(File file, String mode, String owner, String group)
      throws IOException {
    return new RandomAccessFile(file, mode);
  }

  public static FSDataInputStream openFSDataInputStream(File file, String owner, String group) throws IOException {
    return FileSystem.getLocal(new Configuration()).getRaw().open(new Path(file.getAbsolutePath()));
  }

  public static FileInputStream openForRead(File file, String owner, String group) throws IOException {
    return new FileInputStream(file);
  }

  public static FileOutputStream createForWrite(File file, int permissions) throws IOException {
    if (!file.createNewFile()) {
      throw new AlreadyExistsException(file + " exists");
    }
    return new FileOutputStream(file);
  }

  public static class AlreadyExistsException extends IOException {
    private static final long serialVersionUID = 1L;

    public AlreadyExistsException(String message) {
      super(message);
    }
  }
}

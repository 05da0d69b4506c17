"""A file of a table that another one replaces in one step: its readers see the old one or the new one, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "file"
RENAMED_OVER = frozenset({LOCAL, "hdfs"})
"""Schemes on which a file can take another one's place in one step."""


def can_replace(spark: SparkSession, path: str) -> bool:
    """Return whether the file system of a path can replace a file in one step by renaming another one."""
    return _scheme_of(open_path(spark, path)[0]) in RENAMED_OVER


def replace_file(spark: SparkSession, source: str, target: str) -> None:
    """Put one file in another one's place, or where none is. Raises Py4JJavaError."""
    fs, new = open_path(spark, source)
    _, old = open_path(spark, target)
    fs.mkdirs(old.getParent())
    if _scheme_of(fs) == LOCAL:
        # The checksum goes first: without one nothing is compared; with the old one nobody could read the new file.
        raw, recursive = fs.getRawFileSystem(), False
        raw.delete(fs.getChecksumFile(old), recursive)
        raw.delete(fs.getChecksumFile(new), recursive)
        raw.rename(new, old)
        return
    hadoop = spark._jvm.org.apache.hadoop.fs
    options = spark.sparkContext._gateway.new_array(hadoop.Options.Rename, 1)
    options[0] = hadoop.Options.Rename.OVERWRITE
    hadoop.FileContext.getFileContext(fs.getUri(), fs.getConf()).rename(new, old, options)


def copy_if_there(spark: SparkSession, source: str, target: str) -> None:
    """Copy a file or folder, if there is one. Raises Py4JJavaError."""
    fs, path = open_path(spark, source)
    if fs.exists(path):
        delete_source = False
        _, copy = open_path(spark, target)
        spark._jvm.org.apache.hadoop.fs.FileUtil.copy(fs, path, fs, copy, delete_source, fs.getConf())


def open_path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and path of a path."""
    hadoop_path = spark._jvm.org.apache.hadoop.fs.Path(path)
    return hadoop_path.getFileSystem(spark._jsc.hadoopConfiguration()), hadoop_path


def _scheme_of(fs: Any) -> str:
    return str(fs.getUri().getScheme())

"""Files of a table through Hadoop's file systems: replaced in one step (no reader gets a part), copied, dated."""

from __future__ import annotations

import contextlib
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.table_layout import stays_below
from lake_jobs.hudi.regular_files import MAX_FILE_BYTES, is_odd, read_regular

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "file"
META_FOLDER = ".hoodie"
_STORE = re.compile(r"^[A-Za-z][\w+.-]*:(?://[^/]*)?")
RENAMED_OVER = frozenset({LOCAL, "hdfs"})
"""Schemes on which a rename replaces a file in one step."""


def can_replace(spark: SparkSession, path: str) -> bool:
    """Return whether the file system of a path can replace a file in one step by renaming another one."""
    return _scheme_of(open_path(spark, path)[0]) in RENAMED_OVER


def path_below(base_path: str, path: str) -> str:
    """Return a path below the base path; Hudi and Spark name a file with and without scheme and host."""
    return _STORE.sub("", path).removeprefix(_STORE.sub("", base_path).rstrip("/")).lstrip("/")


def replace_file(spark: SparkSession, source: str, target: str) -> None:
    """Replace a file by another one, or create it from that one. Raises Py4JJavaError."""
    fs, new = open_path(spark, source)
    _, old = open_path(spark, target)
    fs.mkdirs(old.getParent())
    if _scheme_of(fs) == LOCAL:
        # The checksum goes first: without one Hadoop compares nothing; with the old one no reader could open the new
        # file.
        raw = fs.getRawFileSystem()
        recursive = False
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


def find_real_path(spark: SparkSession, path: str) -> str:
    """Return the path without symbolic links of a local path that has some; empty for any other path."""
    fs, hadoop_path = open_path(spark, path)
    if _scheme_of(fs) != LOCAL:
        return ""
    plain = str(hadoop_path.toUri().getPath())
    real = os.path.realpath(plain)
    return "" if real == plain else real


def find_link_below(spark: SparkSession, base_path: str) -> str:
    """Return a symbolic link, or a pipe, a socket or a device, below the `.hoodie` of a table on a local disk.

    Empty for none, and on other stores. Hudi makes none. A writer of the table can, and then a service would move,
    write or delete files of another table, or a read of it would never end.
    """
    fs, hadoop_path = open_path(spark, f"{base_path}/{META_FOLDER}")
    if _scheme_of(fs) != LOCAL:
        return ""
    folders = [str(hadoop_path.toUri().getPath())]
    if os.path.islink(folders[0]):
        return folders[0]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if is_odd(entry):
                    return entry.path
                if entry.is_dir():
                    folders.append(entry.path)
    return ""


def refuse_link(link: str) -> str:
    """Say what to do about what is no file and no folder below `.hoodie`."""
    what = "a link" if os.path.islink(link) else "a pipe, a socket or a device"
    remedy = "replace it by what it leads to" if os.path.islink(link) else "remove it"
    return f"{link} is {what}, where Hudi makes a folder or a file: {remedy}"


def list_modified_ms(spark: SparkSession, folder: str) -> dict[str, int]:
    """Return the modification time of each file in a folder by its name, ms since the epoch; one listing.

    Raises Py4JJavaError.
    """
    fs, path = open_path(spark, folder)
    return {str(status.getPath().getName()): int(status.getModificationTime()) for status in fs.listStatus(path)}


def find_modified_ms(spark: SparkSession, path: str) -> int | None:
    """Return when a file was modified last, by the store's clock; None when it is not there."""
    fs, hadoop_path = open_path(spark, path)
    try:
        return int(fs.getFileStatus(hadoop_path).getModificationTime())
    except Py4JJavaError:
        return None


def _scheme_of(fs: Any) -> str:
    return str(fs.getUri().getScheme())


def read_stream(spark: SparkSession, path: str, stream: Any) -> bytes:
    """Return what a stream of Java's holds, and close it. Raises Py4JJavaError, and OSError for what is too large."""
    io = spark._jvm.org.apache.commons.io
    try:
        content = bytes(io.IOUtils.toByteArray(io.input.BoundedInputStream(stream, MAX_FILE_BYTES + 1)))
    finally:
        stream.close()
    if len(content) > MAX_FILE_BYTES:
        raise OSError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
    return content


class TableFiles:
    """The files below a table's base path, each call one step of Hadoop's file system; paths are relative to it.

    Each raises ValueError for a path that leads out of the table.
    """

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self._spark = spark
        self._base_path = base_path

    def size_of(self, path: str) -> int | None:
        """Return a file's size in bytes; None when it is not there. Raises Py4JJavaError."""
        fs, hadoop_path = self._open(path)
        return int(fs.getFileStatus(hadoop_path).getLen()) if fs.exists(hadoop_path) else None

    def names_in(self, folder: str) -> list[str]:
        """Return the names in a folder; none when it is not there. Raises Py4JJavaError."""
        fs, path = self._open(folder)
        if not fs.exists(path):
            return []
        return [str(status.getPath().getName()) for status in fs.listStatus(path)]

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises Py4JJavaError, and OSError for a file that is too large."""
        fs, hadoop_path = self._open(path)
        return read_stream(self._spark, path, fs.open(hadoop_path))

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        """Return so many bytes of a file from a place on, or fewer at its end. Raises Py4JJavaError."""
        fs, hadoop_path = self._open(path)
        stream = fs.open(hadoop_path)
        stream.seek(offset)
        return read_stream(
            self._spark, path, self._spark._jvm.org.apache.commons.io.input.BoundedInputStream(stream, size)
        )

    def read_directly(self, path: str) -> bytes:
        """Return a file's content; where it is on this machine without a call of Java, which takes as long as all else.

        Raises OSError or Py4JJavaError.
        """
        if self.local is None or not stays_below(path):
            return self.read(path)
        return read_regular(self.local / path)

    def create(self, path: str, content: bytes) -> None:
        """Create a file as a whole, or replace it. Raises Py4JJavaError."""
        fs, target = self._open(path)
        fs.mkdirs(target.getParent())
        in_place = not content or _scheme_of(fs) not in RENAMED_OVER
        _, unfinished = self._open(path if in_place else f"{path}.unfinished")
        stream = fs.create(unfinished)
        try:
            stream.write(content)
        finally:
            stream.close()
        if not in_place:
            replace_file(self._spark, f"{self._base_path}/{path}.unfinished", f"{self._base_path}/{path}")

    def move(self, source: str, target: str) -> None:
        """Move a file to a path where none is. Raises OSError where the file system refuses, or Py4JJavaError."""
        fs, old = self._open(source)
        _, new = self._open(target)
        fs.mkdirs(new.getParent())
        if fs.exists(new) or not fs.rename(old, new):
            raise OSError(f"{source} could not be moved to {target} below {self._base_path}")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it is there. Raises Py4JJavaError."""
        fs, hadoop_path = self._open(path)
        recursive = True
        fs.delete(hadoop_path, recursive)

    @cached_property
    def local(self) -> Path | None:
        """The base path, where it is on this machine's own disks."""
        fs, path = self._open("")
        return Path(str(path.toUri().getPath())) if _scheme_of(fs) == LOCAL else None

    def _open(self, path: str) -> tuple[Any, Any]:
        if path and not stays_below(path):
            raise ValueError(f"{path!r} leads out of table {self._base_path}")
        return open_path(self._spark, f"{self._base_path}/{path}")

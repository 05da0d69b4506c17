"""Reads and writes the job's two files on any store that the driver reaches, and prints its progress."""

from __future__ import annotations

import os
import re
import threading
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.shared.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_SCHEME = re.compile(r"^file:(//)?(?=/)")


def find_local_path(path: str) -> Path | None:
    """Return the local path that `path` stands for; None when only Hadoop's FileSystem reaches it."""
    plain = _LOCAL_SCHEME.sub("", path)
    return None if _SCHEME.match(plain) else Path(plain)


def read_text(spark: SparkSession | None, path: str) -> str:
    """Return a file's text (UTF-8). Paths with a scheme need the session. Raises OSError or Py4JJavaError."""
    local = find_local_path(path)
    if local is not None:
        return local.read_text(encoding="utf-8")
    file_system, hadoop_path = _hadoop(spark, path)
    stream = file_system.open(hadoop_path)
    try:
        return str(_require(spark)._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession | None, path: str, text: str) -> None:
    """Write a file so that readers get all of it or nothing, making its folder. Raises OSError or Py4JJavaError."""
    part = f"{path}.{uuid.uuid4().hex}.part"
    local = find_local_path(path)
    local_part = find_local_path(part)
    if local is not None and local_part is not None:
        local.parent.mkdir(parents=True, exist_ok=True)
        local_part.write_text(text, encoding="utf-8")
        os.replace(local_part, local)
        return
    file_system, hadoop_path = _hadoop(spark, path)
    hadoop_part = _require(spark)._jvm.org.apache.hadoop.fs.Path(part)
    stream = file_system.create(hadoop_part, True)  # noqa: FBT003 - py4j has no keywords
    try:
        stream.write(bytearray(text.encode("utf-8")))
    finally:
        stream.close()
    if not file_system.rename(hadoop_part, hadoop_path):
        # Some stores do not rename onto an existing file: an earlier try of the same job left one.
        file_system.delete(hadoop_path, False)  # noqa: FBT003
        if not file_system.rename(hadoop_part, hadoop_path):
            raise OSError(f"cannot rename {part} to {path}")


def _hadoop(spark: SparkSession | None, path: str) -> tuple[Any, Any]:
    session = _require(spark)
    hadoop_path = session._jvm.org.apache.hadoop.fs.Path(path)
    return hadoop_path.getFileSystem(session._jsc.hadoopConfiguration()), hadoop_path


def _require(spark: SparkSession | None) -> SparkSession:
    if spark is None:
        raise OSError("a path with a scheme can only be read and written once Spark has started")
    return spark


# --- The lines of a job in the Airflow task log.


_of_thread = threading.local()


def log_progress(table: str, message: str) -> None:
    """Print one line about one table; flushed, because a killed driver flushes nothing."""
    line = f"lake: {plain(table, '')}: {plain(message)}"
    print(line, flush=True)
    keep: Callable[[str], None] | None = getattr(_of_thread, "keep", None)
    if keep is not None:
        keep(line)


@contextmanager
def capture_lines(keep: Callable[[str], None]) -> Iterator[None]:
    """Hand the lines that this thread prints to a function as well: several jobs may share a log."""
    _of_thread.keep = keep
    try:
        yield
    finally:
        _of_thread.keep = None


def readable_bytes(size_bytes: int) -> str:
    """Print a size with three digits and a binary unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"

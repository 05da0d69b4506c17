"""Where the tables of histories lie: on this machine's disk, on a real HDFS, or on an S3-compatible server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.storage.table_storage import Storage, open_storage
from local_stack.hdfs import LocalHdfs
from local_stack.hudi_bundle import S3A, with_jars
from local_stack.object_store import LocalObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("local", "hdfs", "s3")
BUCKET = "lake"


@dataclass(frozen=True, slots=True)
class Place:
    """One store. `scratch` is a folder of this machine."""

    kind: str
    scratch: Path
    url: str = ""
    """What stands before an absolute path."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def can_date_files(self) -> bool:
        """Whether a file's modification time can be set."""
        return self.kind != "s3"

    def table(self, folder: Path) -> str:
        """Return the base path of the table of a history with this folder."""
        return f"{self.url}{folder}/orders"

    def lock_options(self, folder: Path) -> dict[str, str]:
        """Return what Hudi's lock needs besides: it refuses a lock file on S3, which cannot create one only once."""
        return {"hoodie.write.lock.filesystem.path": f"file://{folder}/lock"} if self.kind == "s3" else {}

    def open_table(self, base_path: str) -> Storage:
        return open_storage(base_path, self.storage_options)


@contextlib.contextmanager
def open_place(kind: str, folder: Path) -> Iterator[Place]:
    """Start the store, and stop it in the end."""
    if kind == "local":
        yield Place(kind, folder)
    elif kind == "hdfs":
        cluster = LocalHdfs(folder / "hdfs")
        cluster.start()
        try:
            yield Place(kind, folder, cluster.url)
        finally:
            cluster.stop()
    elif kind == "s3":
        server = LocalObjectStore(folder)
        server.start()
        try:
            server.make_bucket(BUCKET)
            yield Place(kind, folder, f"s3a://{BUCKET}", _s3a_settings(server), server.storage_options)
        finally:
            server.stop()
    else:
        raise ValueError(f"no store {kind!r}: one of {', '.join(KINDS)}")


def _s3a_settings(server: LocalObjectStore) -> dict[str, str]:
    return {
        "spark.jars": with_jars(S3A),
        "spark.hadoop.fs.s3a.endpoint": server.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": server.storage_options["access_key"],
        "spark.hadoop.fs.s3a.secret.key": server.storage_options["secret_key"],
        # Readers of Hudi 1.2.0 never give back some of their connections, and one session reads for half an hour.
        "spark.hadoop.fs.s3a.connection.maximum": "5000",
    }


class Files:
    """The files of a table through Hadoop's file system, as its writers see them; paths are relative to `base_path`."""

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self.base_path = base_path
        self._path: Any = spark._jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(base_path).getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none when it is not there."""
        path = self._at(folder)
        return [str(f.getPath().getName()) for f in self._fs.listStatus(path)] if self._fs.exists(path) else []

    def sizes_below(self, folder: str) -> dict[str, int]:
        """Return the size of each file below a folder by its name, bytes; none when it is not there."""
        path = self._at(folder)
        if not self._fs.exists(path):
            return {}
        sizes, recursive = {}, True
        files = self._fs.listFiles(path, recursive)
        while files.hasNext():
            status = files.next()
            sizes[str(status.getPath().getName())] = int(status.getLen())
        return sizes

    def touch(self, path: str, modified_ms: int) -> None:
        """Create an empty file that was modified so long ago, where the store can say that."""
        self._fs.create(self._at(path)).close()
        self._fs.setTimes(self._at(path), modified_ms, -1)

    def delete(self, path: str = "") -> None:
        """Delete a file, or a folder with all that is in it, if it is there."""
        recursive = True
        self._fs.delete(self._at(path), recursive)

    def _at(self, path: str) -> Any:
        return self._path(f"{self.base_path}/{path}".rstrip("/"))

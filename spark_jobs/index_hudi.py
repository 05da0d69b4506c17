"""The Hudi of this job, and that of the table's writers, as index builds meet them: looked at before anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hudi_table import class_of
from hudi_versions import CLIENT_CLASS, LAST_VERSION_OF_1_0, LAST_WRITES, find_own_problem, find_writers_problem
from index_table import METADATA_FOLDER
from py4j.protocol import Py4JJavaError
from whole_file import open_path

if TYPE_CHECKING:
    from hudi_table import TableLook
    from pyspark.sql import SparkSession

HEADER_BYTES = 65_536


def find_hudi_problem(spark: SparkSession, look: TableLook) -> str:
    """Say why no index can be built with this Hudi, or beside the Hudi of the table's writers; empty when one can."""
    problem = find_own_problem(class_of(spark, CLIENT_CLASS, look.meta_client))
    if problem or look.table_version > LAST_VERSION_OF_1_0:
        return problem
    return find_writers_problem(_recent_headers(spark, look))


def _recent_headers(spark: SparkSession, look: TableLook) -> list[bytes]:
    """Return how the newest log files of the metadata table's file listing begin: each write adds one."""
    fs, folder = open_path(spark, f"{look.base_path}/{METADATA_FOLDER}/files")
    try:
        statuses = fs.listStatus(folder)
    except Py4JJavaError:
        return []  # there is no metadata table
    logs = [
        (int(status.getModificationTime()), status.getPath())
        for status in statuses
        if ".log." in str(status.getPath().getName()) and not str(status.getPath().getName()).endswith(".crc")
    ]
    newest = sorted(logs, key=lambda found: found[0], reverse=True)[:LAST_WRITES]
    return [_read_header(fs, path) for _, path in newest]


def _read_header(fs: Any, path: Any) -> bytes:
    try:
        stream = fs.open(path)
    except Py4JJavaError:
        return b""  # it was cleaned just now
    try:
        return bytes(stream.readNBytes(HEADER_BYTES))
    finally:
        stream.close()

"""The mark on a table whose rewrite changed what readers see: no service rewrites its files until a person lifts it.

It lies in the table, so it outlives the run, and holds for all managers and for runs by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import REWRITE_BLOCK, RowsDiffer, describe_block, to_json
from lake_jobs.hudi.files import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_block(spark: SparkSession, base_path: str) -> str:
    """Return why the files of a table must not be rewritten; empty when they may be. Raises Py4JJavaError."""
    files = TableFiles(spark, base_path)
    return "" if files.size_of(REWRITE_BLOCK) is None else describe_block(files.read(REWRITE_BLOCK))


def leave_block(spark: SparkSession, base_path: str, found: RowsDiffer) -> None:
    """Mark a table. Raises Py4JJavaError when the store does not take the file."""
    TableFiles(spark, base_path).create(REWRITE_BLOCK, to_json(found).encode())

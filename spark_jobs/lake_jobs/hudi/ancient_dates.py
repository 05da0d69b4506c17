"""Dates before 1582 and times before 1900, which services copy as they are.

Spark refuses to read and write them where no setting names their calendar. Hudi's writers write them without asking,
and services must rewrite such rows. Hudi's tasks outside of Spark SQL see the local properties of the thread that
started them, and not the session's settings: a compaction's new file would lack each such row.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

REBASE_MODES = tuple(
    f"spark.sql.parquet.{kind}RebaseModeIn{way}" for kind in ("datetime", "int96") for way in ("Read", "Write")
)
_REFUSE = "EXCEPTION"
"""Spark's default."""
_AS_WRITTEN = "CORRECTED"


class _SharedSettings:
    """Settings of a session for as long as one of its jobs runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = 0
        self._set: list[str] = []

    def enter(self, spark: SparkSession) -> None:
        with self._lock:
            self._jobs += 1
            if self._jobs == 1:
                self._set = [key for key in REBASE_MODES if str(spark.conf.get(key)) == _REFUSE]
                for key in self._set:
                    spark.conf.set(key, _AS_WRITTEN)

    def leave(self, spark: SparkSession) -> None:
        with self._lock:
            self._jobs -= 1
            if not self._jobs:
                for key in self._set:
                    spark.conf.set(key, _REFUSE)


_SHARED = _SharedSettings()


@contextmanager
def copy_ancient_dates(spark: SparkSession) -> Iterator[None]:
    """Let what this thread starts read and write ancient dates as they are, or as the job's own `spark_conf` says."""
    _SHARED.enter(spark)
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in REBASE_MODES}
    try:
        for key in REBASE_MODES:
            context.setLocalProperty(key, str(spark.conf.get(key)))
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)
        _SHARED.leave(spark)

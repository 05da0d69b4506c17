"""What time it is on the store of a table, whose clock gave its files their times.

The clock of a driver may be minutes ahead of the store's. Each heartbeat of a living writer would seem expired then, so
no time of a file is compared with a local clock.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from lake_jobs.hudi.files import find_modified_ms, open_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_AGE_S = 300.0
"""After which a store is asked again; in between, this process counts the time that passes."""


class _Reading(NamedTuple):
    """The store's time at a moment of this process's monotonic clock."""

    store_ms: int
    at_s: float


_readings: dict[str, _Reading] = {}


def store_now_ms(spark: SparkSession, base_path: str) -> int:
    """Return the present time by the store's clock, ms since the epoch: rather a little early than late.

    It is the modification time of a file that is written below `.hoodie/.aux`, and deleted. Raises Py4JJavaError when
    the store refuses it.
    """
    reading = _readings.get(base_path)
    if reading is None or time.monotonic() - reading.at_s > MAX_AGE_S:
        reading = _readings[base_path] = _ask(spark, base_path)
    return reading.store_ms + int((time.monotonic() - reading.at_s) * 1000)


def _ask(spark: SparkSession, base_path: str) -> _Reading:
    name = f"{base_path}/.hoodie/.aux/lake_clock_{uuid.uuid4().hex}"
    fs, path = open_path(spark, name)
    recursive = False
    fs.create(path).close()
    try:
        found = find_modified_ms(spark, name)
        # What passed since the store stamped it makes the time early, never late.
        at_s = time.monotonic()
    finally:
        fs.delete(path, recursive)
    if found is None:
        raise FileNotFoundError(f"{name} was removed while it was read: the store's time is not known")
    return _Reading(found, at_s)

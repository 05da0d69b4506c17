"""Takes away what a crash left among the archived timeline, and what Hudi 1.2 takes for a manifest.

Hudi writes a manifest as `manifest_<number>.<uuid>` and renames it. Where a writer dies in between, each later
archiving fails with a NumberFormatException (https://github.com/apache/hudi/issues/19649).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lake_jobs.hudi.files import TableFiles, find_modified_ms
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.services.timeline_heads import KEPT_IN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable

HISTORY = ".hoodie/timeline/history"
MIN_AGE_MS = 3_600_000
"""A manifest is renamed within seconds; a writer that archives without the lock is still given that long."""
_LEFT = re.compile(r"manifest_\d+\.[0-9a-f-]{36}")


def take_away_left(spark: SparkSession, state: LoadedTable) -> list[str]:
    """Move manifests that were never finished to where archiving keeps what it takes away; return their names.

    The lock is held. Raises OSError, Py4JJavaError.
    """
    files = TableFiles(spark, state.base_path)
    taken = []
    for name in sorted(filter(_LEFT.fullmatch, files.names_in(HISTORY))):
        modified_ms = find_modified_ms(spark, f"{state.base_path}/{HISTORY}/{name}")
        if modified_ms is not None and modified_ms + MIN_AGE_MS < store_now_ms(spark, state.base_path):
            files.move(f"{HISTORY}/{name}", f"{KEPT_IN}/{name}")
            taken.append(name)
    return taken

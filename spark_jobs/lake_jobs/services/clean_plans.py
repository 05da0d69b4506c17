"""Refuses a clean's plan that deletes what readers of the table need now.

A clean that keeps no file version (`hoodie.clean.fileversions.retained=0` in a writer), or a plan that a restore or a
rollback has overtaken, names files of the newest file slices. Hudi 1.2.0 executes it, and the rows are gone
(https://github.com/apache/hudi/issues/7693).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

MAX_NAMED = 3


class PlanTakesNewestError(Exception):
    """A plan deletes files that readers need; nothing was deleted."""

    def __init__(self, plan: str, needed: tuple[str, ...]) -> None:
        more = f" and {len(needed) - MAX_NAMED} more" if len(needed) > MAX_NAMED else ""
        super().__init__(
            f"clean plan {plan} deletes {', '.join(needed[:MAX_NAMED])}{more} of the newest file slices, which every "
            "reader needs; nothing was deleted. Writers must keep at least one file version "
            "(hoodie.clean.fileversions.retained)"
        )
        self.plan = plan


def list_deleted(plan: str) -> dict[str, frozenset[str]]:
    """Return the names of the files that a clean's plan deletes, by partition; `plan` is Avro's JSON. Pure.

    Partitions that it deletes whole are left out: their file groups were replaced, so they have no newest slice.
    """
    fields = json.loads(plan)
    gone = set(fields.get("partitionsToBeDeleted") or ())
    found = {
        partition: frozenset(str(file["filePath"]).rpartition("/")[2] for file in files if file.get("filePath"))
        for partition, files in (fields.get("filePathsToBeDeletedPerPartition") or {}).items()
        if partition not in gone
    }
    named = {
        partition: frozenset(str(name) for name in names)
        for partition, names in (fields.get("filesToBeDeletedPerPartition") or {}).items()
        if partition not in gone
    }
    return {
        partition: found.get(partition, frozenset()) | named.get(partition, frozenset()) for partition in found | named
    }


def find_needed(deleted: Mapping[str, frozenset[str]], newest: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return which of the deleted files belong to the newest file slices, as `partition/file`, sorted. Pure."""
    return tuple(
        sorted(
            f"{partition}/{name}" if partition else name
            for partition, names in deleted.items()
            for name in names & newest.get(partition, frozenset())
        )
    )


def require_newest_kept(spark: SparkSession, client: Any, plan: str, text: str) -> None:
    """Raise PlanTakesNewestError when a plan deletes files of the newest file slices. Raises Py4JJavaError.

    It reads the file slices of the partitions from which the plan deletes.
    """
    deleted = {partition: names for partition, names in list_deleted(text).items() if names}
    if not deleted:
        return
    table = spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    view = table.getHoodieView()
    needed = find_needed(deleted, {partition: _list_newest(view, partition) for partition in deleted})
    if needed:
        raise PlanTakesNewestError(plan, needed)


def _list_newest(view: Any, partition: str) -> frozenset[str]:
    """Return the names of the files of a partition's newest file slices."""
    names = set[str]()
    slices = view.getLatestFileSlices(partition).iterator()
    while slices.hasNext():
        found = slices.next()
        base = found.getBaseFile()
        if base.isPresent():
            names.add(str(base.get().getFileName()))
        logs = found.getLogFiles().iterator()
        while logs.hasNext():
            names.add(str(logs.next().getFileName()))
    return frozenset(names)

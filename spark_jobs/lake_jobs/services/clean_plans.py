"""Refuses a clean's plan that deletes what readers of the table, or pending compactions, need now.

A clean that keeps no file version (`hoodie.clean.fileversions.retained=0` in a writer), or a plan that a restore or a
rollback has overtaken, names files of the newest file slices. Hudi 1.2.0 executes it, and the rows are gone
(https://github.com/apache/hudi/issues/7693).

The newest slice of a file group with a pending compaction has the log files since its plan alone; what the plan reads
is kept besides (https://github.com/apache/hudi/issues/19290).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import Service
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import requested_times
from lake_jobs.services.clean_plan_rules import PlanTakesNeededError, find_needed, list_deleted, list_read, list_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def require_needed_kept(spark: SparkSession, client: Any, state: LoadedTable, cleans: Mapping[str, str]) -> None:
    """Raise PlanTakesNeededError when a plan deletes files of the newest file slices, or what a compaction has to read.

    `cleans` are the texts of the plans by requested time. Of compactions and log compactions the pending ones count.
    It reads the file slices of the partitions from which the plans delete. Raises Py4JJavaError.
    """
    deleted = {clean: list_deleted(text) for clean, text in cleans.items()}
    if not any(deleted.values()):
        return
    for service, compaction in _find_compactions(state):
        read = list_read(read_plan(spark, state, service, compaction))
        _require_kept(deleted, read, f"{service} {compaction}")
    table = spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    view = table.getHoodieView()
    in_use = {
        clean: {partition: names for partition, names in deleted[clean].items() if partition not in list_whole(text)}
        for clean, text in cleans.items()
    }
    partitions = {partition for by_partition in in_use.values() for partition in by_partition}
    _require_kept(in_use, {partition: _list_newest(view, partition) for partition in partitions})


def _require_kept(
    deleted: Mapping[str, Mapping[str, frozenset[str]]], needed: Mapping[str, frozenset[str]], compaction: str = ""
) -> None:
    for clean, by_partition in deleted.items():
        if taken := find_needed(by_partition, needed):
            raise PlanTakesNeededError(clean, taken, compaction)


def _find_compactions(state: LoadedTable) -> Iterable[tuple[Service, str]]:
    for service, timeline in (
        (Service.COMPACTION, state.timeline.filterPendingCompactionTimeline()),
        (Service.LOGCOMPACTION, state.timeline.filterPendingLogCompactionTimeline()),
    ):
        yield from ((service, instant) for instant in requested_times(timeline))


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

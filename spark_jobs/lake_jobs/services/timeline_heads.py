"""Takes index builds and restores from the active timeline, before writes behind them are archived.

Hudi's archiver never takes them, and Hudi loses sight of what is archived behind them
(`airflow_lake_provider/timeline_head.py`). Indexes are found by the table's properties, not by these instants. Their
files are kept in `.hoodie/.aux/lake_archive`, unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline_head import COMPLETED
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.table import list_items, list_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from pyspark.sql import SparkSession

    from airflow_lake_provider.timeline_head import ArchivedBehind, TimelineInstant
    from lake_jobs.hudi.table import LoadedTable

KEPT_IN = ".hoodie/.aux/lake_archive"
PLANNED_COMPACTION = ".compaction.requested"
_PENDING = (".requested", ".inflight")


def take_away(spark: SparkSession, state: LoadedTable, instants: Iterable[TimelineInstant]) -> None:
    """Move the files of completed instants away; the lock is held. Raises OSError, Py4JJavaError.

    The completed file is the last one, so that a driver which dies here leaves a completed instant behind.
    """
    files = TableFiles(spark, state.base_path)
    timeline = _timeline_folder(state)
    names = files.names_in(timeline)
    for instant in instants:
        if instant.state != COMPLETED:
            raise ValueError(f"{instant} is not completed")
        own = [name for name in names if _is_of(name, instant)]
        for name in sorted(own, key=lambda name: (not name.endswith(_PENDING), name)):
            target = f"{KEPT_IN}/{name}"
            if files.size_of(target) is not None:
                files.delete(target)  # a driver that died after it had copied
            files.move(f"{timeline}/{name}", target)


def _is_of(name: str, instant: TimelineInstant) -> bool:
    times, _, rest = name.partition(".")
    return times.partition("_")[0] == instant.requested_time and rest.partition(".")[0] == instant.action


def find_left_out(spark: SparkSession, table: Any, state: LoadedTable, behind: ArchivedBehind) -> list[str]:
    """Return the log files of archived writes that a compaction has left out already.

    While the instant stays, readers put them onto the newest file slice; afterwards they would belong to an older one,
    and no reader would find them. What the plan of a compaction on the active timeline names was merged. Raises
    Py4JJavaError.
    """
    archived = state.meta_client.getArchivedTimeline(behind.head.requested_time).getCommitsTimeline()
    writes = frozenset(behind.writes)
    completed = {requested: done for requested, done in list_times(archived) if requested in writes}
    suspects = set(_find_suspects(table, completed))
    return sorted(suspects - _find_merged(spark, state)) if suspects else []


def _find_suspects(table: Any, completed: Mapping[str, str]) -> Iterator[str]:
    """Yield the log files that are read with a base file which began after their write had completed."""
    view = table.getHoodieView()
    for partition in list_items(table.getTableMetadata().getAllPartitionPaths()):
        for file_slice in _each(view.getLatestFileSlices(partition)):
            base = str(file_slice.getBaseInstantTime())
            for log in _each(file_slice.getLogFiles()):
                if completed.get(str(log.getDeltaCommitTime()), base) < base:
                    yield str(log.getFileName())


def _find_merged(spark: SparkSession, state: LoadedTable) -> set[str]:
    merged: set[str] = set()
    files = TableFiles(spark, state.base_path)
    for name in files.names_in(_timeline_folder(state)):
        if name.endswith(PLANNED_COMPACTION):
            instant = name.removesuffix(PLANNED_COMPACTION)
            plan = spark._jvm.org.apache.hudi.common.util.CompactionUtils.getCompactionPlan(state.meta_client, instant)
            for operation in list_items(plan.getOperations()):
                merged |= {str(path).rpartition("/")[2] for path in list_items(operation.getDeltaFilePaths())}
    return merged


def _each(stream: Any) -> Iterator[Any]:
    iterator = stream.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _timeline_folder(state: LoadedTable) -> str:
    """Return where the instants are, below the base path."""
    name = str(state.meta_client.getTimelinePath().getName())
    return ".hoodie" if name == ".hoodie" else f".hoodie/{name}"

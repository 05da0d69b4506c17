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
    from collections.abc import Collection, Iterable, Iterator, Mapping
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

    Some readers put them onto the newest file slice while the instant stays; afterwards none would. Compactions that
    are archived themselves are not judged: their plans are not on the active timeline. Raises Py4JJavaError.
    """
    archived = state.meta_client.getArchivedTimeline(behind.head.requested_time).getCommitsTimeline()
    writes = frozenset(behind.writes)
    completed = {requested: done for requested, done in list_times(archived) if requested in writes}
    merged = _read_plans(spark, state)
    named = frozenset[str]().union(*merged.values())
    return sorted(set(_find_overtaken(table, completed, merged.keys())) - named)


def _find_overtaken(table: Any, completed: Mapping[str, str], compactions: Collection[str]) -> Iterator[str]:
    """Yield the log files whose write had completed when one of these compactions began the next base file."""
    view = table.getHoodieView()
    for partition in list_items(table.getTableMetadata().getAllPartitionPaths()):
        for group in _each(view.getAllFileGroups(partition)):
            slices = list(_each(group.getAllFileSlices()))
            bases = sorted(str(found.getBaseInstantTime()) for found in slices if found.getBaseFile().isPresent())
            for file_slice in slices:
                for log in _each(file_slice.getLogFiles()):
                    done = completed.get(str(log.getDeltaCommitTime()))
                    following = next((base for base in bases if done is not None and base > done), "")
                    if following in compactions:
                        yield str(log.getFileName())


def _read_plans(spark: SparkSession, state: LoadedTable) -> dict[str, set[str]]:
    """Return the names of the log files in the plan of each compaction on the active timeline."""
    plans: dict[str, set[str]] = {}
    for name in TableFiles(spark, state.base_path).names_in(_timeline_folder(state)):
        if name.endswith(PLANNED_COMPACTION):
            instant = name.removesuffix(PLANNED_COMPACTION)
            plan = spark._jvm.org.apache.hudi.common.util.CompactionUtils.getCompactionPlan(state.meta_client, instant)
            plans[instant] = {
                str(path).rpartition("/")[2]
                for operation in list_items(plan.getOperations())
                for path in list_items(operation.getDeltaFilePaths())
            }
    return plans


def _each(stream: Any) -> Iterator[Any]:
    iterator = stream.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _timeline_folder(state: LoadedTable) -> str:
    """Return where the instants are, below the base path."""
    name = str(state.meta_client.getTimelinePath().getName())
    return ".hoodie" if name == ".hoodie" else f".hoodie/{name}"

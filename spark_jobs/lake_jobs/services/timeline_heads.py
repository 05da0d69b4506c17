"""Takes index builds and restores from the active timeline, before writes behind them are archived.

Hudi's archiver never takes them, and Hudi loses sight of what is archived behind them
(`airflow_lake_provider/timeline_head.py`). Indexes are found by the table's properties, not by these instants. Their
files are kept in `.hoodie/.aux/lake_archive`, unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline_head import COMPLETED
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.table import find_instant, list_items, list_times
from lake_jobs.verify.slices import before

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
    """Return the log files of archived writes that a compaction has left out already, archived or not.

    Some readers put them onto the newest file slice while the instant stays; afterwards none would. Log files that a
    clean removed with their slice are not found. Raises Py4JJavaError.
    """
    archive = state.meta_client.getArchivedTimeline(behind.head.requested_time)
    writes = frozenset(behind.writes)
    completed = {at: done for at, done in list_times(archive.getCommitsTimeline()) if at in writes}
    plans = _active_plans(spark, state)
    left_out = []
    for name, following in _find_overtaken(table, completed):
        if following not in plans:
            plans[following] = _archived_plan(spark, archive, following)
        if name not in plans[following]:
            left_out.append(name)
    return sorted(left_out)


def _find_overtaken(table: Any, completed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each log file whose write had completed when the next base file was begun, and that base file's instant."""
    view = table.getHoodieView()
    for partition in list_items(table.getTableMetadata().getAllPartitionPaths()):
        for group in _each(view.getAllFileGroups(partition)):
            slices = list(_each(group.getAllFileSlices()))
            bases = sorted(str(found.getBaseInstantTime()) for found in slices if found.getBaseFile().isPresent())
            for file_slice in slices:
                for log in _each(file_slice.getLogFiles()):
                    done = completed.get(str(log.getDeltaCommitTime()))
                    following = next((base for base in bases if done is not None and base > done), None)
                    if following is not None:
                        yield str(log.getFileName()), following


def _active_plans(spark: SparkSession, state: LoadedTable) -> dict[str, frozenset[str]]:
    """Return the names of the log files in the plan of each compaction on the active timeline."""
    read_plan = spark._jvm.org.apache.hudi.common.util.CompactionUtils.getCompactionPlan
    names = TableFiles(spark, state.base_path).names_in(_timeline_folder(state))
    instants = [name.removesuffix(PLANNED_COMPACTION) for name in names if name.endswith(PLANNED_COMPACTION)]
    return {instant: _log_files_of(read_plan(state.meta_client, instant)) for instant in instants}


def _archived_plan(spark: SparkSession, archive: Any, instant: str) -> frozenset[str]:
    """Return the names of the log files in the plan of an archived compaction."""
    # The range excludes its start; Hudi's own method for one instant asks for an empty one, and gives no plan.
    archive.loadCompactionDetailsInMemory(before(instant), instant)
    return _log_files_of(archive.readCompactionPlan(find_instant(archive, instant)))


def _log_files_of(plan: Any) -> frozenset[str]:
    return frozenset(
        str(path).rpartition("/")[2]
        for operation in list_items(plan.getOperations())
        for path in list_items(operation.getDeltaFilePaths())
    )


def _each(stream: Any) -> Iterator[Any]:
    iterator = stream.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _timeline_folder(state: LoadedTable) -> str:
    """Return where the instants are, below the base path."""
    name = str(state.meta_client.getTimelinePath().getName())
    return ".hoodie" if name == ".hoodie" else f".hoodie/{name}"

"""What services touch: what the plans of pending ones will rewrite or build, and what completed ones did.

Source of the plans: Hudi's Avro schemas `HoodieCompactionPlan`, `HoodieRequestedReplaceMetadata`,
`HoodieClusteringPlan` and `HoodieIndexPlan`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata
from airflow_lake_provider.hudi.file_content import load_record, plain_text
from airflow_lake_provider.hudi.instant import Instant, Layout, TimelineProblem
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.cut_logs import find_log_writers, name_cut_logs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage

_COMPACTIONS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION})


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """One file slice that a plan rewrites; files are relative to the base path."""

    partition: str
    file_id: str
    base_files: tuple[str, ...]
    """One, or none where the slice has log files only."""
    log_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a compaction, log compaction or clustering rewrites. A writer's `replacecommit` has no file slices."""

    slices: tuple[PlannedSlice, ...]
    is_clustering: bool = False

    @property
    def file_groups(self) -> tuple[tuple[str, str], ...]:
        """Partition and file id of each file slice."""
        return tuple((part.partition, part.file_id) for part in self.slices)


@dataclass(frozen=True, slots=True)
class IndexPlanContent:
    """What an index build makes; `partitions` are folders of the metadata table."""

    partitions: tuple[str, ...]
    up_to: str


@dataclass(frozen=True, slots=True)
class PendingIndexPlan:
    """An index plan that is not completed."""

    instant: str
    is_inflight: bool
    partitions: tuple[str, ...]
    up_to: str = ""


def load_service_plan(storage: Storage, properties: TableProperties, instant: Instant) -> ServicePlan | None:
    """Return the plan of a compaction, log compaction, clustering or replacecommit; None of any other.

    Raises FileNotFoundError, StorageError, DamagedFileError.
    """
    if instant.action not in _COMPACTIONS | {Action.CLUSTERING, Action.REPLACECOMMIT}:
        return None
    record, name = _load_requested(storage, properties, instant)
    if instant.action in _COMPACTIONS:
        return parse_compaction_plan(record, name)
    return parse_clustering_plan(record, name)


def load_index_plan(storage: Storage, properties: TableProperties, instant: Instant) -> IndexPlanContent:
    """Return the plan of an index build. Raises FileNotFoundError, StorageError, DamagedFileError."""
    return parse_index_plan(*_load_requested(storage, properties, instant))


def load_pending_plans(
    storage: Storage, properties: TableProperties, timeline: Timeline
) -> tuple[PendingIndexPlan, ...]:
    """Read the pending index plans, oldest first. Raises DamagedFileError, StorageError.

    A plan that vanishes while it is read was completed or removed, and is left out.
    """
    plans = []
    for instant in timeline.pending(Action.INDEXING):
        try:
            plan = load_index_plan(storage, properties, instant)
        except FileNotFoundError:
            continue
        is_inflight = instant.state is State.INFLIGHT
        plans.append(PendingIndexPlan(instant.requested_time, is_inflight, plan.partitions, plan.up_to))
    return tuple(plans)


def load_completed_clustering(storage: Storage, properties: TableProperties, instant: Instant) -> ServicePlan | None:
    """Return the plan that a completed replacecommit executed; None when no request of it is left.

    Raises StorageError, DamagedFileError.
    """
    for action in (Action.CLUSTERING, Action.REPLACECOMMIT):  # layout 1 has only the latter
        try:
            return load_service_plan(storage, properties, replace(instant, action=action))
        except FileNotFoundError:
            continue
    return None


MAX_PARTITIONS = 20
"""The most partitions of a plan that are listed in search of its files."""
_MAX_NAMED = 3


MAX_COMMITS = 50
"""The most commits that are read to learn how long log files of a plan must be; the newest ones."""


def find_lost_files(storage: Storage, properties: TableProperties, timeline: Timeline, instant: Instant) -> str:
    """Return which files a pending plan reads that are gone, empty or cut short, in words; empty when all are whole.

    At most `MAX_PARTITIONS` partitions are listed. A plan that cannot be read says nothing. Raises StorageError.
    """
    try:
        plan = load_service_plan(storage, properties, instant)
    except (FileNotFoundError, DamagedFileError):
        return ""
    slices = () if plan is None else plan.slices
    partitions = sorted({part.partition for part in slices})[:MAX_PARTITIONS]
    sizes: dict[str, int] = {}
    for partition in partitions:
        try:
            entries = storage.list_entries(partition)
        except FileNotFoundError:
            entries = []
        sizes |= {file_below(partition, entry.name): entry.size_bytes for entry in entries}
    planned = [part for part in slices if part.partition in partitions]
    # A log file may be empty: an append that failed leaves one, and readers skip it. Its commit says how long it is.
    empty = [f"{path} (0 bytes)" for part in planned for path in part.base_files if sizes.get(path) == 0]
    gone = [f"{p} (gone)" for part in planned for p in (*part.base_files, *part.log_files) if p not in sizes]
    logs = frozenset(path for part in planned for path in part.log_files)
    lost = [*gone, *empty, *name_cut_logs(logs, _committed_sizes(storage, properties, timeline, logs), sizes)]
    return ", ".join(lost[:_MAX_NAMED]) + (f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else "")


def _committed_sizes(
    storage: Storage, properties: TableProperties, timeline: Timeline, logs: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Yield path and size of the files of the commits that wrote log files. Raises StorageError."""
    writes = {write.requested_time: write for write in timeline.completed_writes}
    for time in find_log_writers(logs, writes, has_own_logs=properties.layout is Layout.V2)[-MAX_COMMITS:]:
        try:
            metadata = load_commit_metadata(storage, properties.timeline_path, writes[time])
        except (FileNotFoundError, DamagedFileError):
            continue
        yield from ((stat.path, stat.file_size_bytes) for stat in metadata.stats)


# --- The pending plans of a timeline, each read once: a plan's file does not change, so a timeline's version, which has
# its name, stands for its content as well


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A pending instant, and the file groups that it rewrites or the folders of the metadata table that it builds."""

    instant: Instant
    file_groups: tuple[tuple[str, str], ...] = ()
    """Partition and file id of each."""
    indexes: tuple[str, ...] = ()
    up_to: str = ""
    """The last write that a plan of indexes takes up."""


_PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.REPLACECOMMIT, Action.INDEXING)
MAX_PLANNED = 256_000
"""So many file groups of plans are kept, about 200 bytes each."""


class PlanMemory:
    """The pending plans of the tables that were asked for last; thread-safe."""

    def __init__(self, most_planned: int = MAX_PLANNED) -> None:
        self._lock = threading.Lock()
        self._kept: LRUCache[str, dict[str, PendingPlan]] = LRUCache(most_planned, getsizeof=_size_of)

    def read(
        self, storage: Storage, properties: TableProperties, timeline: Timeline
    ) -> tuple[tuple[PendingPlan, ...], tuple[TimelineProblem, ...]]:
        """Return the pending plans, oldest first, and those that cannot be read. Raises StorageError.

        A writer's `replacecommit` plans nothing. In layout 1 a clustering gets its action from its plan.
        """
        pending = timeline.pending(*_PLANNED)
        with self._lock:
            known = self._kept.get(storage.base_path, {})
        found: dict[str, PendingPlan] = {}
        problems = []
        for instant in pending:
            plan = known.get(instant.requested_time)
            try:
                plan = _load_pending_plan(storage, properties, instant) if plan is None else _with_state(plan, instant)
            except FileNotFoundError:
                problems.append(TimelineProblem(instant.file_name, "its plan vanished while the timeline was read"))
            except DamagedFileError as error:
                problems.append(TimelineProblem.of(instant.file_name, error))
            else:
                if plan is not None:
                    found[instant.requested_time] = plan
        with self._lock:
            self._kept.pop(storage.base_path, None)
            if 0 < _size_of(found) <= self._kept.maxsize:
                self._kept[storage.base_path] = found
        return tuple(found.values()), tuple(problems)


def _size_of(plans: Mapping[str, PendingPlan]) -> int:
    return sum(1 + len(plan.file_groups) for plan in plans.values())


def _with_state(plan: PendingPlan, instant: Instant) -> PendingPlan:
    return replace(plan, instant=replace(instant, action=plan.instant.action))


def _load_pending_plan(storage: Storage, properties: TableProperties, instant: Instant) -> PendingPlan | None:
    if instant.action is Action.INDEXING:
        content = load_index_plan(storage, properties, instant)
        return PendingPlan(instant, indexes=content.partitions, up_to=content.up_to)
    plan = load_service_plan(storage, properties, instant)
    if plan is not None and plan.is_clustering:
        return PendingPlan(replace(instant, action=Action.CLUSTERING), plan.file_groups)
    if instant.action is Action.CLUSTERING:  # its planner has made the file, and not written it yet
        raise DamagedFileError(f"{instant.file_name}: its plan is empty")
    return None if plan is None or instant.action is Action.REPLACECOMMIT else PendingPlan(instant, plan.file_groups)


def _load_requested(
    storage: Storage, properties: TableProperties, instant: Instant
) -> tuple[Mapping[str, Any] | None, str]:
    # In layout 1 a clustering's files have the action of an insert overwrite (see `resolve_clusterings`).
    is_v1_clustering = properties.layout is Layout.V1 and instant.action is Action.CLUSTERING
    action = Action.REPLACECOMMIT if is_v1_clustering else instant.action
    name = properties.layout.file_name(Instant(instant.requested_time, action, State.REQUESTED, None, ""))
    return load_record(storage, f"{properties.timeline_path}/{name}"), name


def parse_compaction_plan(record: Mapping[str, Any] | None, file_name: str) -> ServicePlan:
    """Build the plan of a compaction or log compaction. Raises DamagedFileError."""
    if record is None:
        raise DamagedFileError(f"{file_name}: a compaction plan must not be empty")
    try:
        return ServicePlan(_slices(record.get("operations") or ()))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{file_name}: not a compaction plan: {error}") from error


def parse_clustering_plan(record: Mapping[str, Any] | None, file_name: str) -> ServicePlan:
    """Build the plan of a requested clustering or replacecommit; no record, no plan. Raises DamagedFileError."""
    plan = (record or {}).get("clusteringPlan")
    if plan is None:
        return ServicePlan(())
    try:
        slices = _slices(part for group in plan["inputGroups"] or () for part in group["slices"] or ())
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{file_name}: not a clustering plan: {error}") from error
    return ServicePlan(slices, is_clustering=True)


def parse_index_plan(record: Mapping[str, Any] | None, file_name: str) -> IndexPlanContent:
    """Build the plan of an index build. Raises DamagedFileError."""
    infos = (record or {}).get("indexPartitionInfos")
    if not infos:
        raise DamagedFileError(f"{file_name}: an index plan must name what it builds")
    try:
        partitions = tuple(plain_text(info["metadataPartitionPath"]) for info in infos)
        return IndexPlanContent(partitions, str(infos[0].get("indexUptoInstant") or ""))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{file_name}: not an index plan: {error}") from error


def _slices(parts: Iterable[Mapping[str, Any]]) -> tuple[PlannedSlice, ...]:
    """Build file slices of `HoodieCompactionOperation` or `HoodieSliceInfo`, which name these fields alike."""
    return tuple(
        PlannedSlice(
            partition := plain_text(part["partitionPath"] or ""),
            plain_text(part["fileId"]),
            tuple(file_below(partition, path) for path in (part.get("dataFilePath"),) if path),
            tuple(file_below(partition, path) for path in part.get("deltaFilePaths") or ()),
        )
        for part in parts
    )


def file_below(partition: str | None, path: str) -> str:
    """Return a data file relative to the base path: Hudi names some by their absolute path, others by their name."""
    name = str(path).rpartition("/")[2]
    return f"{partition}/{name}" if partition else name


def resolve_clusterings(storage: Storage, properties: TableProperties, timeline: Timeline) -> Timeline:
    """Return the timeline with every pending clustering under that action.

    In layout 1 a plan has the action of an insert overwrite, and only its file distinguishes them: it is read. What is
    damaged or vanishes meanwhile keeps its action. Raises StorageError.
    """
    if properties.layout is not Layout.V1 or not timeline.pending(Action.REPLACECOMMIT):
        return timeline
    pending = frozenset(timeline.pending(Action.REPLACECOMMIT))
    resolved = (_resolve(storage, properties, i) if i in pending else i for i in timeline.instants)
    return replace(timeline, instants=tuple(resolved))


def _resolve(storage: Storage, properties: TableProperties, instant: Instant) -> Instant:
    try:
        plan = load_service_plan(storage, properties, instant)
    except (FileNotFoundError, DamagedFileError):
        return instant
    is_clustering = plan is not None and plan.is_clustering
    return replace(instant, action=Action.CLUSTERING) if is_clustering else instant


# --- The effect of a service's completed instants, by their own metadata and the files that they name
#
# Source: `HoodieWriteStat`, `HoodieClusteringPlan` and `HoodieCleanMetadata` of Hudi.

MAX_STATS = 256
"""The most files whose sizes are read from the store; a service that read more reports no bytes."""


@dataclass(frozen=True, slots=True)
class ServiceEffect:
    """Totals over instants. Sizes in bytes; None is not known, or not of this service."""

    files_before: int | None = None
    """Files that the service read and replaced: base files and log files."""
    files_after: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    records_written: int | None = None
    files_deleted: int | None = None

    def plus(self, other: ServiceEffect) -> ServiceEffect:
        """Return both together; a value that only one has counts."""
        totals = {entry.name: _plus(getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self)}
        return ServiceEffect(**totals)


def read_effect(storage: Storage, instants: Iterable[str]) -> ServiceEffect:
    """Return the effect of the completed instants with these requested times. Raises DamagedFileError, StorageError."""
    properties = load_table_properties(storage)
    wanted = frozenset(instants)
    effect = ServiceEffect()
    for instant in load_timeline(storage, properties).completed():
        if instant.requested_time in wanted:
            record = load_record(storage, f"{properties.timeline_path}/{instant.file_name}") or {}
            try:
                effect = effect.plus(_effect_of(storage, properties, instant, record))
            except (AttributeError, TypeError, ValueError, KeyError) as error:
                raise DamagedFileError(f"{instant.file_name}: not the metadata of a service: {error!r}") from error
    return effect


def _effect_of(
    storage: Storage, properties: TableProperties, instant: Instant, record: Mapping[str, Any]
) -> ServiceEffect:
    if instant.action in {Action.CLEAN, Action.ROLLBACK}:
        return ServiceEffect(files_deleted=_number(record.get("totalFilesDeleted")))
    by_partition = record.get("partitionToWriteStats") or {}
    stats = [stat for entries in by_partition.values() for stat in entries or ()]
    read = _files_clustered(storage, properties, instant) or _base_files_merged(stats)
    logs = sum(_number(stat.get("totalLogFilesCompacted")) for stat in stats)
    log_bytes = sum(_number(stat.get("totalLogSizeCompacted")) for stat in stats)
    read_bytes = _bytes_of(storage, read)
    return ServiceEffect(
        files_before=len(read) + logs,
        files_after=len(stats),
        read_bytes=None if read_bytes is None else read_bytes + log_bytes,
        written_bytes=sum(_number(stat.get("totalWriteBytes")) for stat in stats),
        records_written=sum(_number(stat.get("numWrites")) for stat in stats),
    )


def _files_clustered(storage: Storage, properties: TableProperties, instant: Instant) -> list[str]:
    """Return the files of a clustering's plan, relative to the base path; none for other instants."""
    if instant.action is not Action.REPLACECOMMIT:
        return []
    plan = load_completed_clustering(storage, properties, instant)
    return [] if plan is None else [file for part in plan.slices for file in (*part.base_files, *part.log_files)]


def _base_files_merged(stats: list[dict[str, Any]]) -> list[str]:
    return [file_below(stat.get("partitionPath"), stat["prevBaseFile"]) for stat in stats if stat.get("prevBaseFile")]


def _bytes_of(storage: Storage, paths: list[str]) -> int | None:
    if len(paths) > MAX_STATS:
        return None
    total = 0
    for path in paths:
        entry = storage.stat(path)
        if entry is None:  # already cleaned
            return None
        total += entry.size_bytes
    return total


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _plus(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other

"""A table's indexes at one moment, read from storage: what is complete, planned, half built, and what is in the way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.active_writes import HeartbeatRule, load_heartbeats
from airflow_lake_provider.hudi.pending import PendingIndexPlan, load_pending_plans, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.indexing.index_spec import IndexDefinition, parse_index
from airflow_lake_provider.job_contract import INDEX_CLASH, have_index_clash
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, WRITE_ACTIONS, Action, State
from airflow_lake_provider.shared.hudi_settings import INDEX_DEFINITIONS
from airflow_lake_provider.timeline_server.snapshot import NOW, problems_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.views import TableTimelineView

# --- The last completed instant without holes, what is in the way of a later one, and what becomes of the commits
# beyond
#
# RFC-45's open case: C5 is in flight, C6 to C8 are completed. The plan's base instant is C4, the last completed write
# before the first pending one (Hudi: contiguous completed write timeline). Nothing waits for C5 all the same: the build
# reads the newest file slices, so C6 to C8 are in, and C5 writes its own entries when it commits, or is rolled back.
# Pure; the clock is passed in.

DEFAULT_RULE = HeartbeatRule()
DEFINITIONS_FILE = ".hoodie/.index_defs/index.json"
MAX_DEFINITIONS_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Hole:
    """A pending write or plan, seen from the indexes. Ages are seconds; `beat_age_s` is None without a heartbeat."""

    instant: str
    action: str
    state: str
    owner: str
    age_s: float
    beat_age_s: float | None
    is_live: bool

    def __str__(self) -> str:
        beat = "no heartbeat" if self.beat_age_s is None else f"last heartbeat {self.beat_age_s:.0f} s ago"
        return f"{self.action} {self.instant} ({self.state}, {self.owner}, {self.age_s:.0f} s old, {beat})"


@dataclass(frozen=True, slots=True)
class Holes:
    """`last_without_holes` is the base instant of a plan made now, empty without one; `beyond` completed later."""

    last_without_holes: str
    holes: tuple[Hole, ...]
    beyond: tuple[str, ...]

    def explain(self) -> tuple[str, ...]:
        """Say it in sentences, one line each."""
        if not self.holes:
            return (f"nothing is pending: the last completed write is {self.last_without_holes or 'not there yet'}",)
        lines = [f"last completed instant with nothing pending before it: {self.last_without_holes or 'none'}"]
        lines += [f"in the way: {hole}: {_fate(hole)}" for hole in self.holes]
        if self.beyond:
            lines.append(
                f"completed after it: {', '.join(self.beyond)}: a build takes them in too, from the newest files"
            )
        return tuple(lines)


def find_holes(
    timeline: Timeline,
    touched_ms: Mapping[str, int],
    heartbeats: Mapping[str, int],
    now_ms: int,
    rule: HeartbeatRule = DEFAULT_RULE,
) -> Holes:
    """Return what is pending among the writes, and what completed beyond.

    `timeline` is as `resolve_clusterings` returns it: layout 1 names a plan of clustering like a write. `touched_ms`
    gives each pending instant's file's modification time by requested time, `heartbeats` the last beats, both in ms
    since the epoch. `rule` defines when a writer counts as dead, by the table's Hudi settings.
    """
    pending = timeline.pending(*WRITE_ACTIONS)
    holes = tuple(_hole(instant, touched_ms, heartbeats, now_ms, rule) for instant in pending)
    last = timeline.latest_write_without_holes()
    first_hole = pending[0].requested_time if pending else None
    beyond = tuple(
        write.requested_time
        for write in timeline.completed_writes
        if first_hole is not None and write.requested_time > first_hole
    )
    return Holes(last.requested_time if last is not None else "", holes, beyond)


def _hole(
    instant: Instant, touched_ms: Mapping[str, int], heartbeats: Mapping[str, int], now_ms: int, rule: HeartbeatRule
) -> Hole:
    requested_time = instant.requested_time
    beat_ms = heartbeats.get(requested_time)
    return Hole(
        instant=requested_time,
        action=instant.action.value,
        state=instant.state.value,
        owner="table service" if instant.action in COMPARABLE_ACTION else "writer",
        age_s=max(0, now_ms - touched_ms.get(requested_time, now_ms)) / 1000,
        beat_age_s=None if beat_ms is None else max(0, now_ms - beat_ms) / 1000,
        is_live=rule.is_live(beat_ms, now_ms),
    )


def _fate(hole: Hole) -> str:
    if hole.owner == "table service":
        return "a plan; it writes its own entries when it is executed"
    if hole.is_live:
        return "its writer lives; it writes its own entries when it commits"
    if hole.beat_age_s is None:
        return "nothing proves that its writer is dead: in single-writer mode none has a heartbeat"
    return "its writer is dead; the service rollback takes it back, and its rows are in no file slice"


# --- Whether readers may use an index now. Pure
#
# The truth is the table's properties: Hudi's readers use nothing else, and index instants need not be on the active
# timeline for it, so the answer is the same after they were archived. One thing overrides it: Hudi lists an index as
# complete as soon as its files are written, before its build has been checked. As long as a build that names the
# index is in flight, it is not ready.


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer for one index, with the reason in words."""

    partition: str
    is_ready: bool
    reason: str


def readiness_of(partition: str, properties: TableProperties, plans: Sequence[PendingIndexPlan]) -> Readiness:
    """Say whether readers may use an index, named by its folder in the metadata table."""
    building = next((plan for plan in plans if plan.is_inflight and partition in plan.partitions), None)
    if building is not None:
        return Readiness(partition, False, f"its build {building.instant} is not completed")  # noqa: FBT003
    if partition in properties.metadata_partitions_inflight:
        return Readiness(partition, False, "the table's properties list it as being built")  # noqa: FBT003
    if partition in properties.metadata_partitions:
        return Readiness(partition, True, "the table's properties list it as complete, and no build of it is in flight")  # noqa: FBT003
    planned = next((plan for plan in plans if partition in plan.partitions), None)
    if planned is not None:
        return Readiness(partition, False, f"it is planned ({planned.instant}) and not built")  # noqa: FBT003
    return Readiness(partition, False, "the table does not have it")  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class TableIndexes:
    """Properties, pending plans, and holes of one table."""

    properties: TableProperties
    plans: tuple[PendingIndexPlan, ...]
    holes: Holes

    def readiness(self) -> tuple[Readiness, ...]:
        """Return the readiness of every index that the table has, builds or plans, by name."""
        named = {*self.properties.metadata_partitions, *self.properties.metadata_partitions_inflight}
        named |= {partition for plan in self.plans for partition in plan.partitions}
        return tuple(readiness_of(partition, self.properties, self.plans) for partition in sorted(named))

    def problems(self, wanted: Iterable[str] = ()) -> tuple[str, ...]:
        """Return in sentences what is wrong with the table's indexes together with those that are wanted."""
        there = {*self.properties.metadata_partitions, *self.properties.metadata_partitions_inflight, *wanted}
        return (INDEX_CLASH,) if have_index_clash(there) else ()


def load_table_indexes(storage: Storage, now_ms: int, rule: HeartbeatRule = DEFAULT_RULE) -> TableIndexes:
    """Read a table's indexes. `now_ms` is by the store's clock, `rule` that of the table's Hudi settings.

    Raises what reading properties and timeline raises.
    """
    heartbeats = load_heartbeats(storage)
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    plans = load_pending_plans(storage, properties, timeline)
    return TableIndexes(properties, plans, _load_holes(storage, (properties, timeline), heartbeats, now_ms, rule))


def load_definitions(storage: Storage, properties: TableProperties) -> Mapping[str, IndexDefinition]:
    """Read what the table's indexes were defined as, by partition. Raises StorageError, DamagedFileError."""
    path = properties.raw.get(INDEX_DEFINITIONS) or DEFINITIONS_FILE
    if ".." in path.split("/") or "\0" in path:
        raise DamagedFileError(f"{INDEX_DEFINITIONS} lies outside the table: {path!r}")
    try:
        text = storage.read_bytes(path, MAX_DEFINITIONS_BYTES)
    except FileNotFoundError:
        return {}
    try:
        return {str(name): _definition_of(found) for name, found in json.loads(text)["indexDefinitions"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: not the definitions of indexes: {error!r}") from error


def _definition_of(found: Mapping[str, Any]) -> IndexDefinition:
    options = {str(key): str(value) for key, value in (found.get("indexOptions") or {}).items()}
    columns = tuple(str(column) for column in found.get("sourceFields") or ())
    return IndexDefinition(str(found["indexType"]), str(found.get("indexFunction") or ""), columns, options)


def load_holes(storage: Storage, now_ms: int, rule: HeartbeatRule = DEFAULT_RULE) -> Holes:
    """Read what is in the way of the last completed write. `now_ms` is by the store's clock, `rule` the table's.

    Raises what reading properties and timeline raises.
    """
    heartbeats = load_heartbeats(storage)
    properties = load_table_properties(storage)
    return _load_holes(storage, (properties, load_timeline(storage, properties)), heartbeats, now_ms, rule)


def _load_holes(
    storage: Storage,
    table: tuple[TableProperties, Timeline],
    heartbeats: Mapping[str, int],
    now_ms: int,
    rule: HeartbeatRule,
) -> Holes:
    properties, timeline = table
    resolved = resolve_clusterings(storage, properties, timeline)
    return find_holes(resolved, _touched_ms(storage, properties, timeline), heartbeats, now_ms, rule)


def load_readiness(view: TableTimelineView, index: str) -> Readiness:
    """Answer "may readers use this index now"; `index` is written as in the tables file.

    Raises ConfigError, what reading the view raises, and DamagedFileError for a plan that may be of the index.
    """
    partition = parse_index(index).partition
    found = view.plans(NOW)
    unread = [problem for problem in found.problems if f".{Action.INDEXING}." in problem.file_name]
    if unread:
        raise DamagedFileError(f"table {view.base_path!r}: {problems_text(unread)}")
    plans = tuple(
        PendingIndexPlan(plan.instant.requested_time, plan.instant.state is State.INFLIGHT, plan.indexes, plan.up_to)
        for plan in found.plans
        if plan.indexes
    )
    return readiness_of(partition, found.snapshot.properties, plans)


def _touched_ms(storage: Storage, properties: TableProperties, timeline: Timeline) -> dict[str, int]:
    entries = {
        instant.requested_time: storage.stat(f"{properties.timeline_path}/{instant.file_name}")
        for instant in timeline.pending()
    }
    return {requested_time: entry.modified_ms for requested_time, entry in entries.items() if entry is not None}

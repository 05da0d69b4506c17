"""Load a table's archived timeline: what Hudi moved out of the active one. `archive_lsm.py` reads that of layout 2.

A table that never archived has an empty archive; whatever is there and is not understood is an error, or a problem of
the result. Layout 1, which is read here, keeps log files `.commits_.archive.<number>_<token>` of Avro records, one per
instant and state.

Hudi skips a block that was cut off or damaged. So does this reader, and reports it: the archiver may be writing it
right now, or may have died, and then its instants are still on the active timeline. Nothing outside a file shows how
long it should be, so a file that was cut off between two blocks shows only by an instant whose completion is missing.

Source: Hudi 1.2 `ArchivedTimelineV1`, `TimelineArchiverV1`, `MetadataConversionUtils`, `HoodieArchivedMetaEntry`; 0.15
for files that were merged (1.2 merges none any more).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi.archive_avro import DamagedBlock, RecordReader, read_blocks, to_json
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, parse_commit_metadata
from airflow_lake_provider.hudi.file_content import decode
from airflow_lake_provider.hudi.instant import (
    ArchivedInstant,
    ArchivedTimeline,
    Layout,
    RequestedRange,
    TimelineProblem,
    archived_timeline_of,
    is_known_stranger,
)
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, Action, State
from airflow_lake_provider.shared.hudi_settings import INITIAL_VERSION
from airflow_lake_provider.timeline_head import TimelineInstant, find_archived_behind, needs_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_head import ArchivedBehind

MERGE_PLAN = "mergeArchivePlan"
# Far beyond what Hudi writes.
MAX_FILE_BYTES = 2 << 30
MAX_PLAN_BYTES = 16 << 20
ATTEMPTS = 4

_FILE = re.compile(r"\.commits_\.archive\.(\d{1,18})(_.*)?", re.ASCII)
_ENTRY_FIELDS = frozenset({"commitTime", "actionType", "actionState", "stateTransitionTime"})
_METADATA_FIELD = {
    Action.COMMIT: "hoodieCommitMetadata",
    Action.DELTACOMMIT: "hoodieCommitMetadata",
    Action.COMPACTION: "hoodieCommitMetadata",
    Action.LOGCOMPACTION: "hoodieCommitMetadata",
    Action.REPLACECOMMIT: "hoodieReplaceCommitMetadata",
    Action.CLUSTERING: "hoodieReplaceCommitMetadata",
    Action.CLEAN: "hoodieCleanMetadata",
    Action.ROLLBACK: "hoodieRollbackMetadata",
    Action.SAVEPOINT: "hoodieSavePointMetadata",
    Action.INDEXING: "hoodieIndexCommitMetadata",
}
_PLAN_FIELD = {
    Action.COMPACTION: "hoodieCompactionPlan",
    Action.LOGCOMPACTION: "hoodieCompactionPlan",
    Action.REPLACECOMMIT: "hoodieRequestedReplaceMetadata",
    Action.CLUSTERING: "hoodieRequestedReplaceMetadata",
    Action.CLEAN: "hoodieCleanerPlan",
}
_VALUES_OF_ACTION = frozenset(action.value for action in Action)
_VALUES_OF_STATE = frozenset(state.value for state in State)


# Upgrading a table of layout 1, Hudi names files after the first and last instant that it happened to read, not after
# the least and greatest, and merging passes the names on. Such a table's files must all be read.
_BORN_IN_LAYOUT_2 = frozenset({"8", "9"})


def load_archive(
    storage: Storage,
    properties: TableProperties,
    *,
    after: str = "",
    until: str = "",
    with_content: bool = False,
) -> ArchivedTimeline:
    """Load the archived instants requested after `after` (exclusive) and until `until` (inclusive); empty: unbounded.

    `with_content` also loads metadata and plans. Raises StorageError, DamagedFileError, UnsupportedTableError.
    """
    requested = RequestedRange(after, until)
    if properties.layout is Layout.V1:
        return load_log_archive(storage, properties.history_path, requested, with_content=with_content)
    # Every task imports this module to run a service, and hardly any of them reads an archive: Arrow is half a second.
    from airflow_lake_provider.hudi.archive_lsm import load_lsm_archive

    return load_lsm_archive(
        storage,
        properties.history_path,
        requested,
        names_bound=properties.raw.get(INITIAL_VERSION) in _BORN_IN_LAYOUT_2,
        with_content=with_content,
    )


def list_active(timeline: Timeline) -> list[TimelineInstant]:
    """Return the instants of a timeline as the rules on its head see them."""
    return [TimelineInstant(i.requested_time, i.action.value, i.state.value) for i in timeline.instants]


def load_archived_behind(storage: Storage, properties: TableProperties, timeline: Timeline) -> ArchivedBehind | None:
    """Return the archived writes that Hudi no longer takes for what they are; None when there are none.

    The archive of layout 2 names the instants of each of its files, so nothing more is read of a sound table. That of
    layout 1 has to be read whole, and is only where a savepoint is active. Raises as `load_archive` does.
    """
    active = list_active(timeline)
    by_completion = properties.slices_by_completion
    if not active or (properties.layout is Layout.V1 and not needs_archive(active, slices_by_completion=by_completion)):
        return None
    archived = load_archive(storage, properties, after=min(active).requested_time).instants
    writes = [instant.requested_time for instant in archived if instant.is_write]
    return find_archived_behind(active, writes, slices_by_completion=by_completion)


def load_archived_commit(instant: ArchivedInstant) -> CommitMetadata:
    """Parse the metadata of an archived write, which must have been loaded with content. Raises DamagedFileError."""
    name = f"{instant.file_name}: {instant.requested_time}.{instant.action}"
    return parse_commit_metadata(decode(instant.metadata or b"", name), name)


# --- The log files of layout 1


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record of an archive: one state of one instant, and the content that this state brings along."""

    requested_time: str
    action: Action
    state: State
    transition_time: str | None
    file_name: str
    content: bytes | None

    @property
    def key(self) -> tuple[str, Action]:
        """What the states of one instant share."""
        return self.requested_time, COMPARABLE_ACTION.get(self.action, self.action)


@dataclass(slots=True)
class _Gathering:
    """What the files that were read so far hold."""

    requested: RequestedRange
    with_content: bool
    entries: list[LogEntry] = field(default_factory=list)
    problems: list[TimelineProblem] = field(default_factory=list)
    readers: dict[bytes, RecordReader] = field(default_factory=dict)
    """By schema: it is the same in nearly every block, and long."""


def load_log_archive(
    storage: Storage, history_path: str, requested: RequestedRange, *, with_content: bool
) -> ArchivedTimeline:
    """Load all archive files. Raises StorageError, DamagedFileError, UnsupportedTableError."""
    for attempt in range(ATTEMPTS):
        try:
            sizes = {
                entry.name: entry.size_bytes for entry in storage.list_entries(history_path) if not entry.is_folder
            }
        except FileNotFoundError:
            return ArchivedTimeline()
        try:
            return _load_files(storage, history_path, sizes, _Gathering(requested, with_content))
        except FileNotFoundError as error:  # small files that were merged meanwhile: their instants are elsewhere now
            if attempt == ATTEMPTS - 1:
                raise DamagedFileError(f"{error}: listed, but missing") from error
    raise AssertionError("unreachable")


def _load_files(storage: Storage, folder: str, sizes: Mapping[str, int], gathering: _Gathering) -> ArchivedTimeline:
    merged = _unfinished_merge(storage, folder, sizes, gathering.problems)
    numbers = {name: int(match[1]) for name in sizes if (match := _FILE.fullmatch(name))}
    for name in sorted(numbers, key=lambda name: (numbers[name], name)):
        where = f"{storage.base_path}/{folder}/{name}"
        if sizes[name] > MAX_FILE_BYTES:
            raise DamagedFileError(f"{where}: {sizes[name]} bytes are more than an archive's file can have")
        known = len(gathering.problems)
        try:
            _read_file(storage.read_bytes(f"{folder}/{name}", MAX_FILE_BYTES), where, name, gathering)
        except DamagedFileError:
            if name != merged:
                raise
        if name == merged:  # all that it should hold is still in the files that are being merged
            del gathering.problems[known:]
    for name in sizes.keys() - numbers.keys() - {MERGE_PLAN}:
        if not is_known_stranger(name):
            printable = name.encode("utf-8", "backslashreplace").decode()
            gathering.problems.append(TimelineProblem(printable, "not a file of the archive"))
    return _timeline_of(gathering)


def _unfinished_merge(
    storage: Storage, folder: str, sizes: Mapping[str, int], problems: list[TimelineProblem]
) -> str | None:
    """Return the file that older versions of Hudi are merging others into, while all of those are still there."""
    if MERGE_PLAN not in sizes:
        return None
    try:
        if sizes[MERGE_PLAN] > MAX_PLAN_BYTES:
            raise DamagedFileError(f"{sizes[MERGE_PLAN]} bytes are more than a plan can have")
        plan = decode(storage.read_bytes(f"{folder}/{MERGE_PLAN}", MAX_PLAN_BYTES), MERGE_PLAN) or {}
    except DamagedFileError as error:
        problems.append(TimelineProblem(MERGE_PLAN, str(error)))
        return None
    merged = plan.get("mergedArchiveFileName")
    candidates = plan.get("candidate")
    if not (isinstance(merged, str) and isinstance(candidates, list) and candidates):
        problems.append(TimelineProblem(MERGE_PLAN, "not a plan that names files and what they are merged into"))
        return None
    target, *sources = (str(path).rsplit("/", 1)[-1] for path in (merged, *candidates))
    return target if target not in sources and all(source in sizes for source in sources) else None


def _read_file(content: bytes, where: str, name: str, gathering: _Gathering) -> None:
    if not content:
        gathering.problems.append(TimelineProblem(name, "empty: its archiver is writing it, or has died"))
    for block in read_blocks(content, where):
        if isinstance(block, DamagedBlock):
            reason = f"{block.reason}; bytes {block.start} to {block.end} are skipped, instants may be missing"
            gathering.problems.append(TimelineProblem(name, reason))
            continue
        reader = gathering.readers.get(block.schema)
        if reader is None:
            reader = gathering.readers[block.schema] = RecordReader(block.schema, _ENTRY_FIELDS, where)
        for record in block.records:
            entry = _entry_of(reader, record, where, name, gathering)
            if entry is not None:
                gathering.entries.append(entry)


def _entry_of(reader: RecordReader, record: bytes, where: str, name: str, gathering: _Gathering) -> LogEntry | None:
    fields = reader.read_fields(record, where)
    requested_time = _time_of(fields.get("commitTime"), where)
    action = _text_of(fields.get("actionType"))
    # The first archives carried no state: they held completed instants only.
    state = _text_of(fields.get("actionState") or State.COMPLETED.value)
    if action not in _VALUES_OF_ACTION or state not in _VALUES_OF_STATE:
        raise UnsupportedTableError(
            f"{where}: {requested_time} has the unknown action or state {action[:50]!r}, {state[:50]!r}"
        )
    if not gathering.requested.contains(requested_time):
        return None
    moment = fields.get("stateTransitionTime")
    transition_time = _time_of(moment, where) if moment else None
    content = None
    if gathering.with_content:
        content = _content_of(reader.read_all(record, where), Action(action), State(state), where)
    return LogEntry(requested_time, Action(action), State(state), transition_time, name, content)


def _time_of(value: Any, where: str) -> str:
    if not (isinstance(value, str) and value.isascii() and value.isdigit()):
        raise DamagedFileError(f"{where}: not an instant time: {str(value)[:50]!r}")
    return value


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else f"{value!r}"


def _content_of(record: Mapping[str, Any], action: Action, state: State, where: str) -> bytes | None:
    """Return the content as JSON, which active timelines of layout 1 are written in: readers need know no archive."""
    fields = _METADATA_FIELD if state is State.COMPLETED else _PLAN_FIELD
    value = record.get(fields.get(action, ""))
    return None if value is None else to_json(value, where)


def _timeline_of(gathering: _Gathering) -> ArchivedTimeline:
    plans = {
        entry.key: entry.content
        for entry in gathering.entries
        if entry.state is not State.COMPLETED and entry.content is not None
    }
    completed = [entry for entry in gathering.entries if entry.state is State.COMPLETED]
    instants = [
        ArchivedInstant(
            entry.requested_time,
            entry.action,
            entry.transition_time,
            entry.file_name,
            entry.content,
            plans.get(entry.key),
        )
        for entry in completed
    ]
    return archived_timeline_of(instants, [*gathering.problems, *_incomplete(gathering.entries, completed)])


def _incomplete(entries: Iterable[LogEntry], completed: Iterable[LogEntry]) -> Iterable[TimelineProblem]:
    """Report instants that only have pending states: Hudi archives none of those, so the rest of them is lost."""
    whole = {entry.key for entry in completed}
    for entry in {entry.key: entry for entry in entries if entry.key not in whole}.values():
        reason = f"holds the beginning of {entry.requested_time}.{entry.action}, but no file its completion"
        yield TimelineProblem(entry.file_name, reason)

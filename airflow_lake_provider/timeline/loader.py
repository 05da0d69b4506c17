"""Load a table's active timeline: one listing, no file is opened.

In layout 2 the names say everything. In layout 1 the completion time is the modification time of the completed file, so
the listing carries times. A name that is not understood is reported, never skipped in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.instant import COMPARABLE_ACTION, STATE_RANK, Instant, Layout, is_known_stranger
from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.timeline.instant import Action
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage

# What lies in the timeline's folder and is no instant: folders of either layout, and files of layout 1's `.hoodie`.
_KNOWN_NAMES = frozenset(
    {
        "hoodie.properties",
        "hoodie.properties.backup",
        "hoodie.properties.updated",
        "history",
        "archived",
        "metadata",
        "timeline",
        ".temp",
        ".heartbeat",
        ".aux",
        ".schema",
        ".locks",
        ".index_defs",
        ".bucket_index",
        ".hashing_meta",
        ".expr_index_defs",
        "lock",
        "partition_metadata",
    }
)


@dataclass(frozen=True, slots=True)
class TimelineListing:
    """A timeline and the names that it was built from, so that the next one need only look at new names."""

    timeline: Timeline
    names: frozenset[str]


def load_timeline(storage: Storage, properties: TableProperties) -> Timeline:
    """List the timeline's folder and build the timeline. Raises StorageError; DamagedFileError when it is gone."""
    return load_listing(storage, properties).timeline


def load_listing(
    storage: Storage, properties: TableProperties, previous: TimelineListing | None = None
) -> TimelineListing:
    """Do as `load_timeline`; with an earlier listing of the same table, only names that were added are parsed."""
    try:
        if properties.layout.completion_is_modification:
            entries = storage.list_entries(properties.timeline_path)
            modified_ms = {entry.name: entry.modified_ms for entry in entries}
            timeline = build_timeline(properties.layout, modified_ms, modified_ms, properties.time_zone)
            return TimelineListing(timeline, frozenset(modified_ms))
        names = frozenset(storage.list_names(properties.timeline_path))
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"table {storage.base_path!r}: its timeline folder {properties.timeline_path} is missing"
        ) from error
    if previous is not None and names >= previous.names:
        added = names - previous.names
        return TimelineListing(extend_timeline(properties.layout, previous.timeline, added), names)
    return TimelineListing(build_timeline(properties.layout, names), names)


def build_timeline(
    layout: Layout, names: Iterable[str], modified_ms: Mapping[str, int] | None = None, time_zone: str = "LOCAL"
) -> Timeline:
    """Build a timeline from the names in its folder.

    `modified_ms` gives layout 1 its completion times, printed in the table's time zone.
    """
    highest: dict[tuple[str, Action], tuple[int, str]] = {}
    problems = _collect_highest(layout, names, highest)
    instants = [_parse_known(layout, name) for _, name in highest.values()]
    if modified_ms is not None:
        instants = [_with_completion(instant, modified_ms, time_zone) for instant in instants]
    return _timeline_of(instants, problems)


def extend_timeline(layout: Layout, timeline: Timeline, added: Iterable[str]) -> Timeline:
    """Build what `build_timeline` would from the timeline's names and the added ones (layout 2)."""
    highest: dict[tuple[str, Action], tuple[int, str]] = {}
    problems = _collect_highest(layout, added, highest)
    kept = []
    for instant in timeline.instants:
        key = (instant.requested_time, COMPARABLE_ACTION.get(instant.action, instant.action))
        newer = highest.get(key)
        if newer is None or newer < (STATE_RANK[instant.state], instant.file_name):
            kept.append(instant)
            highest.pop(key, None)
    added_instants = [_parse_known(layout, name) for _, name in highest.values()]
    return _timeline_of([*kept, *added_instants], [*timeline.problems, *problems])


def _collect_highest(
    layout: Layout, names: Iterable[str], highest: dict[tuple[str, Action], tuple[int, str]]
) -> list[TimelineProblem]:
    """Keep the name of the highest state per requested time and comparable action; return what is not understood."""
    problems: list[TimelineProblem] = []
    split = layout.split_file_name
    for name in names:
        parts = split(name)
        if parts is None:
            if name not in _KNOWN_NAMES and not is_known_stranger(name):
                problems.append(TimelineProblem(name, "not a name of the timeline that this package knows"))
            continue
        key, candidate = (parts[0], parts[2].comparable), (parts[2].rank, name)
        known = highest.get(key)
        if known is None or candidate > known:  # the name decides between equals, whatever the listing's order
            highest[key] = candidate
    return problems


def _parse_known(layout: Layout, name: str) -> Instant:
    instant = layout.parse_file_name(name)
    if instant is None:
        raise DamagedFileError(f"{name} is no instant")
    return instant


def _timeline_of(instants: list[Instant], problems: list[TimelineProblem]) -> Timeline:
    instants.sort(key=_SORT_KEY)
    return Timeline(tuple(instants), tuple(sorted(problems, key=lambda problem: problem.file_name)))


# At most one instant per requested time and comparable action is left, so the state never decides the order.
_SORT_KEY = attrgetter("requested_time", "action")


def _with_completion(instant: Instant, modified_ms: Mapping[str, int], time_zone: str) -> Instant:
    if not instant.is_completed or instant.completed_time is not None:
        return instant
    completed_time = format_instant_time(modified_ms.get(instant.file_name, 0), time_zone)
    return Instant(instant.requested_time, instant.action, instant.state, completed_time, instant.file_name)


def format_instant_time(time_ms: int, time_zone: str) -> str:
    """Print ms since the epoch as an instant time: in UTC, else in this process's zone, as Hudi does for LOCAL."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if time_zone != "UTC":
        moment = moment.astimezone()
    return moment.strftime("%Y%m%d%H%M%S") + f"{time_ms % 1000:03d}"

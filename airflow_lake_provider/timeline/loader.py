"""Load a table's active timeline: one listing, no file is opened.

In layout 2 the names say everything. In layout 1 the completion time is the modification time of the completed file, so
the listing carries times. A name that is not understood is reported, never skipped in silence.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.instant import COMPARABLE_ACTION, STATE_RANK, Instant, Layout, is_known_stranger
from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def load_timeline(storage: Storage, properties: TableProperties) -> Timeline:
    """List the timeline's folder and build the timeline. Raises StorageError; DamagedFileError when it is gone."""
    try:
        if not properties.layout.completion_is_modification:
            return build_timeline(properties.layout, storage.list_names(properties.timeline_path))
        entries = storage.list_entries(properties.timeline_path)
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"table {storage.base_path!r}: its timeline folder {properties.timeline_path} is missing"
        ) from error
    modified_ms = {entry.name: entry.modified_ms for entry in entries}
    return build_timeline(properties.layout, modified_ms, modified_ms, properties.time_zone)


def build_timeline(
    layout: Layout, names: Iterable[str], modified_ms: Mapping[str, int] | None = None, time_zone: str = "LOCAL"
) -> Timeline:
    """Build a timeline from the names in its folder.

    `modified_ms` gives layout 1 its completion times, printed in the table's time zone.
    """
    highest: dict[tuple[str, str], Instant] = {}
    problems: list[TimelineProblem] = []
    parse = layout.parse_file_name
    for name in names:
        instant = parse(name)
        if instant is None:
            if name not in _KNOWN_NAMES and not is_known_stranger(name):
                problems.append(TimelineProblem(name, "not a name of the timeline that this package knows"))
            continue
        key = (instant.requested_time, COMPARABLE_ACTION.get(instant.action, instant.action))
        known = highest.get(key)
        if known is None or STATE_RANK[instant.state] > STATE_RANK[known.state]:
            highest[key] = instant
    instants = sorted(highest.values(), key=lambda instant: instant.sort_key)
    if modified_ms is not None:
        instants = [_with_completion(instant, modified_ms, time_zone) for instant in instants]
    return Timeline(tuple(instants), tuple(sorted(problems, key=lambda problem: problem.file_name)))


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

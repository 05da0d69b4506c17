"""A table's complete timeline at one moment, and what is new since another. Values and pure functions."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.properties import TableProperties

_VERSION_LENGTH = 32


@dataclass(frozen=True, slots=True)
class TimelineSnapshot:
    """The active timeline with requested, inflight and completed instants.

    `version` depends on the content alone: it changes when, and only when, timeline or properties do, and is the same
    for every reader, so it outlives any server. The storage was read at `as_of_ms` (ms since the epoch); later changes
    are not in it.
    """

    base_path: str
    version: str
    properties: TableProperties
    timeline: Timeline
    as_of_ms: int


def version_of(timeline: Timeline, properties: TableProperties) -> str:
    """Return the version of a timeline: a hash of its instants and of the table's properties."""
    # In layout 2 a name contains everything; in layout 1 the completion time is not part of it.
    names = [f"{i.file_name} {i.completed_time}" for i in timeline.instants]
    problems = [f"{problem.file_name} {problem.reason}" for problem in timeline.problems]
    text = "\n".join([repr(sorted(properties.raw.items())), *names, *problems])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_VERSION_LENGTH]


def find_new_names(before: TimelineSnapshot, after: TimelineSnapshot) -> frozenset[str]:
    """Return the file names of instants that are new or in a new state; a layout 1 file rewritten in place is new."""
    known = {(i.file_name, i.completed_time) for i in before.timeline.instants}
    now = {(i.file_name, i.completed_time) for i in after.timeline.instants}
    return frozenset(name for name, _ in now - known)


def problems_text(problems: Iterable[TimelineProblem]) -> str:
    """Return problems as one line for a log or an answer."""
    return "; ".join(f"{problem.file_name}: {problem.reason}" for problem in problems)


# --- A snapshot in few bytes: what a server caches of ten thousand tables, and what its snapshot file holds
#
# Packing and unpacking are inverses. One packed table is a few hundred bytes to a few kilobytes of compressed JSON.

_FAST = 1
_MOST_BYTES = 256 * 1024 * 1024
_FORMAT = 1


def pack(snapshot: TimelineSnapshot) -> bytes:
    """Return the snapshot as bytes."""
    return zlib.compress(json.dumps(to_record(snapshot), separators=(",", ":")).encode(), _FAST)


def unpack(packed: bytes) -> TimelineSnapshot:
    """Return what was packed. Raises DamagedFileError for anything else."""
    try:
        text = zlib.decompressobj().decompress(packed, _MOST_BYTES)
        return from_record(json.loads(text))
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedFileError(f"not a packed timeline: {type(error).__name__} {error}") from error


def to_record(snapshot: TimelineSnapshot) -> dict[str, Any]:
    """Return the snapshot as JSON's own types."""
    return {
        "format": _FORMAT,
        "base_path": snapshot.base_path,
        "version": snapshot.version,
        "as_of_ms": snapshot.as_of_ms,
        "properties": dict(snapshot.properties.raw),
        "instants": [_line(snapshot.properties.layout, instant) for instant in snapshot.timeline.instants],
        "problems": [[problem.file_name, problem.reason] for problem in snapshot.timeline.problems],
    }


def from_record(record: Mapping[str, Any]) -> TimelineSnapshot:
    """Return the snapshot of a record. Raises KeyError, TypeError or ValueError for anything else."""
    if record["format"] != _FORMAT:
        raise ValueError(f"format {record['format']!r}, known: {_FORMAT}")
    properties = build_table_properties(record["properties"], record["base_path"])
    return TimelineSnapshot(
        base_path=str(record["base_path"]),
        version=str(record["version"]),
        properties=properties,
        timeline=Timeline(
            tuple(_instant(properties.layout, line) for line in record["instants"]),
            tuple(TimelineProblem(str(name), str(reason)) for name, reason in record["problems"]),
        ),
        as_of_ms=int(record["as_of_ms"]),
    )


def _line(layout: Layout, instant: Instant) -> str | list[str]:
    parsed = layout.parse_file_name(instant.file_name)
    # Layout 1's completion times, and those of early writers of layout 2, are not in the name.
    return instant.file_name if parsed == instant else [instant.file_name, instant.completed_time or ""]


def _instant(layout: Layout, line: str | Sequence[str]) -> Instant:
    name, completed_time = (line, None) if isinstance(line, str) else (line[0], line[1])
    instant = layout.parse_file_name(name)
    if instant is None:
        raise ValueError(f"{name!r} is no instant's file name")
    if completed_time is None:
        return instant
    return Instant(instant.requested_time, instant.action, instant.state, completed_time or None, name)


# --- How old an answer may be


@dataclass(frozen=True, slots=True)
class Freshness:
    """Bounds of an answer's age in seconds; None is no bound.

    `max_age_s` always holds. `unannounced_max_age_s` holds unless the table's writers are known to announce their
    commits: the server would have got a notice.
    """

    max_age_s: float | None = None
    unannounced_max_age_s: float | None = None

    def most_s(self, *, is_announced: bool) -> float:
        """Return the bound for a table whose writers are, or are not, known to announce their commits."""
        bounds = [self.max_age_s, None if is_announced else self.unannounced_max_age_s]
        return min((bound for bound in bounds if bound is not None), default=math.inf)


ANY_AGE = Freshness()
"""Any age that the server considers current."""

NOW = Freshness(max_age_s=0.0)
"""The storage is read after the request."""

"""A snapshot as few bytes: what a server keeps of ten thousand tables, and what its snapshot file holds.

Packing and unpacking are inverses. One packed table is a few hundred bytes to a few kilobytes of compressed JSON.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.instant import Instant, Layout
from airflow_lake_provider.timeline.properties import build_table_properties
from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem
from airflow_lake_provider.view.snapshot import TimelineSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

"""A table's complete timeline at one moment, and what is new since another. Values and pure functions."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.instant import Instant, Layout, TimelineProblem
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
# Packing and unpacking are inverses. Ten instants and the properties of a table are 150 bytes: the text that most
# tables have in common is in a dictionary. A change of that, or of the format, makes older snapshot files unreadable:
# `refresh.py` has their version.

_LEVEL = 6
_MOST_BYTES = 256 * 1024 * 1024
_RAW_WINDOW = -15
"""Without zlib's own header and checksum: 6 bytes less a table."""

# What is most frequent comes last, because nearer text takes fewer bits.
_COMMON = (
    b'"hoodie.table.initial.version":"9","hoodie.table.base.file.format":"PARQUET","hoodie.populate.meta.fields":"true",'
    b'"hoodie.table.multiple.base.file.formats.enable":"false","hoodie.datasource.write.drop.partition.columns":"false",'
    b'"hoodie.datasource.write.hive_style_partitioning":"false","hoodie.datasource.write.partitionpath.urlencode":"false",'
    b'"hoodie.table.cdc.enabled":"false","hoodie.table.log.file.format":"HOODIE_LOG","hoodie.archivelog.folder":"archived",'
    b'"hoodie.timeline.history.path":"history","hoodie.timeline.path":"timeline","hoodie.database.name":"",'
    b'"hoodie.table.partition.fields":"","hoodie.table.recordkey.fields":"","hoodie.table.keygenerator.type":"SIMPLE",'
    b'"hoodie.table.keygenerator.class":"org.apache.hudi.keygen.","hoodie.table.ordering.fields":"ts",'
    b'"hoodie.table.precombine.field":"ts","hoodie.record.merge.mode":"EVENT_TIME_ORDERING",'
    b'"hoodie.record.merge.strategy.id":"eeb8d96f-b1e4-49fd-bbf8-28ac514178e5","hoodie.compaction.payload.class":'
    b'"org.apache.hudi.common.model.DefaultHoodieRecordPayload","hoodie.table.create.schema":"{\\"type\\":\\"record\\",'
    b'\\"name\\":\\"\\",\\"fields\\":[{\\"name\\":\\"\\",\\"type\\":[\\"null\\",\\"string\\"],\\"default\\":null},",'
    b'"hoodie.table.metadata.partitions.inflight":"","hoodie.table.metadata.partitions":"column_stats,files,partition_stats",'
    b'"hoodie.table.index.defs.path":".hoodie/.index_defs/index.json","COPY_ON_WRITE",'
    b'"hoodie.table.name":"","hoodie.table.type":"MERGE_ON_READ","hoodie.table.version":"9","hoodie.timeline.layout.version":"2",'
    b'"hoodie.table.timeline.timezone":"UTC","hoodie.table.checksum":"'
    b'.indexing",".savepoint",".rollback.requested",".rollback.inflight",".replacecommit.requested",".clustering.requested",'
    b'".compaction.requested",".compaction.inflight",".inflight",".replacecommit",".rollback",".clean",".commit","20'
    b'.deltacommit.requested",".deltacommit.inflight",".deltacommit","20'
)


def pack(snapshot: TimelineSnapshot) -> bytes:
    """Return properties, instants and problems as bytes; base path, version and age are not among them."""
    layout = snapshot.properties.layout
    record = [
        dict(snapshot.properties.raw),
        [_line(layout, instant) for instant in snapshot.timeline.instants],
        [[problem.file_name, problem.reason] for problem in snapshot.timeline.problems],
    ]
    text = json.dumps(record, separators=(",", ":")).encode()
    packer = zlib.compressobj(_LEVEL, wbits=_RAW_WINDOW, zdict=_COMMON)
    return packer.compress(text) + packer.flush()


def unpack(packed: bytes, base_path: str, version: str, as_of_ms: int) -> TimelineSnapshot:
    """Return what was packed, with what was not. Raises DamagedFileError for anything else."""
    try:
        unpacker = zlib.decompressobj(_RAW_WINDOW, zdict=_COMMON)
        text = unpacker.decompress(packed, _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("cut off")
        values, lines, problems = json.loads(text)
        properties = build_table_properties(values, base_path)
        timeline = Timeline(
            tuple(_instant(properties.layout, line) for line in lines),
            tuple(TimelineProblem(str(name), str(reason)) for name, reason in problems),
        )
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DamagedFileError(f"not a packed timeline: {type(error).__name__} {error}") from error
    return TimelineSnapshot(base_path, version, properties, timeline, as_of_ms)


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

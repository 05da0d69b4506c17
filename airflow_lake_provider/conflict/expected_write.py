"""When the next write of a table is due, by its own rhythm; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_lake_provider.view.rhythm import SUSPICIOUS_AFTER_GAPS, find_rhythm_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.view.snapshot import TimelineSnapshot

DEFAULT_DURATION_MS = 60_000
"""How long a clustering is taken to run while the timeline does not tell."""
_RECENT_WRITES = 10
_SECONDS = 14
_MS = 1000
# Services are no writes; a bulk insert begins new file groups and touches no other.
_TOUCH_NOTHING_OLD = frozenset({"COMPACT", "LOG_COMPACT", "CLUSTER", "BULK_INSERT"})
_CLUSTER = "CLUSTER"


@dataclass(frozen=True, slots=True)
class ExpectedWrite:
    """The write that is due next (ms since the epoch), and the partitions that the last ten writes touched."""

    due_ms: int
    gap_ms: int
    partitions: frozenset[str]


def expect_write(
    snapshot: TimelineSnapshot, commits: Mapping[str, CommitMetadata], now_ms: int
) -> ExpectedWrite | None:
    """Return the next write; None where there is no rhythm, where it ended, or where clocks do not fit.

    `commits` is the metadata of completed writes by requested time. A rhythm ended when three usual gaps passed.
    """
    gap_s = find_rhythm_s(snapshot.timeline)
    writes = snapshot.timeline.completed_writes_by_completion()
    if gap_s is None or not writes:
        return None
    last_ms = instant_ms(writes[-1].completed_time or "", snapshot.properties.time_zone)
    gap_ms = int(gap_s * _MS)
    if last_ms is None or not 0 <= now_ms - last_ms <= SUSPICIOUS_AFTER_GAPS * gap_ms:
        return None
    touched = [commits[write.requested_time] for write in writes[-_RECENT_WRITES:] if write.requested_time in commits]
    stats = (stat for write in touched if write.operation not in _TOUCH_NOTHING_OLD for stat in write.stats)
    partitions = frozenset(stat.partition for stat in stats)
    return ExpectedWrite(last_ms + gap_ms, gap_ms, partitions) if partitions else None


def last_duration_ms(
    writes: Iterable[Instant], commits: Mapping[str, CommitMetadata], operation: str = _CLUSTER
) -> int | None:
    """Return how long the last service of an operation took from plan to commit; None when none is known."""
    found = None
    for write in writes:
        metadata = commits.get(write.requested_time)
        if metadata is not None and metadata.operation == operation:
            begin, end = instant_ms(write.requested_time, "UTC"), instant_ms(write.completed_time or "", "UTC")
            found = end - begin if begin is not None and end is not None else found
    return found


def instant_ms(instant_time: str, time_zone: str) -> int | None:
    """Return an instant time as ms since the epoch; in zone LOCAL it is taken for this machine's."""
    try:
        moment = datetime.strptime(instant_time[:_SECONDS], "%Y%m%d%H%M%S")  # noqa: DTZ007 - the zone follows
    except ValueError:
        return None
    zoned = moment.replace(tzinfo=UTC) if time_zone == "UTC" else moment.astimezone()
    return int(zoned.timestamp() * _MS)

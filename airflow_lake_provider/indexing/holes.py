"""The last completed instant without holes, what is in the way of a later one, and what becomes of the commits beyond.

RFC-45's open case: C5 is in flight, C6 to C8 are completed. The plan's base instant is C4, the last completed write
before the first pending one (Hudi: contiguous completed write timeline). Nothing waits for C5 all the same: the build
reads the newest file slices, so C6 to C8 are in, and C5 writes its own entries when it commits, or is rolled back.
Pure; the clock is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.heartbeat import HeartbeatRule
from airflow_lake_provider.hudi.instant import COMPARABLE_ACTION, WRITE_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline

DEFAULT_RULE = HeartbeatRule()


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
            return (f"no holes: the last completed write is {self.last_without_holes or 'not there yet'}",)
        lines = [f"last completed instant without holes: {self.last_without_holes or 'none'}"]
        lines += [f"in the way: {hole}: {_fate(hole)}" for hole in self.holes]
        if self.beyond:
            lines.append(
                f"completed beyond: {', '.join(self.beyond)}: a build takes them in all the same, from the newest files"
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

    `touched_ms` gives each pending instant's file's modification time by requested time, `heartbeats` the last beats,
    both in ms since the epoch. `rule` says when a writer counts as dead, by the table's Hudi settings.
    """
    pending = timeline.pending(*WRITE_ACTIONS)
    holes = tuple(_hole(instant, touched_ms, heartbeats, now_ms, rule) for instant in pending)
    last = timeline.latest_write_without_holes()
    first_hole = pending[0].requested_time if pending else None
    beyond = tuple(
        write.requested_time
        for write in timeline.completed_writes_by_completion()
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

"""Arithmetic of instant times, and whether a timeline's instants carry the time zone of the provider's jobs. Pure.

Hudi prints an instant in the zone of the JVM that makes it, unless the table sets UTC (`HoodieInstantTimeGenerator`,
`hoodie.table.timeline.timezone`), and orders everything by the printed time. Where writers and services run in
different zones, a commit that was made later sorts before an earlier one, and readers leave its rows out. The names do
not show the zone, but the store records when each file was made.

Standard library only: this file travels to Spark in the jobs' zip.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TypeAlias

from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action

# --- Instant times (`yyyyMMddHHmmss` and, since Hudi 0.10, three digits of milliseconds) as numbers, and back

_FORMAT = "%Y%m%d%H%M%S"
_SECONDS = 14
"""Characters of an instant time without its milliseconds."""


def instant_time_ms(instant_time: str, zone: tzinfo) -> int | None:
    """Return an instant time as ms since the epoch, the inverse of `format_instant_time`; None when it is no time.

    `zone` is the one in which the table's instants are named (`hudi.properties.zone_of_jobs`). For the distance of two
    instants of one table UTC will do.
    """
    try:
        moment = datetime.strptime(instant_time[:_SECONDS], _FORMAT)  # noqa: DTZ007 - the zone follows
        milliseconds = int(instant_time[_SECONDS:17] or 0)
        return int(moment.replace(tzinfo=zone).timestamp()) * 1000 + milliseconds
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=8192)
def _utc_ms(instant_time: str) -> int | None:
    """Return an instant time as if its zone were UTC; the same names are compared again and again."""
    return instant_time_ms(instant_time, UTC)


def format_instant_time(time_ms: int, zone: tzinfo) -> str:
    """Print ms since the epoch as an instant time of a zone."""
    return _print(datetime.fromtimestamp(time_ms // 1000, zone), time_ms % 1000)


def shift_instant_time(instant_time: str, by_ms: int) -> str:
    """Return an instant time moved within its own zone, whichever that is; empty when it, or the result, is no time."""
    time_ms = instant_time_ms(instant_time, UTC)
    if time_ms is None:
        return ""
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms + by_ms)
    except OverflowError:
        return ""
    return _print(moment, moment.microsecond // 1000)


def instant_age_s(instant_time: str, zone: tzinfo, now_s: float) -> float:
    """Return how many seconds ago an instant time was; 0 when it lies in the future or is no time."""
    time_ms = instant_time_ms(instant_time, zone)
    return 0.0 if time_ms is None else max(0.0, now_s - time_ms / 1000)


def _print(moment: datetime, milliseconds: int) -> str:
    # `%Y` prints no leading zeros.
    return f"{moment.year:04d}{moment:%m%d%H%M%S}{milliseconds:03d}"


# --- Whether instants carry the time zone of the jobs

OffsetOf: TypeAlias = Callable[[int], int]
"""Returns by how many ms the wall clock of the jobs' zone is ahead of UTC at a time (ms since the epoch)."""

LAST_INSTANTS = 10
"""How many of the instants that were made last decide whether a service may run."""
ALWAYS_COUNTED = 3
"""Of these, so many count even when they were made more than a day before the newest."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ZONE_STEP_MS = 15 * 60_000
"""Time zones differ by multiples of a quarter of an hour."""
WIDEST_MS = 26 * 3_600_000
"""No two zones differ by more."""
TOLERANCE_MS = 60_000
"""By how much a file may be younger than the time in its name, apart from the zones: a slow store, a wrong clock."""
FUTURE_MS = 5 * 60_000
"""An instant that is further ahead of now than this is taken for no clock's error."""
SHORTEST_SPAN_MS = 2000
STEADY_SHARE = 4
"""Files were written, and not copied, when their times keep the names' distances to within a fourth."""

_NAME = re.compile(r"(\d{14}(?:\d{3})?)(?:_(\d{14}(?:\d{3})?))?\.([a-z]+)(\.requested)?", re.ASCII)
_REWRITES = frozenset({Action.COMMIT, Action.COMPACTION, Action.REPLACECOMMIT, Action.CLUSTERING})
# The requests of these are empty. A clustering's request is a replacecommit's in layout 1.
_BEGUN_AT_ONCE = frozenset({Action.COMMIT, Action.DELTACOMMIT})
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time in a timeline file's name, and the store's time of the file (ms since the epoch)."""

    instant: str
    """The instant's requested time."""
    time: str
    """The requested or the completed time, as the name has it."""
    action: str
    is_completion: bool
    made_ms: int

    @property
    def is_prompt(self) -> bool:
        """Whether such a file is made when it is named; a plan's is when it was planned, which may take long."""
        return self.is_completion or self.action in _BEGUN_AT_ONCE

    @property
    def wall_ms(self) -> int | None:
        """Return the time in the name as ms since the epoch, as if its zone were UTC; None when it is no time."""
        return _utc_ms(self.time)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Instants that were not made in the jobs' zone, in the order in which they were made.

    `ahead_ms` is by how much the last of them is ahead of the jobs' wall clock, or, if negative, behind it.
    """

    instants: tuple[str, ...]
    ahead_ms: int
    is_future: bool = False
    """Whether the last of them is ahead of now, which no file's time is needed for."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Writes that were made after a commit with new base files and sort before it: readers leave their rows out."""

    instant: str
    action: str
    writes: tuple[str, ...]


def stamps_of(files: Iterable[tuple[str, int]]) -> tuple[Stamp, ...]:
    """Return the stamps of the files in a timeline's folder (name, modification time in ms), by their creation.

    Those are requests, and completed ones whose name has a completed time. Others have no stamp, and neither have the
    files of a store without times.
    """
    found = []
    for name, made_ms in files:
        parts = _NAME.fullmatch(name)
        if parts is None or made_ms <= 0:
            continue
        requested, completed, action, is_request = parts.groups()
        if is_request and completed is None:
            found.append(Stamp(requested, requested, action, is_completion=False, made_ms=made_ms))
        elif completed is not None and not is_request:
            found.append(Stamp(requested, completed, action, is_completion=True, made_ms=made_ms))
    return tuple(sorted(found, key=lambda stamp: (stamp.made_ms, stamp.time)))


def find_foreign(stamps: Sequence[Stamp], offset_of: OffsetOf, now_ms: int) -> Foreign | None:
    """Return the newest instants that another zone's clock made; None when there are none.

    A copied table proves nothing: a copy's files are as far apart as the copying was, not as their names are. An
    instant ahead of now is proof without its file's time.
    """
    ahead = tuple(s for s in stamps if (_wall(s) - now_ms - offset_of(now_ms)) > FUTURE_MS)
    if ahead:
        latest = max(ahead, key=lambda stamp: stamp.time)
        return Foreign(_instants(ahead), _wall(latest) - now_ms - offset_of(now_ms), is_future=True)
    proven = _proven(stamps, offset_of)
    newest = _newest(stamps)
    foreign = [s for zone, group in proven.items() if zone for s in group if s.instant in newest]
    if not foreign:
        return None
    foreign.sort(key=lambda stamp: stamp.made_ms)
    return Foreign(_instants(foreign), _zone(foreign[-1], offset_of) * ZONE_STEP_MS)


def is_proven(stamps: Sequence[Stamp], offset_of: OffsetOf) -> bool:
    """Whether the times of files prove that one of the newest instants was named in the jobs' zone."""
    newest = _newest(stamps)
    return any(stamp.instant in newest for stamp in _proven(stamps, offset_of).get(0, ()))


def was_written(stamp: Stamp) -> bool:
    """Whether a file has the time in its name, in whatever zone: a copy that was made later has not."""
    drift = _wall(stamp) - stamp.made_ms
    zone = round(drift / ZONE_STEP_MS)
    return abs(drift) <= WIDEST_MS and abs(drift - zone * ZONE_STEP_MS) <= TOLERANCE_MS


def offsets_of_writers(stamps: Iterable[Stamp]) -> Mapping[str, int]:
    """Return by instant by how many ms its writer's wall clock was ahead of UTC, as far as files show it.

    A file that was made when its instant was named has that clock's time in its name, and the store's own as its time.
    A copy has not, and a plan's file may be much younger than its name.
    """
    prompt = [stamp for stamp in stamps if stamp.is_prompt and was_written(stamp)]
    return {s.instant: round((_wall(s) - s.made_ms) / ZONE_STEP_MS) * ZONE_STEP_MS for s in prompt}


def find_overtaken(stamps: Sequence[Stamp], offset_of: OffsetOf) -> Overtaken | None:
    """Return the newest commit with new base files that sorts behind writes made after it; None when there is none.

    Only writes whose zone is proven count. The order of copied files proves nothing.
    """
    zones = {s.instant: zone for zone, group in _proven(stamps, offset_of).items() for s in group}
    begun = [stamp for stamp in stamps if not stamp.is_completion]
    for base in reversed([stamp for stamp in begun if stamp.action in _REWRITES]):
        later = [
            s
            for s in begun
            if s.made_ms > base.made_ms and s.instant < base.instant and s.action in COMPLETED_WRITE_ACTIONS
        ]
        zone = _zone(base, offset_of)
        writes = _instants(s for s in later if zones.get(s.instant, zone) != zone)
        if writes:
            return Overtaken(base.instant, base.action, writes)
    return None


def describe_foreign(foreign: Foreign, zone_name: str, table_zone: str) -> str:
    """Describe what was found, its effect, and what to do. `zone_name` is the jobs' own zone."""
    found = listed(foreign.instants)
    hours = f"{_hours(foreign.ahead_ms)} {'ahead of' if foreign.ahead_ms > 0 else 'behind'}"
    what = (
        f"{found} lies in the future: {hours} the clock of the jobs ({zone_name})"
        if foreign.is_future
        else f"{found} was named {hours} the clock of the jobs ({zone_name}), by the times of its files"
    )
    why = (
        "its writer ignores hoodie.table.timeline.timezone=UTC"
        if table_zone == "UTC"
        else "with hoodie.table.timeline.timezone=LOCAL each JVM names its instants in its own zone"
    )
    harm = "Hudi would order what writers and jobs make wrongly, and readers would leave rows out"
    return f"{what}; {why}. {harm}. {remedy(table_zone)}"


def remedy(table_zone: str) -> str:
    """Return what to do about writers and jobs in different zones."""
    if table_zone == "UTC":
        return "Upgrade that writer, or run its JVM with -Duser.timezone=UTC"
    return (
        "Run the jobs in the writers' zone (tables file: spark_conf: "
        "{spark.driver.extraJavaOptions: -Duser.timezone=<zone>}), or the writers in the jobs'; set "
        "hoodie.table.timeline.timezone=UTC only when a table is created, because its instants would jump otherwise"
    )


def listed(instants: Sequence[str]) -> str:
    """Return the newest of the instants, and how many more there are, in words."""
    named = ", ".join(instants[-_MAX_NAMED:])
    more = len(instants) - _MAX_NAMED
    return f"instant {named}" + (f" (and {more} before)" if more > 0 else "")


def _wall(stamp: Stamp) -> int:
    # What is no time was made by no clock of Hudi, and lies far in the past.
    return stamp.wall_ms or 0


def _drift(stamp: Stamp, offset_of: OffsetOf) -> int:
    """Return by how much the time in the name is ahead of the jobs' wall clock when the file was made, in ms.

    The file's time is turned into the wall clock's, never the other way: in autumn one wall time means two moments.
    """
    return _wall(stamp) - stamp.made_ms - offset_of(stamp.made_ms)


def _zone(stamp: Stamp, offset_of: OffsetOf) -> int:
    return round(_drift(stamp, offset_of) / ZONE_STEP_MS)


def _proven(stamps: Sequence[Stamp], offset_of: OffsetOf) -> dict[int, list[Stamp]]:
    """Return the stamps by zone (quarters of an hour ahead of the jobs'), of the zones that are proven."""
    groups: dict[int, list[tuple[int, Stamp]]] = {}
    for stamp in filter(lambda stamp: stamp.is_prompt, stamps):
        drift = _drift(stamp, offset_of)
        zone = round(drift / ZONE_STEP_MS)
        if abs(drift) <= WIDEST_MS + TOLERANCE_MS and abs(drift - zone * ZONE_STEP_MS) <= TOLERANCE_MS:
            groups.setdefault(zone, []).append((drift, stamp))
    return {zone: [stamp for _, stamp in group] for zone, group in groups.items() if _is_steady(group)}


def _is_steady(group: Sequence[tuple[int, Stamp]]) -> bool:
    drifts = [drift for drift, _ in group]
    walls = [_wall(stamp) for _, stamp in group]
    span = max(walls) - min(walls)
    return span >= SHORTEST_SPAN_MS and (max(drifts) - min(drifts)) * STEADY_SHARE <= span


def _newest(stamps: Sequence[Stamp]) -> frozenset[str]:
    """Return the instants that decide: the last that were made, without those of earlier days."""
    made: dict[str, int] = {}
    for stamp in stamps:
        made.setdefault(stamp.instant, stamp.made_ms)
    newest = sorted(made, key=lambda instant: (made[instant], instant), reverse=True)[:LAST_INSTANTS]
    recent = [i for n, i in enumerate(newest) if n < ALWAYS_COUNTED or made[newest[0]] - made[i] < DAY_MS]
    return frozenset(recent)


def _instants(stamps: Iterable[Stamp]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stamp.instant for stamp in stamps))


def _hours(ms: int) -> str:
    minutes = round(abs(ms) / 60_000)
    return f"{minutes // 60}:{minutes % 60:02d} h"


# --- Seconds that go on while the machine sleeps, for everything that is measured against a lease


def boot_s() -> float:
    """Return the seconds since the machine was started, its sleep included.

    Linux's monotonic clock stands still while the machine sleeps; a lease in the database does not.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


# --- What follows from the times of a table's writes

MARGIN_COMMITS = 10
"""Room for the commits that complete between the question what is held and the plan of a clean."""
MARGIN_COMMITS_OF_HOURS = 2
"""The same where a job itself counts the commits of the last hours, just before it plans."""


def was_streamed(requested_ms: int, written_ms: int) -> bool | None:
    """Return whether a write updated the metadata table while it wrote, and not with its commit; None if not known.

    `requested_ms` is when its instant was requested on the metadata table's timeline, `written_ms` when one of its data
    files was complete. Equal times prove nothing: some stores count in seconds.
    """
    return None if requested_ms == written_ms else requested_ms < written_ms


def commits_to_keep(completed: Collection[str], safepoint: str, margin: int = MARGIN_COMMITS) -> int:
    """Return how many of the newest writes a clean or an archive must keep for a safepoint (a requested time).

    Hudi knows no consumer's position: it retains so many commits. `completed` are the requested times of the completed
    writes on the active timeline, services' among them, because Hudi counts those as well.
    """
    # One more than is held: the version before it is what an update's row before is read from.
    return sum(1 for requested in completed if requested >= safepoint) + 1 + margin

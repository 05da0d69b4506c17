"""How and when an intent is compared with the table: RFC-56's three strategies, and those that packages register.

All compare by the same rule (`contention`). They differ in what they read and when: per intent and only of its
partitions, per intent under locks on its file groups, or periodically and all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.conflict.claims import Reservation, ReservedError
from airflow_lake_provider.conflict.contention import ClashCheck, WriteIntent, partitions_of
from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.conflict.activity import ConflictTable

ENTRY_POINTS = "airflow_lake_provider.conflict_strategies"


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """What every strategy is made with. Times in seconds, as in Hudi's `async.conflict.detector` settings.

    `reserve` opens a reservation for an instant, for a strategy that makes intents visible to others; None where others
    see the intent already, as they see a service's plan on the timeline.
    """

    period_s: float = 30.0
    initial_delay_s: float = 0.0
    reserve: Callable[[str], Reservation] | None = None


class DetectionStrategy(Protocol):
    """One strategy, made for one intent's lifetime."""

    def check(self, table: ConflictTable, intent: WriteIntent, now_ms: int) -> ClashCheck:
        """Return what conflicts with the intent now, as far as this strategy reads."""


class SimpleDirectMarkerBased:
    """Reads at each check, without a lock; of direct markers only those in the intent's partitions.

    Two that read before either writes its marker miss each other then, and find each other at the next check.
    """

    def __init__(self, settings: StrategySettings) -> None:
        del settings  # nothing to wait for

    def check(self, table: ConflictTable, intent: WriteIntent, now_ms: int) -> ClashCheck:
        """Compare the intent with its own partitions."""
        return table.check(intent, now_ms, partitions_of(intent.file_groups))


class SimpleTransactionDirectMarkerBased:
    """Reads and writes markers under a lock on each file group: of all intents on one, exactly one succeeds.

    That is the first intent, also before an older instant: one that found its file groups free is never ended later.
    Hudi's own strategy of this name releases its lock before it writes the marker.
    """

    def __init__(self, settings: StrategySettings) -> None:
        self._reserve = settings.reserve

    def check(self, table: ConflictTable, intent: WriteIntent, now_ms: int) -> ClashCheck:
        """Compare the intent with its own partitions; reserve its file groups under its instant when they are free."""
        partitions = partitions_of(intent.file_groups)
        if self._reserve is None:
            # The intent is published before this reads, so that of two at once one sees the other without a lock.
            return table.check(intent, now_ms, partitions)
        reservation = self._reserve(intent.instant)
        try:
            with reservation.lock(intent.file_groups) as lock:
                verdict = table.check(replace(intent, comes_first=False), now_ms, partitions)
                if verdict.is_free:
                    reservation.beat()
                    reservation.plant(intent.file_groups)
                    if not lock.is_held():
                        reservation.release()
                        return ClashCheck(unread=(f"the intent of {intent.instant}, which was taken for dead",))
                return verdict
        except ReservedError as error:
            return ClashCheck(unread=(str(error),))


class AsyncTimelineMarkerBased:
    """Reads all markers once per period; in between it repeats its last verdict."""

    def __init__(self, settings: StrategySettings) -> None:
        self._period_ms = int(settings.period_s * 1000)
        self._initial_delay_ms = int(settings.initial_delay_s * 1000)
        self._next_ms: int | None = None
        self._last = ClashCheck(unread=("nothing was read yet: the initial delay is not over",))

    def check(self, table: ConflictTable, intent: WriteIntent, now_ms: int) -> ClashCheck:
        """Compare the intent with all markers, once per period."""
        if self._next_ms is None:
            self._next_ms = now_ms + self._initial_delay_ms
        if now_ms >= self._next_ms:
            self._last = table.check(intent, now_ms)
            self._next_ms = now_ms + self._period_ms
        return self._last


BUILT_IN: Mapping[str, Callable[[StrategySettings], DetectionStrategy]] = {
    "SimpleTransactionDirectMarkerBased": SimpleTransactionDirectMarkerBased,
    "SimpleDirectMarkerBased": SimpleDirectMarkerBased,
    "AsyncTimelineMarkerBased": AsyncTimelineMarkerBased,
}


def make_strategy(name: str, settings: StrategySettings) -> DetectionStrategy:
    """Return a strategy by its name; others than RFC-56's come from entry points of the group `ENTRY_POINTS`.

    No package can replace a built-in one. Raises ConfigError for an unknown name, and for one that two register.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](settings)
    found = entry_points(group=ENTRY_POINTS)
    named = [entry for entry in found if entry.name == name]
    if len({entry.value for entry in named}) > 1:
        raise ConfigError(f"conflict.strategy {name!r} is registered by {', '.join(entry.value for entry in named)}")
    if not named:
        known = ", ".join(sorted({*BUILT_IN, *found.names}))
        raise ConfigError(f"conflict.strategy is {name!r}, known are: {known}")
    strategy: DetectionStrategy = named[0].load()(settings)
    return strategy

"""Watches the plans that a running service executes: whether a writer touches the same file groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.conflict.claim_lock import ReservedError
from airflow_lake_provider.conflict.contention import ClashCheck, ClashKind, WriteIntent, partitions_of
from airflow_lake_provider.conflict.marker_reader import Role
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.instant_clock import instant_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow_lake_provider.config.service_policies import ConflictPolicy
    from airflow_lake_provider.conflict.activity import ConflictTable
    from airflow_lake_provider.conflict.claim_lock import Reservation
    from airflow_lake_provider.conflict.contention import Clash

# --- How and when an intent is compared with the table: RFC-56's three strategies, and those that packages register
#
# All compare by the same rule (`contention`). They differ in what they read and when: per intent and only of its
# partitions, per intent under locks on its file groups, or periodically and all at once.

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


_MS = 1000


@dataclass(frozen=True, slots=True)
class ServiceConflict:
    """A plan and the instants that touch its file groups.

    `writer_worked_ms` is how long the first active one has worked, None when its instant does not show it.
    """

    plan: str
    clashes: tuple[Clash, ...]
    writer_worked_ms: int | None

    def describe(self, ran_s: float) -> str:
        """Describe the conflict, and what it saves to stop now; `ran_s` is how long the service ran."""
        clashes = "; ".join(str(clash) for clash in self.clashes)
        return f"clustering {self.plan} is stopped after {ran_s:.0f} s: {clashes}. {self._describe_loss()}"

    def _describe_loss(self) -> str:
        if not any(_is_at_work(clash) for clash in self.clashes):
            return "That writer has committed, so that the clustering would fail at its own commit"
        lost = (
            "" if self.writer_worked_ms is None else f", where it would lose {self.writer_worked_ms // _MS} s of work"
        )
        return f"Hudi would reject that writer at its commit{lost}"


class ServiceWatch:
    """Checks the clustering plans that the watched service executes.

    `plans` are the requested times that its request names; one that names none executes each pending plan.
    """

    def __init__(self, table: ConflictTable, policy: ConflictPolicy, plans: Collection[str] = ()) -> None:
        self._table = table
        self._policy = policy
        self._plans = frozenset(plans)
        self._strategies: dict[str, DetectionStrategy] = {}
        # Made before the service begins, so that a wrong name fails here.
        make_strategy(policy.strategy, self._settings())

    def check(self, now_ms: int) -> ServiceConflict | None:
        """Return the first plan whose file groups a writer touches. Raises what reading a table raises.

        What cannot be read is no reason to end a running service; the next check reads it again.
        """
        activity = self._table.read_activity(now_ms)
        for plan in activity.plans():
            is_foreign = self._plans and plan.instant not in self._plans
            if plan.role is not Role.CLUSTERING or not plan.planned or is_foreign:
                continue
            strategy = self._strategies.get(plan.instant)
            if strategy is None:
                strategy = self._strategies[plan.instant] = make_strategy(self._policy.strategy, self._settings())
            intent = WriteIntent(plan.instant, plan.planned, Role.CLUSTERING, since=plan.instant)
            verdict = strategy.check(self._table, intent, now_ms)
            if verdict.clashes:
                worker = next((clash.instant for clash in verdict.clashes if _is_at_work(clash)), "")
                begun_ms = instant_time_ms(worker, activity.snapshot.properties.time_zone)
                worked_ms = None if begun_ms is None or begun_ms > now_ms else now_ms - begun_ms
                return ServiceConflict(plan.instant, verdict.clashes, worked_ms)
        return None

    def _settings(self) -> StrategySettings:
        # The caller keeps the pauses.
        return StrategySettings(period_s=0, initial_delay_s=0)


def _is_at_work(clash: Clash) -> bool:
    return clash.kind is not ClashKind.COMMIT

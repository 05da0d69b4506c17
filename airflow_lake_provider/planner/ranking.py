"""The order of all due services of all tables when the budget is too small: by benefit per cost, with ageing. Pure.

Each candidate has a moment: the time at which it became due plus a delay of at most `MAX_DELAY_MS`, which is short for
a high benefit per core second and long for a low one. The candidate with the earliest moment is first. Waiting changes
no moment, so an index of the database keeps the order. A candidate that becomes due `MAX_DELAY_MS` or more after
another one never overtakes it, so nothing starves.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.job_contract import TRAITS, Service
from airflow_lake_provider.planner.rules import Urgency

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.planner.price import Price

MAX_DELAY_MS = 72 * HOUR_MS
"""No candidate overtakes one that became due so much earlier."""
MAX_JITTER_MS = 300_000
"""What is due at a clock time is spread over so long."""
MIN_DENSITY = 1e-3
MAX_DENSITY = 1e3
"""Weighted benefit per core second, between which the delay falls evenly in the logarithm: 12 hours a factor of ten."""


WEIGHTS: Mapping[Urgency, float] = MappingProxyType(
    {
        Urgency.UNBLOCKS: 10_000.0,
        Urgency.GROWING: 30.0,
        Urgency.OVERDUE: 3.0,
        Urgency.USUAL: 1.0,
        Urgency.MASS: 0.5,
    }
)
"""How often what a candidate brings counts, by what waits for it."""


def density_of(price: Price, urgency: Urgency, weight: float = 1.0) -> float:
    """Return the weighted benefit per core second; `weight` is the table's.

    Writers that wait do so on each table alike.
    """
    of_table = 1.0 if urgency is Urgency.UNBLOCKS else weight
    return of_table * WEIGHTS[urgency] * price.benefit.points / price.core_s


def delay_ms(density: float) -> int:
    """Return by how long a candidate of this density ranks behind one that unblocks writers; 0 to MAX_DELAY_MS."""
    bounded = min(max(density, MIN_DENSITY), MAX_DENSITY)
    place = math.log(MAX_DENSITY / bounded) / math.log(MAX_DENSITY / MIN_DENSITY)
    return round(place * MAX_DELAY_MS)


def rank_ms(since_ms: int, density: float) -> int:
    """Return the moment by which candidates are ordered, the earliest first; `since_ms` is when it became due."""
    return since_ms + delay_ms(density)


def jitter_ms(table_id: str, service: Service, at_a_clock_time: bool = False) -> int:  # noqa: FBT001, FBT002 - one fact
    """Return for how long a candidate that is due at a clock time, as all tables are, waits at first; 0 for others."""
    if not at_a_clock_time and not TRAITS[service].has_period:
        return 0
    digest = hashlib.sha256(f"{table_id}.{service.value}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % MAX_JITTER_MS


# --- Budgets: what a queue, a pool, an owner, a label, or all tables together may have


@dataclass(frozen=True, slots=True)
class Need:
    """What one run takes of a budget. A slot, core milliseconds, and bytes that it writes."""

    core_ms: int
    bytes: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a budget; None is without a bound. The two sums are those of a day."""

    slots: int | None = None
    core_ms: int | None = None
    bytes: int | None = None

    def find_short(self, need: Need) -> str:
        """Return of what there is too little: `slots`, `core hours` or `bytes`; empty when the need fits."""
        pairs = (("slots", self.slots, need.slots), ("core hours", self.core_ms, need.core_ms))
        for name, left, wanted in (*pairs, ("bytes", self.bytes, need.bytes)):
            if left is not None and wanted > left:
                return name
        return ""

    def without(self, need: Need) -> Room:
        """Return what is left behind a run."""
        return Room(_less(self.slots, need.slots), _less(self.core_ms, need.core_ms), _less(self.bytes, need.bytes))

    def closed(self) -> Room:
        """Return the room as those see it that are behind one that must not be overtaken."""
        return Room(*(None if left is None else 0 for left in (self.slots, self.core_ms, self.bytes)))

    def behind(self, need: Need, *, is_old: bool, waits_elsewhere: bool) -> Room | None:
        """Return the room of those behind a candidate; None when it takes nothing from them.

        One that does not fit, or that waits for another budget, may be overtaken as long as it is not old. From then on
        it keeps what it needs.
        """
        if self.find_short(need):
            return self.closed() if is_old else None
        return self.without(need) if is_old or not waits_elsewhere else None


def _less(left: int | None, taken: int) -> int | None:
    return None if left is None else left - taken


@dataclass(frozen=True, slots=True)
class Ahead:
    """A candidate before another one, as one budget sees it."""

    table_id: str
    service: str
    rank_ms: int
    need: Need
    short_of: str = ""
    """The budget that had no room for it when it was last evaluated; empty: none."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a candidate may start by one budget."""

    may_start: bool
    ahead: int
    """How many candidates before it want the same budget."""
    short: str = ""
    """Of what there is too little: slots, core hours, bytes."""
    held_by: str = ""
    """The service of the first one that has to start before it; not its table, which may be another team's."""
    ahead_core_ms: int = 0


def find_turn(need: Need, ahead: Sequence[Ahead], room: Room, now_ms: int, scope: str = "") -> Turn:
    """Decide whether a candidate may start, given those before it that want the same budget, in their order.

    One before it may be overtaken as long as its moment has not come (`Ahead.rank_ms`). From then on it keeps what it
    needs (`Room.behind`): so a large one starts, however many small ones arrive.
    """
    held_by = ""
    ahead_core_ms = 0
    for one in ahead:
        ahead_core_ms += one.need.core_ms
        is_old = one.rank_ms <= now_ms
        waits_elsewhere = one.short_of not in {"", scope}
        left = room.behind(one.need, is_old=is_old, waits_elsewhere=waits_elsewhere)
        if left is not None:
            room, held_by = left, held_by or one.service
    short = room.find_short(need)
    return Turn(not short, len(ahead), short, held_by if short else "", ahead_core_ms)


def find_exceeded(need: Need, whole: Room) -> str:
    """Return of what a candidate needs more than the whole budget has: it never starts; empty when it may."""
    return whole.find_short(replace(need, slots=0))


# --- When a candidate may start, and whether the work that arrives fits at all


def expected_wait_ms(need: Need, ahead_core_ms: int, whole: Room, spent: Sequence[tuple[int, int]], now_ms: int) -> int:
    """Return about how long a candidate waits for core hours of a day, or for a slot, in ms.

    `spent` are pairs of when an hour began and the core ms that were spent in it; each ends to count a day later.
    """
    waits = [0.0]
    if whole.core_ms:
        wanted = ahead_core_ms + need.core_ms
        left = whole.core_ms - sum(core_ms for _, core_ms in spent)
        ends_ms = now_ms
        for begun_ms, core_ms in sorted(spent):
            if left >= wanted:
                break
            left, ends_ms = left + core_ms, begun_ms + DAY_MS
        days = max(0, math.ceil((wanted - whole.core_ms) / whole.core_ms))
        waits.append(max(0, ends_ms - now_ms) + days * DAY_MS)
    if whole.slots:
        waits.append(ahead_core_ms / whole.slots)
    return int(max(waits))


class Pressure(StrEnum):
    """What writers should do."""

    OK = "ok"
    SLOW = "slow"
    """The backlog takes more than `SLOW_DAYS` of the budget to work off, or more arrives than the budget covers."""
    STOP = "stop"
    """The backlog takes more than `STOP_DAYS` of the budget."""


SLOW_DAYS = 0.25
STOP_DAYS = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one budget has to cover: core ms that wait, and that became due within the last day."""

    waiting_core_ms: int
    arrived_core_ms: int
    waiting_bytes: int = 0
    arrived_bytes: int = 0
    waiting: int = 0


def capacity_of(whole: Room, cores: float = 1.0) -> Room:
    """Return what a budget covers in a day: its core hours, and what its slots do when they are never idle."""
    by_slots = None if whole.slots is None else round(whole.slots * cores * DAY_MS)
    sizes = [size for size in (whole.core_ms, by_slots) if size is not None]
    return Room(None, min(sizes, default=None), whole.bytes)


def pressure_of(load: Load, whole: Room) -> Pressure:
    """Return the pressure on one budget."""
    capacity = capacity_of(whole)
    days = 0.0
    outgrows = False
    pairs = ((load.waiting_core_ms, load.arrived_core_ms, capacity.core_ms),)
    for waiting, arrived, size in (*pairs, (load.waiting_bytes, load.arrived_bytes, capacity.bytes)):
        if size is not None:
            days = max(days, waiting / max(size, 1))
            outgrows = outgrows or (arrived > size and waiting > 0)
    if days >= STOP_DAYS:
        return Pressure.STOP
    return Pressure.SLOW if days >= SLOW_DAYS or outgrows else Pressure.OK


def holding_budget(load: Load, whole: Room) -> Room:
    """Return the budget that would hold the backlog: what arrives in a day, and a day to work off what waits."""
    core_ms = load.arrived_core_ms + max(0, load.waiting_core_ms - load.arrived_core_ms)
    size_bytes = load.arrived_bytes + max(0, load.waiting_bytes - load.arrived_bytes)
    return Room(
        None if whole.slots is None else max(whole.slots, math.ceil(core_ms / DAY_MS)),
        None if whole.core_ms is None else max(whole.core_ms, core_ms),
        None if whole.bytes is None else max(whole.bytes, size_bytes),
    )


def parse_pressure(text: str) -> Pressure:
    """Return a pressure. Raises ConfigError that names the allowed ones."""
    try:
        return Pressure(text)
    except ValueError as error:
        raise ConfigError(f"pressure {text!r}, allowed: {', '.join(Pressure)}") from error


def worst(pressures: Iterable[Pressure]) -> Pressure:
    """Return the most severe of some pressures; OK of none."""
    order = list(Pressure)
    return max(pressures, key=order.index, default=Pressure.OK)

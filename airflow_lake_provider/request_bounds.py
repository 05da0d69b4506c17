"""How many requests of one caller, and of all, are at work or arrive in a time: the arithmetic of every such bound."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import LRUCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL_SHARE = 8
"""A caller with at most one in so many places finds some that callers with more do not take."""
MAX_RATES = 10_000
"""Names whose rate is remembered; one that was silent longest is forgotten first, and begins again."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a body: the name of its token or its user, however the request spells the token."""

    name: str = ""
    is_of_team: bool = False
    """Whether it sees some tables only. All senders of teams together leave places for those that serve all tables."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a caller and all callers hold when a place is refused."""

    name: str
    of_one: int
    of_all: int
    is_own: bool
    """Whether the caller's own bound is reached."""


class Places:
    """The places of one kind of requests. Safe to call from many threads; no request waits for a place.

    `refuse` makes the error of a request that gets none.
    """

    def __init__(self, most: int, most_of_one: int, refuse: Callable[[Held], Exception]) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._refuse = refuse
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, name: str, count: int = 1, *, left_free: int = 0) -> Iterator[None]:
        """Hold places of a caller. Raises what `refuse` makes when too few of all, or of this caller's, are free.

        `left_free` are places that only others may have; a caller with more than an eighth of all leaves twice as many,
        or one with several tokens could leave none.
        """
        with self._lock:
            of_one = self._held[name]
            if of_one + count > max(1, self._most // SMALL_SHARE):
                left_free *= 2
            of_all = self._held.total()
            is_own = of_one + count > self._most_of_one
            if is_own or of_all + count > self._most - left_free:
                self._held += Counter()
                raise self._refuse(Held(name, of_one, of_all, is_own))
            self._held[name] += count
        try:
            yield
        finally:
            with self._lock:
                self._held[name] -= count
                self._held += Counter()


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests per second on average, of one name; at most so many at the same moment."""

    name: str
    per_s: float
    burst: float


class Rates:
    """Token buckets by name. For callers that keep it to one thread, or hold a lock."""

    def __init__(self) -> None:
        self._rest: LRUCache[str, tuple[float, float]] = LRUCache(MAX_RATES)

    def take(self, now_s: float, *rates: Rate) -> Rate | None:
        """Take one from each; or return the first that has none, and take nothing. A step back in time adds nothing."""
        taken = {}
        for rate in rates:
            rest, since_s = self._rest.get(rate.name, (rate.burst, now_s))
            rest = min(rate.burst, rest + max(0.0, now_s - since_s) * rate.per_s)
            if rest < 1:
                return rate
            taken[rate.name] = (rest - 1, now_s)
        self._rest.update(taken)
        return None

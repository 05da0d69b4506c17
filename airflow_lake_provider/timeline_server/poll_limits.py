"""How often what one token's long polls name is read, and how many of them may be open.

Each read of a table costs calls of its store. So a token's tables share a rate, whatever interval its polls ask for,
and nothing is read for a caller that has gone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import TooManyPollsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MIN_INTERVAL_S = 1.0
READS_PER_S = 200
"""Of all tables that a token watches: more of them are read less often."""
MAX_POLLS = 500
MAX_POLLS_OF_ONE = 200
MAX_WATCHED = 100_000
"""Tables that are remembered for one token; those named longest ago are forgotten first."""


class PollLimits:
    """The open polls and watched tables of each token. For the event loop's thread alone."""

    def __init__(self, max_polls: int = MAX_POLLS, max_of_one: int = MAX_POLLS_OF_ONE) -> None:
        self._max_polls, self._max_of_one = max_polls, max_of_one
        self._open: Counter[str] = Counter()
        self._watched: LRUCache[str, OrderedDict[str, int]] = LRUCache(1000)

    @contextmanager
    def enter(self, token: str) -> Iterator[None]:
        """Hold a place while a poll is open. Raises TooManyPollsError."""
        if self._open.total() >= self._max_polls or self._open[token] >= self._max_of_one:
            raise TooManyPollsError(f"{self._open[token]} long polls of token {token!r} are open already")
        self._open[token] += 1
        try:
            yield
        finally:
            self._open[token] -= 1
            if not self._open[token]:
                del self._open[token]

    def find_floor_s(self, token: str, paths: Iterable[str], now_ms: int, until_ms: int) -> float:
        """Return the least interval at which the tables that a token names now are read."""
        watched = self._watched.get(token)
        if watched is None:
            watched = self._watched[token] = OrderedDict()
        for path in paths:
            watched[path] = until_ms
            watched.move_to_end(path)
        while len(watched) > MAX_WATCHED or (watched and next(iter(watched.values())) <= now_ms):
            watched.popitem(last=False)
        return max(MIN_INTERVAL_S, len(watched) / READS_PER_S)

"""How often what one token's polls and readers name is read, and how many polls with how many tables may be open.

Each read of a table costs calls of its store. So a token's tables share a rate, whatever interval its polls ask for,
and nothing is read for a caller that has gone. Each table that a poll names costs time of the event loop: polls take
turns, and stop after every few tables, so that other routes are answered in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import TooManyPollsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from airflow_lake_provider.timeline_server.wire import WatchedTable

MIN_INTERVAL_S = 1.0
READS_PER_S = 200
"""Of all tables that a token watches: more of them are read less often."""
MAX_POLLS = 500
MAX_POLLS_OF_ONE = 200
MAX_TABLES = 50_000
"""Tables named by all open polls together; one that several polls name counts in each."""
MAX_TABLES_OF_ONE = 20_000
READ_BURST_S = 10
"""Seconds whose reads a token may request at the same moment."""
TURN_TABLES = 100
"""Number of tables after which a poll lets the event loop answer others."""
MAX_WATCHED = 100_000
"""Tables that are remembered for one token; those named longest ago are forgotten first."""


class PollLimits:
    """The open polls and watched tables of each token. For the event loop's thread alone."""

    def __init__(self, max_polls: int = MAX_POLLS, max_of_one: int = MAX_POLLS_OF_ONE) -> None:
        self._max_polls = max_polls
        self._max_of_one = max_of_one
        self._open: Counter[str] = Counter()
        self._tables: Counter[str] = Counter()
        self._watched: LRUCache[str, OrderedDict[str, int]] = LRUCache(1000)
        self._reads: LRUCache[str, tuple[float, int]] = LRUCache(1000)
        self._turn = asyncio.Lock()

    @contextmanager
    def enter(self, token: str, tables: int) -> Iterator[None]:
        """Hold a place while a poll that names so many tables is open. Raises TooManyPollsError."""
        if self._open.total() >= self._max_polls or self._open[token] >= self._max_of_one:
            raise TooManyPollsError(f"{self._open[token]} long polls of token {token!r} are open already")
        if self._tables.total() + tables > MAX_TABLES or self._tables[token] + tables > MAX_TABLES_OF_ONE:
            raise TooManyPollsError(f"the open long polls of token {token!r} name {self._tables[token]} tables already")
        self._open[token] += 1
        self._tables[token] += tables
        try:
            yield
        finally:
            self._open[token] -= 1
            self._tables[token] -= tables
            self._open, self._tables = +self._open, +self._tables

    async def in_turns(self, tables: Sequence[WatchedTable]) -> AsyncIterator[Sequence[WatchedTable]]:
        """Yield a poll's tables in parts, one poll at a time; the event loop answers others between two parts."""
        async with self._turn:
            for begin in range(0, len(tables), TURN_TABLES):
                yield tables[begin : begin + TURN_TABLES]
                await asyncio.sleep(0)

    def take_read(self, token: str, now_ms: int) -> None:
        """Count a request that reads a table's storage. Raises TooManyPollsError above the token's rate."""
        most = READS_PER_S * READ_BURST_S
        left, since_ms = self._reads.get(token, (float(most), now_ms))
        left = min(float(most), left + max(0, now_ms - since_ms) * READS_PER_S / 1000)
        if left < 1:
            raise TooManyPollsError(f"token {token!r} has tables read more than {READS_PER_S} times per second")
        self._reads[token] = left - 1, now_ms

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

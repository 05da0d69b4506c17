"""How often what one token's polls and readers name is read, and how many polls with how many tables may be open.

Each read of a table costs calls of its store. So a token's tables share a rate, whatever interval its polls ask for,
and nothing is read for a caller that has gone. Each table that a poll names costs time of the event loop: polls take
turns, and stop after every few tables, so that other routes are answered in between.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import TooManyPollsError
from airflow_lake_provider.request_bounds import Held, Places, Rate, Rates

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
POLLS_OF_ALL_TABLES = 100
TABLES_OF_ALL_TABLES = 10_000
"""Places that no team's tokens have: for Airflow's own sensors."""
READ_BURST_S = 10
"""Seconds whose reads a token may request at the same moment."""
TURN_TABLES = 100
"""Number of tables after which a poll lets the event loop answer others."""
MAX_WATCHED = 100_000
"""Tables that are remembered for one token; those named longest ago are forgotten first."""


class PollLimits:
    """The open polls and watched tables of each token. For the event loop's thread alone."""

    def __init__(self, max_polls: int = MAX_POLLS, max_of_one: int = MAX_POLLS_OF_ONE) -> None:
        self._polls = Places(max_polls, max_of_one, _refuse_poll)
        self._tables = Places(MAX_TABLES, MAX_TABLES_OF_ONE, _refuse_tables)
        self._watched: LRUCache[str, OrderedDict[str, int]] = LRUCache(1000)
        self._reads = Rates()
        self._turn = asyncio.Lock()

    @contextmanager
    def enter(self, token: str, tables: int, *, is_of_team: bool = False) -> Iterator[None]:
        """Hold a place while a poll that names so many tables is open. Raises TooManyPollsError."""
        kept_polls, kept_tables = (POLLS_OF_ALL_TABLES, TABLES_OF_ALL_TABLES) if is_of_team else (0, 0)
        with self._polls.hold(token, left_free=kept_polls), self._tables.hold(token, tables, left_free=kept_tables):
            yield

    async def in_turns(self, tables: Sequence[WatchedTable]) -> AsyncIterator[Sequence[WatchedTable]]:
        """Yield a poll's tables in parts, one poll at a time; the event loop answers others between two parts."""
        async with self._turn:
            for begin in range(0, len(tables), TURN_TABLES):
                yield tables[begin : begin + TURN_TABLES]
                await asyncio.sleep(0)

    def take_read(self, token: str, now_ms: int) -> None:
        """Count a request that reads a table's storage. Raises TooManyPollsError above the token's rate."""
        if self._reads.take(now_ms / 1000, Rate(token, READS_PER_S, READS_PER_S * READ_BURST_S)) is not None:
            raise TooManyPollsError(f"token {token!r} has tables read more than {READS_PER_S} times per second")

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


def _refuse_poll(held: Held) -> TooManyPollsError:
    return TooManyPollsError(f"{held.of_one} long polls of token {held.name!r} are open already")


def _refuse_tables(held: Held) -> TooManyPollsError:
    return TooManyPollsError(f"the open long polls of token {held.name!r} name {held.of_one} tables already")

"""What a token's long polls may make the server read, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_lake_provider.config.access import Grant, Right
from airflow_lake_provider.errors import TooManyPollsError
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.poll_limits import MIN_INTERVAL_S, READS_PER_S, PollLimits
from airflow_lake_provider.timeline_server.routes import WATCH_TTL_MS, answer_poll
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from airflow_lake_provider.timeline_server.wire import PollBody, WatchedTable
from tests.support.tables import HandMadeTable

READER = Grant("shop-reader", frozenset({Right.READ}))


def test_tables_of_one_token_share_a_rate_whatever_its_polls_ask_for() -> None:
    limits = PollLimits()
    paths = [f"/lake/shop/t{number}" for number in range(1000)]
    assert limits.find_floor_s("shop", paths[:1], 0, 300_000) == MIN_INTERVAL_S
    for begin in range(0, 1000, 100):
        floor_s = limits.find_floor_s("shop", paths[begin : begin + 100], 1, 300_001)
    assert floor_s == 1000 / READS_PER_S
    assert limits.find_floor_s("bank", ["/lake/bank/t"], 1, 300_001) == MIN_INTERVAL_S, "a rate of its own"
    assert limits.find_floor_s("shop", paths[:1], 300_002, 600_002) == MIN_INTERVAL_S, "ended watches do not count"


def test_polls_of_one_token_leave_places_for_the_others() -> None:
    limits = PollLimits(max_polls=3, max_of_one=2)
    with limits.enter("shop"), limits.enter("shop"):
        with pytest.raises(TooManyPollsError, match="2 long polls of token 'shop'"), limits.enter("shop"):
            pass
        with limits.enter("bank"), pytest.raises(TooManyPollsError), limits.enter("third"):
            pass
    with limits.enter("shop"):
        pass


@pytest.mark.parametrize("has_gone", [True, False])
def test_watch_ends_with_the_caller_that_asked_for_it(tmp_path: Path, has_gone: bool) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    server = TimelineServer(SharedTimelines(), ServerOptions(allowed_roots=(str(tmp_path),)))
    path = str(table.path)
    version = server.timelines.snapshot(path).version

    async def answer() -> bool:
        return has_gone

    async def ask() -> None:
        named = WatchedTable(base_path=path, version=version, poll_interval_s=1e-6, unannounced_interval_s=1e-6)
        await answer_poll(server, READER, PollBody(tables=[named], wait_s=0.05), answer)

    before_ms = server.timelines.now_ms()
    asyncio.run(ask())
    cached = server.timelines.memory.get(path)
    left_ms = WATCH_TTL_MS if not has_gone else 0
    for until_ms in (cached.watched_until_ms, cached.unannounced_until_ms):
        assert before_ms + left_ms <= until_ms <= server.timelines.now_ms() + left_ms
    assert (cached.watched_s, cached.unannounced_s) == (MIN_INTERVAL_S, MIN_INTERVAL_S)

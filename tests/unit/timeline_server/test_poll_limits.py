"""What a token's long polls may make the server read, and for how long."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.access import Grant, Right
from airflow_lake_provider.errors import TooManyPollsError
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.poll_limits import (
    MAX_TABLES_OF_ONE,
    MIN_INTERVAL_S,
    READ_BURST_S,
    READS_PER_S,
    TURN_TABLES,
    PollLimits,
)
from airflow_lake_provider.timeline_server.routes import WATCH_TTL_MS, answer_poll, create_timeline_app
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
    with limits.enter("shop", 1), limits.enter("shop", 1):
        with pytest.raises(TooManyPollsError, match="2 long polls of token 'shop'"), limits.enter("shop", 1):
            pass
        with limits.enter("bank", 1), pytest.raises(TooManyPollsError), limits.enter("third", 1):
            pass
    with limits.enter("shop", 1):
        pass


def test_polls_of_all_teams_leave_places_for_airflows_own_sensors() -> None:
    limits = PollLimits()
    with ExitStack() as polls:
        for token in ("shop-1", "shop-2", "press"):
            with suppress(TooManyPollsError):
                for _ in range(200):
                    polls.enter_context(limits.enter(token, 100, is_of_team=True))
        with pytest.raises(TooManyPollsError):
            polls.enter_context(limits.enter("shop-1", 100, is_of_team=True))
        polls.enter_context(limits.enter("bank", 100, is_of_team=True))
        for _ in range(100):
            polls.enter_context(limits.enter("service", 100))


def test_polls_of_one_token_name_a_bounded_number_of_tables() -> None:
    limits = PollLimits()
    with ExitStack() as polls:
        for _ in range(MAX_TABLES_OF_ONE // 1000):
            polls.enter_context(limits.enter("shop", 1000))
        with pytest.raises(TooManyPollsError, match="'shop' name 20000 tables already"), limits.enter("shop", 1):
            pass
        with limits.enter("shop", 0), limits.enter("bank", 1000):
            pass
    with limits.enter("shop", 1000):
        pass


def test_polls_leave_the_event_loop_to_others() -> None:
    server = TimelineServer(SharedTimelines(), ServerOptions(allowed_roots=("/lake",)))
    named = [WatchedTable(base_path=f"/lake/shop/t{number}") for number in range(1000)]
    steps = 0

    async def poll() -> None:
        async for part in server.poll_limits.in_turns(named):
            assert len(part) <= TURN_TABLES
            nonlocal steps
            steps += 1

    async def count() -> list[int]:
        polls = [asyncio.create_task(poll()) for _ in range(20)]
        seen = []
        while not all(task.done() for task in polls):
            await asyncio.sleep(0)
            seen.append(steps)
        return seen

    seen = asyncio.run(count())
    assert steps == 200
    assert max(after - before for before, after in pairwise(seen)) == 1, "one part of one poll between two answers"


def test_single_reads_of_a_reading_token_have_a_rate() -> None:
    limits = PollLimits()
    for _ in range(READS_PER_S * READ_BURST_S):
        limits.take_read("shop", 1000)
    with pytest.raises(TooManyPollsError, match="'shop' has tables read more than 200 times per second"):
        limits.take_read("shop", 1000)
    limits.take_read("bank", 1000)
    for _ in range(READS_PER_S):
        limits.take_read("shop", 2000)
    with pytest.raises(TooManyPollsError):
        limits.take_read("shop", 2000)


@pytest.mark.parametrize("right", [Right.READ, Right.OPERATE])
def test_only_what_is_not_in_memory_counts_and_tasks_are_exempt(tmp_path: Path, right: Right) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    digest = hashlib.sha256(b"given").hexdigest()
    entry = f"  - {{name: shop, roots: [{tmp_path}], rights: [{', '.join({'read', right})}], sha256: [{digest}]}}"
    (tmp_path / "tokens.yaml").write_text(f"tokens:\n{entry}\n")
    options = ServerOptions(allowed_roots=(str(tmp_path),), tokens_file=str(tmp_path / "tokens.yaml"))
    server = TimelineServer(SharedTimelines(), options)
    with TestClient(create_timeline_app(lambda: server)) as client:
        client.headers["Authorization"] = "Bearer given"

        def ask(path: str, **query: str) -> int:
            asked = {"base_path": str(table.path), **query}
            return client.get(f"/v1/hoodie/timeline/{path}", params=asked).status_code

        assert ask("view") == 200
        for _ in range(READS_PER_S * READ_BURST_S):
            server.poll_limits.take_read("shop", server.timelines.now_ms())
        refused = 429 if right is Right.READ else 200
        with suppress(TooManyPollsError):
            while True:  # what came back meanwhile
                server.poll_limits.take_read("shop", server.timelines.now_ms() + 60_000)
        assert (ask("view"), ask("latest")) == (200, 200), "from memory"
        assert ask("view", max_age_s="0") == refused
        assert ask("latest", max_age_s="0") == refused
        assert ask("view", plans="true") == refused
        assert ask("archive") == refused


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

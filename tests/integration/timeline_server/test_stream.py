"""The stream that all triggers of a process share, against a real server that is killed, paused and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.timeline_server.subscription import StreamOptions, TimelineStream
from tests.integration.timeline_server.conftest import ServerProcess
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

INTERVAL_S = 0.3
SEEDS = int(os.environ.get("LAKE_SEEDS", "1"))


class Watcher:
    """Collects how many instants each table was last seen with."""

    def __init__(self, stream: TimelineStream) -> None:
        self.stream = stream
        self.seen: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.events = 0
        self.task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for seen in self.stream.events():
            self.events += 1
            for path, state in seen.items():
                if isinstance(state, LakeError):
                    self.errors[path] = type(state).__name__
                else:
                    self.seen[path] = len(state.timeline.instants)

    async def until(self, condition: Callable[[], bool], within_s: float = 20) -> float:
        began_s = time.monotonic()
        while not condition():
            assert not self.task.done(), self.task
            assert time.monotonic() - began_s < within_s, (self.seen, self.errors)
            await asyncio.sleep(0.02)
        return time.monotonic() - began_s

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def run(story: Callable[[Watcher], Awaitable[None]], options: StreamOptions) -> None:
    async def main() -> None:
        watcher = Watcher(TimelineStream(options))
        try:
            await story(watcher)
        finally:
            await watcher.stop()

    asyncio.run(main())


def refresh(server: ServerProcess, path: str) -> None:
    server.get("view", base_path=path, max_age_s=0)


def test_stream_reports_the_present_state_then_each_change_as_it_is_read(
    server: ServerProcess, table: HandMadeTable
) -> None:
    table.commit(1)
    path = str(table.path)

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path], 60.0)
        await watcher.until(lambda: watcher.seen == {path: 1})
        for number in range(2, 6):
            table.commit(number)
            await asyncio.to_thread(refresh, server, path)
            assert await watcher.until(lambda number=number: watcher.seen[path] == number) < 10

    run(story, StreamOptions(endpoint=server.endpoint))


def test_stream_of_a_second_watcher_reports_what_the_first_one_knows(
    server: ServerProcess, table: HandMadeTable
) -> None:
    table.commit(1)
    path = str(table.path)

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path], 60.0)
        await watcher.until(lambda: watcher.seen == {path: 1})
        watcher.seen.clear()
        watcher.stream.watched.add([path], 60.0)
        await watcher.until(lambda: watcher.seen == {path: 1})
        watcher.stream.forget([path], 60.0)
        assert watcher.stream.watched.has(path)
        watcher.stream.forget([path], 60.0)
        assert not watcher.stream.watched.has(path)

    run(story, StreamOptions(endpoint=server.endpoint))


def test_stream_reports_a_table_that_cannot_be_read_and_its_repair(server: ServerProcess, lake: Path) -> None:
    path = str(lake / "later")

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path], INTERVAL_S)
        await watcher.until(lambda: watcher.errors == {path: "TableNotFoundError"})
        HandMadeTable.create(lake / "later").commit(1)
        await watcher.until(lambda: watcher.seen == {path: 1})

    run(story, StreamOptions(endpoint=server.endpoint))


@pytest.mark.parametrize("mode", [TimelineServerMode.AUTO, TimelineServerMode.REQUIRED])
def test_table_that_the_server_does_not_serve_takes_it_from_no_other(
    server: ServerProcess, table: HandMadeTable, tmp_path_factory: pytest.TempPathFactory, mode: TimelineServerMode
) -> None:
    """One sensor with a path outside of the roots, or none at all, had all others read the file system, or nothing."""
    outside = HandMadeTable.create(tmp_path_factory.mktemp("outside") / "t")
    outside.commit(1)
    table.commit(1)
    path, refused = str(table.path), [str(outside.path), "/x" * 2000, "relative", f"{table.path}/../t"]

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path, *refused], 60.0)
        await watcher.until(lambda: watcher.seen.get(path) == 1)
        for number in (2, 3):
            table.commit(number)
            await asyncio.to_thread(refresh, server, path)
            assert await watcher.until(lambda number=number: watcher.seen[path] == number) < 10
        if mode is TimelineServerMode.REQUIRED:
            assert {watcher.errors[one] for one in refused} == {"TablesRefusedError"}
        else:
            await watcher.until(lambda: watcher.seen.get(str(outside.path)) == 1)
        watcher.stream.forget(refused, 60.0)
        assert not watcher.stream.watched.has(refused[0])

    run(story, StreamOptions(mode, server.endpoint))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_stream_under_kills_of_the_server_misses_nothing(server: ServerProcess, lake: Path, seed: int) -> None:
    """60 tables, commits all the time, four kills -9; what each reader saw last is what storage says."""
    chance = random.Random(seed)
    tables = [HandMadeTable.create(lake / f"t{number}") for number in range(60)]
    commits = dict.fromkeys((str(table.path) for table in tables), 0)

    def write(count: int) -> None:
        for _ in range(count):
            table = chance.choice(tables)
            path = str(table.path)
            if commits[path] < 59:
                commits[path] += 1
                table.commit(commits[path])
                if chance.random() < 0.5:  # the other half no reader asks for
                    with contextlib.suppress(httpx.HTTPError):
                        refresh(server, path)

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add(list(commits), INTERVAL_S)
        await watcher.until(lambda: watcher.seen == commits)
        for _ in range(4):
            await asyncio.to_thread(write, 60)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(write, 60)
            await watcher.until(lambda: watcher.seen == commits, within_s=10)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(write, 20)
            await watcher.until(lambda: watcher.seen == commits, within_s=20)
        # The readers really came back: the server refreshes again.
        await watcher.until(lambda: server.calls()["lake_timeline_loads_total"] >= len(commits))

    run(story, StreamOptions(endpoint=server.endpoint))


def test_stream_of_a_dead_server_reads_on_within_one_poll_interval(server: ServerProcess, table: HandMadeTable) -> None:
    path = str(table.path)

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path], 1.0)
        await watcher.until(lambda: watcher.seen == {path: 0})
        table.commit(1)
        await asyncio.to_thread(server.kill)
        assert await watcher.until(lambda: watcher.seen == {path: 1}) < 5

    run(story, StreamOptions(endpoint=server.endpoint))


def test_stream_that_requires_the_server_waits_for_it(server: ServerProcess, table: HandMadeTable) -> None:
    path = str(table.path)

    def never(base_path: str) -> None:
        raise AssertionError(base_path)

    async def story(watcher: Watcher) -> None:
        watcher.stream.watched.add([path], INTERVAL_S)
        await watcher.until(lambda: watcher.seen == {path: 0})
        await asyncio.to_thread(server.kill)
        table.commit(1)
        await asyncio.sleep(1)
        assert watcher.seen == {path: 0}
        await asyncio.to_thread(server.start)
        await watcher.until(lambda: watcher.seen == {path: 1})

    run(story, StreamOptions(TimelineServerMode.REQUIRED, server.endpoint, never))


def test_stream_of_a_thousand_watched_tables_is_one_long_poll(server: ServerProcess, lake: Path) -> None:
    server.kill()  # what other tests watched is refreshed for some minutes more
    server.start()
    tables = [HandMadeTable.create(lake / f"t{number}") for number in range(1000)]
    paths = [str(table.path) for table in tables]

    async def story(watcher: Watcher) -> None:
        for path in paths:  # as a thousand triggers would
            watcher.stream.watched.add([path], 600.0)
        await watcher.until(lambda: len(watcher.seen) == 1000, within_s=60)
        await asyncio.sleep(0.5)
        events, before = watcher.events, server.calls()
        await asyncio.sleep(2)
        assert watcher.events == events
        after = server.calls()
        kinds = [name for name in after if name.startswith("lake_storage_calls_total")]
        assert [after[kind] - before[kind] for kind in kinds] == [0, 0, 0]
        tables[500].commit(1)
        await asyncio.to_thread(refresh, server, paths[500])
        assert await watcher.until(lambda: watcher.seen[paths[500]] == 1) < 10

    run(story, StreamOptions(endpoint=server.endpoint))


@pytest.mark.parametrize("server_state", ["paused", "answering"])
def test_stream_never_blocks_the_event_loop(server: ServerProcess, lake: Path, server_state: str) -> None:
    """A linter cannot see a blocking call; a clock can."""
    tables = [HandMadeTable.create(lake / f"t{number}") for number in range(50)]
    for table in tables:
        table.commit(1)

    async def story(watcher: Watcher) -> None:
        if server_state == "paused":
            server.pause()
        longest_s, before = 0.0, time.monotonic()
        watcher.stream.watched.add([str(table.path) for table in tables], INTERVAL_S)
        until_s = before + 3
        while time.monotonic() < until_s:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest_s, before = max(longest_s, now - before), now
        if server_state == "paused":
            server.resume()
        # A call that blocks takes as long as the client waits for the paused server.
        assert longest_s < 1
        await watcher.until(lambda: len(watcher.seen) == 50, within_s=30)

    run(story, StreamOptions(endpoint=server.endpoint))

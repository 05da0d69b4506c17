"""After a burst of changes the stream and its server fall silent again: counted where HTTP requests arrive."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.client import TimelineEndpoint
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.schedule import ChangeLog, SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TableFeed, TimelineServer
from airflow_lake_provider.timeline_server.subscription import StreamOptions, TimelineStream
from local_stack.processes import free_port
from tests.integration.timeline_server.conftest import TOKEN
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

TABLES = 1000
"""Five times what one poll names, and far more than the stream asks for one by one."""
QUIET_AFTER_S = 5.0
IDLE_S = 1.0
IDLE_REQUESTS = 1
"""In a time so short: the long poll that ends, at most."""


@dataclass
class Traffic:
    """What the stream asked and the server answered."""

    requests: int = 0
    answer_bytes: int = 0
    entries: int = 0
    """Tables in answers, with or without their timelines."""
    finished_s: float = field(default_factory=time.monotonic)


class CountedApp:
    """The server's app; counts what goes through it."""

    def __init__(self, app: Any, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, is_packed = bytearray(), False

        async def count(message: Any) -> None:
            nonlocal is_packed
            if message["type"] == "http.response.start":
                is_packed = (b"content-encoding", b"gzip") in message["headers"]
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._traffic.requests += 1
        await self._app(scope, receive, count)
        self._traffic.answer_bytes += len(body)
        answer = json.loads(gzip.decompress(body) if is_packed else body)
        entries = len(answer["changed"]) if scope["path"].endswith("/changes") else 1
        self._traffic.entries += entries
        if entries:
            self._traffic.finished_s = time.monotonic()


@dataclass
class Site:
    """A thousand tables, a server in a thread of its own that can be started again, and the traffic to it."""

    root: Path
    tables: list[HandMadeTable]
    limits: SharedLimits = field(default_factory=SharedLimits)
    log_entries: int = 100_000
    port: int = field(default_factory=free_port)
    traffic: Traffic = field(default_factory=Traffic)
    commits: int = 0

    @property
    def paths(self) -> list[str]:
        return [str(table.path) for table in self.tables]

    @property
    def endpoint(self) -> TimelineEndpoint:
        return TimelineEndpoint(f"http://127.0.0.1:{self.port}/v1/hoodie", TOKEN)

    def start(self, snapshot_path: Path | None = None) -> None:
        self.timelines = SharedTimelines(self.limits)
        self.timelines.log = ChangeLog(self.log_entries)
        options = ServerOptions((str(self.root),), (TOKEN,), snapshot_path=snapshot_path)
        self.server = TimelineServer(self.timelines, options)
        app = CountedApp(create_timeline_app(lambda: self.server), self.traffic)
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run)
        self.thread.start()

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join()

    def commit_all(self) -> None:
        """Write one commit to each table, and announce all at once."""
        self.commits += 1
        for table in self.tables:
            table.commit(self.commits)
        self.announce_all()

    def announce_all(self) -> None:
        for path in self.paths:
            self.server.hint(TableFeed(path, is_by_writer=True))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, [HandMadeTable.create(tmp_path / f"t{number}") for number in range(TABLES)])


@contextmanager
def serving(site: Site, snapshot_path: Path | None = None) -> Iterator[None]:
    site.start(snapshot_path)
    try:
        yield
    finally:
        site.stop()


class Reader:
    """Follows the stream; knows how many instants each table was last seen with."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.stream = TimelineStream(StreamOptions(TimelineServerMode.REQUIRED, site.endpoint))
        self.stream.watched.add(site.paths, 600.0)
        self.seen: dict[str, int] = {}
        self.task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for seen in self.stream.events():
            for path, state in seen.items():
                self.seen[path] = len(state.timeline.instants)

    async def until_all_show(self, commits: int, within_s: float = 60.0) -> None:
        until_s = time.monotonic() + within_s
        while list(self.seen.values()) != [commits] * TABLES:
            assert not self.task.done(), self.task
            assert time.monotonic() < until_s, f"{sum(n == commits for n in self.seen.values())} tables show {commits}"
            await asyncio.sleep(0.02)

    async def require_quiet(self) -> None:
        """Fail unless no entry is sent for IDLE_S, soon from now, and requests are those of an idle stream."""
        traffic, began_s = self.site.traffic, time.monotonic()
        while time.monotonic() - traffic.finished_s < 0.5:
            assert time.monotonic() - began_s < QUIET_AFTER_S, f"{traffic.entries} entries, and it goes on"
            await asyncio.sleep(0.05)
        requests, answer_bytes, entries = traffic.requests, traffic.answer_bytes, traffic.entries
        await asyncio.sleep(IDLE_S)
        assert traffic.requests - requests <= IDLE_REQUESTS
        assert (traffic.entries - entries, traffic.answer_bytes - answer_bytes < 1000) == (0, True)


def run(site: Site, story: Callable[[Reader], Awaitable[None]]) -> None:
    async def main() -> None:
        reader = Reader(site)
        try:
            await story(reader)
        finally:
            reader.task.cancel()
            await asyncio.gather(reader.task, return_exceptions=True)

    asyncio.run(main())


def test_stream_is_quiet_after_every_table_changed_at_once_and_sends_each_change_twice_at_most(site: Site) -> None:
    async def story(reader: Reader) -> None:
        await reader.until_all_show(0)
        await reader.require_quiet()
        for _ in range(2):
            before = site.traffic.entries
            await asyncio.to_thread(site.commit_all)
            await reader.until_all_show(site.commits)
            await reader.require_quiet()
            assert TABLES <= site.traffic.entries - before <= 2 * TABLES

    with serving(site):
        run(site, story)


def test_stream_misses_nothing_and_is_quiet_when_tables_are_announced_again_while_it_catches_up(site: Site) -> None:
    """A second notice makes a snapshot outdated at the very moment at which the stream asks for it."""

    async def story(reader: Reader) -> None:
        await reader.until_all_show(0)
        await asyncio.to_thread(site.commit_all)
        for _ in range(10):
            await asyncio.to_thread(site.announce_all)
            await asyncio.sleep(0.05)
        await reader.until_all_show(1, within_s=30)
        await reader.require_quiet()

    with serving(site):
        run(site, story)


@pytest.mark.parametrize("is_saved", [False, True], ids=["without-snapshot", "with-snapshot"])
def test_stream_is_quiet_after_a_restart_of_the_server_and_misses_no_change(site: Site, *, is_saved: bool) -> None:
    snapshot_path = site.root / "server.timelines" if is_saved else None

    async def story(reader: Reader) -> None:
        with serving(site, snapshot_path):
            await reader.until_all_show(0)
            await reader.require_quiet()
        before = site.traffic.entries
        for table in site.tables:
            table.commit(1)
        with serving(site, snapshot_path):
            await reader.until_all_show(1)
            await reader.require_quiet()
            assert site.traffic.entries - before <= 2 * TABLES

    run(site, story)


def test_stream_is_quiet_after_a_burst_that_the_servers_log_cannot_hold(site: Site) -> None:
    site.log_entries = 50

    async def story(reader: Reader) -> None:
        await reader.until_all_show(0)
        await asyncio.to_thread(site.commit_all)
        await reader.until_all_show(1)
        await reader.require_quiet()

    with serving(site):
        run(site, story)


def test_stream_of_more_tables_than_the_server_keeps_is_quiet_after_a_burst(site: Site) -> None:
    site.limits = SharedLimits(max_tables=100, hot_tables=10)

    async def story(reader: Reader) -> None:
        await reader.until_all_show(0)
        await reader.require_quiet()
        await asyncio.to_thread(site.commit_all)
        await reader.until_all_show(1)
        await reader.require_quiet()

    with serving(site):
        run(site, story)


def test_new_reader_of_tables_that_a_restarted_server_has_not_refreshed_is_answered_within_seconds(site: Site) -> None:
    snapshot_path = site.root / "server.timelines"

    async def story(reader: Reader) -> None:
        await reader.until_all_show(0)

    for _ in range(2):
        with serving(site, snapshot_path):
            run(site, story)

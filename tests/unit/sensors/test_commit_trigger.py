"""The watcher's trigger: one event for what completed since the last one, from its own cursor, stored or sent again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_lake_provider.manager.loop.commit_events import parse_cursor
from airflow_lake_provider.triggers import commits, polling
from airflow_lake_provider.triggers.commits import (
    STATE_KEY,
    CommitProducer,
    CommitReader,
    CursorState,
    HudiCommitTrigger,
)
from tests.support.stored_triggers import again
from tests.support.tables import HandMadeTable


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def wait_until(is_done: Callable[[], bool]) -> None:
    while not is_done():  # noqa: ASYNC110 - a condition of any kind
        await asyncio.sleep(0.02)


class FakeStore:
    """Airflow's state store of one asset, as `AssetStateStoreAccessors` gives it out."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._by_name = {"file:///lake/orders": self}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


class Triggerer:
    """Airflow's own manager of shared streams with one trigger, whose events are stored when `stores` is true."""

    def __init__(self, trigger: HudiCommitTrigger, store: FakeStore, *, stores: bool = True) -> None:
        self.trigger = again(trigger)
        assert isinstance(self.trigger, HudiCommitTrigger)
        self.trigger.asset_state_store = store  # type: ignore[assignment]
        self.stores = stores
        self.events: list[dict[str, Any]] = []

    async def run(self, until: Any, timeout_s: float = 20.0) -> None:
        """Run the trigger until a condition holds; then the process dies."""
        streams = SharedStreamManager()
        task = asyncio.create_task(self._follow(streams))
        try:
            async with asyncio.timeout(timeout_s):
                await wait_until(until)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await streams.stop_all()

    async def _follow(self, streams: SharedStreamManager) -> None:
        trigger = self.trigger
        assert isinstance(trigger, HudiCommitTrigger)
        key = trigger.shared_stream_key()
        stream = streams.subscribe(trigger_id=1, trigger=trigger, key=key)
        async for event in trigger.filter_shared_stream(stream):
            seq = streams.bind_pending_event(trigger_id=1, key=key)
            if self.stores:
                self.events.append(event.payload)
                asyncio.get_running_loop().call_later(0.05, streams.confirm_persisted, [seq])


@pytest.fixture(autouse=True)
def _pauses_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "LEAST_INTERVAL_S", 0.05)


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders")


@pytest.fixture
def trigger(table: HandMadeTable) -> HudiCommitTrigger:
    return HudiCommitTrigger(str(table.path), poll_interval_s=0.05)


def cursor_of(store: FakeStore) -> str:
    body = store.values.get(STATE_KEY)
    return "" if body is None or body["sent"] else parse_cursor(body["cursor"]).until


def instants(triggerer: Triggerer) -> list[str]:
    return [instant for event in triggerer.events for instant in event["instants"]]


@in_event_loop
async def test_commits_after_its_begin_become_events_and_the_cursor_follows(
    table: HandMadeTable, trigger: HudiCommitTrigger
) -> None:
    table.commit(1)
    store = FakeStore()
    triggerer = Triggerer(trigger, store)

    async def write() -> None:
        await wait_until(lambda: bool(cursor_of(store)))
        table.commit(2)
        table.commit(3)

    writing = asyncio.create_task(write())
    await triggerer.run(lambda: cursor_of(store).endswith("03500"))
    await writing
    assert instants(triggerer) == ["20261121120002000", "20261121120003000"]
    assert triggerer.events[0]["after"] == "20261121120001500"
    assert triggerer.events[0]["kind"] == "commits"


@in_event_loop
async def test_a_restarted_triggerer_goes_on_where_it_was(table: HandMadeTable, trigger: HudiCommitTrigger) -> None:
    table.commit(1)
    store = FakeStore()
    first = Triggerer(trigger, store)
    await first.run(lambda: bool(cursor_of(store)))
    table.commit(2)  # while no triggerer runs
    second = Triggerer(trigger, store)
    await second.run(lambda: cursor_of(store).endswith("02500"))
    assert (first.events, instants(second)) == ([], ["20261121120002000"])


@in_event_loop
async def test_an_event_that_was_not_stored_is_sent_again_as_it_was(
    table: HandMadeTable, trigger: HudiCommitTrigger
) -> None:
    table.commit(1)
    store = FakeStore()
    await Triggerer(trigger, store).run(lambda: bool(cursor_of(store)))
    table.commit(2)
    dying = Triggerer(trigger, store, stores=False)
    await dying.run(lambda: bool(store.values[STATE_KEY]["sent"]))
    sent = store.values[STATE_KEY]["sent"]
    table.commit(3)
    second = Triggerer(trigger, store)
    await second.run(lambda: cursor_of(store).endswith("03500"))
    assert second.events[0] == sent[0]
    assert instants(second) == ["20261121120002000", "20261121120003000"]


@in_event_loop
async def test_a_triggerer_that_was_taken_for_dead_goes_on_behind_the_other(table: HandMadeTable) -> None:
    table.commit(1)
    store = FakeStore()
    state = CursorState(store)  # type: ignore[arg-type]
    taken_for_dead = CommitProducer("", CommitReader(str(table.path), 0.1, None), state).open_stream()
    waiting = asyncio.ensure_future(anext(taken_for_dead))
    await wait_until(lambda: bool(cursor_of(store)))
    table.commit(2)
    then, events = CommitReader(str(table.path), 0.1, None).read(parse_cursor(store.values[STATE_KEY]["cursor"]))
    await state.keep(then.to_text())  # by the other one, before this one's next turn
    table.commit(3)
    payload, _ = await waiting
    await taken_for_dead.aclose()
    assert (events[0]["instants"], payload["instants"]) == (["20261121120002000"], ["20261121120003000"])


@in_event_loop
async def test_a_table_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    store = FakeStore()
    triggerer = Triggerer(HudiCommitTrigger(str(tmp_path / "orders"), poll_interval_s=0.05), store)

    async def create() -> None:
        await asyncio.sleep(0.3)
        HandMadeTable.create(tmp_path / "orders").commit(1)

    creating = asyncio.create_task(create())
    await triggerer.run(lambda: bool(cursor_of(store)))
    await creating


def test_commits_that_take_much_memory_together_are_in_the_event_without_their_numbers(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(1)
    reader = CommitReader(str(table.path), 60, None)
    cursor = reader.begin()
    for second in range(2, 10):
        table.commit(second)
    monkeypatch.setattr(commits, "MAX_MEMORY_BYTES", 1_000)
    after, (event,) = reader.read(cursor)
    assert (event["is_cut"], event["commits"], len(event["instants"])) == (True, 8, 8)
    assert 0 < event["written_bytes"] < 800
    assert parse_cursor(after.to_text()).until == event["until"] == "20261121120009500"
    table.commit(10)
    _, (following,) = reader.read(after)
    assert (following["is_cut"], following["written_bytes"], following["instants"]) == (
        False,
        100,
        ["20261121120010000"],
    )


@in_event_loop
async def test_tables_that_are_read_for_long_leave_the_threads_of_all_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(CommitReader, "begin", lambda _reader: go_on.wait(20))
    streams = [
        CommitProducer("", CommitReader(f"/lake/t{n}", 60, None), CursorState(None)).open_stream() for n in range(9)
    ]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
    try:
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert await asyncio.to_thread(lambda: "asked") == "asked"
    finally:
        go_on.set()
        for read in reading:
            read.cancel()


def test_a_trigger_reads_its_table_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert CommitReader("/lake/orders", 0.0, None).poll_interval_s == polling.LEAST_INTERVAL_S == 1.0

"""The loop's process comes back whenever it ends, says how it is, hears its parent, and ends with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop import loop_process
from airflow_lake_provider.manager.loop.loop_process import LoopProcess
from airflow_lake_provider.manager.loop.loop_status import LoopStatus, StuckEvaluation, describe_loop
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.patience import patient
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeRunGateway

WELL = LoopStatus(0.5).to_line().decode().strip()
REPORTS = f"import os, sys; print('a word of a library'); print({WELL!r}, flush=True)\n"
"""What a child begins with."""


def process_of(code: str) -> LoopProcess:
    return LoopProcess((sys.executable, "-c", code), interval_s=1.0)


def run(process: LoopProcess, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        task = asyncio.create_task(process.run())
        try:
            await asyncio.wait_for(story(), 40)
        finally:
            task.cancel()
            await asyncio.wait((task,))

    asyncio.run(whole())


async def until(ready: Callable[[], bool]) -> None:
    while not ready():  # noqa: ASYNC110 - a process says nothing in an event
        await asyncio.sleep(0.02)


def sees(_path: str) -> bool:
    return True


def test_process_that_ends_is_a_problem_with_its_cause_and_comes_back(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    code = f"open({str(starts)!r}, 'a').write('x')\n" + REPORTS + "sys.stdin.read(); sys.exit(3)"
    process = process_of(code)

    async def story() -> None:
        await until(lambda: process.pid is not None and process._reported is not None)
        assert process.find_problems(sees) == ()
        process._hang_up()
        await until(lambda: process.find_problems(sees) != ())
        (problem,) = process.find_problems(sees)
        assert "it ended with 3" in problem
        await until(lambda: process.find_problems(sees) == ())
        assert starts.read_text() == "xx"

    run(process, story)


def test_process_that_cannot_be_started_is_a_problem() -> None:
    process = LoopProcess(("/nowhere/python",), interval_s=1.0)

    async def story() -> None:
        await until(lambda: process.find_problems(sees) != ())
        assert "it cannot be started" in process.find_problems(sees)[0]

    run(process, story)


def test_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_process, "MAX_SILENT_S", 0.3)
    process = process_of(REPORTS + "import time; time.sleep(60)")

    async def story() -> None:
        await until(lambda: process.find_problems(sees) != ())
        assert "it hung" in process.find_problems(sees)[0]

    run(process, story)


def test_starting_is_no_problem_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of("import time; time.sleep(60)")

    async def story() -> None:
        await until(lambda: process.pid is not None)
        assert process.find_problems(sees) == ()
        monkeypatch.setattr(loop_process, "_NOT_READY_S", 0.0)
        assert "it is still starting" in process.find_problems(sees)[0]

    monkeypatch.setattr(loop_process, "END_S", 0.2)
    run(process, story)
    assert process.pid is None


def test_what_is_said_arrives_whole_and_process_ends_with_its_input(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    code = REPORTS + f"lines = list(sys.stdin); open({str(heard)!r}, 'w').write(''.join(lines))"
    process = process_of(code)
    ids = [f"{number:032x}" for number in range(5000)]

    async def story() -> None:
        await until(lambda: process._reported is not None)
        process.wake()
        await asyncio.to_thread(process.postpone, ids)

    run(process, story)
    empty, *lines, end = heard.read_text().splitlines()
    assert (empty, end) == ("", "end")
    assert [one for line in lines for one in json.loads(line)["postpone"]] == ids


def test_child_that_does_not_listen_holds_up_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_process, "MAX_WRITE_S", 0.2)
    monkeypatch.setattr(loop_process, "END_S", 0.2)
    process = process_of(REPORTS + "import time; time.sleep(60)")

    async def story() -> None:
        await until(lambda: process._reported is not None)
        began_s = time.monotonic()
        await asyncio.to_thread(process.postpone, [f"{number:032x}" for number in range(5000)])
        for _ in range(1000):
            process.wake()
        assert time.monotonic() - began_s < patient(5)

    run(process, story)


def test_status_survives_its_line_and_names_what_the_caller_may_see() -> None:
    status = LoopStatus(100.0, (StuckEvaluation("s3://lake/orders", "s3://lake", 61.0),), 4)
    assert LoopStatus.of_line(status.to_line()) == status
    seen, silent = describe_loop(status, 1.0, lambda _path: True)
    assert "1 evaluations of s3://lake" in seen
    assert "s3://lake/orders" in seen
    assert "no pass for 100 s" in silent
    assert "orders" not in "".join(describe_loop(status, 1.0, lambda _path: False))


CHILD = """
import os, sys, time
from airflow_lake_provider.manager.loop_child import Parent
parent = Parent(os.dup(1))
ended = []
parent.listen(lambda line: None, lambda: ended.append(1))
parent.report({report!r})
while not ended:
    time.sleep(0.05)
open({path!r}, "w").write("saved")
"""


def child_of(path: Path) -> str:
    return CHILD.format(report=LoopStatus(0.5).to_line(), path=str(path))


def test_child_saves_and_ends_though_a_forked_process_holds_its_input(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    process = process_of(child_of(saved))
    held: list[int] = []

    async def story() -> None:
        await until(lambda: process._reported is not None)
        assert process._process is not None
        assert process._process.stdin is not None
        held.append(os.dup(process._process.stdin.fileno()))

    try:
        run(process, story)
        assert saved.read_text() == "saved"
    finally:
        os.close(held[0])


def test_child_ends_with_a_killed_parent_though_a_forked_process_holds_its_input(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    child = tmp_path / "child.py"
    child.write_text(child_of(saved))
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, {str(child)!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "forked = os.fork() or time.sleep(60)\n"
        "print(forked, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        forked = int(parent.stdout.readline())
        parent.kill()
        try:
            deadline_s = time.monotonic() + 30
            while not saved.exists() and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert saved.exists()
        finally:
            os.kill(forked, signal.SIGKILL)


class HeardProcess(LoopProcess):
    """A process that only notes what it hears."""

    def __init__(self) -> None:
        super().__init__((), 1.0)
        self.woken = 0
        self.postponed: list[str] = []

    def wake(self) -> None:
        self.woken += 1

    def postpone(self, table_ids: object) -> None:
        self.postponed += list(table_ids)  # type: ignore[call-overload]


def readers_server(registry: Registry, settings: LakeSettings) -> TimelineServer:
    options = ServerOptions(settings.allowed_roots, settings.service_tokens, is_for_readers=True)
    return TimelineServer(SharedTimelines(), options, RegistryFeed(registry, TablesConfig))


def test_api_server_next_to_a_process_evaluates_and_reads_nothing_for_a_notice(
    registry: Registry, settings: LakeSettings, gateway: FakeRunGateway, lake: Path
) -> None:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    server = readers_server(registry, settings)
    process = HeardProcess()
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(server), TableViewCache(server.timelines), gateway, TablesConfig,
        process=process,
    )  # fmt: skip
    mark = loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, ("20261121120001000",)))
    loop.start()
    loop.postpone([mark.table_id])
    server._take_feed()
    assert (process.woken, process.postponed) == (2, [mark.table_id])
    assert registry.find(mark.table_id).dirty_since_ms is not None  # type: ignore[index]
    assert server.timelines.due.hints == 0
    assert server.timelines.calls.lists == 0


def test_reader_sees_a_commit_that_another_process_announced(
    registry: Registry, settings: LakeSettings, lake: Path
) -> None:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    server = readers_server(registry, settings)
    server._take_feed()
    base_path = str(table.path)
    assert len(server.timelines.snapshot(base_path).timeline.completed()) == 1
    table.commit(2)
    registry.mark_dirty(Notice(base_path, "orders", Source.COMMIT_CALLBACK, ("20261121120002000",)))
    server._take_feed()
    assert server.timelines.due.hints == 0  # no reader polls it
    assert len(server.timelines.snapshot(base_path).timeline.completed()) == 2
    server.timelines.watch(base_path, 30.0, server.timelines.now_ms() + 60_000)
    registry.mark_dirty(Notice(base_path, "orders", Source.COMMIT_CALLBACK, ("20261121120003000",)))
    server._take_feed()
    assert server.timelines.due.hints == 1

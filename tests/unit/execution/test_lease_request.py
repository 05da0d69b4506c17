"""Which try may take a lease over before its end (G2), and that a dead worker blocks no try that can see it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder
from airflow_lake_provider.execution import lease as lease_module
from airflow_lake_provider.execution.engines.job_files import JobFolder, write_text
from airflow_lake_provider.execution.engines.local_process import (
    ProcessIdentity,
    _stat_fields,
    identity_from_text,
    identity_to_text,
    this_process,
)
from airflow_lake_provider.execution.lease import LeaseRequest
from airflow_lake_provider.job_contract import Service


@dataclass
class FakeManager:
    """Plays hook and manager: a lease with its holder, which ends `rest_s` later; a pause lets that time pass."""

    holder: LeaseHolder | None
    renews: bool = False
    calls: list[LeaseHolder | None] = field(default_factory=list)
    paused_s: float = 0.0
    is_to_end: bool = False
    items: dict[str, list[str]] = field(default_factory=dict)
    """States in turn by item."""
    cancelled: list[str] = field(default_factory=list)

    def ask_work(self, questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        (question,) = questions
        states = self.items.get(question["item_id"], [])
        return {question["item_id"]: {"state": states.pop(0)}} if states else {}

    def cancel_work(self, item_id: str, reason: str) -> None:
        self.cancelled.append(item_id)

    def acquire_executor(self, *_: Any, ended: LeaseHolder | None = None) -> tuple[str, float]:
        self.calls.append(ended)
        if self.holder is not None and ended != self.holder and self.holder.rest_s > 0:
            raise ExecutorBusyError("is being executed", self.holder)
        return "token", 900.0

    def pause(self, seconds: float) -> bool:
        self.paused_s += seconds
        if self.holder is not None and not self.renews:
            self.holder = replace(self.holder, rest_s=self.holder.rest_s - seconds)
        return self.is_to_end


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "boot_s", lambda: Clock.manager.paused_s)


class Clock:
    manager: FakeManager


def lease_request(folder: Path, manager: FakeManager, run_id: str = "run", try_number: int = 2) -> LeaseRequest:
    Clock.manager = manager
    files = JobFolder(str(folder), run_id, try_number)
    return LeaseRequest(manager, "t", Service.COMPACTION, files)  # type: ignore[arg-type]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that works on try 1 of run `run`, and is put down as its holder."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        write_holder(tmp_path, identity_of(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


def identity_of(pid: int) -> ProcessIdentity:
    fields, here = _stat_fields(pid), this_process()
    assert fields is not None
    assert here is not None
    return replace(here, pid=pid, start_ticks=int(fields[19]))


def write_holder(folder: Path, identity: ProcessIdentity, run_id: str = "run", try_number: int = 1) -> None:
    write_text(JobFolder(str(folder), run_id, try_number).holder_path, identity_to_text(identity))


HELD = LeaseHolder("run", 1, 880.0)


def test_process_is_put_down_before_the_lease_is_asked_for(tmp_path: Path) -> None:
    """Else a task that dies in between would block the next try for the whole lease."""
    folder = JobFolder(str(tmp_path), "run", 2)
    manager = FakeManager(None)
    seen: list[bool] = []
    manager.acquire_executor = lambda *_, **__: (  # type: ignore[method-assign]
        seen.append(Path(folder.holder_path).exists()) or ("token", 900.0)  # type: ignore[func-returns-value]
    )
    taken = lease_request(tmp_path, manager).acquire()
    assert (taken.token, taken.lease_s, seen) == ("token", 900.0, [True])
    assert identity_from_text(Path(folder.holder_path).read_text(encoding="utf-8")) == this_process()


def test_lease_of_a_dead_try_is_taken_over_at_once(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    # Not reaped: a zombie has ended as well.
    manager = FakeManager(HELD)
    assert lease_request(tmp_path, manager).acquire().token == "token"
    assert manager.calls == [None, HELD]
    assert manager.paused_s == 0


def test_earlier_try_that_still_lives_is_killed_first(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    """Airflow has given it up: it may be paused, and would go on when it wakes up."""
    manager = FakeManager(HELD)
    lease_request(tmp_path, manager).acquire()
    assert worker.wait(timeout=20) == -9
    assert manager.calls == [None, HELD]


@pytest.mark.parametrize(("run_id", "try_number"), [("another", 2), ("run", 0)])
def test_living_process_of_another_run_or_of_a_later_try_keeps_its_lease(
    tmp_path: Path, worker: subprocess.Popen[bytes], run_id: str, try_number: int
) -> None:
    manager = FakeManager(HELD)
    with pytest.raises(ExecutorBusyError):
        lease_request(tmp_path, manager, run_id, try_number).acquire()
    assert worker.poll() is None
    assert manager.calls == [None]


def test_dead_process_of_another_run_blocks_no_run(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    assert lease_request(tmp_path, FakeManager(HELD), "another", 1).acquire().token == "token"


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"boot_id": "another machine"}, id="another-machine-or-start"),
        pytest.param({"pid_namespace": "pid:[1]"}, id="another-container"),
    ],
)
def test_process_that_cannot_be_seen_from_here_keeps_its_lease_to_the_end(
    tmp_path: Path, worker: subprocess.Popen[bytes], elsewhere: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its id means nothing here: that no such process runs says nothing."""
    write_holder(tmp_path, replace(identity_of(worker.pid), pid=2**22 + 1, **elsewhere))  # type: ignore[arg-type]
    manager = FakeManager(HELD)
    with caplog.at_level("INFO"):
        lease_request(tmp_path, manager).acquire()
    assert set(manager.calls) == {None}
    assert manager.paused_s >= HELD.rest_s
    assert "another host or container" in caplog.text
    assert "waits until" in caplog.text


def test_holder_without_a_file_keeps_its_lease_to_the_end(tmp_path: Path) -> None:
    manager = FakeManager(HELD)
    lease_request(tmp_path, manager).acquire()
    assert set(manager.calls) == {None}
    assert manager.paused_s >= HELD.rest_s


@pytest.mark.parametrize(
    ("states", "cancelled"),
    [(["ended"], []), (["cancelled"], []), ([], []), (["running", "waiting", "ended"], ["i", "i"])],
)
def test_earlier_try_that_waited_for_an_item_gives_its_lease_up_when_the_item_has_ended(
    tmp_path: Path, states: list[str], cancelled: list[str]
) -> None:
    """Airflow failed that try although it was not over: the executor's report of its worker's end came late."""
    write_text(JobFolder(str(tmp_path), "run", 1).item_path, "i")
    manager = FakeManager(HELD, items={"i": states})
    assert lease_request(tmp_path, manager).acquire().token == "token"
    assert manager.cancelled == cancelled
    assert manager.paused_s <= len(cancelled) * lease_module.RETRY_AFTER_S


def test_item_of_another_run_keeps_its_lease(tmp_path: Path) -> None:
    write_text(JobFolder(str(tmp_path), "run", 1).item_path, "i")
    with pytest.raises(ExecutorBusyError):
        lease_request(tmp_path, FakeManager(HELD, items={"i": ["ended"]}), "another").acquire()


def test_earlier_try_that_renews_its_lease_elsewhere_is_waited_for_within_a_bound(tmp_path: Path) -> None:
    manager = FakeManager(HELD, renews=True)
    with pytest.raises(ExecutorBusyError):
        lease_request(tmp_path, manager).acquire()
    assert HELD.rest_s <= manager.paused_s <= HELD.rest_s + lease_module.MARGIN_S + lease_module.RETRY_AFTER_S


def test_task_that_is_to_end_waits_no_longer(tmp_path: Path) -> None:
    with pytest.raises(ExecutorBusyError):
        lease_request(tmp_path, FakeManager(HELD, is_to_end=True)).acquire()


def test_lease_whose_answer_was_lost_is_this_trys_own(tmp_path: Path) -> None:
    manager = FakeManager(LeaseHolder("run", 2, 880.0))
    assert lease_request(tmp_path, manager).acquire().token == "token"
    assert manager.paused_s == 0


def test_manager_that_ignores_what_has_ended_is_not_asked_for_ever(
    tmp_path: Path, worker: subprocess.Popen[bytes]
) -> None:
    worker.kill()
    manager = FakeManager(HELD)
    honest = manager.acquire_executor
    manager.acquire_executor = lambda *_, ended=None: honest()  # type: ignore[method-assign]
    with pytest.raises(ExecutorBusyError):
        lease_request(tmp_path, manager).acquire()


def test_id_that_is_used_again_is_another_process(worker: subprocess.Popen[bytes]) -> None:
    identity = identity_of(worker.pid)
    assert identity.is_alive
    assert not replace(identity, start_ticks=identity.start_ticks - 1).is_alive


def test_file_that_is_not_whole_names_no_process() -> None:
    assert [identity_from_text(text) for text in ("", "{", "[]", '{"pid": 1}')] == [None] * 4

"""The guard around a write, and around an operator's job in a real Airflow; other writers are planted in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.conflict.guard import Outlook
from airflow_lake_provider.errors import WriteConflictError
from airflow_lake_provider.operators.guard import HudiWriterGuard
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import commit_body

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
OLDER, MINE = "20991231000000001", "20991231000000002"
PATIENCE_S = 60.0


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return unpack("mor_v9", tmp_path).path


def plant(table: Path, instant: str, *groups: tuple[str, str]) -> None:
    meta = table / ".hoodie"
    (meta / ".heartbeat").mkdir(exist_ok=True)
    (meta / ".heartbeat" / instant).touch()
    (meta / "timeline" / f"{instant}.deltacommit.requested").touch()
    (meta / "timeline" / f"{instant}.deltacommit.inflight").write_bytes(commit_body(list(groups)))


def commit(table: Path, instant: str, completed: str, *groups: tuple[str, str]) -> None:
    meta = table / ".hoodie"
    (meta / "timeline" / f"{instant}_{completed}.deltacommit").write_bytes(commit_body(list(groups)))
    (meta / ".heartbeat" / instant).unlink()


def guard(table: Path, cancel: Callable[[], object], **more: Any) -> HudiWriterGuard:
    return HudiWriterGuard(str(table), cancel=cancel, **{"hudi_options": {}, "period_s": 0.05, "instant": MINE, **more})


def test_write_that_cannot_win_is_ended_with_a_reason(table: Path) -> None:
    plant(table, OLDER, ("Oslo", "f1-0"))
    plant(table, MINE, ("Oslo", "f1-0"), ("Bonn", "f2-0"))
    killed = threading.Event()

    def write() -> None:
        assert killed.wait(PATIENCE_S)
        raise RuntimeError("the job was killed")

    with pytest.raises(WriteConflictError) as raised, guard(table, killed.set):
        write()
    for part in (str(table), OLDER, MINE, "Oslo/f1-0", "hoodie.write.lock.conflict.resolution.strategy"):
        assert part in str(raised.value)
    assert str(raised.value.__cause__) == "the job was killed"


def test_write_that_commits_before_it_is_ended_succeeds(table: Path) -> None:
    plant(table, OLDER, ("Oslo", "f1-0"))
    plant(table, MINE, ("Oslo", "f1-0"))
    killed = threading.Event()
    with guard(table, killed.set):
        assert killed.wait(PATIENCE_S)
        commit(table, MINE, "20991231000000009", ("Oslo", "f1-0"))
        raise RuntimeError("the job was killed after its commit")


def test_write_without_a_conflict_and_errors_of_its_own_pass_through(table: Path) -> None:
    plant(table, OLDER, ("Bonn", "f2-0"))
    plant(table, MINE, ("Oslo", "f1-0"))
    watched = guard(table, lambda: None)

    def write() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while watched.judgement.outlook is not Outlook.CAN_WIN:
            assert time.monotonic() < deadline_s
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watched:
        write()
    assert watched.ended == ""


def test_callback_that_fails_is_called_again_until_the_block_is_left(table: Path) -> None:
    plant(table, OLDER, ("Oslo", "f1-0"))
    plant(table, MINE, ("Oslo", "f1-0"))
    calls, killed = [], threading.Event()

    def cancel() -> None:
        calls.append(1)
        if len(calls) < 2:
            raise OSError("not started yet")
        killed.set()

    with pytest.raises(WriteConflictError), guard(table, cancel):
        assert killed.wait(PATIENCE_S)


def test_without_a_way_to_know_its_instant_it_ends_nothing_and_says_so(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with guard(table, lambda: None, instant=None) as watched:
        plant(table, OLDER, ("Oslo", "f1-0"))
        plant(table, MINE, ("Oslo", "f1-0"))
    assert watched.judgement.outlook is Outlook.NOT_BEGUN
    assert "every_writer_is_guarded" in caplog.text


def test_two_guards_do_not_reserve_one_partition(table: Path) -> None:
    with guard(table, lambda: None, reserve_partitions=["city=Oslo"]):
        with pytest.raises(WriteConflictError, match="city=Oslo could not be reserved"):
            guard(table, lambda: None, reserve_partitions=["city=Oslo"], wait_s=0.2).__enter__()
        with guard(table, lambda: None, reserve_partitions=["city=Bonn"]):
            """Another partition is free."""
    with guard(table, lambda: None, reserve_partitions=["city=Oslo"]):
        """It was given back."""

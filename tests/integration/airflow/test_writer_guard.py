"""The guard around a write, and around an operator's job in a real Airflow; other writers are planted in flight."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.conflict.guard import Outlook
from airflow_lake_provider.conflict.guard_register import GUARD_FOLDER
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
        while watched.forecast.outlook is not Outlook.CAN_WIN:
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
    assert watched.forecast.outlook is Outlook.NOT_BEGUN
    assert "every_writer_is_guarded" in caplog.text


def test_two_guards_do_not_reserve_one_partition(table: Path) -> None:
    with guard(table, lambda: None, reserve_partitions=["city=Oslo"]):
        with pytest.raises(WriteConflictError, match="city=Oslo could not be reserved"):
            guard(table, lambda: None, reserve_partitions=["city=Oslo"], wait_s=0.2).__enter__()
        with guard(table, lambda: None, reserve_partitions=["city=Bonn"]):
            """Another partition is free."""
    with guard(table, lambda: None, reserve_partitions=["city=Oslo"]):
        """It was given back."""


# --- A whole Airflow task: spark-submit is a script that leaves on storage what a Hudi writer does

SPARK_SUBMIT = """#!{python}
import os, sys, time
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.integration.airflow.test_writer_guard import OLDER, commit, plant

table = Path({table!r})
tries = len(list(table.glob("try-*"))) + 1
(table / f"try-{{tries}}").touch()
instant = f"2099123100000010{{tries}}"
plant(table, instant, ("Oslo", "f1-0"))
if tries == 1:
    (table / "pid").write_text(str(os.getpid()))
    time.sleep(600)
commit(table, instant, "20991231000000999", ("Oslo", "f1-0"))
"""

DAG_FILE = """
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_lake_provider.operators.guard import HudiWriterGuardMixin


class GuardedSparkSubmitOperator(HudiWriterGuardMixin, SparkSubmitOperator):
    pass


with DAG("guarded_write", schedule=None):
    GuardedSparkSubmitOperator(
        task_id="write",
        application="orders.py",
        conn_id="spark_guarded",
        hudi_base_path={table!r},
        guard_options={{"every_writer_is_guarded": True, "hudi_options": {{}}, "period_s": 0.1}},
        guard_pause_s=0.01,
    )
"""


def test_guarded_operator_is_ended_early_and_its_retry_succeeds(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api.common.delete_dag import delete_dag
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models import Connection

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_GUARDED", Connection(conn_type="spark", host="local").get_uri())
    binaries = tmp_path / "bin"
    binaries.mkdir()
    script = binaries / "spark-submit"
    script.write_text(SPARK_SUBMIT.format(python=sys.executable, root=str(ROOT), table=str(table)))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    plant(table, OLDER, ("Oslo", "f1-0"))

    file = tmp_path / "dags" / "guarded_write.py"
    file.parent.mkdir()
    file.write_text(DAG_FILE.format(table=str(table)))
    bag = DagBag(dag_folder=str(file))
    assert bag.import_errors == {}
    sync_bag_to_db(bag, "lake", None)

    def end_older() -> None:
        """The older writer commits when the younger one was ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (table / "pid").exists() or is_running(int((table / "pid").read_text() or 0)):
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.05)
        commit(table, OLDER, "20991231000000500", ("Oslo", "f1-0"))

    started: list[Any] = []

    class Popen(subprocess.Popen[Any]):
        """Airflow's hook leaves its pipe open."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    older = threading.Thread(target=end_older)
    older.start()
    try:
        run = bag.dags["guarded_write"].test()
    finally:
        older.join()
        for process in started:
            if process.stdout is not None:
                process.stdout.close()
        delete_dag("guarded_write")
    assert run.state == "success"
    assert sorted(path.name for path in table.glob("try-*")) == ["try-1", "try-2"]
    names = os.listdir(table / ".hoodie" / "timeline")
    assert "20991231000000101.deltacommit.requested" in names
    assert not any(name.startswith("20991231000000101_") for name in names), "the first try did not commit"
    assert "20991231000000102_20991231000000999.deltacommit" in names
    entries = [path.read_text() for path in (table / GUARD_FOLDER).iterdir()]
    assert "ended 20991231000000101" in entries


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

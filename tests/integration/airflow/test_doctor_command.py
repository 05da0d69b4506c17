"""`airflow lake doctor`, as Airflow's command line runs it, on Airflow's own database."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.airflow_command import run
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

LONG_AGO_S = 1_700_000_000
TABLES = """
defaults:
  doctor: {repairs: [orphaned_lock, plan_without_executor]}
  hudi_options: {hoodie.write.lock.provider: a.b.FileSystemBasedLockProvider}
"""


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders; $(x) ü")
    table.commit(1)
    return table


@pytest.fixture
def allowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(tmp_path / "tables.yaml"))


def leave(table: HandMadeTable, name: str) -> Path:
    file = table.path / ".hoodie" / name
    file.write_bytes(b"{}" if name.endswith(".compaction.requested") else b"")
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    return file


def test_doctor_names_what_is_stuck_its_repair_and_how_to_allow_it(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "doctor", str(table.path)) == (0, f"nothing is stuck at {table.path}\n")
    lock = leave(table, "lock")
    code, output = run(capsys, "doctor", str(table.path))
    assert code == 1
    assert "orphaned_lock: .hoodie/lock is" in output
    assert "can move .hoodie/lock away (.hoodie/lock); add orphaned_lock to doctor.repairs" in output
    code, output = run(capsys, "doctor", str(table.path), "--repair", "orphaned_lock")
    assert (code, "policy does not allow it" in output, lock.exists()) == (1, True, True)
    assert run(capsys, "doctor", str(table.path), "--history")[1].startswith("there are no repairs")


@pytest.mark.usefixtures("allowing")
def test_doctor_repairs_a_file_and_remembers_it(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    lock = leave(table, "lock")
    code, output = run(capsys, "doctor", str(table.path), "--repair", "orphaned_lock", "--dry-run")
    assert (code, "would move .hoodie/lock away" in output, lock.exists()) == (0, True, True)
    code, output = run(capsys, "doctor", str(table.path), "--repair", "orphaned_lock")
    assert (code, "result:   repaired" in output, lock.exists()) == (0, True, False)
    _, history = run(capsys, "doctor", str(table.path), "--history", "-o", "json")
    (record,) = json.loads(history)
    assert (record["kind"], record["result"]) == ("orphaned_lock", "repaired")
    assert (table.path / record["removed"][0]["kept_as"]).exists()
    assert run(capsys, "doctor", str(table.path))[0] == 0
    code, output = run(capsys, "doctor", str(table.path), "--repair", "orphaned_lock")
    assert (code, "no problem of kind orphaned_lock" in output) == (1, True)


@pytest.mark.usefixtures("allowing")
def test_doctor_starts_the_run_that_the_manager_would_start_and_only_one(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.runs.run_ids import run_id_of

    leave(table, "timeline/20261121120009000.compaction.requested")
    for _ in range(2):
        code, output = run(capsys, "doctor", str(table.path), "--repair", "plan_without_executor")
        assert (code, "was started" in output) == (0, True)
    run_id = run_id_of(table_id_of(str(table.path)), Service.COMPACTION, "20261121120009000")
    with create_session() as session:
        runs = session.scalars(select(DagRun).where(DagRun.run_id.endswith(run_id.rpartition(".")[2]))).all()
        assert [run.run_id for run in runs] == [run_id]
        conf = runs[0].conf
    assert (conf["service"], conf["mode"], conf["instants"]) == ("compaction", "execute", ["20261121120009000"])
    assert "hoodie.write.lock.provider" in conf["hudi_options"]


def test_unknown_shape_is_answered_with_the_known_ones(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run(capsys, "doctor", str(table.path), "--repair", "headache")
    assert (code, "known are orphaned_lock" in output) == (1, True)

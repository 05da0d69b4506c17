"""`airflow lake check-restore`, as Airflow's command line runs it, on Airflow's own database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.holds import NewHold, ReaderHolds
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from tests.support.airflow_command import run
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandMadeTable:
    (tmp_path / "tables.yaml").write_text("defaults: {}\n")
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(tmp_path / "tables.yaml"))
    made = HandMadeTable.create(tmp_path / "orders; $(x) ü")
    saved = made.commit(1)
    made.commit(2)
    (made.path / ".hoodie/timeline" / f"{saved}_20261121120001900.savepoint").write_text("{}")
    return made


SAVED, LOST = "20261121120001000", "20261121120002000"


def test_command_names_what_is_lost_and_what_begins_again(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    sinks = Sinks(open_registry())
    table_id = table_id_of(str(table.path))
    for sink, instant, completed in (("behind", SAVED, "20261121120001500"), ("ahead", LOST, "20261121120002500")):
        sinks.begin_run(table_id, sink, 3600, f"run-{sink}")
        has = Checkpoint(f"{table_id}.{sink}", 1, 1, CommitRef(instant, completed), done=(instant,))
        sinks.record_progress(table_id, sink, RunProgress(f"run-{sink}", checkpoint=to_text(has)))
    code, output = run(capsys, "check-restore", str(table.path), SAVED, "-o", "json")
    rows = {row["subject"]: row["kind"] for row in json.loads(output)}
    assert code == 0
    assert {subject: kind for subject, kind in rows.items() if kind != "setting"} == {
        LOST: "taken back",
        "ahead": "stream",
    }


def test_command_is_refused_for_a_reader_and_ends_with_code_1(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run(capsys, "check-restore", str(table.path), SAVED)
    assert (code, output.splitlines()[-1]) == (
        0,
        "nothing forbids it; it takes back 1 writes and plans, 0 changed rows in 1 of them",
    )
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    holds = ReaderHolds(open_registry())
    hold_id = holds.add(table_id_of(str(table.path)), NewHold("ann", "export", SAVED, "", 3_600_000, 10**15))
    code, output = run(capsys, "check-restore", str(table.path), SAVED)
    assert code == 1
    assert "ann (export): a reader holds files of this table" in output
    holds.release(table_id_of(str(table.path)), hold_id)
    assert run(capsys, "check-restore", str(table.path), SAVED)[0] == 0

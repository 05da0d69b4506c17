"""`airflow lake check-writer`, as Airflow's command line runs it, on Airflow's own database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.airflow_command import run
from tests.support.checked_writes import MULTI_WRITER, write
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

TABLES = """
defaults:
  hudi_options:
    hoodie.write.lock.provider: org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandMadeTable:
    (tmp_path / "tables.yaml").write_text(TABLES)
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(tmp_path / "tables.yaml"))
    return HandMadeTable.create(tmp_path / "orders; $(x) ü")


def test_command_names_the_setting_until_the_writer_is_corrected(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    write(table, 1, is_guarded=False)
    code, output = run(capsys, "check-writer", str(table.path))
    assert code == 1
    assert "heartbeat        broken   no writer ever made .hoodie/.heartbeat" in output
    assert f"set      {MULTI_WRITER}" in output
    assert run(capsys, "explain", str(table.path))[1].count(MULTI_WRITER) > 0
    write(table, 12, is_guarded=True)
    code, output = run(capsys, "check-writer", str(table.path), "-o", "json")
    states = {row["requirement"]: row["state"] for row in json.loads(output)}
    assert (code, states["heartbeat"], states["lock"]) == (0, "met", "met")


@pytest.mark.parametrize("output", ["table", "yaml", "plain"])
def test_command_prints_all_formats(table: HandMadeTable, capsys: pytest.CaptureFixture[str], output: str) -> None:
    write(table, 1, is_guarded=False)
    code, text = run(capsys, "check-writer", str(table.path), "-o", output)
    assert code == 1
    assert "heartbeat" in text
    assert "broken" in text


def test_all_tables_are_one_line_each_by_their_last_check(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.lake_plugin import open_services

    services = open_services()
    services.registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    lines = run(capsys, "check-writer", "--all")[1].splitlines()
    (line,) = [line for line in lines if str(table.path) in line]
    assert line.endswith("not checked yet")
    write(table, 1, is_guarded=False)
    services.loop.drain()
    code, output = run(capsys, "check-writer", "--all", "-o", "json")
    (row,) = [row for row in json.loads(output) if row["base_path"] == str(table.path)]
    assert (code, row["broken"], row["settings"]) == (1, "heartbeat, lock", MULTI_WRITER)


def test_command_without_a_table_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, "check-writer")
    assert (code, "--all" in output) == (1, True)

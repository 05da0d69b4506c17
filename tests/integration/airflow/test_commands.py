"""`airflow lake ...`, as Airflow's command line runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.planner.decide import DECIDED
from tests.unit.tables import HandMadeTable

pytestmark = pytest.mark.integration


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    from airflow.cli.cli_parser import get_parser

    arguments = get_parser().parse_args(["lake", *words])
    code: Any = 0
    try:
        arguments.func(arguments)
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr().out
    return (code, output) if isinstance(code, int) else (1, output + str(code))


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders; $(x) ü")
    for second in range(1, 7):
        table.commit(second)
    return table


def test_explain_says_of_each_service_whether_and_why(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, "explain", str(table.path))
    assert code == 0
    assert "MERGE_ON_READ, version 9" in output
    assert "compaction     blocked  6 delta commits and no compaction yet (rule: 5)" in output
    for service in DECIDED:
        assert service in output
    _, text = run(capsys, "explain", str(table.path), "-o", "json")
    assert {row["service"] for row in json.loads(text)} == DECIDED


@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_commands_on_no_table_say_so(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, command, str(tmp_path / "nothing"))
    assert (code, "TableNotFoundError: no Hudi table" in output) == (1, True)
    code, output = run(capsys, command, "no-such-table")
    assert (code, "names 0 tables of the registry" in output) == (1, True)


def test_tables_lists_the_registry(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_lake_provider.manager.notice import Notice, Source
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    open_registry().mark_dirty(Notice(str(table.path), "cli-orders", Source.HINT))
    code, output = run(capsys, "tables")
    assert code == 0
    assert f"cli-orders               {table.path}  looked -  due: -" in output
    assert run(capsys, "explain", "cli-orders")[0] == 0

"""Every format of `--output` holds what the others hold."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass

import pytest
import yaml

from airflow_lake_provider.cli.command import print_rows


@dataclass(frozen=True)
class Row:
    table: str
    reason: str
    plans: tuple[str, ...]
    tries: int | None


ROWS = [
    Row("orders", "[lake] tables_file names no engine", ("20261122", "x"), 3),
    Row("clicks", "", (), None),
]
DOCUMENT = [
    {"table": "orders", "reason": "[lake] tables_file names no engine", "plans": ["20261122", "x"], "tries": 3},
    {"table": "clicks", "reason": "", "plans": [], "tries": None},
]


def printed(capsys: pytest.CaptureFixture[str], output: str, rows: list[Row]) -> str:
    print_rows(Namespace(output=output), rows, lambda row: f"{row.table}: {row.reason}")
    return capsys.readouterr().out


def test_json_and_yaml_hold_the_rows_with_their_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "json", ROWS)) == DOCUMENT
    assert yaml.safe_load(printed(capsys, "yaml", ROWS)) == DOCUMENT


@pytest.mark.parametrize("output", ["table", "plain"])
def test_tables_have_a_column_for_each_value_and_leave_brackets_alone(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = [line for line in printed(capsys, output, ROWS).splitlines() if line.strip(" =+|")]
    assert [word for word in DOCUMENT[0] if word not in head] == []
    assert "[lake] tables_file names no engine" in rows[0]
    assert "20261122" in rows[0]
    assert "clicks" in rows[1]


def test_text_is_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "text", ROWS[1:]) == "clicks: \n"
    assert printed(capsys, "text", []) == ""


def test_warning_of_airflows_imports_is_not_among_the_rows() -> None:
    """Airflow's log prints warnings on the output; its API imports Starlette's test client, which warns."""
    said = "Using `httpx` with `starlette.testclient` is deprecated; install `httpx2` instead."
    program = f"import warnings, airflow_lake_provider.cli.command; warnings.warn({said!r}); warnings.warn('other')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "httpx" not in ended.stderr
    assert "UserWarning: other" in ended.stderr

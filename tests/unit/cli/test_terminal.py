"""A terminal gets no code from a name that a writer chose."""

from __future__ import annotations

import sys
from argparse import Namespace

import pytest

from airflow_lake_provider.cli import table_reports
from airflow_lake_provider.cli.command import columns, run_command
from airflow_lake_provider.errors import TableUnknownError
from airflow_lake_provider.manager.api.callback import refuse_hidden_characters
from airflow_lake_provider.manager.read_model import ReportedRun, RunsReport
from airflow_lake_provider.shared.plain_text import plain

CLEAR, TITLE, C1, BACKWARDS = "\x1b[2J", "\x1b]0;owned\x07", "\u009b31m", "\u202eevil"
NAME = f"x{CLEAR}{TITLE}\n{C1}{BACKWARDS}\rforged"


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("output", ["text", "json", "yaml", "table", "plain"])
def test_commands_print_no_code_of_a_terminal(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ReportedRun(
        service=NAME, state=NAME, owner=NAME, run_id=NAME, until_ms=None, reason=NAME, plans=(), since_ms=None, tries=0,
        overdue=False,
    )  # fmt: skip
    monkeypatch.setattr(table_reports, "load_report", lambda *_, **__: RunsReport(NAME, (row,)))
    table_reports.runs(Namespace(table=NAME, output=output, service="", state="", limit=None))
    printed = capsys.readouterr().out
    assert "owned" in printed
    assert is_plain(printed)


def test_errors_and_warnings_print_none_either(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: Namespace) -> None:
        print(NAME, file=sys.stderr)
        raise TableUnknownError(NAME)

    with pytest.raises(SystemExit) as ended:
        run_command(Namespace(), fail)
    assert is_plain(str(ended.value.code))
    assert is_plain(capsys.readouterr().err)


def test_columns_are_aligned_by_what_is_printed() -> None:
    _, *lines = columns([{"table": CLEAR, "n": "a"}, {"table": "orders", "n": "b"}], "  ", "")
    assert [line.index(letter) for line, letter in zip(lines, "ab", strict=True)] == [9, 9]


def test_plain_text_stays_as_it_is() -> None:
    assert plain("Bestellungen für Köln\t7 €\n\U0001f600") == "Bestellungen für Köln\t7 €\n\U0001f600"


@pytest.mark.parametrize("name", [CLEAR, C1, BACKWARDS, "a\x7f", "a\x00", "a\u200bb", "a\u2066b", "a\u2028b"])
def test_notice_with_a_hidden_character_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="control or invisible characters"):
        refuse_hidden_characters(name)

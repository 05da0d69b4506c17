"""`lake` and `airflow lake` take the same arguments; errors are sentences, and objects for programs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

import pytest
import yaml

from airflow_lake_provider.cli import lake_reports, main, report_commands, table_reports
from airflow_lake_provider.cli.command import ManagerRefusedError, run_command
from airflow_lake_provider.cli.definition import get_cli_commands
from airflow_lake_provider.errors import LakeError, TableUnknownError
from airflow_lake_provider.manager.db.bill import KEEP_DAYS, BillBy
from airflow_lake_provider.manager.db.search import Sort, TableSearch
from airflow_lake_provider.manager.health.health import MarkKind, TableState
from airflow_lake_provider.manager.read_model import (
    ExplainedService,
    ExplanationReport,
    ReportedOperation,
    ReportedRun,
    ReportedSetting,
    RunsReport,
    TablesReport,
)
from airflow_lake_provider.manager.reports.reports import parse_table_query
from airflow_lake_provider.manager.supervision.instances import InstanceState


def test_choices_are_the_values_of_the_manager() -> None:
    assert tuple(TableState) == report_commands.STATES
    assert sorted(report_commands.SORTS) == sorted(Sort)
    assert tuple(MarkKind) == report_commands.MARKS
    assert tuple(InstanceState) == report_commands.RUN_STATES
    assert tuple(BillBy) == report_commands.BILLS
    assert KEEP_DAYS == report_commands.MAX_DAYS


@pytest.mark.parametrize("text", ["-1", "0", "1.5", "x", "", "9" * 5000])
@pytest.mark.parametrize("command", ["tables", "history", "runs"])
def test_limit_that_is_no_number_of_rows_is_refused(
    command: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (limit,) = [one for one in report_commands.BY_NAME[command].arguments if "--limit" in one.flags]
    parser = ArgumentParser()
    parser.add_argument(*limit.flags, **limit.kwargs)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--limit={text}"])
    assert "is no number of rows" in capsys.readouterr().err
    assert parser.parse_args(["--limit", "7"]).limit == 7


def test_both_command_lines_have_the_same_help_and_arguments() -> None:
    (group,) = get_cli_commands()
    of_airflow: dict[str, Any] = {command.name: command for command in group.subcommands}
    for command in report_commands.COMMANDS:
        found = of_airflow[command.name]
        assert (found.help, found.epilog) == (command.help, command.note)
        assert [arg.flags for arg in found.args] == [one.flags for one in command.arguments]


def test_help_of_lake_says_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    for command in report_commands.COMMANDS:
        with pytest.raises(SystemExit):
            main.create_parser().parse_args([command.name, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert command.help in shown
        assert command.note in shown


def test_filters_of_tables_reach_the_manager_as_the_page_sends_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[TableSearch] = []

    def load(kind: type, after: str, **query: str) -> TablesReport:
        asked.append(parse_table_query(query, (), 1000))
        return TablesReport((), 0, ())

    monkeypatch.setattr(lake_reports, "load_report", load)
    line = "tables --search web --state failing --state stuck --owner sales --mark paused --sort size --reverse"
    lake_reports.tables(main.create_parser().parse_args(line.split()))
    (found,) = asked
    assert (found.text, found.owner, found.mark, found.sort) == ("web", "sales", MarkKind.PAUSED, Sort.SIZE)
    assert (found.states, found.is_reverse) == ((TableState.FAILING, TableState.STUCK), True)
    assert capsys.readouterr().out == "no table matches\n"
    lake_reports.tables(main.create_parser().parse_args(["tables"]))
    assert asked[-1] == TableSearch(sort=Sort.NAME, limit=1000)
    assert "airflow lake init --discover ROOT" in capsys.readouterr().out


@pytest.mark.parametrize(
    "refused", [TableUnknownError("no table 'x'"), ManagerRefusedError("TableUnknownError", "no table 'x'")]
)
def test_error_is_a_sentence_for_people_and_an_object_for_programs(refused: LakeError | ManagerRefusedError) -> None:
    def fail(_: Namespace) -> None:
        raise refused

    def end_of(output: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run_command(Namespace(output=output), fail)
        return str(ended.value.code)

    wanted = {"error": "TableUnknownError", "detail": "no table 'x'"}
    assert end_of("text") == "No table 'x'"
    assert json.loads(end_of("json")) == wanted
    assert yaml.safe_load(end_of("yaml")) == wanted


def explanation() -> ExplanationReport:
    rules = {"commits": 5}
    found = {"writes_since_clean": 3}
    return ExplanationReport(
        table="orders", base_path="/lake/orders", type="COPY_ON_WRITE", version=9, timeline="", damaged="",
        registered=False, evaluation_problem="", next_evaluation_ms=None, settings_problem="", dag_problems=(),
        lock_problem="", holes=(), writers=(), instances=(),
        services=(
            ExplainedService("compaction", "due", "6 of 5", rules, found, now="start", run_reason="6 of 5"),
            ExplainedService("clean", "not_due", "3 of 5 writes", rules, found),
        ),
        settings=(ReportedSetting("clean.commits", "5", "defaults", "/etc/lake.yaml:3"),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "outcome", "said"),
    [
        ("done", "completed", "the run succeeded"),
        ("done", "failed", "the run was marked as a success after a failed try"),
        ("failed", "failed", "the run succeeded"),
    ],
)
def test_run_that_was_marked_as_a_success_does_not_say_that_it_succeeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, outcome: str, said: str
) -> None:
    nothing = dict.fromkeys(("caused_by", "due_ms", "started_ms", "files_in", "bytes_in", "files_out", "bytes_out"))
    ended = ReportedOperation(**nothing, outcome=outcome, error="lost", job_s=1.0)
    row = ReportedRun(
        service="clean", state=state, owner="", run_id="r1", until_ms=None, reason="the run succeeded", plans=(),
        since_ms=None, tries=1, overdue=False, operation=ended,
    )  # fmt: skip
    monkeypatch.setattr(table_reports, "load_report", lambda *_, **__: RunsReport("/lake/orders", (row,)))
    table_reports.runs(Namespace(table="orders", output="text", service="", state="", limit=None))
    assert said in [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_runs_that_airflow_has_deleted_are_not_said_never_to_have_been(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_reports, "load_report", lambda *_, **__: RunsReport("/lake/orders", ()))
    table_reports.runs(Namespace(table="orders", output="text", service="", state="", limit=None))
    assert capsys.readouterr().out.startswith("Airflow has no run of a service of /lake/orders;")


def test_explain_is_short_about_what_is_not_due_unless_all_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_reports, "load_report", lambda *_, **__: explanation())

    def shown(*flags: str) -> str:
        table_reports.explain(main.create_parser().parse_args(["explain", "orders", *flags]))
        return capsys.readouterr().out

    short, whole = shown(), shown("--all")
    assert [line.split()[:2] for line in short.splitlines()[2:6]] == [
        ["compaction", "due"], ["now", "start"], ["rules", "commits"], ["found", "writes_since_clean"]
    ]  # fmt: skip
    assert "clean          not due  3 of 5 writes" in short
    assert (short.count("rules"), whole.count("rules   ")) == (2, 2)
    assert "/etc/lake.yaml:3" in whole
    assert "/etc/lake.yaml:3" not in short
    assert json.loads(shown("-o", "json"))["settings"][0]["value"] == 5

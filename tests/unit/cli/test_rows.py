"""The rows of commands have what their lines print: `-o json` and text come from the same row."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict

import pytest

from airflow_lake_provider.cli import doctor, lake_reports
from airflow_lake_provider.cli.command import ago, duration, size, with_times
from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import Finding
from airflow_lake_provider.doctor.repairs import Record, RemovedFile, Repair
from airflow_lake_provider.manager.db.typed_rows import ListedTable, SearchRow, TableRow
from airflow_lake_provider.manager.health.health import (
    FoundBy,
    Health,
    MarkKind,
    Problem,
    TableMark,
    TableState,
    health_to_text,
)
from airflow_lake_provider.manager.read_model import OverviewReport
from airflow_lake_provider.manager.reports.reports import report_table

FINDING = Finding(StuckKind.ORPHANED_LOCK, "", "the lock is 9 h old", "every service", "moving it away", ("clean",))


def test_finding_is_printed_with_its_repair_and_the_command_for_it() -> None:
    row = doctor._row(FINDING, Repair(StuckKind.ORPHANED_LOCK, "", does="move it away"), ())
    assert doctor._finding_text(row).splitlines() == [
        "orphaned_lock: the lock is 9 h old",
        "  holds up: every service",
        "  blocked:  clean",
        "  repair:   moving it away",
        "  doctor:   can move it away (); add orphaned_lock to doctor.repairs of the tables file, then "
        "airflow lake doctor TABLE --repair orphaned_lock",
    ]


def test_record_of_a_repair_is_printed() -> None:
    moved = RemovedFile(".hoodie/lock", ".hoodie/lake/lock", 3, 4)
    record = Record(
        "1", "2026-11-22T12:00:00+00:00", "ann", "orphaned_lock", "", ("9 h old",), "moves it", "", (moved,)
    )
    assert doctor._record_text(record).splitlines() == [
        "2026-11-22T12:00:00+00:00 ann: orphaned_lock",
        "  evidence: 9 h old",
        "  did:      moves it",
        "  moved:    .hoodie/lock to .hoodie/lake/lock",
        "  result:   begun, and not ended: the repairer died",
    ]


def test_table_is_printed_with_its_times_and_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    row = TableRow(
        "orders-1",
        "/lake/orders",
        "orders",
        registered_ms=1,
        database_name="shop",
        evaluated_ms=1_795_348_800_000,
        next_evaluation_ms=1_795_348_860_000,
        decisions='[{"service": "clean", "verdict": "due", "run": "start"}]',
        health=health_to_text(
            Health(
                TableState.UNREADABLE,
                1_795_345_200_000,
                (
                    Problem(TableState.UNREADABLE, FoundBy.EVALUATION, "", "no lock provider", "set one", 1),
                    Problem(TableState.FAILING, FoundBy.SINK, "events", "Kafka is away", "", 2),
                ),
                (TableMark(MarkKind.PAUSED, "clean", "ann", 3, 1_795_348_860_000),),
            )
        ),
    )
    summary = SearchRow("orders-1", "unreadable", 60, log_bytes=1_800_000, files=12, file_bytes=36 << 20)
    try:
        shown = report_table(ListedTable(row, summary), 1_795_348_800_000)
        assert lake_reports._table_line(shown) == {
            "table": "shop.orders",
            "state": "unreadable",
            "since": "2026-11-22 12:00:00 CET",
            "marks": "clean paused until 2026-11-22 13:01:00 CET",
            "due": "clean",
            "log files": "1.7 MiB",
            "base files": "12 of 3 MiB, 36 MiB",
            "evaluated": "2026-11-22 13:00:00 CET",
            "next": "2026-11-22 13:01:00 CET",
            "path": "/lake/orders",
            "problem": "no lock provider (and 1 more)",
            "what to do": "set one",
        }
        assert with_times(asdict(shown))["evaluated"] == "2026-11-22T13:00:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_overview_says_for_how_long_the_oldest_service_has_been_due(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = OverviewReport(
        problems=("more waits than the budget bears",), now_ms=20_000_000, tables=2, need_attention=0,
        states={"healthy": 1, "waiting": 1}, databases={}, marked={"paused": 1, "observed": 0}, backlog_bytes=2**30,
        oldest_dirty_ms=None, oldest_due_ms=2_000_000, holes=0, last_day=(),
    )  # fmt: skip
    monkeypatch.setattr(lake_reports, "load_report", lambda _path: found)
    lake_reports.overview(Namespace(output="text"))
    shown = capsys.readouterr()
    assert "longest wait  a service has been due for 5 h and does not run" in shown.out.splitlines()
    assert "marked        1 paused" in shown.out.splitlines()
    assert shown.err == "! more waits than the budget bears\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (12, "12 s"),
        (65, "1 min 5 s"),
        (86_082, "23 h 54 min"),
        (90_000, "1 d 1 h"),
        (3600, "1 h"),
        (0, "0 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(None, "-"), (999_000, "now"), (900_000, "100 s ago"), (1_119_000, "in 119 s"), (1_120_000, "in 2 min")],
)
def test_distances_have_one_unit(time_ms: int | None, text: str) -> None:
    assert ago(time_ms, 1_000_000) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1 KiB"), (1_800_000, "1.7 MiB"), (120 << 20, "120 MiB"), (5 << 50, "5 PiB")],
)
def test_sizes_have_the_largest_unit(count: int, text: str) -> None:
    assert size(count) == text

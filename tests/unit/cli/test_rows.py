"""The rows of commands have what their lines print: `-o json` and text come from the same row."""

from __future__ import annotations

from dataclasses import asdict

from airflow_lake_provider.cli import doctor, tables
from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import Finding
from airflow_lake_provider.doctor.repairs import Record, RemovedFile, Repair

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
    assert doctor._record_text(asdict(record)).splitlines() == [
        "2026-11-22T12:00:00+00:00 ann: orphaned_lock",
        "  evidence: 9 h old",
        "  did:      moves it",
        "  moved:    .hoodie/lock to .hoodie/lake/lock",
        "  result:   begun, and not ended: the repairer died",
    ]


def test_table_is_printed_with_its_times_and_what_is_due() -> None:
    registered = {
        "table_id": "orders-1",
        "table_name": "orders",
        "base_path": "/lake/orders",
        "last_notice_ms": None,
        "evaluated_ms": 1_795_348_800_000,
        "dirty_since_ms": None,
        "evaluation_failures": 0,
        "retry_ms": None,
        "next_evaluation_ms": 1_795_348_860_000,
        "decisions": '[{"service": "clean", "verdict": "due"}]',
        "problem": "no lock provider",
    }
    line = tables._line(tables._row(registered, 1_795_348_800_000))
    assert line.split()[:2] == ["orders", "/lake/orders"]
    assert line.endswith(
        "  evaluated 2026-11-22 12:00:00  next 2026-11-22 12:01:00  due: clean  problem: no lock provider"
    )

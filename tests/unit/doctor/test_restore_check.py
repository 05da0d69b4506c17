"""What a restore takes back, by Hudi's rules for its order of instants, and what forbids it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.doctor.report_lines import LineKind, ReportLine, is_refused
from airflow_lake_provider.doctor.restore_check import RestoreFacts, check_restore, find_taken_back
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ
from airflow_lake_provider.storage.table_storage import open_storage
from tests.unit.doctor.stuck_table import NOW_MS, Patient

COPY_ON_WRITE = "COPY_ON_WRITE"
SAVED = "20261121120001000"
LOST = "20261121120003000"


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    table.commit(3, log_bytes=700)
    table.left_instant(f"{SAVED}_20261121120002500.savepoint", {})
    return table


def facts_of(patient: Patient, savepoint: str = SAVED) -> RestoreFacts:
    return load_restore_facts(open_storage(str(patient.path)), TablePolicy(), savepoint, NOW_MS)


def refusals(lines: tuple[ReportLine, ...]) -> dict[str, str]:
    return {line.subject: line.what for line in lines if line.kind is LineKind.REFUSED}


def settings(lines: tuple[ReportLine, ...]) -> list[str]:
    return [line.subject.removesuffix("=false") for line in lines if line.kind is LineKind.SETTING]


def timeline(*instants: tuple[int, Action, int | None]) -> Timeline:
    """Return a timeline of instants: second of the request, action, second of the completion."""
    return Timeline(
        tuple(
            Instant(f"{asked:017}", action, State.COMPLETED if done else State.REQUESTED, done and f"{done:017}", "")
            for asked, action, done in instants
        )
    )


def taken_seconds(found: Timeline, table_type: str, savepoint: int) -> list[int]:
    return [int(instant.requested_time) for instant in find_taken_back(found, table_type, f"{savepoint:017}")]


def test_nothing_forbids_the_restore_of_a_quiet_table(patient: Patient) -> None:
    lines = check_restore(facts_of(patient))
    assert not is_refused(lines)
    (taken,) = (line for line in lines if line.kind is LineKind.TAKEN_BACK)
    assert (taken.subject, taken.what, taken.bytes) == (LOST, "deltacommit (UPSERT)", 700)
    assert settings(lines) == ["hoodie.write.auto.upgrade", "hoodie.metadata.enable"]


def test_writes_are_taken_back_in_the_order_in_which_they_completed() -> None:
    found = timeline(
        (1, Action.COMMIT, 9),
        (2, Action.COMMIT, 3),
        (4, Action.COMMIT, 5),
        (6, Action.CLEAN, 7),
        (8, Action.COMMIT, 10),
    )
    assert taken_seconds(found, COPY_ON_WRITE, 2) == [1, 4, 8]
    assert taken_seconds(found, COPY_ON_WRITE, 1) == [8]


def test_a_pending_write_is_taken_back_whenever_it_began() -> None:
    found = timeline((1, Action.DELTACOMMIT, None), (2, Action.DELTACOMMIT, 3), (4, Action.CLUSTERING, None))
    assert taken_seconds(found, MERGE_ON_READ, 2) == [1, 4]


def test_compactions_of_merge_on_read_go_by_when_they_were_planned() -> None:
    found = timeline(
        (1, Action.COMPACTION, None), (2, Action.COMMIT, 9), (3, Action.DELTACOMMIT, 4), (5, Action.COMPACTION, None)
    )
    assert taken_seconds(found, MERGE_ON_READ, 3) == [5]
    assert taken_seconds(found, COPY_ON_WRITE, 3) == [1, 2, 5]


def test_a_savepoint_that_is_none_is_refused_with_those_there_are(patient: Patient) -> None:
    (line,) = check_restore(facts_of(patient, LOST))
    assert line.kind is LineKind.REFUSED
    assert line.remedy == f"it has {SAVED}"


def test_a_savepoint_whose_write_is_archived_is_refused(patient: Patient) -> None:
    (patient.path / ".hoodie/timeline" / f"{SAVED}_20261121120001500.deltacommit").unlink()
    assert "is archived" in refusals(check_restore(facts_of(patient)))[SAVED]


def test_a_savepoint_of_the_newest_write_takes_nothing_back(patient: Patient) -> None:
    patient.left_instant(f"{LOST}_20261121120004500.savepoint", {})
    assert "nothing was written" in refusals(check_restore(facts_of(patient, LOST)))[LOST]
    assert "which Hudi refuses" in refusals(check_restore(facts_of(patient)))[LOST]


def test_a_living_writer_forbids_the_restore_and_a_dead_one_does_not(patient: Patient) -> None:
    patient.begin("20261121120005000")
    lines = check_restore(facts_of(patient))
    assert not is_refused(lines)
    assert [line.what for line in lines if line.subject == "20261121120005000"] == ["pending write (deltacommit)"]
    patient.beats("20261121120005000")
    assert "heartbeat lives" in refusals(check_restore(facts_of(patient)))["20261121120005000"]


def test_another_restore_that_is_pending_has_to_end_first(patient: Patient) -> None:
    patient.left_instant("20261121120006000.restore.requested", {})
    assert "the restore 20261121120006000 is pending" in refusals(check_restore(facts_of(patient)))[SAVED]


def test_holds_and_runs_forbid_the_restore_and_a_stream_begins_again(patient: Patient) -> None:
    facts = replace(facts_of(patient), holds=("ann (export)",), runs=("clean run-1",), streams=("warehouse",))
    lines = check_restore(facts)
    assert set(refusals(lines)) == {"ann (export)", "clean run-1"}
    assert [line.subject for line in lines if line.kind is LineKind.STREAM] == ["warehouse"]


def test_a_damaged_write_forbids_the_restore(patient: Patient) -> None:
    (patient.path / ".hoodie/timeline" / f"{LOST}_20261121120003500.deltacommit").write_text("{")
    lines = check_restore(facts_of(patient))
    assert "damaged or unknown" in refusals(lines)[f"{LOST}_20261121120003500.deltacommit"]
    assert [line.rows for line in lines if line.subject == LOST] == [None]


def test_a_younger_index_is_dropped_first(patient: Patient) -> None:
    births = {"record_index": "20261121120002700", "column_stats": "20261121110000000", "files": "20261121120002700"}
    names = ",".join([*births, "bloom_filters"])
    with (patient.path / ".hoodie/hoodie.properties").open("a") as file:
        file.write(f"\nhoodie.table.metadata.partitions={names}")
    for name, time in births.items():
        (patient.path / ".hoodie/metadata" / name).mkdir(parents=True)
        patient.left(f"metadata/{name}/.hoodie_partition_metadata")
        (patient.path / ".hoodie/metadata" / name / ".hoodie_partition_metadata").write_text(f"commitTime={time}\n")
    assert [line.subject for line in check_restore(facts_of(patient)) if line.kind is LineKind.INDEX] == [
        "record_index"
    ]


def test_an_index_of_a_writer_has_the_age_of_its_file(patient: Patient) -> None:
    with (patient.path / ".hoodie/hoodie.properties").open("a") as file:
        file.write("\nhoodie.table.metadata.partitions=record_index,column_stats")
    for name, years in (("record_index", 0), ("column_stats", 20)):
        (patient.path / ".hoodie/metadata" / name).mkdir(parents=True)
        file_of_index = patient.path / ".hoodie/metadata" / name / ".hoodie_partition_metadata"
        file_of_index.write_text("commitTime=00000000000000010\n")
        born_s = NOW_MS / 1000 - years * 365 * 86_400
        os.utime(file_of_index, (born_s, born_s))
    lines = check_restore(facts_of(patient))
    assert [line.subject for line in lines if line.kind is LineKind.INDEX] == ["record_index"]
    assert settings(lines) == ["hoodie.write.auto.upgrade", "hoodie.metadata.index.partition.stats.enable"]


@pytest.mark.parametrize(
    ("instants", "is_short"),
    [
        ([(1, Action.DELTACOMMIT, 1), (3, Action.DELTACOMMIT, 3)], False),
        ([(3, Action.DELTACOMMIT, 3)], True),
        ([(1, Action.DELTACOMMIT, 1), (3, Action.COMMIT, 3)], True),
        ([(1, Action.COMMIT, 1), (3, Action.DELTACOMMIT, 3)], True),
        ([(0, Action.COMMIT, 0), (3, Action.DELTACOMMIT, 3)], False),
    ],
)
def test_a_metadata_table_that_does_not_reach_back_is_built_again(
    patient: Patient, instants: list[tuple[int, Action, int]], is_short: bool
) -> None:
    day = 20261121120000000
    own = timeline(*((day + asked * 1000, action, day + done * 1000) for asked, action, done in instants))
    lines = check_restore(replace(facts_of(patient), metadata_timeline=own))
    assert any(line.kind is LineKind.METADATA for line in lines) is is_short

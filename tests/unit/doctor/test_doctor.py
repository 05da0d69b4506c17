from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_lake_provider.doctor.diagnosis import FROZEN_AFTER_WRITES, Finding, diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.timeline.storage import open_storage
from tests.unit.tables import HandMadeTable
from tests.unit.timeline.fixture_tables import NAMES, unpack

NOW_MS = 2_000_000_000_000
HOUR_MS = 3_600_000


class Patient(HandMadeTable):
    """A table on whose timeline things were left behind an hour ago, unless said otherwise."""

    def left(self, name: str, body: dict[str, object] | None = None, age_ms: int = HOUR_MS) -> None:
        file = self.path / ".hoodie" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("" if body is None else json.dumps(body))
        os.utime(file, ns=((NOW_MS - age_ms) * 10**6, (NOW_MS - age_ms) * 10**6))

    def left_instant(self, name: str, body: dict[str, object] | None = None, age_ms: int = HOUR_MS) -> None:
        self.left(f"timeline/{name}", body, age_ms)

    def beats(self, instant: str) -> None:
        self.left(f".heartbeat/{instant}", age_ms=30_000)


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    return table


def shapes(table: HandMadeTable) -> list[tuple[str, str]]:
    return [(finding.shape, finding.instant) for finding in findings(table)]


def findings(table: HandMadeTable) -> tuple[Finding, ...]:
    return diagnose(collect_evidence(open_storage(str(table.path)), NOW_MS))


T = "20261121120005000"
LATER = "20261121120009000"
INDEX = {"indexPartitionInfos": [{"metadataPartitionPath": "record_index"}]}


@pytest.mark.parametrize("name", NAMES)
def test_doctor_finds_nothing_damaged_on_real_tables(name: str, tmp_path: Path) -> None:
    table = unpack(name, tmp_path)
    found = diagnose(collect_evidence(open_storage(str(table.path)), NOW_MS))
    assert {finding.shape for finding in found} <= {"plan without executor", "failed write", "dangling replacecommit"}


def test_doctor_of_a_healthy_table_says_nothing(patient: Patient) -> None:
    patient.left("lock", age_ms=1000)  # somebody commits just now
    patient.left_instant(f"{T}.deltacommit.inflight", age_ms=1000)
    assert shapes(patient) == []


def test_doctor_names_an_orphaned_lock_unless_a_writer_lives(patient: Patient) -> None:
    patient.left("lock")
    assert shapes(patient) == [("orphaned lock", "")]
    patient.beats(T)
    assert shapes(patient) == []


def test_doctor_names_a_failed_write_unless_its_heart_beats(patient: Patient) -> None:
    patient.left_instant(f"{T}.deltacommit.requested")
    patient.left_instant(f"{T}.deltacommit.inflight")
    assert shapes(patient) == [("failed write", T)]
    patient.beats(T)
    assert shapes(patient) == []


def test_doctor_tells_an_empty_ttl_run_from_a_clustering(patient: Patient) -> None:
    patient.left_instant(f"{T}.replacecommit.requested", {"operationType": "DELETE_PARTITION"})
    patient.left_instant(f"{LATER}.replacecommit.requested", {"operationType": "CLUSTER", "clusteringPlan": {"a": 1}})
    assert shapes(patient) == [("dangling replacecommit", T), ("plan without executor", LATER)]


@pytest.mark.parametrize(
    ("action", "held_up"),
    [("compaction", "archiving"), ("clustering", "writers are rejected"), ("clean", "archiving")],
)
@pytest.mark.parametrize("state", ["requested", "inflight"])
def test_doctor_names_plans_without_executor(patient: Patient, action: str, held_up: str, state: str) -> None:
    patient.left_instant(f"{T}.{action}.requested")
    if state == "inflight":
        patient.left_instant(f"{T}.{action}.inflight")
    (finding,) = findings(patient)
    assert (finding.shape, finding.instant) == ("plan without executor", T)
    assert held_up in finding.holds_up
    assert ("never began" in finding.says) == (state == "requested")


def test_doctor_names_a_log_compaction_behind_a_newer_compaction(patient: Patient) -> None:
    patient.left_instant(f"{T}.logcompaction.requested", age_ms=0)
    patient.left_instant(f"{LATER}.compaction.requested", age_ms=0)
    assert shapes(patient) == [("log compaction behind a compaction", T)]


def test_doctor_names_stale_and_duplicate_index_builds(patient: Patient) -> None:
    patient.left_instant(f"{T}.indexing.requested", INDEX)
    patient.left_instant(f"{T}.indexing.inflight")
    patient.left_instant(f"{LATER}.indexing.requested", INDEX, age_ms=0)
    assert shapes(patient) == [("stale index build", T), ("duplicate index plans", LATER)]


def test_doctor_names_an_index_that_nobody_builds(patient: Patient) -> None:
    file = patient.path / ".hoodie" / "hoodie.properties"
    file.write_text(file.read_text() + "\nhoodie.table.metadata.partitions.inflight=record_index\n")
    assert shapes(patient) == [("index without a plan", "")]


def test_doctor_names_frozen_archiving(patient: Patient) -> None:
    for number in range(FROZEN_AFTER_WRITES):
        stamp = f"2026112113{number // 60:02d}{number % 60:02d}000"
        patient.left_instant(f"{stamp}_{stamp}.deltacommit")
    assert shapes(patient) == [], "without a metadata table nothing freezes it"
    metadata = HandMadeTable.create(patient.path / ".hoodie" / "metadata")
    assert shapes(patient) == [("archiving is frozen", "")]
    stamp = "20261121120000001"
    (metadata.path / ".hoodie" / "timeline" / f"{stamp}_{stamp}.commit").write_bytes(b"")
    assert shapes(patient) == []


def test_doctor_names_what_cannot_be_read_and_goes_on(patient: Patient) -> None:
    patient.left_instant("notes.txt")
    patient.left_instant(f"{T}.replacecommit.requested")
    (patient.path / ".hoodie" / "timeline" / f"{T}.replacecommit.requested").write_bytes(b"Obj\x01damage")
    assert [shape for shape, _ in shapes(patient)][:2] == ["unreadable file", "unreadable file"]


def test_doctor_writes_nothing(patient: Patient) -> None:
    patient.left("lock")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in patient.path.rglob("*"))
    findings(patient)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in patient.path.rglob("*")) == before

"""What forbids another version for a table, and what it does besides: each line names cause and remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from airflow_lake_provider.doctor.evidence import Evidence, collect_evidence
from airflow_lake_provider.doctor.report_lines import LineKind, ReportLine, refuse
from airflow_lake_provider.doctor.upgrade_check import UpgradePlan, UpgradeState, check_upgrade, sum_up
from airflow_lake_provider.shared.hudi_settings import COMPLEX_KEYGEN_VALIDATION
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import unpack
from tests.unit.doctor.stuck_table import LATER, NOW_MS, Patient, T

COMPLEX = {"hoodie.table.keygenerator.type": "COMPLEX"}


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    return table


def evidence_of(path: Path) -> Evidence:
    return collect_evidence(open_storage(str(path)), NOW_MS)


def with_properties(found: Evidence, raw: dict[str, str], key: tuple[str, ...] = ("id",)) -> Evidence:
    merged = MappingProxyType({**found.properties.raw, **raw})
    return replace(found, properties=replace(found.properties, raw=merged, record_key_fields=key))


def refusals(found: Evidence, target: int = 8, **options: str) -> dict[str, ReportLine]:
    state, lines = check_upgrade(found, target, options, (), ())
    refused = {line.subject: line for line in lines if line.kind is LineKind.REFUSED}
    assert (state is UpgradeState.REFUSED) is bool(refused)
    assert all(line.what and line.remedy for line in refused.values())
    return refused


@pytest.mark.parametrize(("name", "target"), [("mor_v6", 9), ("cow_v6", 8), ("mor_v8", 9), ("mor_v9", 8)])
def test_tables_as_writers_leave_them_are_ready_unless_a_plan_is_pending(
    tmp_path: Path, name: str, target: int
) -> None:
    found = evidence_of(unpack(name, tmp_path).path)
    pending = {instant.requested_time for instant in found.timeline.pending()}
    assert set(refusals(found, target)) == pending


def test_table_that_has_the_version_is_left_alone(patient: Patient) -> None:
    assert check_upgrade(evidence_of(patient.path), 9, {}, ["sink"], ["held"]) == (UpgradeState.DONE, ())


@pytest.mark.parametrize(
    ("name", "why", "remedy"),
    [
        (f"{T}.compaction.requested", "hides the rows", "service compaction and mode execute"),
        (f"{T}.logcompaction.requested", "hides the rows", "service logcompaction"),
        (f"{T}.clustering.requested", "rolls it back", "service clustering"),
        (f"{T}.indexing.requested", "lists its index as complete", "service indexing"),
        (f"{T}.deltacommit.requested", "rolls it back", "run the service rollback"),
    ],
)
def test_what_is_pending_forbids_it(patient: Patient, name: str, why: str, remedy: str) -> None:
    patient.left_instant(name)
    line = refusals(evidence_of(patient.path))[T]
    assert why in line.what
    assert remedy in line.remedy


def test_restore_writer_and_hold_forbid_it(patient: Patient) -> None:
    patient.left_instant(f"{T}.restore.requested")
    patient.beats(LATER)
    state, lines = check_upgrade(evidence_of(patient.path), 8, {}, (), ("backup holds it",))
    subjects = {line.subject for line in lines if line.kind is LineKind.REFUSED}
    assert state is UpgradeState.REFUSED
    assert subjects == {"restore", LATER, "backup holds it"}


def test_one_field_of_a_complex_key_needs_a_persons_word(patient: Patient) -> None:
    found = with_properties(evidence_of(patient.path), COMPLEX)
    assert COMPLEX_KEYGEN_VALIDATION in refusals(found)["id"].remedy
    assert not refusals(found, **{COMPLEX_KEYGEN_VALIDATION: "false"})
    assert not refusals(with_properties(evidence_of(patient.path), COMPLEX, ("id", "city")))


def test_known_faults_of_a_version_forbid_it(patient: Patient) -> None:
    debezium = {"hoodie.compaction.payload.class": "org.apache.hudi.PostgresDebeziumAvroPayload"}
    found = with_properties(evidence_of(patient.path), debezium)
    as_8 = replace(found, properties=replace(found.properties, version=8))
    assert "__debezium_unavailable_value" in refusals(as_8, 9)["PostgresDebeziumAvroPayload"].what
    assert not refusals(found, 8)


def test_version_6_needs_times_of_files_and_payload_classes(patient: Patient) -> None:
    found = evidence_of(patient.path)
    assert not refusals(found, 6)
    assert "which this store cannot set" in refusals(replace(found, base_path="s3://lake/orders"), 6)["s3"].what
    custom = with_properties(found, {"hoodie.record.merge.mode": "CUSTOM"})
    assert "hoodie.record.merge.mode" in refusals(custom, 6)
    assert not refusals(custom, 8)


def test_effects_are_named(patient: Patient) -> None:
    patient.left_instant(f"{T}_{LATER}.savepoint", {})
    found = evidence_of(patient.path)
    found = replace(found, properties=replace(found.properties, metadata_partitions=("files", "record_index")))
    _, lines = check_upgrade(found, 6, {}, ["kafka"], ())
    assert {line.kind: line.subject for line in lines} == {
        LineKind.METADATA: "files, record_index",
        LineKind.STREAM: "kafka",
        LineKind.SAVEPOINT: T,
    }
    assert check_upgrade(found, 8, {}, ["kafka"], ()) == (UpgradeState.READY, ())


def test_report_shows_the_fleet() -> None:
    plans = (
        UpgradePlan("/lake/a", "a", 6, 9, UpgradeState.READY),
        UpgradePlan("/lake/b", "b", 6, 9, UpgradeState.REFUSED, (refuse(T, "compaction is pending", "execute it"),)),
        UpgradePlan("/lake/c", "c", 0, 9, UpgradeState.REFUSED, (refuse("table", "not there", "see it"),)),
    )
    assert plans[1].report.splitlines() == [
        "refused  6 -> 9  b  /lake/b",
        f"  refused    {T}: compaction is pending",
        "             do: execute it",
    ]
    assert plans[2].report.startswith("refused  ? -> 9  c")
    text = sum_up(plans, 9)
    assert text.startswith("3 tables: 1 ready, 2 refused. Each writer and reader needs Hudi 1.1.0 or newer;")

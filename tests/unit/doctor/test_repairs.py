from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind
from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import Evidence, collect_evidence
from airflow_lake_provider.doctor.repairs import Repair, ServiceCall, find_allowed_repairs, plan_repair
from airflow_lake_provider.job_contract import ENDED_BEAT_MS, Mode, Service
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_head import ArchivedBehind, TimelineInstant
from tests.unit.doctor.stuck_table import HOUR_MS, INDEX, LATER, NOW_MS, Patient, T

ALL = DoctorPolicy(repairs=tuple(StuckKind))


@pytest.fixture
def stuck_table(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    return table


def examine(table: Patient) -> Evidence:
    return collect_evidence(open_storage(str(table.path)), NOW_MS)


def repairs(table: Patient, policy: DoctorPolicy = ALL) -> list[Repair]:
    evidence = examine(table)
    return [plan_repair(finding, evidence, policy) for finding in diagnose(evidence, policy)]


def names(repair: Repair) -> list[str]:
    return [file.path.rpartition("/")[2] for file in repair.files]


def test_nothing_is_allowed_unless_the_policy_names_it(stuck_table: Patient) -> None:
    stuck_table.left("lock")
    assert find_allowed_repairs(examine(stuck_table), DoctorPolicy()) == ()
    allowed = find_allowed_repairs(examine(stuck_table), DoctorPolicy(repairs=(StuckKind.ORPHANED_LOCK,)))
    assert [repair.kind for repair in allowed] == [StuckKind.ORPHANED_LOCK]


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        pytest.param(lambda table: None, "", id="old"),
        pytest.param(lambda table: table.left("lock", age_ms=20 * 60_000), "it is 1200 s old", id="young"),
        pytest.param(
            lambda table: table.left_instant(f"{T}.deltacommit.inflight", age_ms=HOUR_MS // 2),
            f"instant {T} was touched after the lock was taken",
            id="work-goes-on",
        ),
    ],
)
def test_lock_is_moved_only_when_no_process_can_hold_it(
    stuck_table: Patient, what: Callable[[Patient], None], refused: str
) -> None:
    stuck_table.left("lock")
    what(stuck_table)
    repair = repairs(stuck_table)[0]
    assert repair.kind is StuckKind.ORPHANED_LOCK
    assert repair.refusal.startswith(refused)
    assert names(repair) == ([] if refused else ["lock"])


@pytest.mark.parametrize("where", [".heartbeat", "metadata/.hoodie/.heartbeat"])
def test_lock_next_to_a_living_heartbeat_is_no_finding(stuck_table: Patient, where: str) -> None:
    Patient.create(stuck_table.path / ".hoodie" / "metadata")
    stuck_table.left("lock")
    (stuck_table.path / ".hoodie" / where).mkdir(parents=True, exist_ok=True)
    stuck_table.left(f"{where}/{T}", age_ms=10_000)
    assert repairs(stuck_table) == []


def test_pending_plans_are_executed_by_their_service(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{T}.compaction.requested")
    stuck_table.left_instant(f"{LATER}.clustering.requested")
    calls = [repair.call for repair in repairs(stuck_table)]
    assert [(call.service.value, call.mode, call.instants) for call in calls if call] == [
        ("compaction", Mode.EXECUTE, (T,)),
        ("clustering", Mode.EXECUTE, (LATER,)),
    ]


def test_clustering_of_numbered_buckets_is_withdrawn_and_never_executed(stuck_table: Patient) -> None:
    stuck_table.commit(1, file_id="00000003-7a2c-4d9b-9f00-000000000000-0")
    stuck_table.left_instant(f"{LATER}.clustering.requested")
    (repair,) = [repair for repair in repairs(stuck_table) if repair.kind is StuckKind.BLOCKING_CLUSTERING]
    assert repair.call == ServiceCall(Service.CLUSTERING, Mode.WITHDRAW, (LATER,))


def test_log_compaction_that_failed_is_withdrawn(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{T}.logcompaction.requested")
    stuck_table.left_instant(f"{T}.logcompaction.inflight")
    (stuck_table.path / ".hoodie" / ".heartbeat").mkdir(exist_ok=True)
    stuck_table.left(f".heartbeat/{T}", age_ms=NOW_MS - ENDED_BEAT_MS)
    (repair,) = repairs(stuck_table)
    assert repair.call == ServiceCall(Service.LOGCOMPACTION, Mode.WITHDRAW, (T,))


def test_clustering_that_may_be_at_work_is_left_alone(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{T}.clustering.requested")
    stuck_table.left_instant(f"{T}.clustering.inflight")
    (repair,) = repairs(stuck_table)
    assert (repair.kind, repair.call) == (StuckKind.UNGUARDED_SERVICE, None)
    assert "may be at work" in repair.refusal


@pytest.mark.parametrize("newer", ["compaction.requested", "compaction.inflight"])
def test_overtaken_log_compaction_loses_its_plan_and_its_checksum(stuck_table: Patient, newer: str) -> None:
    stuck_table.left_instant(f"{T}.logcompaction.requested")
    stuck_table.left_instant(f".{T}.logcompaction.requested.crc")
    stuck_table.left_instant(f"{LATER}.{newer}", age_ms=0)
    (repair,) = [r for r in repairs(stuck_table) if r.instant == T]
    assert names(repair) == [f"{T}.logcompaction.requested", f".{T}.logcompaction.requested.crc"]


def test_overtaken_log_compaction_that_began_or_is_young_keeps_its_plan(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{LATER}.compaction.requested", age_ms=0)
    stuck_table.left_instant(f"{T}.logcompaction.requested", age_ms=1000)
    assert "it is young" in repairs(stuck_table)[0].refusal
    stuck_table.left_instant(f"{T}.logcompaction.inflight")
    assert "it has begun" in repairs(stuck_table)[0].refusal


def test_duplicate_index_plan_is_moved_only_when_the_first_builds_all_of_it(stuck_table: Patient) -> None:
    more = {"indexPartitionInfos": [*INDEX["indexPartitionInfos"], {"metadataPartitionPath": "column_stats"}]}
    stuck_table.left_instant(f"{T}.indexing.requested", INDEX)
    stuck_table.left_instant(f"{LATER}.indexing.requested", INDEX)
    assert names(repairs(stuck_table)[0]) == [f"{LATER}.indexing.requested"]
    stuck_table.left_instant(f"{LATER}.indexing.requested", more)
    assert "no earlier plan builds all" in repairs(stuck_table)[0].refusal


def test_stale_index_build_is_reset_when_its_time_is_over_and_nothing_is_half_built(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{T}.indexing.requested", INDEX)
    stuck_table.left_instant(f"{T}.indexing.inflight")
    assert "a build has no heartbeat" in repairs(stuck_table)[0].refusal
    ages = ALL.replace(unguarded_after_s=1800)
    assert names(repairs(stuck_table, ages)[0]) == [f"{T}.indexing.inflight"]
    properties = stuck_table.path / ".hoodie" / "hoodie.properties"
    text = properties.read_text()
    properties.write_text(f"{text}\nhoodie.table.metadata.partitions.inflight=record_index\n")
    assert "record_index is partly built" in repairs(stuck_table, ages)[0].refusal
    properties.write_text(text)
    stuck_table.left_instant(f"{LATER}.indexing.requested", INDEX)
    stale, duplicate = repairs(stuck_table, ages)
    assert names(stale) == [f"{T}.indexing.inflight", f"{T}.indexing.requested"]
    assert "repair stale_index_build first" in duplicate.refusal


@pytest.mark.parametrize("kind", list(StuckKind))
def test_every_shape_has_a_repair_or_a_reason_why_not(kind: StuckKind, stuck_table: Patient) -> None:
    stuck_table.left("lock")
    evidence = examine(stuck_table)
    finding = replace(diagnose(evidence)[0], kind=kind, instant="20200101000000000")
    repair = plan_repair(finding, evidence, ALL)
    assert repair.refusal or repair.files or repair.call


def test_empty_plan_is_moved_away_when_it_is_old_and_nothing_was_written_for_it(stuck_table: Patient) -> None:
    stuck_table.left(f"timeline/{T}.compaction.requested", age_ms=60_000)
    assert "it is young" in repairs(stuck_table)[0].refusal
    stuck_table.left(f"timeline/{T}.compaction.requested")
    stuck_table.left(f"timeline/.{T}.compaction.requested.crc")
    (repair,) = repairs(stuck_table)
    assert (repair.kind, repair.refusal) == (StuckKind.EMPTY_PLAN, "")
    assert names(repair) == [f"{T}.compaction.requested", f".{T}.compaction.requested.crc"]


def test_empty_plan_whose_executor_has_written_files_stays(stuck_table: Patient) -> None:
    stuck_table.left(f"timeline/{T}.compaction.requested")
    stuck_table.left(f"timeline/{T}.compaction.inflight")
    assert repairs(stuck_table)[0].refusal == ""
    (stuck_table.path / ".hoodie" / ".temp").mkdir()
    stuck_table.left(f".temp/{T}/a.marker.CREATE")
    assert "its executor has begun to write files" in repairs(stuck_table)[0].refusal


def test_empty_compaction_plan_of_an_old_table_stays_when_later_writes_may_rest_on_it(tmp_path: Path) -> None:
    """Up to table version 6 log files are named by the file slice that a pending compaction begins."""
    evidence = {}
    for version in (6, 8):
        table = Patient.create(tmp_path / str(version))
        table.left(f"timeline/{T}.compaction.requested")
        table.commit(9)
        properties = examine(table).properties
        found = replace(examine(table), properties=replace(properties, version=version))
        (repair,) = [plan_repair(finding, found, ALL) for finding in diagnose(found, ALL)]
        evidence[version] = repair.refusal
    assert "restore it from a copy" in evidence[6]
    assert evidence[8] == ""


def test_clustering_that_failed_is_withdrawn(stuck_table: Patient) -> None:
    stuck_table.left_instant(f"{T}.clustering.requested")
    stuck_table.left_instant(f"{T}.clustering.inflight")
    stuck_table.left(f".heartbeat/{T}", age_ms=NOW_MS - ENDED_BEAT_MS)
    (repair,) = repairs(stuck_table)
    assert repair.call is not None
    assert (repair.call.mode, repair.call.instants) == (Mode.WITHDRAW, (T,))


def test_lost_metadata_table_is_taken_out_of_the_table_by_a_run(stuck_table: Patient) -> None:
    properties = stuck_table.path / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text() + "\nhoodie.table.metadata.partitions=files\n")
    (repair,) = repairs(stuck_table)
    assert repair.call is not None
    assert (repair.kind, repair.call.service, repair.call.mode) == (
        StuckKind.LOST_METADATA_TABLE,
        Service.METACOMPACTION,
        Mode.WITHDRAW,
    )


@pytest.mark.parametrize(("state", "refused"), [("COMPLETED", ""), ("INFLIGHT", "the instant is pending")])
def test_what_stays_before_archived_writes_is_taken_away_by_archiving(
    stuck_table: Patient, state: str, refused: str
) -> None:
    head = TimelineInstant(T, "indexing", state)
    evidence = replace(examine(stuck_table), archived_behind=ArchivedBehind(head, (LATER,)))
    (repair,) = (plan_repair(finding, evidence, ALL) for finding in diagnose(evidence, ALL))
    assert (repair.kind, repair.refusal.startswith(refused)) == (StuckKind.ARCHIVED_BEHIND_HEAD, True)
    assert (repair.call == ServiceCall(Service.ARCHIVE, Mode.EXECUTE)) == (not refused)

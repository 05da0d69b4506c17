from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.doctor.repairs import RECORDS, WITHOUT_REPAIR, Repair, ServiceCall, load_records
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import RepairRefusedError, StorageError
from airflow_lake_provider.job_contract import (
    REWRITE_BLOCK,
    Damage,
    DamageKind,
    KnownDamage,
    Mode,
    RowsDiffer,
    Service,
    to_json,
)
from airflow_lake_provider.manager.supervision.repair_round import needs_people
from airflow_lake_provider.storage.store import LocalStore
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.unit.doctor.stuck_table import HOUR_MS, NOW_MS, Patient, T

ALL = DoctorPolicy(repairs=tuple(StuckKind))


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    return table


class FakeStarter:
    def __init__(self) -> None:
        self.calls: list[ServiceCall] = []

    def __call__(self, call: ServiceCall) -> str:
        self.calls.append(call)
        return f"run-{len(self.calls)}"


class FakeStore(LocalStore):
    """The disk at the time of the test's story, on which something may happen before each move."""

    def __init__(self, on_move: Callable[[], None]) -> None:
        self._on_move = on_move

    def create(self, path: str, content: bytes) -> None:
        super().create(path, content)
        os.utime(path, ns=(NOW_MS * 10**6, NOW_MS * 10**6))

    def move(self, source: str, target: str) -> None:
        self._on_move()
        super().move(source, target)


def storage_of(table: Patient, on_move: Callable[[], None] = lambda: None) -> Storage:
    return Storage(str(table.path), FakeStore(on_move), str(table.path))


def doctor_of(
    table: Patient, policy: DoctorPolicy = ALL, starter: FakeStarter | None = None, storage: Storage | None = None
) -> TableDoctor:
    return TableDoctor(storage or storage_of(table), TablePolicy(doctor=policy), "anna@host", lambda: NOW_MS, starter)


def only_repair(doctor: TableDoctor) -> Repair:
    ((_, repair),) = doctor.examine()
    return repair


def test_orphaned_lock_is_moved_away_and_written_down(patient: Patient) -> None:
    patient.left("lock")
    doctor = doctor_of(patient)
    record = doctor.repair(only_repair(doctor))
    assert not (patient.path / ".hoodie" / "lock").exists()
    assert record.result == "repaired"
    (removed,) = record.removed
    assert (patient.path / removed.kept_as).exists()
    assert removed.path == ".hoodie/lock"
    assert doctor.examine() == ()
    storage = open_storage(str(patient.path))
    assert load_records(storage) == (record,)
    assert (record.by, record.kind, record.at) == ("anna@host", "orphaned_lock", "2033-05-18T03:33:20+00:00")
    assert any("60 minutes old" in line for line in record.evidence)


def test_service_repair_starts_one_run_and_touches_nothing(patient: Patient) -> None:
    patient.left_instant(f"{T}.compaction.requested")
    starter = FakeStarter()
    before = sorted(path.name for path in (patient.path / ".hoodie" / "timeline").iterdir())
    doctor = doctor_of(patient, starter=starter)
    record = doctor.repair(only_repair(doctor))
    assert (record.run_id, record.removed) == ("run-1", ())
    assert [call.instants for call in starter.calls] == [(T,)]
    assert sorted(path.name for path in (patient.path / ".hoodie" / "timeline").iterdir()) == before


def test_policy_that_does_not_allow_it_stops_a_repair_before_anything_is_written(patient: Patient) -> None:
    patient.left("lock")
    doctor = doctor_of(patient, DoctorPolicy(repairs=(StuckKind.FAILED_WRITE,)))
    with pytest.raises(RepairRefusedError, match=r"doctor\.repairs of the tables file allows failed_write"):
        doctor.repair(only_repair(doctor))
    assert (patient.path / ".hoodie" / "lock").exists()
    assert not (patient.path / RECORDS).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda table: (table.path / ".hoodie" / "lock").unlink(), "has vanished", id="gone"),
        pytest.param(lambda table: table.left("lock", age_ms=2 * HOUR_MS), "its files are others now", id="other-file"),
        pytest.param(lambda table: table.beats(T), "has vanished", id="somebody-lives"),
        pytest.param(lambda table: table.left("lock", age_ms=700_000), "it is 700 s old", id="taken-again"),
    ],
)
def test_repair_of_what_has_changed_is_refused(
    patient: Patient, change: Callable[[Patient], None], message: str
) -> None:
    patient.left("lock")
    doctor = doctor_of(patient)
    repair = only_repair(doctor)
    change(patient)
    with pytest.raises(RepairRefusedError, match=message):
        doctor.repair(repair)


def test_lock_that_changes_hands_between_reading_and_moving_is_given_back(patient: Patient) -> None:
    patient.left("lock")
    lock = patient.path / ".hoodie" / "lock"

    def another_takes_it() -> None:
        if lock.exists() and lock.stat().st_mtime_ns // 10**6 < NOW_MS - 1000:
            patient.left("lock", age_ms=0)

    doctor = doctor_of(patient, storage=storage_of(patient, another_takes_it))
    with pytest.raises(RepairRefusedError, match="was replaced by another process"):
        doctor.repair(only_repair(doctor))
    assert lock.exists()
    assert lock.stat().st_mtime_ns // 10**6 == NOW_MS
    (record,) = load_records(open_storage(str(patient.path)))
    assert record.result.startswith("not repaired: .hoodie/lock was replaced")


def test_repair_whose_doctor_died_stands_in_the_history_as_begun(patient: Patient) -> None:
    patient.left("lock")

    def die() -> None:
        raise KeyboardInterrupt

    doctor = doctor_of(patient, storage=storage_of(patient, die))
    with pytest.raises(KeyboardInterrupt):
        doctor.repair(only_repair(doctor))
    (record,) = load_records(open_storage(str(patient.path)))
    assert record.result == ""


def test_storage_that_fails_in_the_middle_is_recorded_with_what_was_moved(patient: Patient) -> None:
    patient.left_instant(f"{T}.logcompaction.requested")
    patient.left_instant(f".{T}.logcompaction.requested.crc")
    patient.left_instant("20261121120009000.compaction.inflight", age_ms=0)
    moves: list[int] = []

    def fail_at_the_second() -> None:
        moves.append(1)
        if len(moves) == 2:
            raise OSError("the disk is full")

    doctor = doctor_of(patient, storage=storage_of(patient, fail_at_the_second))
    repair = next(r for _, r in doctor.examine() if r.instant == T)
    with pytest.raises(StorageError, match="the disk is full"):
        doctor.repair(repair)
    (record,) = load_records(open_storage(str(patient.path)))
    assert [file.path for file in record.removed] == [f".hoodie/timeline/{T}.logcompaction.requested"]


def test_all_allowed_repairs_are_done_and_one_rolls_all_failed_plans_of_a_kind_once(patient: Patient) -> None:
    patient.left_instant(f"{T}.compaction.requested")
    patient.left_instant("20261121120009000.clean.requested")
    starter = FakeStarter()
    records = doctor_of(patient, starter=starter).repair_all()
    assert [record.kind for record in records] == ["plan_without_executor"] * 2
    assert len(starter.calls) == 2
    assert doctor_of(patient).repair_all() == (), "without a starter, runs are left to the caller"


def test_heartbeat_is_judged_by_the_interval_of_the_tables_writers(patient: Patient) -> None:
    patient.left_instant(f"{T}.deltacommit.requested")
    patient.left(f".heartbeat/{T}", age_ms=10 * 60_000)
    assert [finding.kind for finding, _ in doctor_of(patient).examine()] == [StuckKind.FAILED_WRITE]
    slow = TablePolicy(doctor=ALL, hudi_options={"hoodie.client.heartbeat.interval_in_ms": "600000"})
    assert TableDoctor(storage_of(patient), slow, "anna@host", lambda: NOW_MS).examine() == ()


def test_record_is_plain_json(patient: Patient) -> None:
    patient.left("lock")
    doctor = doctor_of(patient)
    record = doctor.repair(only_repair(doctor))
    body = json.loads((patient.path / RECORDS / f"{record.record_id}.ended.json").read_text())
    assert body["removed"][0]["path"] == ".hoodie/lock"


def test_a_block_of_rewriting_is_lifted_when_a_person_asks_and_never_by_the_round(patient: Patient) -> None:
    difference = RowsDiffer(Service.COMPACTION, T, "partition 'p', file group f: keys: 7 (other values)")
    mark = patient.path / REWRITE_BLOCK
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(to_json(difference))
    doctor = doctor_of(patient)
    ((finding, repair),) = doctor.examine()

    assert finding.kind is StuckKind.ROWS_DIFFER
    assert "keys: 7 (other values)" in finding.message
    assert needs_people(repair)
    assert doctor.repair_all() == ()
    assert mark.exists()

    assert doctor.repair(repair).result == "repaired"
    assert not mark.exists()
    assert doctor.examine() == ()


def report(patient: Patient, kind: DamageKind, *what: str) -> Path:
    path = patient.path / kind.place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(KnownDamage(tuple(Damage(kind, ("p",), text) for text in what))))
    return path


@pytest.mark.parametrize("kind", sorted(WITHOUT_REPAIR.keys() - {StuckKind.UNGUARDED_SERVICE}))
def test_what_the_doctor_cannot_repair_needs_a_person(kind: StuckKind) -> None:
    """Of writes archived behind a savepoint no person heard, although readers return rows as they were before them."""
    assert needs_people(Repair(kind, T, refusal=WITHOUT_REPAIR[kind]))


@pytest.mark.parametrize("action", ["deltacommit", "replacecommit"])
@pytest.mark.parametrize("has_heartbeat", [True, False])
def test_failed_write_that_no_rollback_takes_by_itself_needs_a_person(
    patient: Patient, action: str, has_heartbeat: bool
) -> None:
    """Without a heartbeat no rollback was ever due, and no person was notified while archiving waited."""
    day_ms = 24 * HOUR_MS
    patient.left_instant(f"{T}.{action}.requested", age_ms=day_ms)
    if has_heartbeat:
        patient.left(f".heartbeat/{T}", age_ms=day_ms)
    repair = only_repair(doctor_of(patient))
    assert repair.call == ServiceCall(Service.ROLLBACK, Mode.EXECUTE, (T,))
    assert needs_people(repair) is not has_heartbeat


@pytest.mark.parametrize("kind", DamageKind)
def test_what_a_check_found_is_a_problem_that_a_person_repairs(patient: Patient, kind: DamageKind) -> None:
    report(patient, kind, "5 files", "6 files")
    doctor = doctor_of(patient)
    ((finding, repair),) = doctor.examine()
    assert finding.kind == StuckKind(kind.value)
    assert finding.message == "5 files; and in 1 more places (.hoodie/.aux/lake_integrity of the table)"
    assert finding.holds_up
    assert finding.repair
    assert needs_people(repair)
    assert doctor.repair_all() == ()


def test_report_of_duplicate_keys_is_taken_back_when_a_person_asks(patient: Patient) -> None:
    path = report(patient, DamageKind.DUPLICATE_KEYS, "2 record keys")
    doctor = doctor_of(patient)
    assert doctor.repair(only_repair(doctor)).result == "repaired"
    assert not path.exists()


def test_wrong_list_of_files_is_repaired_by_a_new_metadata_table_and_gone_files_by_hand(patient: Patient) -> None:
    path = report(patient, DamageKind.UNLISTED_FILES, "2 files")
    ((_, repair),) = doctor_of(patient).examine()
    assert repair.call == ServiceCall(Service.METACOMPACTION, Mode.WITHDRAW)
    path.unlink()
    report(patient, DamageKind.GONE_FILES, "2 files").write_bytes(b"{")
    ((finding, repair),) = doctor_of(patient).examine()
    assert finding.message == "a check has found damage; its report is not readable"
    assert repair.refusal == "only a copy has their rows"

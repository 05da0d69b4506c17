"""What the doctor writes and moves, on a real HDFS and an S3-compatible store."""

from __future__ import annotations

import time

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.doctor.repairs import load_records
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import RepairRefusedError
from airflow_lake_provider.storage.table_storage import Storage
from tests.integration.storage.lakes import CLOUDS, MOTO, Lake

LATER_MS = 3_600_000
PROPERTIES = (
    b"hoodie.table.name=orders\nhoodie.table.type=MERGE_ON_READ\nhoodie.table.version=9\n"
    b"hoodie.timeline.layout.version=2\n"
)
LOG_COMPACTION, COMPACTION = "20261121120001000", "20261121120002000"


@pytest.fixture(params=["hdfs", MOTO, *CLOUDS])
def lake(request: pytest.FixtureRequest) -> Lake:
    """A store that takes what its client writes: gofakes3 takes nothing in chunks, as pyarrow sends it."""
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


def test_file_is_created_as_a_whole_and_moved_with_its_time(lake: Lake) -> None:
    storage = lake.open("/repairs")
    storage.create("a/b/record.json", b"{}")
    before = storage.stat("a/b/record.json")
    assert before is not None
    storage.move("a/b/record.json", "c/d/kept.json")
    after = storage.stat("c/d/kept.json")
    assert after is not None
    assert (storage.read_bytes("c/d/kept.json"), storage.stat("a/b/record.json")) == (b"{}", None)
    assert storage.list_names("c/d") == ["kept.json"]
    if storage.moves_at_once:
        assert (after.size_bytes, after.modified_ms) == (before.size_bytes, before.modified_ms)
    with pytest.raises(FileNotFoundError):
        storage.move("a/b/record.json", "c/d/again.json")


def make_patient(lake: Lake, name: str) -> Storage:
    timeline = f"/{name}/.hoodie/timeline"
    lake.put(f"/{name}/.hoodie/hoodie.properties", PROPERTIES)
    lake.put(f"{timeline}/{LOG_COMPACTION}.logcompaction.requested", b"plan")
    lake.put(f"{timeline}/{COMPACTION}.compaction.inflight", b"")
    lake.put(f"/{name}/.hoodie/lock", b"")
    return lake.open(f"/{name}")


def doctor_of(storage: Storage, policy: DoctorPolicy) -> TableDoctor:
    return TableDoctor(storage, TablePolicy(doctor=policy), "test", lambda: int(time.time() * 1000))


def test_plan_is_moved_away_and_the_record_is_kept_with_the_table(lake: Lake) -> None:
    storage = make_patient(lake, f"patient-{lake.kind}")
    impatient = DoctorPolicy(repairs=tuple(StuckKind), stuck_after_s=0.001, lock_after_s=0.001, unguarded_after_s=0.001)
    time.sleep(1.1)  # object stores give whole seconds
    doctor = doctor_of(storage, impatient)
    repairs = {finding.kind: repair for finding, repair in doctor.examine()}
    record = doctor.repair(repairs[StuckKind.OVERTAKEN_LOG_COMPACTION])
    assert record.result == "repaired"
    assert load_records(lake.open(f"/patient-{lake.kind}")) == (record,)
    assert storage.read_bytes(record.removed[0].kept_as) == b"plan"
    lock = repairs[StuckKind.ORPHANED_LOCK]
    if storage.moves_at_once:
        assert doctor.repair(lock).result == "repaired"
    else:
        with pytest.raises(RepairRefusedError, match="cannot move a lock file in one step"):
            doctor.repair(lock)
    assert (storage.stat(".hoodie/lock") is None) is storage.moves_at_once


def test_young_things_are_left_alone_by_the_stores_own_clock(lake: Lake) -> None:
    storage = make_patient(lake, f"young-{lake.kind}")
    # This machine's clock is an hour ahead of the store's: everything there seems old.
    doctor = TableDoctor(
        storage,
        TablePolicy(doctor=DoctorPolicy(repairs=tuple(StuckKind))),
        "test",
        lambda: int(time.time() * 1000) + LATER_MS,
    )
    repair = next(r for f, r in doctor.examine() if f.kind is StuckKind.OVERTAKEN_LOG_COMPACTION)
    assert repair.files, "by this clock it may be moved"
    with pytest.raises(RepairRefusedError, match="it is young"):
        doctor.repair(repair)
    (record,) = load_records(storage)
    assert record.result.startswith("not repaired")
    assert storage.stat(repair.files[0].path) is not None

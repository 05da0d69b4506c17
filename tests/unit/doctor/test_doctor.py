from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import FROZEN_AFTER_WRITES, Finding, diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.job_contract import ENDED_BEAT_MS, PLANNED_BEAT_MS
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import NAMES, unpack
from tests.support.tables import HandMadeTable
from tests.unit.doctor.stuck_table import HOUR_MS, INDEX, LATER, NOW_MS, Patient, T
from tests.unit.hudi.archive_tables import LOG, LSM, completed


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    return table


def shapes(table: HandMadeTable) -> list[tuple[str, str]]:
    return [(finding.kind, finding.instant) for finding in findings(table)]


def findings(table: HandMadeTable) -> tuple[Finding, ...]:
    return diagnose(collect_evidence(open_storage(str(table.path)), NOW_MS))


@pytest.mark.parametrize("name", NAMES)
def test_doctor_finds_nothing_damaged_on_real_tables(name: str, tmp_path: Path) -> None:
    table = unpack(name, tmp_path)
    found = diagnose(collect_evidence(open_storage(str(table.path)), NOW_MS, reads_all=True))
    # These tables are timelines alone: the files of a pending compaction are gone.
    harmless = {"plan_without_executor", "failed_write", "dangling_replacecommit", "lost_files"}
    assert {finding.kind for finding in found} <= harmless


@pytest.mark.parametrize("name", NAMES)
def test_doctor_names_a_damaged_commit_of_a_real_table(name: str, tmp_path: Path) -> None:
    storage = open_storage(str(unpack(name, tmp_path).path))
    properties = load_table_properties(storage)
    write = load_timeline(storage, properties).completed_writes[-1]
    file = Path(storage.base_path) / properties.timeline_path / write.file_name
    modified = file.stat().st_mtime_ns
    file.write_text("{broken")
    os.utime(file, ns=(modified, modified))
    found = diagnose(collect_evidence(storage, NOW_MS, reads_all=True))
    (damage,) = (finding for finding in found if finding.kind is StuckKind.UNREADABLE_FILE)
    assert damage.instant == write.requested_time
    assert damage.message.startswith(f"{write.file_name}: damaged JSON")
    assert damage.message.count(write.file_name) == 1


def test_doctor_of_a_healthy_table_says_nothing(patient: Patient) -> None:
    patient.left("lock", age_ms=1000)  # a writer commits just now
    patient.left_instant(f"{T}.deltacommit.inflight", age_ms=1000)
    assert shapes(patient) == []


def test_doctor_names_an_orphaned_lock_unless_a_writer_lives(patient: Patient) -> None:
    patient.left("lock")
    assert shapes(patient) == [("orphaned_lock", "")]
    patient.beats(T)
    assert shapes(patient) == []


def test_doctor_names_a_failed_write_unless_its_heart_beats(patient: Patient) -> None:
    patient.left_instant(f"{T}.deltacommit.requested")
    patient.left_instant(f"{T}.deltacommit.inflight")
    patient.left(f".heartbeat/{T}")
    assert shapes(patient) == [("failed_write", T)]
    patient.beats(T)
    assert shapes(patient) == []


def test_write_that_never_beat_is_not_taken_for_dead_before_its_time(patient: Patient) -> None:
    """Single-writer mode sends no heartbeat, and a commit may touch nothing for hours while it reads its source."""
    patient.left_instant(f"{T}.deltacommit.requested", age_ms=5 * HOUR_MS)
    patient.left_instant(f"{T}.deltacommit.inflight", age_ms=5 * HOUR_MS)
    assert shapes(patient) == []
    patient.left_instant(f"{T}.deltacommit.requested", age_ms=7 * HOUR_MS)
    patient.left_instant(f"{T}.deltacommit.inflight", age_ms=7 * HOUR_MS)
    assert shapes(patient) == [("failed_write", T)]
    assert "never had a heartbeat" in findings(patient)[0].message


def test_doctor_distinguishes_an_empty_ttl_run_from_a_clustering(patient: Patient) -> None:
    patient.left_instant(f"{T}.replacecommit.requested", {"operationType": "DELETE_PARTITION"})
    patient.left(f".heartbeat/{T}")
    clustering = {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": []}}
    patient.left_instant(f"{LATER}.replacecommit.requested", clustering)
    assert shapes(patient) == [("dangling_replacecommit", T), ("blocking_clustering", LATER)]


@pytest.mark.parametrize(
    ("action", "kind", "held_up"),
    [
        ("compaction", "plan_without_executor", "archiving"),
        ("clustering", "blocking_clustering", "writers are rejected"),
        ("clean", "plan_without_executor", "archiving"),
    ],
)
@pytest.mark.parametrize("state", ["requested", "inflight"])
def test_doctor_names_plans_without_executor(
    patient: Patient, action: str, kind: str, held_up: str, state: str
) -> None:
    patient.left_instant(f"{T}.{action}.requested")
    if state == "inflight":
        patient.left_instant(f"{T}.{action}.inflight", age_ms=7 * HOUR_MS)
    (finding,) = findings(patient)
    assert (finding.kind, finding.instant) == (kind, T)
    assert held_up in finding.holds_up
    assert ("never began" in finding.message) == (state == "requested")


@pytest.mark.parametrize("action", ["clustering", "clean"])
def test_service_without_heartbeat_is_not_taken_for_dead_before_its_time(patient: Patient, action: str) -> None:
    patient.left_instant(f"{T}.{action}.requested")
    patient.left_instant(f"{T}.{action}.inflight")
    assert shapes(patient) == [("unguarded_service", T)]
    patient.left(
        f".heartbeat/{T}", age_ms=NOW_MS - PLANNED_BEAT_MS
    )  # it says which process made the plan, not which began it
    assert shapes(patient) == [("unguarded_service", T)]
    patient.left(f".heartbeat/{T}")  # its executor beats, and has stopped: it is dead
    assert [kind for kind, _ in shapes(patient)] in (["blocking_clustering"], ["plan_without_executor"])


def test_service_that_still_writes_markers_is_at_work(patient: Patient) -> None:
    patient.left_instant(f"{T}.clustering.requested")
    patient.left_instant(f"{T}.clustering.inflight", age_ms=9 * HOUR_MS)
    assert shapes(patient) == [("blocking_clustering", T)]
    markers = patient.path / ".hoodie" / ".temp" / T
    markers.mkdir(parents=True)
    patient.left(f".temp/{T}/MARKERS0", age_ms=1000)
    assert shapes(patient) == []


def test_findings_name_what_is_blocked_behind_them(patient: Patient) -> None:
    patient.left_instant(f"{T}.deltacommit.requested")
    patient.left(f".heartbeat/{T}")
    patient.commit(7)
    patient.commit(8)
    (failed,) = findings(patient)
    assert failed.blocks == (
        "2 later writes are complete and cannot be archived: 20261121120007000, 20261121120008000",
    )
    slices = [{"partitionPath": "p", "fileId": file_id} for file_id in ("a", "b")]
    plan = {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": [{"slices": slices}]}}
    patient.left_instant(f"{LATER}.clustering.requested", plan)
    patient.left("lock")
    lock, _, clustering = findings(patient)
    assert lock.blocks == (f"pending: deltacommit {T} (REQUESTED), clustering {LATER} (REQUESTED)",)
    assert clustering.blocks == ("updates of 2 file groups: 2 in p",)


def test_doctor_names_a_log_compaction_behind_a_newer_compaction(patient: Patient) -> None:
    patient.left_instant(f"{T}.logcompaction.requested", age_ms=0)
    patient.left_instant(f"{LATER}.compaction.requested", age_ms=0)
    assert shapes(patient) == [("overtaken_log_compaction", T)]


def test_doctor_names_stale_and_duplicate_index_builds(patient: Patient) -> None:
    patient.left_instant(f"{T}.indexing.requested", INDEX)
    patient.left_instant(f"{T}.indexing.inflight")
    patient.left_instant(f"{LATER}.indexing.requested", INDEX, age_ms=0)
    assert shapes(patient) == [("stale_index_build", T), ("duplicate_index_plan", LATER)]


def test_doctor_names_an_index_that_no_job_builds(patient: Patient) -> None:
    file = patient.path / ".hoodie" / "hoodie.properties"
    file.write_text(file.read_text() + "\nhoodie.table.metadata.partitions.inflight=record_index\n")
    assert shapes(patient) == [("index_without_plan", "")]


@pytest.mark.parametrize("name", [LSM, LOG])
def test_doctor_names_writes_that_were_archived_behind_a_savepoint(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path).path
    storage = open_storage(str(path))

    def behind() -> list[Finding]:
        found = diagnose(collect_evidence(storage, NOW_MS))
        return [finding for finding in found if finding.kind is StuckKind.ARCHIVED_BEHIND_SAVEPOINT]

    writes = {i["requested_time"]: i["action"] for i in completed(name) if "commit" in i["action"]}
    first, *lost = sorted(writes)
    timeline = path / load_table_properties(storage).timeline_path
    stem = f"{first}_{first}" if name == LSM else first
    (timeline / f"{stem}.savepoint").write_text("")
    assert behind() == []
    (timeline / f"{stem}.{writes[first]}").write_text("")
    (finding,) = behind()
    assert finding.instant == first
    assert f"{len(lost)} writes after savepoint {first} are archived, so Hudi" in finding.message
    assert f"({lost[0]}, " in finding.message
    (timeline / f"{stem}.savepoint").unlink()
    # Not for layout 1, whose archive would have to be read whole for each sound table.
    assert [later.instant for later in behind()] == ([first] if name == LSM else [])


def test_doctor_names_writes_that_were_archived_behind_an_index_build(tmp_path: Path) -> None:
    path = unpack(LSM, tmp_path).path
    storage = open_storage(str(path))
    first, *lost = sorted(i["requested_time"] for i in completed(LSM) if "commit" in i["action"])
    timeline = path / load_table_properties(storage).timeline_path

    def behind() -> list[Finding]:
        found = diagnose(collect_evidence(storage, NOW_MS))
        return [finding for finding in found if finding.kind is StuckKind.ARCHIVED_BEHIND_HEAD]

    assert behind() == []
    (timeline / f"{first}_{first}.indexing").write_text("")
    (finding,) = behind()
    assert finding.instant == first
    assert f"{len(lost)} writes after the indexing {first}, which stays active, are archived" in finding.message
    properties = path / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
    assert behind() == [], "a copy-on-write table finds no file by when its write completed"


def test_doctor_names_frozen_archiving(patient: Patient) -> None:
    for number in range(FROZEN_AFTER_WRITES):
        stamp = f"2026112113{number // 60:02d}{number % 60:02d}000"
        patient.left_instant(f"{stamp}_{stamp}.deltacommit")
    assert shapes(patient) == [], "without a metadata table nothing freezes it"
    metadata = HandMadeTable.create(patient.path / ".hoodie" / "metadata")
    assert shapes(patient) == [("frozen_archive", "")]
    stamp = "20261121120000001"
    (metadata.path / ".hoodie" / "timeline" / f"{stamp}_{stamp}.commit").write_bytes(b"")
    assert shapes(patient) == []


def test_doctor_names_what_cannot_be_read_and_goes_on(patient: Patient) -> None:
    patient.left_instant("notes.txt")
    patient.left_instant(f"{T}.replacecommit.requested")
    (patient.path / ".hoodie" / "timeline" / f"{T}.replacecommit.requested").write_bytes(b"Obj\x01damage")
    assert [kind for kind, _ in shapes(patient)][:2] == ["unreadable_file", "unreadable_file"]


def test_doctor_writes_nothing(patient: Patient) -> None:
    patient.left("lock")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in patient.path.rglob("*"))
    findings(patient)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in patient.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("action", "held_up"),
    [
        ("compaction", "every write"),
        ("logcompaction", "every write"),
        ("clustering", "archiving"),
        ("clean", "archiving"),
    ],
)
def test_doctor_names_an_empty_plan_once(patient: Patient, action: str, held_up: str) -> None:
    """It is neither a plan without executor nor a file that only a backup restores: no process can execute it."""
    patient.left(f"timeline/{T}.{action}.requested")
    (finding,) = diagnose(collect_evidence(open_storage(str(patient.path)), NOW_MS, reads_all=True))
    assert (finding.kind, finding.instant) == ("empty_plan", T)
    assert finding.message.startswith(f"the plan {T}.{action}.requested is empty (0 bytes)")
    assert held_up in finding.holds_up


def test_empty_request_of_a_completed_service_or_of_a_write_is_none(patient: Patient) -> None:
    patient.left(f"timeline/{T}.compaction.requested")
    patient.left(f"timeline/{T}_{LATER}.commit", {"operationType": "COMPACT"})
    patient.left(f"timeline/{LATER}.deltacommit.requested", age_ms=1000)
    assert shapes(patient) == []


def test_doctor_names_an_empty_plan_of_the_metadata_table(patient: Patient) -> None:
    add_metadata_table(patient)
    patient.left(f"metadata/.hoodie/timeline/{T}.compaction.requested")
    (finding,) = findings(patient)
    assert (finding.kind, finding.instant) == ("empty_plan", T)
    assert f".hoodie/metadata/.hoodie/timeline/{T}.compaction.requested" in finding.message
    assert "every write" in finding.holds_up


def test_doctor_names_a_metadata_table_that_is_listed_and_gone(patient: Patient) -> None:
    add_metadata_table(patient)
    assert shapes(patient) == []
    shutil.rmtree(patient.path / ".hoodie" / "metadata")
    (finding,) = findings(patient)
    assert finding.kind == "lost_metadata_table"
    assert "lists files, and there is no table in .hoodie/metadata" in finding.message


@pytest.mark.parametrize(
    ("names", "is_named"),
    [
        pytest.param([(f"f-0_0-1-1_{T}.hfile", 0)], True, id="the-only-one"),
        pytest.param(
            [(f"f-0_0-1-1_{T}.hfile", 0), (f"f-0_0-2-2_{LATER}.hfile", 9)], False, id="replaced-by-a-newer-one"
        ),
        pytest.param([(f"f-0_0-1-1_{T}.hfile", 9)], False, id="whole"),
    ],
)
def test_doctor_names_an_empty_file_of_the_metadata_table(
    patient: Patient, names: list[tuple[str, int]], is_named: bool
) -> None:
    add_metadata_table(patient)
    for name, size in names:
        file = patient.path / ".hoodie" / "metadata" / "files" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * size)
    assert shapes(patient) == ([("lost_metadata_table", "")] if is_named else [])


def add_metadata_table(table: Patient) -> None:
    properties = table.path / ".hoodie" / "hoodie.properties"
    own = HandMadeTable.create(table.path / ".hoodie" / "metadata", name="orders_metadata")
    assert own.path.is_dir()
    properties.write_text(properties.read_text() + "\nhoodie.table.metadata.partitions=files\n")


def test_clustering_that_failed_is_to_be_withdrawn_and_not_executed_again(patient: Patient) -> None:
    patient.left_instant(f"{T}.clustering.requested")
    patient.left_instant(f"{T}.clustering.inflight")
    patient.left(f".heartbeat/{T}", age_ms=NOW_MS - ENDED_BEAT_MS)
    (finding,) = findings(patient)
    assert (finding.kind, finding.instant) == ("blocking_clustering", T)
    assert "failed" in finding.message
    assert "mode withdraw" in finding.repair


@pytest.mark.parametrize(
    ("sizes", "lost"),
    [
        pytest.param({"a.parquet": 9, ".a.log.1_0-1-0": 0}, "", id="an-empty-log-is-read-over"),
        pytest.param({"a.parquet": 9}, "p/.a.log.1_0-1-0 (gone)", id="log-gone"),
        pytest.param({"a.parquet": 0, ".a.log.1_0-1-0": 9}, "p/a.parquet (0 bytes)", id="base-empty"),
        pytest.param({}, "p/a.parquet (gone), p/.a.log.1_0-1-0 (gone)", id="all-gone"),
    ],
)
def test_doctor_names_the_files_that_a_begun_compaction_lacks(
    patient: Patient, sizes: dict[str, int], lost: str
) -> None:
    operation = {"partitionPath": "p", "fileId": "a", "dataFilePath": "a.parquet", "deltaFilePaths": [".a.log.1_0-1-0"]}
    patient.left_instant(f"{T}.compaction.requested", {"operations": [operation]})
    patient.left_instant(f"{T}.compaction.inflight")
    for name, size in sizes.items():
        (patient.path / "p").mkdir(exist_ok=True)
        (patient.path / "p" / name).write_bytes(b"x" * size)
    (finding,) = findings(patient)
    assert finding.kind == ("lost_files" if lost else "plan_without_executor")
    assert finding.message.endswith(lost or "ago")

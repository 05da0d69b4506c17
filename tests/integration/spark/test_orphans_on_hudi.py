"""Orphan files on real tables: what is planted goes and comes back, and everything that Hudi needs still works.

The judges are Hudi's readers, its own execution of plans and rollbacks, and a listing of the disk.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import pytest
from conftest import MakeTable, Table, content, rows_written, run, write
from test_archive_on_hudi import NO_METADATA_TABLE

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from lake_jobs.hudi.table import open_client
from lake_jobs.services import orphans as orphans_job
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HISTORIES = int(os.environ.get("LAKE_ORPHAN_TABLES", "200"))
FIRST_HISTORY = int(os.environ.get("LAKE_ORPHAN_SEED", "0"))
QUARANTINE = {
    "lake.orphans.mode": "quarantine",
    "lake.orphans.min_age_days": "2",
    "lake.orphans.keep_days": "30",
    "lake.orphans.max_files": "1000",
}
EAGER = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
FOLDER = ".hoodie/.aux/lake_quarantine"
TOKEN = "7-77-7"  # of no task of these writers


class Clock:
    """The job's clock, some days ahead: the files of a test are a minute old."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.days_ahead = 0
        monkeypatch.setattr(orphans_job, "_now_ms", lambda _context: int(time.time() * 1000) + self.days_ahead * DAY_MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def search(table: Table, mode: Mode = Mode.EXECUTE, *instants: str, **options: str) -> JobRequest:
    return table.request(mode, *instants, service=Service.ORPHANS, service_options={**QUARANTINE, **options})


def data_files(table: Table) -> dict[str, bytes]:
    """Return the content of every file outside `.hoodie` but checksums, by path."""
    files = (path for path in table.path.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
    below = {str(path.relative_to(table.path)): path for path in files}
    return {name: path.read_bytes() for name, path in below.items() if not name.startswith(".hoodie/")}


def base_files(table: Table) -> list[Path]:
    return sorted(path for path in table.path.rglob("*.parquet") if ".hoodie" not in path.parts)


def log_files(table: Table) -> list[Path]:
    found = (path for path in table.path.rglob(".*.log.*") if ".hoodie" not in path.parts)
    return sorted(path for path in found if not path.name.endswith(".crc"))


def plant(table: Table, source: Path, name: str) -> str:
    """Copy a file of the table to another name in its partition; return its path below the table."""
    target = source.with_name(name)
    shutil.copyfile(source, target)
    return str(target.relative_to(table.path))


def attempt_of(file: Path) -> str:
    """Return the name of another attempt at a base file: its file group, its write, another task's token."""
    group, _, instant = file.name.split("_")
    return f"{group}_{TOKEN}_{instant}"


def write_of(file: Path) -> str:
    return file.name.split("_")[-1].split(".")[0]


def plant_all(table: Table, unknown: str) -> set[str]:
    """Plant one of each kind of orphan; return their paths. `unknown` is the instant of a write that nothing knows."""
    base = base_files(table)[0]
    planted = {
        plant(table, base, attempt_of(base)),
        plant(table, base, f"00000000-aaaa-0_{TOKEN}_{write_of(base)}.parquet"),
        plant(table, base, f"00000000-bbbb-0_{TOKEN}_{unknown}.parquet"),
    }
    if table.written.version >= 8 and table.written.type == "MOR":
        log = log_files(table)[0]
        planted.add(plant(table, log, f"{log.name.rsplit('_', 1)[0]}_{TOKEN}"))
        planted.add(plant(table, log, f"{log.name.rsplit('_', 1)[0]}_{TOKEN}.cdc"))
    return planted


@dataclass(frozen=True, slots=True)
class DeadWrite:
    """A write whose writer died after its first file."""

    instant: str
    file: str


def die_at_work(spark: SparkSession, table: Table) -> DeadWrite:
    """Leave what a writer leaves that dies after its first file: instant, expired heartbeat, marker, data file."""
    settings = lake_writer.write_options(table.written, 3, None, {})
    with open_client(spark, str(table.path), settings, {}) as client:
        instant = str(client.startCommit())
    (requested,) = (name for name in table.files() if name.startswith(instant))
    action = requested.split(".")[1]
    name = f"{instant}.inflight" if action == "commit" else f"{instant}.{action}.inflight"
    (table.timeline / name).touch()
    base = base_files(table)[0]
    file = plant(table, base, f"00000000-dead-0_{TOKEN}_{instant}.parquet")
    marker = table.path / ".hoodie" / ".temp" / instant / f"{file}.marker.CREATE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    beat = table.path / ".hoodie" / ".heartbeat" / instant
    os.utime(beat, (time.time() - 600,) * 2)
    return DeadWrite(instant, file)


def rows_at(spark: SparkSession, table: Table, instant: str) -> list[tuple[object, ...]]:
    """Return all rows as they were at an instant, read with a listing of the store and not by the metadata table."""
    options = {"as.of.instant": instant, "hoodie.metadata.enable": "false"}
    found = spark.read.format("hudi").options(**options).load(str(table.path)).select("id", "city", "amount", "ts")
    return sorted(tuple(row) for row in found.collect())


def files_of_savepoint(table: Table, instant: str) -> set[str]:
    """Return the files of a savepoint's file slices, by its own metadata."""
    (file,) = (path for path in table.timeline.glob(f"{instant}*.savepoint"))
    with file.open("rb") as stream:
        (record,) = fastavro.reader(stream)
    return {
        f"{partition}/{name}"
        for partition, metadata in record["partitionMetadata"].items()
        for name in metadata["savepointDataFile"]
    }


def moment_between(table: Table) -> str:
    """Return an instant time between the table's first and last write at which nothing was requested."""
    times = sorted(name.split(".")[0].split("_")[0] for name in table.files() if name[:4].isdigit())
    return f"{int(times[0]) + 1}"


def quarantined(table: Table) -> set[str]:
    folders = (table.path / FOLDER).glob("*/files")
    return {
        str(f.relative_to(folder))
        for folder in folders
        for f in folder.rglob("*")
        if f.suffix != ".crc" and f.is_file()
    }


@pytest.mark.parametrize(("type", "version"), [("MOR", 9), pytest.param("COW", 6, marks=pytest.mark.soak)])
def test_orphans_go_and_come_back_and_all_that_hudi_needs_stays(
    spark: SparkSession, make_table: MakeTable, clock: Clock, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    saved = run(spark, table.request(Mode.EXECUTE, service=Service.SAVEPOINT))
    assert saved.outcome is Outcome.COMPLETED, saved.message
    (savepoint,) = saved.completed_instants
    if type == "MOR":
        write(spark, table.written, 3)
        assert run(spark, table.request(Mode.SCHEDULE)).outcome is Outcome.SCHEDULED
    before, at_savepoint = content(spark, table), rows_at(spark, table, savepoint)
    planted = plant_all(table, moment_between(table))
    stranger = plant(table, base_files(table)[0], "report.csv")
    # A reader without the metadata table takes a failed attempt's file groups for the write's own.
    assert len(rows_at(spark, table, savepoint)) > len(at_savepoint)
    dead = die_at_work(spark, table)
    files = data_files(table)

    # What is as young as this is never an orphan, and a report moves nothing.
    young = run(spark, search(table))
    assert young.outcome is Outcome.NOTHING_TO_DO, young.message
    clock.days_ahead = 10
    report = run(spark, search(table, Mode.SCHEDULE))
    assert report.outcome is Outcome.COMPLETED, report.message
    assert report.message.startswith(f"found {len(planted)} orphan files of "), report.message
    assert data_files(table) == files

    moved = run(spark, search(table))
    assert moved.outcome is Outcome.COMPLETED, moved.message
    assert set(files) - set(data_files(table)) == planted
    assert quarantined(table) == planted
    assert content(spark, table) == before
    assert rows_at(spark, table, savepoint) == at_savepoint
    assert files_of_savepoint(table, savepoint) <= set(data_files(table))
    assert {stranger, dead.file} <= set(data_files(table))
    assert run(spark, search(table)).outcome is Outcome.NOTHING_TO_DO

    back = run(spark, search(table, Mode.UNDO))
    assert (back.outcome, f"put {len(planted)} files" in back.message) == (Outcome.COMPLETED, True), back.message
    assert data_files(table) == files
    # What a person has put back is not moved again.
    assert run(spark, search(table)).outcome is Outcome.NOTHING_TO_DO
    assert data_files(table) == files

    shutil.rmtree(table.path / FOLDER)
    assert run(spark, search(table)).outcome is Outcome.COMPLETED
    if type == "MOR":
        compacted = run(spark, table.request(Mode.EXECUTE))
        assert compacted.outcome is Outcome.COMPLETED, compacted.message
    rolled_back = run(spark, table.request(Mode.EXECUTE, dead.instant, service=Service.ROLLBACK))
    assert rolled_back.outcome is Outcome.COMPLETED, rolled_back.message
    assert dead.file not in data_files(table)
    assert rows_at(spark, table, savepoint) == at_savepoint
    assert [row[3:] for row in content(spark, table)] == [row[3:] for row in before]

    clock.days_ahead = 41
    gone = run(spark, search(table))
    assert f"deleted {len(planted)} files" in gone.message, gone.message
    assert not quarantined(table)


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_archived_writes_keep_their_files_and_what_the_archive_does_not_know_stays(
    spark: SparkSession, make_table: MakeTable, clock: Clock, version: int
) -> None:
    table = make_table(type="COW", version=version, **NO_METADATA_TABLE)
    lost_before = f"{int(min(table.completed())) - 1}"
    unknown = moment_between(table)
    for commit in range(3, 7):
        write(spark, table.written, commit)
    committed = base_files(table)
    archived = run(spark, table.request(Mode.EXECUTE, service=Service.ARCHIVE, service_options=EAGER))
    assert archived.outcome is Outcome.COMPLETED, archived.message
    active = table.completed()
    old = [file for file in committed if write_of(file) not in active]
    assert old
    failed = plant(table, old[0], attempt_of(old[0]))
    planted = {plant(table, old[0], f"00000000-bbbb-0_{TOKEN}_{unknown}.parquet")}
    if version >= 8:
        planted.add(failed)  # the archive of layout 1 does not show what a write has named
    plant(table, old[0], f"00000000-cccc-0_{TOKEN}_{lost_before}.parquet")
    files = data_files(table)
    clock.days_ahead = 10
    result = run(spark, search(table))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert set(files) - set(data_files(table)) == planted
    if version >= 8:  # the message names the most frequent reason
        assert "older than what active and archived timeline know" in result.message


def test_files_of_living_writers_stay_and_one_that_announced_nothing_stops_the_move(
    spark: SparkSession, make_table: MakeTable, clock: Clock
) -> None:
    table = make_table(type="COW")
    planted = plant_all(table, moment_between(table))
    clock.days_ahead = 10
    dead = die_at_work(spark, table)
    beat = table.path / ".hoodie" / ".heartbeat" / dead.instant
    beat.touch()
    files = data_files(table)
    waits = run(spark, search(table))
    assert (waits.outcome, dead.instant in waits.message) == (Outcome.FAILED, True), waits.message
    beat.unlink()
    waits = run(spark, search(table))
    assert (waits.outcome, "without a heartbeat" in waits.message) == (Outcome.FAILED, True), waits.message
    assert data_files(table) == files
    assert not quarantined(table)
    assert "nothing was moved" in run(spark, search(table, Mode.SCHEDULE)).message
    beat.touch()
    os.utime(beat, (time.time() - 600,) * 2)
    assert run(spark, search(table)).outcome is Outcome.COMPLETED
    assert set(files) - set(data_files(table)) == planted


KINDS = (
    {"type": "MOR", "version": 9},
    {"type": "COW", "version": 9},
    {"type": "MOR", "version": 8},
    {"type": "COW", "version": 6},
    {"type": "MOR", "version": 6},
    {"type": "COW", "version": 9, **NO_METADATA_TABLE},
    {"type": "MOR", "version": 9, **NO_METADATA_TABLE},
)


class History:
    """A random history of one real table, with what was planted in it."""

    def __init__(self, spark: SparkSession, table: Table, seed: int) -> None:
        self.spark = spark
        self.table = table
        self.random = random.Random(seed)
        self.commits = 3
        self.planted: set[str] = set()
        self.dead: list[DeadWrite] = []
        self.steps: list[str] = []

    def live(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choice(self.STEPS)
            self.steps.append(step.__name__)
            step(self)

    def commit(self) -> None:
        # Hudi rejects updates of what a pending clustering rewrites.
        self.serve(Service.CLUSTERING, Mode.EXECUTE)
        write(self.spark, self.table.written, self.commits)
        self.commits += 1

    def plan(self) -> None:
        service = self.random.choice((Service.COMPACTION, Service.CLUSTERING))
        if self.dead or (service is Service.COMPACTION and self.table.written.type == "COW"):
            return
        self.serve(service, Mode.SCHEDULE)

    def execute(self) -> None:
        for service in (Service.COMPACTION, Service.CLUSTERING):
            if service is Service.CLUSTERING or self.table.written.type == "MOR":
                self.serve(service, Mode.EXECUTE)

    def clean(self) -> None:
        self.serve(Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE)

    def archive(self) -> None:
        if self.table.properties().get("hoodie.table.metadata.partitions"):
            self.serve(Service.METACOMPACTION, Mode.EXECUTE)
        self.serve(Service.ARCHIVE, Mode.EXECUTE)

    def savepoint(self) -> None:
        self.serve(Service.SAVEPOINT, Mode.EXECUTE)

    def die(self) -> None:
        self.dead.append(die_at_work(self.spark, self.table))

    def roll_back(self) -> None:
        for dead in self.dead:
            self.serve(Service.ROLLBACK, Mode.EXECUTE, dead.instant)
            assert not (self.table.path / dead.file).exists(), dead
        self.dead.clear()

    def plant(self) -> None:
        strange = {*self.planted, *(dead.file for dead in self.dead)}
        written = [file for file in base_files(self.table) if str(file.relative_to(self.table.path)) not in strange]
        base = self.random.choice(written)
        times = sorted(self.table.completed() | self.table.completed("deltacommit"))
        unknown = f"{int(self.random.choice(times)) + 3}"
        names = (
            attempt_of(base),
            f"{self.random.getrandbits(32):08x}-0_{TOKEN}_{write_of(base)}.parquet",
            f"{self.random.getrandbits(32):08x}-0_{TOKEN}_{unknown}.parquet",
        )
        # Without a metadata table Hudi itself takes the others for rows of the table, and merges them into it.
        has_metadata_table = bool(self.table.properties().get("hoodie.table.metadata.partitions"))
        name = self.random.choice(names if has_metadata_table else names[:1])
        if not base.with_name(name).exists():
            self.planted.add(plant(self.table, base, name))

    def serve(self, service: Service, mode: Mode, *instants: str) -> None:
        options = EAGER if service in {Service.CLEAN, Service.ARCHIVE} else {}
        result = run(self.spark, self.table.request(mode, *instants, service=service, service_options=options))
        # A clean waits for a clustering: what else fails was made to fail by the search.
        waits = result.failure_kind is FailureKind.CONFLICT
        assert waits or result.outcome is not Outcome.FAILED, (service, mode, result.message, self.steps)

    STEPS = (commit, commit, commit, plan, execute, clean, archive, savepoint, die, roll_back, plant, plant, plant)


@pytest.mark.soak
def test_random_histories_of_real_tables_lose_nothing_but_what_was_planted(
    spark: SparkSession, make_table: MakeTable, clock: Clock
) -> None:
    moved = planted = 0
    for seed in range(FIRST_HISTORY, FIRST_HISTORY + HISTORIES):
        made = make_table(**KINDS[seed % len(KINDS)])
        # Hudi remembers by a base path what it listed there.
        table = Table(replace(made.written, base_path=str(made.path.parent / f"history-{seed}" / made.path.name)))
        shutil.move(made.path, table.path)
        history = History(spark, table, seed)
        history.live(7)
        rows, files = content(spark, table), data_files(table)
        savepoints = sorted(table.completed("savepoint"))
        clock.days_ahead = 10
        result = run(spark, search(table))
        assert result.outcome is not Outcome.FAILED, (seed, result.message)
        gone = set(files) - set(data_files(table))
        assert gone <= history.planted, (seed, gone - history.planted, history.steps)
        assert content(spark, table) == rows, (seed, history.steps)
        for instant in savepoints:
            missing = files_of_savepoint(table, instant) - set(data_files(table))
            assert not missing, (seed, missing, history.steps)
        moved, planted = moved + len(gone), planted + len(history.planted)
        if seed % 2:
            run(spark, search(table, Mode.UNDO))
            assert data_files(table) == files, (seed, history.steps)
        clock.days_ahead = 0
        history.execute()
        history.roll_back()
        history.clean()
        after = spark.read.format("hudi").load(str(table.path)).select("id", "city", "amount", "ts").collect()
        assert sorted(tuple(row) for row in after) == rows_written(spark, table.written, history.commits), seed
        shutil.rmtree(table.path)
    print(f"{HISTORIES} histories: {planted} files planted, {moved} moved")
    assert moved > planted / 2

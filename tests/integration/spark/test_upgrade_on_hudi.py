"""Another version for a table: its rows and commits are the same, wherever a run of it was killed."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, rows, rows_written, run, write
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import (
    UPGRADE_MARK,
    UPGRADE_VERSION,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
)
from lake_jobs.hudi.table import open_client, read_table_state
from lake_jobs.services import upgrade
from tests.support.hudi_tables import require_rows
from tests.support.killed_jobs import kill_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.verify.rows import Fingerprint


def request_of(table: Table, version: int) -> JobRequest:
    """Return the request as the operator makes it."""
    return table.request(Mode.UPGRADE, service=Service.SAVEPOINT, options=LOCK | {UPGRADE_VERSION: str(version)})


def version_of(table: Table) -> str:
    with contextlib.suppress(FileNotFoundError):  # Hudi is about to write it again
        return table.properties().get("hoodie.table.version", "")
    return ""


def instants_in(folder: Path) -> set[str]:
    names = {path.name for path in folder.glob("*") if path.is_file()} if folder.is_dir() else set()
    return {name for name in names if name[:14].isdigit()}


def at_version(table: Table, version: int) -> Table:
    """Return the table as writers of that version take it."""
    return replace(table, written=replace(table.written, version=version))


def commits(table: Table) -> set[tuple[str, str]]:
    """Return requested time and action of each completed instant, without Hudi's help."""
    folder = table.path / ".hoodie" / ("timeline" if int(version_of(table)) >= 8 else "")
    parts = (name.split(".") for name in instants_in(folder))
    return {(part[0].partition("_")[0], part[1]) for part in parts if len(part) == 2}


def require_same(
    spark: SparkSession, table: Table, before: list[tuple[object, ...]], known: set[tuple[str, str]]
) -> None:
    assert content(spark, table) == before
    assert known <= commits(table)
    old, new = (instants_in(table.path / ".hoodie" / name) for name in ("", "timeline"))
    assert not (old if int(version_of(table)) >= 8 else new)
    assert not (table.path / UPGRADE_MARK).exists()


def is_rewritten(folder: Path, moved_to: str) -> bool:
    """Whether Hudi has a copy of the properties, and writes them, after it has moved the timeline."""
    return (folder / "hoodie.properties.backup").exists() and bool(instants_in(folder.parent / moved_to))


UP = {
    "marked": lambda table, folder: (folder / UPGRADE_MARK).exists(),
    "the metadata table moves": lambda table, folder: bool(instants_in(folder / ".hoodie/metadata/.hoodie/timeline")),
    "one file has moved": lambda table, folder: bool(instants_in(folder / ".hoodie/timeline")),
    "some files have moved": lambda table, folder: len(instants_in(folder / ".hoodie/timeline")) > 3,
    "the properties are written again": lambda table, folder: is_rewritten(folder / ".hoodie", ".hoodie/timeline"),
    "the version is written": lambda table, folder: version_of(table) in {"8", "9"},
}
DOWN = {
    "marked": lambda table, folder: (folder / UPGRADE_MARK).exists(),
    "one file has moved": lambda table, folder: bool(instants_in(folder / ".hoodie")),
    "some files have moved": lambda table, folder: len(instants_in(folder / ".hoodie")) > 3,
    "the properties are written again": lambda table, folder: is_rewritten(folder / ".hoodie", ".hoodie"),
    "the version is written": lambda table, folder: version_of(table) == "6",
}


@pytest.mark.parametrize(
    ("type", "begin", "end", "points"),
    [
        ("MOR", 6, 9, ["some files have moved"]),
        pytest.param("MOR", 6, 9, list(UP), marks=pytest.mark.soak),
        pytest.param("COW", 6, 9, list(UP), marks=pytest.mark.soak),
        pytest.param("COW", 6, 8, list(UP), marks=pytest.mark.soak),
        pytest.param("MOR", 9, 6, list(DOWN), marks=pytest.mark.soak),
        pytest.param("COW", 9, 6, list(DOWN), marks=pytest.mark.soak),
        pytest.param("MOR", 9, 8, ["marked"], marks=pytest.mark.soak),
        pytest.param("MOR", 8, 9, ["marked"], marks=pytest.mark.soak),
    ],
)
def test_rows_and_commits_are_the_same_wherever_a_run_was_killed(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, begin: int, end: int, points: list[str]
) -> None:
    table = make_table(type=type, version=begin)
    before, known = content(spark, table), commits(table)
    request = request_of(table, end)
    whole = tmp_path / "whole"
    shutil.copytree(table.path, whole)
    for point in points:
        shutil.rmtree(table.path)
        shutil.copytree(whole, table.path)
        is_there: Callable[[Table, Path], bool] = (UP if begin < end else DOWN)[point]
        kill_at(table, request, tmp_path / f"killed {point}", lambda: is_there(table, table.path))  # noqa: B023

        refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN))
        assert refused.failure_kind is FailureKind.REFUSED, (point, refused.message)
        assert "lake_upgrade" in refused.message

        retried = run(spark, request)

        assert retried.outcome is Outcome.COMPLETED, (point, retried.message)
        assert version_of(table) == str(end), point
        require_same(spark, table, before, known)
        require_rows(spark, table, 3)
    changed = at_version(table, end)
    write(spark, changed.written, 3)
    require_rows(spark, changed, 4)
    if type == "MOR":
        assert run(spark, changed.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert run(spark, changed.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN)).outcome is not Outcome.FAILED
    assert rows(spark, changed) == rows_written(spark, changed.written, 4)
    again = run(spark, request)
    assert again.outcome is Outcome.NOTHING_TO_DO, again.message


@pytest.mark.soak
def test_writer_that_came_between_is_neither_lost_nor_taken_back(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW", version=6)
    request = request_of(table, 9)
    kill_at(table, request, tmp_path / "killed", (table.path / UPGRADE_MARK).exists)
    write(spark, table.written, 3)

    first, second = run(spark, request), run(spark, request)

    assert (first.failure_kind, second.outcome) == (FailureKind.CONFLICT, Outcome.COMPLETED), first.message
    assert "the next try begins again" in first.message
    require_rows(spark, at_version(table, 9), 4)


def test_rows_that_differ_take_the_table_back(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW", version=6)
    before, known = content(spark, table), commits(table)
    read = upgrade._read

    def read_less(spark: SparkSession, state: LoadedTable, *, uses_metadata: bool) -> Fingerprint:
        seen = read(spark, state, uses_metadata=uses_metadata)
        return replace(seen, rows=seen.rows - 1) if state.table_version == 9 else seen

    monkeypatch.setattr(upgrade, "_read", read_less)

    done = run(spark, request_of(table, 9))

    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "415 rows instead of 416" in done.message
    assert "the table has version 6 again, and readers see the same 416 rows" in done.message
    assert "files of the metadata table is gone" in done.message
    assert version_of(table) == "6"
    require_same(spark, table, before, known)


def test_what_is_pending_or_alive_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", version=6)
    (table.path / ".hoodie" / "20260101000000000.clean.requested").write_bytes(b"plan")
    refused = run(spark, request_of(table, 9))
    assert refused.failure_kind is FailureKind.REFUSED
    assert "clean 20260101000000000 is pending" in refused.message
    (table.path / ".hoodie" / "20260101000000000.clean.requested").unlink()
    beat = table.path / ".hoodie" / ".heartbeat" / "29991231000000000"
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    waits = run(spark, request_of(table, 9))
    assert waits.failure_kind is FailureKind.CONFLICT
    assert beat.name in waits.message
    assert version_of(table) == "6"


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_indexes_stay(spark: SparkSession, make_table: MakeTable, type: str) -> None:
    table = make_table(type=type, version=6, **{"hoodie.metadata.record.index.enable": "true"})
    assert "record_index" in table.properties()["hoodie.table.metadata.partitions"]
    done = run(spark, request_of(table, 9))
    assert done.outcome is Outcome.COMPLETED, done.message
    changed = at_version(table, 9)
    assert "record_index" in table.properties()["hoodie.table.metadata.partitions"]
    require_rows(spark, changed, 3)
    write(spark, changed.written, 3)
    require_rows(spark, changed, 4)
    read = spark.read.format("hudi").option("hoodie.metadata.enable", "true").load(str(table.path))
    found = read.where("id = 7").select("id", "ts").collect()
    assert [tuple(row) for row in found] == [(row[0], row[3]) for row in rows(spark, changed) if row[0] == 7]


def upgrade_by_hudi_alone(spark: SparkSession, path: Path, **more: str) -> None:
    settings = LOCK | {"hoodie.write.auto.upgrade": "true", "hoodie.write.table.version": "8"} | more
    hudi = spark._jvm.org.apache.hudi
    with open_client(spark, str(path), settings, {}) as client:
        helper = hudi.table.upgrade.SparkUpgradeDowngradeHelper.getInstance()
        meta_client = read_table_state(spark, str(path)).meta_client
        runner = hudi.table.upgrade.UpgradeDowngrade(meta_client, client.getConfig(), client.getEngineContext(), helper)
        runner.run(hudi.common.table.HoodieTableVersion.fromVersionCode(8), None)


@pytest.mark.parametrize("is_ended_by_the_job", [False, True])
@pytest.mark.parametrize("place", ["none", "newest", "older"])
def test_hudis_own_upgrade_takes_completed_writes_back_once_it_was_interrupted(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, place: str, *, is_ended_by_the_job: bool
) -> None:
    """Why the job moves the rest first: a write whose file has moved, and its plan has not, failed to Hudi."""
    table = make_table(type="COW", version=6)
    expected = rows(spark, table)
    whole = tmp_path / "whole"
    shutil.copytree(table.path, whole)
    upgrade_by_hudi_alone(spark, whole)
    if place != "none":
        written = sorted(table.completed())[-1 if place == "newest" else 1]
        (moved,) = (whole / ".hoodie" / "timeline").glob(f"{written}_*.commit")
        (table.path / ".hoodie" / "timeline").mkdir(exist_ok=True)
        shutil.copy2(moved, table.path / ".hoodie" / "timeline")
        (table.path / ".hoodie" / f"{written}.commit").unlink()

    if is_ended_by_the_job:
        done = run(spark, request_of(table, 8))
        assert done.outcome is Outcome.COMPLETED, done.message
        assert ("not compared" in done.message) is (place != "none")
        assert version_of(table) == "8"
        assert rows(spark, table) == expected
        return
    if place == "older":
        with pytest.raises(Py4JJavaError, match="HoodieRollbackException"):
            upgrade_by_hudi_alone(spark, table.path)
        return
    upgrade_by_hudi_alone(spark, table.path, **{"hoodie.rollback.using.markers": "false"})
    assert version_of(table) == "8"
    if place == "newest":
        with pytest.raises(Py4JJavaError, match="does not exist"):
            rows(spark, table)
        return
    assert rows(spark, table) == expected

"""Our reader of archived timelines against Hudi's own, on real tables of both formats."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.archive import load_archived_commit
from airflow_lake_provider.hudi.file_content import decode
from airflow_lake_provider.hudi.instant import ArchivedInstant, ArchivedTimeline, archived_timeline_of
from airflow_lake_provider.hudi.pending import parse_compaction_plan
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import unpack
from tests.unit.hudi.archive_tables import LOG, LSM, UPGRADED, completed, load, seen, unpack_history


@pytest.fixture(params=[LSM, LOG, UPGRADED], ids=["layout-2", "layout-1", "upgraded"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_fixtures_have_archives_worth_reading(tmp_path: Path) -> None:
    for name in (LSM, LOG):
        actions = {instant["action"] for instant in completed(name)}
        assert actions >= {"commit", "deltacommit", "replacecommit", "clean", "rollback"}
        assert len(completed(name)) > 20
    history = unpack_history(LSM, tmp_path / LSM)[1]
    assert {path.stem.rsplit("_", 1)[-1] for path in history.glob("*.parquet")} >= {"0", "1"}
    history = unpack_history(LOG, tmp_path / LOG)[1]
    assert len(list(history.glob(".commits_.archive.*"))) > 3


def test_archive_equals_what_hudi_says(name: str, tmp_path: Path) -> None:
    archive = load(unpack(name, tmp_path).path)
    assert archive.problems == ()
    assert seen(archive) == [(i["requested_time"], i["action"], i["completed_time"]) for i in completed(name)]
    assert {(instant.metadata, instant.plan) for instant in archive.instants} == {(None, None)}


def test_commit_metadata_equals_what_hudi_parses(name: str, tmp_path: Path) -> None:
    archive = load(unpack(name, tmp_path).path, with_content=True)
    expected = [i for i in completed(name) if "written_bytes" in i]
    found = []
    for instant in archive.instants:
        if instant.is_write:
            commit = load_archived_commit(instant)
            found.append((instant.requested_time, commit.operation, len(commit.stats), commit.written_bytes))
            assert all(stat.file_id and stat.path and stat.file_size_bytes > 0 for stat in commit.stats)
            assert bool(commit.replaced_file_groups) == (commit.operation == "CLUSTER")
    assert found == [(i["requested_time"], i["operation"], i["stats"], i["written_bytes"]) for i in expected]


def test_every_content_decodes_and_plans_are_those_of_services(name: str, tmp_path: Path) -> None:
    archive = load(unpack(name, tmp_path).path, with_content=True)
    compactions = 0
    for instant in archive.instants:
        assert decode(instant.metadata or b"", instant.file_name)
        if instant.action is Action.COMMIT:
            plan = parse_compaction_plan(decode(instant.plan or b"", instant.file_name), instant.file_name)
            assert plan.file_groups
            compactions += 1
        elif instant.action is Action.REPLACECOMMIT:
            assert "clusteringPlan" in (decode(instant.plan or b"", instant.file_name) or {})
        elif instant.action is Action.CLEAN and name != UPGRADED:  # the upgrade loses them
            assert "earliestInstantToRetain" in (decode(instant.plan or b"", instant.file_name) or {})
        else:
            assert instant.plan is None
    assert compactions


def test_archived_and_active_instants_are_disjoint(name: str, tmp_path: Path) -> None:
    storage = open_storage(str(unpack(name, tmp_path).path))
    active = load_timeline(storage, load_table_properties(storage)).completed()
    archived = load(tmp_path / name).instants
    assert not {(i.requested_time, i.action) for i in active} & {(i.requested_time, i.action) for i in archived}


def test_ranges_are_of_requested_times_open_and_closed(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path).path
    whole = load(path).instants
    times = ["", *(instant.requested_time for instant in whole), "9"]
    for after in times[::3]:
        for until in times[::4]:
            found = load(path, after=after, until=until)
            assert found.problems == ()
            assert found.instants == tuple(
                i for i in whole if i.requested_time > after and (not until or i.requested_time <= until)
            )


def test_names_of_an_upgraded_archive_exclude_nothing(tmp_path: Path) -> None:
    """Hudi names the files that it upgrades after other instants than the least and the greatest."""
    path, history = unpack_history(UPGRADED, tmp_path)
    last_by_name = max(file.stem.split("_")[1] for file in history.glob("*.parquet"))
    beyond = [instant for instant in completed(UPGRADED) if instant["requested_time"] > last_by_name]
    assert beyond
    archive = load(path, after=last_by_name)
    assert [instant.requested_time for instant in archive.instants] == [i["requested_time"] for i in beyond]
    assert archive.problems == ()


@pytest.mark.parametrize("name", ["mor_v9", "mor_v8", "mor_v6"])
def test_table_that_never_archived_is_an_empty_archive(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path).path
    assert load(path, with_content=True) == ArchivedTimeline()


def test_folder_without_files_is_an_empty_archive(name: str, tmp_path: Path) -> None:
    path, history = unpack_history(name, tmp_path)
    shutil.rmtree(history)
    history.mkdir()
    assert load(path) == ArchivedTimeline()


def test_strange_files_are_reported(name: str, tmp_path: Path) -> None:
    path, history = unpack_history(name, tmp_path)
    (history / "notes.txt").write_bytes(b"x")
    (history / ".manifest_1.crc").write_bytes(b"x")
    (history / "_version_.0f8fad5b-d9cb-469f-a165-70867728950e").write_bytes(b"x")
    archive = load(path)
    assert seen(archive) == seen(load(unpack(name, tmp_path / "whole").path))
    strange = {problem.file_name for problem in archive.problems}
    assert strange >= {"notes.txt"}
    assert ".manifest_1.crc" not in strange


def test_instants_complete_in_another_order_than_they_were_requested() -> None:
    instants = [
        ArchivedInstant("1", Action.DELTACOMMIT, "9", "f"),
        ArchivedInstant("2", Action.CLEAN, None, "f"),
        ArchivedInstant("3", Action.COMMIT, "4", "f"),
    ]
    archive = archived_timeline_of(instants, ())
    assert [instant.requested_time for instant in archive.completed_by_completion()] == ["2", "3", "1"]
    assert [instant.requested_time for instant in archive.completed_writes_by_completion()] == ["3", "1"]


def test_doubles_that_contradict_each_other_are_reported() -> None:
    first, second = (ArchivedInstant("1", Action.COMMIT, time, f"file_{time}") for time in ("2", "3"))
    archive = archived_timeline_of([first, second], ())
    assert archive.instants == (first,)
    assert [problem.file_name for problem in archive.problems] == ["file_3"]


def test_write_without_metadata_is_damage() -> None:
    with pytest.raises(DamagedFileError, match=r"a\.parquet: 1\.commit"):
        load_archived_commit(ArchivedInstant("1", Action.COMMIT, "2", "a.parquet"))

"""Our reader against Hudi's own meta client, on real tables of every supported version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.__main__ import main
from airflow_lake_provider.hudi.commit_metadata import (
    find_damaged_files,
    parse_commit_metadata,
)
from airflow_lake_provider.hudi.file_content import decode
from airflow_lake_provider.hudi.pending import parse_compaction_plan
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import FOLDER, NAMES, FixtureTable, unpack


@pytest.fixture(params=NAMES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> FixtureTable:
    return unpack(request.param, tmp_path)


def test_fixtures_cover_every_version_and_kind() -> None:
    assert set(NAMES) >= {"mor_v9", "mor_v8", "mor_v6", "cow_v9"}
    kinds = set()
    for name in NAMES:
        answer = json.loads((FOLDER / f"{name}.expected.json").read_text(encoding="utf-8"))
        assert answer["time_zone"] == "UTC"
        kinds |= {(instant["action"], instant["state"]) for instant in answer["instants"]}
    completed = {"commit", "deltacommit", "replacecommit", "clean", "rollback", "savepoint"}
    assert {action for action, state in kinds if state == "COMPLETED"} >= completed
    assert kinds >= {("compaction", "REQUESTED"), ("indexing", "REQUESTED")}


def test_timeline_equals_what_hudi_says(table: FixtureTable, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(table.path), "--json"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == table.expected
    assert printed.err == ""


def test_latest_write_without_holes_equals_what_hudi_says(table: FixtureTable) -> None:
    storage = open_storage(str(table.path))
    found = load_timeline(storage, load_table_properties(storage)).latest_write_without_holes()
    assert (found.requested_time if found else None) == table.latest_write_without_holes


def test_timeline_loads_with_one_listing_and_opens_no_instant(table: FixtureTable) -> None:
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    opened = storage.calls.opens
    timeline = load_timeline(storage, properties)
    assert (storage.calls.lists, storage.calls.opens) == (1, opened)
    assert timeline.problems == ()


@pytest.mark.parametrize(
    ("name", "pattern"), [("cow_v9", "*_0.parquet"), ("cow_v6", ".commits_.archive.*")], ids=["layout-2", "layout-1"]
)
def test_history_path_is_where_hudi_archived_instants(name: str, pattern: str, tmp_path: Path) -> None:
    table = unpack(name, tmp_path)
    history = table.path / load_table_properties(open_storage(str(table.path))).history_path
    assert list(history.glob(pattern))


def test_file_names_print_as_they_were_parsed(table: FixtureTable) -> None:
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    for instant in load_timeline(storage, properties).instants:
        assert properties.layout.file_name(instant) == instant.file_name


def test_commit_metadata_of_every_completed_write_is_read(table: FixtureTable) -> None:
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    operations = set()
    for instant in timeline.completed_writes:
        content = storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
        metadata = parse_commit_metadata(decode(content, instant.file_name), instant.file_name)
        operations.add(metadata.operation)
        assert metadata.stats
        assert all(stat.file_id and stat.path and stat.file_size_bytes > 0 for stat in metadata.stats)
        if metadata.operation == "CLUSTER":
            assert metadata.replaced_file_groups
    if properties.table_type == "MERGE_ON_READ":
        assert operations >= {"UPSERT", "COMPACT"}


def test_pending_compaction_plan_of_a_real_table_is_read(table: FixtureTable) -> None:
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    plans = load_timeline(storage, properties).pending(Action.COMPACTION)
    assert bool(plans) == (properties.table_type == "MERGE_ON_READ")
    for instant in plans:
        assert instant.state is State.REQUESTED
        content = storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
        plan = parse_compaction_plan(decode(content, instant.file_name), instant.file_name)
        assert plan.file_groups
        assert sum(len(part.log_files) for part in plan.slices) > 0


def test_truncated_files_are_reported_by_name_and_never_taken_for_whole(table: FixtureTable) -> None:
    """A writer may be writing while we read: every strict prefix of a file must be noticed."""
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    folder = table.path / properties.timeline_path
    for instant in timeline.instants:
        content = (folder / instant.file_name).read_bytes()
        for length in range(1, len(content), max(1, len(content) // 15)):
            (folder / instant.file_name).write_bytes(content[:length])
            found = find_damaged_files(storage, properties, timeline)
            assert [problem.file_name for problem in found] == [instant.file_name], length
        (folder / instant.file_name).write_bytes(content)
    assert find_damaged_files(storage, properties, timeline) == []


def test_command_line_runs_without_airflow(table: FixtureTable) -> None:
    """-S and -I would hide our own dependencies, so Airflow is made unimportable instead."""
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        "from airflow_lake_provider.hudi.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(table.path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "version" in result.stdout

"""Indexes of a table on disk: readiness, plans and holes as storage shows them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import fastavro
import pytest

from airflow_lake_provider.errors import ConfigError, DamagedFileError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.indexing.index_spec import find_changed, parse_indexes
from airflow_lake_provider.indexing.table_indexes import (
    load_definitions,
    load_holes,
    load_readiness,
    load_table_indexes,
)
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from tests.support.fixture_tables import unpack

PLAN_SCHEMA = {
    "type": "record",
    "name": "HoodieIndexPlan",
    "fields": [
        {"name": "version", "type": "int"},
        {
            "name": "indexPartitionInfos",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "HoodieIndexPartitionInfo",
                    "fields": [
                        {"name": "version", "type": "int"},
                        {"name": "metadataPartitionPath", "type": "string"},
                        {"name": "indexUptoInstant", "type": "string"},
                    ],
                },
            },
        },
    ],
}
INSTANT = "29991231000000000"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return unpack("mor_v9", tmp_path).path


@pytest.fixture
def storage(table: Path) -> Storage:
    return open_storage(str(table))


def plan(table: Path, partition: str, *, inflight: bool) -> None:
    body = io.BytesIO()
    info = {"version": 1, "metadataPartitionPath": partition, "indexUptoInstant": "1"}
    fastavro.writer(body, PLAN_SCHEMA, [{"version": 1, "indexPartitionInfos": [info]}])
    (table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.requested").write_bytes(body.getvalue())
    if inflight:
        (table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.inflight").touch()


def list_partitions(table: Path, complete: str) -> None:
    path = table / ".hoodie" / "hoodie.properties"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("hoodie.table.metadata.partitions")]
    path.write_text("\n".join([*lines, f"hoodie.table.metadata.partitions={complete}"]) + "\n")


def test_index_becomes_ready_with_the_properties_and_the_end_of_its_build(table: Path) -> None:
    view = FileSystemTimelineView(str(table))
    assert not load_readiness(view, "record_index").is_ready
    plan(table, "record_index", inflight=True)
    list_partitions(table, "files,record_index")
    building = load_readiness(view, "record_index")
    assert (building.is_ready, INSTANT in building.reason) == (False, True)
    # Completed, and archived: no trace of the build is left on the active timeline.
    for name in (f"{INSTANT}.indexing.requested", f"{INSTANT}.indexing.inflight"):
        (table / ".hoodie" / "timeline" / name).unlink()
    assert load_readiness(view, "record_index").is_ready


def test_index_is_not_ready_while_a_plan_cannot_be_read_that_may_be_of_it(table: Path) -> None:
    list_partitions(table, "files,record_index")
    requested = table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.requested"
    requested.write_bytes(b"{")
    (table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.inflight").touch()
    with pytest.raises(DamagedFileError, match=INSTANT):
        load_readiness(FileSystemTimelineView(str(table)), "record_index")
    # What another service plans is not in its way.
    requested.rename(requested.with_name(f"{INSTANT}.compaction.requested"))
    (table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.inflight").unlink()
    assert load_readiness(FileSystemTimelineView(str(table)), "record_index").is_ready


def test_plans_and_readiness_of_every_index_are_listed(table: Path, storage: Storage) -> None:
    plan(table, "record_index", inflight=False)
    list_partitions(table, "files,column_stats")
    found = load_table_indexes(storage, now_ms=4_000_000_000_000)
    # The fixture was left with a plan of Hudi's own for bloom filters.
    assert [(one.partition, one.is_ready) for one in found.readiness()] == [
        ("bloom_filters", False),
        ("column_stats", True),
        ("files", True),
        ("record_index", False),
    ]
    real, ours = found.plans
    assert (real.partitions, real.is_inflight) == (("bloom_filters",), False)
    assert (ours.instant, ours.partitions, ours.up_to) == (INSTANT, ("record_index",), "1")


def test_plan_that_names_nothing_is_damage(table: Path, storage: Storage) -> None:
    (table / ".hoodie" / "timeline" / f"{INSTANT}.indexing.requested").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=INSTANT):
        load_table_indexes(storage, now_ms=0)


@pytest.mark.parametrize(
    ("there", "wanted", "is_problem"),
    [
        ("files,column_stats", ["expr_index_by_day"], True),
        ("expr_index_by_day,files", ["column_stats"], True),
        ("column_stats,expr_index_by_day,files", [], True),
        ("column_stats,files,record_index", ["secondary_index_city"], False),
        ("expr_index_by_day,files", ["record_index"], False),
    ],
)
def test_column_statistics_and_an_expression_index_are_a_problem_together(
    table: Path, storage: Storage, there: str, wanted: list[str], is_problem: bool
) -> None:
    list_partitions(table, there)
    problems = load_table_indexes(storage, now_ms=4_000_000_000_000).problems(wanted)
    assert ["each write fails after a clean" in problem for problem in problems] == [True] * is_problem


def test_wrong_spelling_is_refused(table: Path) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        load_readiness(FileSystemTimelineView(str(table)), "recordindex")


def test_hole_is_found_with_its_heartbeat(table: Path, storage: Storage) -> None:
    (table / ".hoodie" / "timeline" / f"{INSTANT}.deltacommit.inflight").touch()
    heartbeat = table / ".hoodie" / ".heartbeat" / INSTANT
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    os.utime(heartbeat, (1_000, 1_000))
    found = load_table_indexes(storage, now_ms=1_060_000)
    assert load_holes(storage, now_ms=1_060_000) == found.holes
    hole = found.holes.holes[-1]
    assert (hole.instant, hole.beat_age_s, hole.is_live) == (INSTANT, 60.0, True)


def test_pending_clustering_of_version_6_is_a_plan_and_an_insert_overwrite_a_write(tmp_path: Path) -> None:
    hoodie = tmp_path / ".hoodie"
    hoodie.mkdir()
    hoodie.joinpath("hoodie.properties").write_text("hoodie.table.name=orders\nhoodie.table.version=6\n")
    slices = [{"partitionPath": "p", "fileId": "a"}]
    plans = {
        "20260101000000001": {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": [{"slices": slices}]}},
        "20260101000000002": {"operationType": "INSERT_OVERWRITE", "clusteringPlan": None},
    }
    for time, body in plans.items():
        hoodie.joinpath(f"{time}.replacecommit.requested").write_text(json.dumps(body))
    storage = open_storage(str(tmp_path))
    holes = load_holes(storage, now_ms=4_000_000_000_000)
    assert [(hole.instant, hole.owner) for hole in holes.holes] == [
        ("20260101000000001", "table service"),
        ("20260101000000002", "writer"),
    ]
    assert load_table_indexes(storage, now_ms=4_000_000_000_000).holes == holes


DEFINITIONS = {
    # As Hudi 1.2.0 writes them.
    "column_stats": {
        "indexName": "column_stats",
        "indexType": "column_stats",
        "indexFunction": "column_stats",
        "sourceFields": ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key", "amount"],
        "indexOptions": {},
        "version": "V2",
    },
    "expr_index_by_day": {
        "indexName": "expr_index_by_day",
        "indexType": "column_stats",
        "indexFunction": "from_unixtime",
        "sourceFields": ["ts"],
        "indexOptions": {"expr": "from_unixtime", "format": "yyyy-MM-dd"},
        "version": "V2",
    },
    "secondary_index_city": {"indexType": "secondary_index", "sourceFields": ["city"], "version": "V2"},
}


@pytest.mark.parametrize(
    ("spelled", "difference"),
    [
        ("column_stats", ""),
        ("column_stats:amount", ""),
        ("column_stats:ts,amount", "it is of amount, and indexing.indexes requests amount, ts"),
        ("secondary_index:city", ""),
        ("expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd", ""),
        (
            "expression_index:by_day:from_unixtime(ts):format=yyyy",
            "it is of from_unixtime(ts) format=yyyy-MM-dd, and indexing.indexes requests from_unixtime(ts) format=yyyy",
        ),
        (
            "expression_index:by_day:year(ts)",
            "it is of from_unixtime(ts) format=yyyy-MM-dd, and indexing.indexes requests year(ts)",
        ),
        ("bloom_filters", ""),
    ],
)
def test_complete_index_with_other_columns_or_options_than_the_wanted_one_is_known(
    table: Path, storage: Storage, spelled: str, difference: str
) -> None:
    list_partitions(table, f"files,{','.join(DEFINITIONS)}")
    file = table / ".hoodie" / ".index_defs" / "index.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"indexDefinitions": DEFINITIONS}))
    properties = load_table_properties(storage)
    (wanted,) = specs = parse_indexes([spelled])
    changed = find_changed(specs, properties, load_definitions(storage, properties))
    assert changed.get(wanted.partition, "").partition(":")[0] == difference
    list_partitions(table, "files")
    assert find_changed(specs, load_table_properties(storage), load_definitions(storage, properties)) == {}


def test_definitions_that_are_not_there_are_none_and_damaged_ones_are_damage(table: Path, storage: Storage) -> None:
    properties = load_table_properties(storage)
    assert load_definitions(storage, properties) == {}
    file = table / ".hoodie" / ".index_defs" / "index.json"
    file.parent.mkdir()
    for text in ("", "[]", '{"indexDefinitions": {"column_stats": 1}}'):
        file.write_text(text)
        with pytest.raises(DamagedFileError, match=r"index\.json"):
            load_definitions(storage, properties)

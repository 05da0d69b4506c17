"""Which rewritten rows are compared."""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.job_contract import Verify
from lake_jobs.replication.file_slices import CompletedInstants, FileSlice, parse_name
from lake_jobs.verify.sample import (
    MAX_SAMPLE_BYTES,
    NewFile,
    Unit,
    choose_units,
    groups_of_clustering,
    groups_of_compaction,
    units_of_groups,
    units_of_partitions,
)
from lake_jobs.verify.slices import before, find_doubtful, find_seen_slice, with_new

PLAN = "20260101000000000"


def units(count: int, size_bytes: int = 100) -> tuple[Unit, ...]:
    return tuple(Unit("p", (f"f{at}",), (f"p/f{at}.parquet",), size_bytes) for at in range(count))


def test_a_sample_is_at_least_one_unit_and_at_most_its_share() -> None:
    assert len(choose_units(units(3), Verify.SAMPLE, PLAN)) == 1
    assert len(choose_units(units(200), Verify.SAMPLE, PLAN)) == 10
    huge = units(100, MAX_SAMPLE_BYTES // 2)
    assert len(choose_units(huge, Verify.SAMPLE, PLAN)) == 2


def test_new_log_files_join_what_a_reader_merges() -> None:
    names = ("f_0-0-0_1.parquet", ".f_2.log.1_0-0-0", ".f_5.log.1_0-0-0", ".f_6.log.1_0-0-0")
    base, old, new, later = filter(None, map(parse_name, names))
    seen = FileSlice(base, (old,))
    assert with_new(seen, ("p/.f_5.log.1_0-0-0",), (base, old, new, later)) == FileSlice(base, (old, new))


def test_a_sample_is_the_same_in_each_try_and_another_one_for_another_plan() -> None:
    first = choose_units(units(100), Verify.SAMPLE, PLAN)

    assert choose_units(tuple(reversed(units(100))), Verify.SAMPLE, PLAN) == first
    assert choose_units(units(100), Verify.SAMPLE, "20260101000000001") != first


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(Unit("", (), ("f.parquet",), 100), id="a-partition-of-which-nothing-is-read"),
        pytest.param(Unit("q", ("g",), (), 0), id="a-file-group-without-a-new-file"),
    ],
)
def test_rows_on_one_side_only_are_compared_first(odd: Unit) -> None:
    assert choose_units((*units(50), odd), Verify.SAMPLE, PLAN)[0] == odd


def test_all_and_off_are_what_they_say() -> None:
    assert choose_units(units(7), Verify.ALL, PLAN) == units(7)
    assert choose_units(units(7), Verify.OFF, PLAN) == ()
    assert choose_units((), Verify.SAMPLE, PLAN) == ()


def test_a_compaction_is_compared_by_file_group_and_a_clustering_by_partition() -> None:
    written = [NewFile("p", "f1", "p/f1_n.parquet", 5), NewFile("", "x", "x.parquet", 7)]

    assert units_of_groups([("p", "f1"), ("p", "f2")], written) == (
        Unit("", ("x",), ("x.parquet",), 7),
        Unit("p", ("f1",), ("p/f1_n.parquet",), 5),
        Unit("p", ("f2",), (), 0),
    )
    assert units_of_partitions([("p", "f1"), ("p", "f2")], written) == (
        Unit("", (), ("x.parquet",), 7),
        Unit("p", ("f1", "f2"), ("p/f1_n.parquet",), 5),
    )


def test_plans_name_file_groups() -> None:
    operations = [{"partitionPath": "p", "fileId": "f1"}, {"partitionPath": None, "fileId": "f2"}]
    assert groups_of_compaction(json.dumps({"operations": operations})) == [("p", "f1"), ("", "f2")]
    assert groups_of_compaction(json.dumps({"operations": None})) == []
    assert groups_of_clustering(json.dumps({"inputGroups": [{"slices": operations}, {"slices": None}]})) == [
        ("p", "f1"),
        ("", "f2"),
    ]


def test_archived_writes_are_committed_ones_whatever_stays_at_the_head_of_the_timeline() -> None:
    known = CompletedInstants({"5": "6", "8": "9"}, begins="5")
    names = ["f_0-0-0_1.parquet", ".f_3.log.1_0-0-0", ".f_5.log.1_0-0-0", ".f_7.log.1_0-0-0", ".f_8.log.1_0-0-0"]
    files = [file for file in map(parse_name, names) if file is not None]

    seen = find_seen_slice(files, known, "9", table_version=9)

    # 3 is archived; 7 is not complete; 8 completed when the plan was made, not before it.
    assert seen is not None
    assert [file.instant for file in seen.files] == ["1", "3", "5"]


def test_the_archive_is_asked_only_about_log_files_older_than_a_base_file() -> None:
    known = CompletedInstants({"5": "6"}, begins="5")
    logs = [parse_name(f".f_{at}.log.1_0-0-0") for at in (2, 3, 5)]
    files = [file for file in logs if file is not None]

    assert find_doubtful(files, known) == ""
    base = parse_name("f_0-0-0_3.parquet")
    assert base is not None
    assert find_doubtful([*files, base], known) == "2"


def test_before_is_the_last_time_that_sorts_before() -> None:
    assert before("20260101000000000") == "20260100999999999"
    assert before("010") == "009"

"""Which files a clean's plan deletes, and which of them readers need."""

from __future__ import annotations

import json

from lake_jobs.services.clean_plans import PlanTakesNewestError, find_needed, list_deleted


def test_files_of_a_plan_are_listed_by_partition_and_whole_partitions_left_out() -> None:
    plan = {
        "filePathsToBeDeletedPerPartition": {
            "p0": [{"filePath": "s3a://b/t/p0/a_1.parquet", "isBootstrapBaseFile": False}],
            "gone": [{"filePath": "s3a://b/t/gone/b_1.parquet"}],
            "": [{"filePath": "s3a://b/t/c_1.parquet"}],
        },
        "filesToBeDeletedPerPartition": {"p0": ["d_1.parquet"]},
        "partitionsToBeDeleted": ["gone"],
    }
    assert list_deleted(json.dumps(plan)) == {"p0": {"a_1.parquet", "d_1.parquet"}, "": {"c_1.parquet"}}
    assert list_deleted("{}") == {}


def test_newest_files_among_them_are_named() -> None:
    deleted = {"p0": frozenset({"a_1", "a_2"}), "": frozenset({"c_1"}), "p1": frozenset({"x"})}
    assert find_needed(deleted, {"p0": frozenset({"a_2"}), "": frozenset({"c_1"})}) == ("c_1", "p0/a_2")
    assert find_needed(deleted, {"p1": frozenset({"y"})}) == ()
    message = str(PlanTakesNewestError("20260101000000000", ("a", "b", "c", "d", "e")))
    assert "deletes a, b, c and 2 more of the newest file slices" in message

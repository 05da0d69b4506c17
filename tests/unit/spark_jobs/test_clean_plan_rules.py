"""Which files a clean's plan deletes, and which of them readers and pending compactions need."""

from __future__ import annotations

import json

from lake_jobs.services.clean_plan_rules import PlanTakesNeededError, find_needed, list_deleted, list_read, list_whole


def test_files_of_a_plan_are_listed_by_partition() -> None:
    plan = {
        "filePathsToBeDeletedPerPartition": {
            "p0": [{"filePath": "s3a://b/t/p0/a_1.parquet", "isBootstrapBaseFile": False}],
            "gone": [{"filePath": "s3a://b/t/gone/b_1.parquet"}],
            "": [{"filePath": "s3a://b/t/c_1.parquet"}],
            "p2": [],
        },
        "filesToBeDeletedPerPartition": {"p0": ["d_1.parquet"]},
        "partitionsToBeDeleted": ["gone"],
    }
    text = json.dumps(plan)
    found = {"p0": {"a_1.parquet", "d_1.parquet"}, "gone": {"b_1.parquet"}, "": {"c_1.parquet"}}
    assert list_deleted(text) == found
    assert list_whole(text) == {"gone"}
    assert (list_deleted("{}"), list_whole("{}")) == ({}, frozenset())


def test_newest_files_among_them_are_named() -> None:
    deleted = {"p0": frozenset({"a_1", "a_2"}), "": frozenset({"c_1"}), "p1": frozenset({"x"})}
    assert find_needed(deleted, {"p0": frozenset({"a_2"}), "": frozenset({"c_1"})}) == ("c_1", "p0/a_2")
    assert find_needed(deleted, {"p1": frozenset({"y"})}) == ()
    message = str(PlanTakesNeededError("20260101000000000", ("a", "b", "c", "d", "e")))
    assert "deletes a, b, c and 2 more of the newest file slices" in message


def test_what_a_pending_compaction_reads_is_listed_by_partition() -> None:
    operations = [
        {"partitionPath": "p0", "fileId": "f0", "dataFilePath": "f0_1.parquet", "deltaFilePaths": [".f0_2.log.1"]},
        {"partitionPath": "p0", "fileId": "f1", "dataFilePath": None, "deltaFilePaths": [".f1_2.log.1"]},
        {"partitionPath": "", "fileId": "f2", "dataFilePath": "f2_1.parquet", "deltaFilePaths": []},
    ]
    read = list_read(json.dumps({"operations": operations}))
    assert read == {"p0": {"f0_1.parquet", ".f0_2.log.1", ".f1_2.log.1"}, "": {"f2_1.parquet"}}
    assert find_needed({"p0": frozenset({".f1_2.log.1", "f1_0.parquet"})}, read) == ("p0/.f1_2.log.1",)
    message = str(PlanTakesNeededError("20260101000000000", ("p0/.f1_2.log.1",), "compaction 20260101000000001"))
    assert "deletes p0/.f1_2.log.1, which the pending compaction 20260101000000001 reads" in message

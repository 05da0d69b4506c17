"""Which files a plan names, and whether they lie in its table."""

from __future__ import annotations

import json

import pytest

from lake_jobs.hudi.plan_path_rules import find_outside, whole_paths

CLEAN = {
    "filePathsToBeDeletedPerPartition": {"city=A/b": [{"filePath": "/lake/orders/city=A/b/x.parquet"}]},
    "partitionsToBeDeleted": ["city=C"],
}
CLUSTERING = {
    "inputGroups": [
        {
            "slices": [
                {
                    "partitionPath": "A/b",
                    "dataFilePath": "file:/lake/orders/A/b/x.parquet",
                    "deltaFilePaths": ["hdfs://name/lake/orders/A/b/.x.log"],
                    "bootstrapFilePath": None,
                }
            ]
        }
    ],
    "strategy": {"strategyParams": {"pattern": "/any/thing"}},
}
ROLLBACK = {"RollbackRequests": [{"filesToBeDeleted": ["/other/x"], "logBlocksToBeDeleted": {"/other/y": 5}}]}

COMPACTION = {
    "operations": [{"partitionPath": "../bank/A", "dataFilePath": "a..b", "deltaFilePaths": ["../x.log", ".y.log"]}],
    "strategy": {"strategyParams": {"pattern": "../any"}},
}


@pytest.mark.parametrize(
    ("plan", "paths"),
    [
        (CLEAN, {"/lake/orders/city=A/b/x.parquet"}),
        (CLUSTERING, {"file:/lake/orders/A/b/x.parquet", "hdfs://name/lake/orders/A/b/.x.log"}),
        (ROLLBACK, {"/other/x", "/other/y"}),
        (COMPACTION, {"../bank/A", "../x.log"}),
        ({"filePathsToBeDeletedPerPartition": {"../bank": [{"filePath": "x"}]}}, {"../bank"}),
        ({}, set()),
    ],
)
def test_whole_paths_of_a_plan(plan: dict[str, object], paths: set[str]) -> None:
    assert whole_paths(json.dumps(plan)) == paths


def test_a_path_next_to_the_table_is_outside() -> None:
    assert find_outside(["/lake/orders/a/x", "/lake/orders/y"], ["/lake/orders/"]) == ""
    assert find_outside(["/lake/orders/a/x", "/lake/orders_copy/x"], ["/lake/orders"]) == "/lake/orders_copy/x"
    assert find_outside(["/lake/orders/../x"], ["/lake/orders"]) == "/lake/orders/../x"
    assert find_outside(["/lake/orders/x", "/source/y"], ["/lake/orders", "/source"]) == ""

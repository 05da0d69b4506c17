"""Histories that once showed a difference, as short as the oracle made them; none may show one again."""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.history import History


@dataclass(frozen=True, slots=True)
class Case:
    """A history, the kind of difference that it showed, and the defect that shows it again (`plants.py`)."""

    name: str
    kind: str
    history: History
    plant: str = ""
    is_long: bool = False
    """For `make soak`: another test has the same claim."""


AT_COMMIT = "9,MOR,1,at_commit"


def _case(name: str, plant: str, kind: str, steps: str, setup: str = AT_COMMIT, *, is_long: bool = False) -> Case:
    return Case(name, kind, History.parse(setup, steps), plant, is_long)


CASES: tuple[Case, ...] = (
    _case("plan-of-two-indexes", "plans", "index-built", "plan_indexes:23 build_indexes:1"),
    _case("log-compaction-of-deletes", "services", "index-check", "index:4 delete:1 delete:2 log_compaction:1"),
    _case(
        "clustering-behind-a-secondary-index",
        "services",
        "index-check",
        "index:5 schedule_clustering:1 execute_clustering:1 write:7",
    ),
    _case("plan-on-a-table-that-announces", "announced", "watcher-announced", "write:1 write:2 plan_indexes:23"),
    _case("index-built-by-a-job", "properties", "announced-view", "index:4"),
    _case(
        "log-compaction-without-statistics",
        "services",
        "index-check",
        "index:6640 write:1141 write:4644 log_compaction:9261",
        "9,MOR,1,streaming",
    ),
    _case("zero-as-a-files-smallest-fraction", "zeros", "index-check", "index:6640"),
    _case(
        "compaction-of-file-groups-that-were-replaced-since",
        "",
        "slices",
        "write:5193 write:2742 delete:7948 schedule_compaction:3187 overwrite:2852 execute_compaction:8668",
        "6,MOR,3,at_commit",
        is_long=True,  # tests/unit/planner/test_facts.py
    ),
    _case(
        "archived-behind-an-index-build",
        "archive",
        "stream",
        "index:31 write:11 write:12 archive:1 write:13 archive:3 write:14 archive:4 write:15 write:16 archive:4",
        "9,COW,1,at_commit",
        is_long=True,  # tests/integration/spark/test_archive_on_hudi.py
    ),
)

"""Expression indexes that are built next to writers: their bounds are those of a build with the lock held."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table, run
from paused_writers import STREAMING_OFF
from test_indexing_catch_up_on_hudi import clean, write_next_to
from test_indexing_on_hudi import complete, indexing, plans
from test_secondary_catch_up_on_hudi import BOTH, NEW, Row, Step, delete, draw_history, next_to_a_compaction, put, serve

from airflow_lake_provider.job_contract import Outcome, Service
from local_stack.lake_writer import CITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

SECOND = "from_unixtime(customer)"
BY_SECOND = f"expression_index:by_second:{SECOND}"
PARTITION = "expr_index_by_second"
COLUMN_STATS, PARTITION_STATS = 3, 6
UNSKIPPED = {"hoodie.metadata.enable": "false", "hoodie.enable.data.skipping": "false"}
SKIPPING = {"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}
IN_TASKS = {"hoodie.embed.timeline.server": "true"}
"""Without it Hudi 1.2 fails as it computes bounds in tasks."""
Bounds = dict[tuple[str, str], tuple[str, str]]
"""Least and greatest value, by the city of a partition and a file; the file is empty for the whole partition."""

CHANGES: Sequence[Step] = (
    # Beyond what the partitions of Bilbao and Dublin had, then within it again. What a partition's bounds are then
    # depends on whether a file of the earlier write is in its newest slices.
    put(*(Row(NEW + n) for n in range(4)), Row(1, 900_000), Row(2, 1000), Row(3, 700_000), Row(6, 1000, "Aachen")),
    put(Row(1, 500_000), Row(5, city="Aachen"), Row(NEW + 2, 1000)),
    delete(4, NEW),
    put(Row(4, 300_000), Row(2), Row(3), Row(NEW)),
)
CUSTOMERS = (1, 2, 4, 5, 1006, 500_001, 900_001, 300_004, 700_003, NEW, NEW + 1002)


def read_bounds(spark: SparkSession, table: Table) -> Bounds:
    """Return what the index says of partitions and of files that are there, as readers of the index see it."""
    index = spark.read.format("hudi").load(f"{table.path}/.hoodie/metadata/{PARTITION}")
    stats = "ColumnStatsMetadata"
    rows = index.where(f"type in ({COLUMN_STATS}, {PARTITION_STATS}) and not {stats}.isDeleted").selectExpr(
        "type", *(f"{stats}.{name} as {name}" for name in ("fileName", "minValue", "maxValue"))
    )
    cities = {path.name: path.parent.name for path in table.path.glob("*/*") if path.is_file()}
    found: Bounds = {}
    for row in rows.collect():
        bounds = (_text(row.minValue), _text(row.maxValue))
        if row.type == PARTITION_STATS:
            found[row.fileName, ""] = bounds
        elif row.fileName in cities:
            found[cities[row.fileName], row.fileName] = bounds
    return found


def _text(wrapped: Any) -> str:
    """Return the value of a union of Avro that Hudi keeps as one record of many fields."""
    values = [value for value in (wrapped.asDict(recursive=True) if wrapped else {}).values() if value is not None]
    return str(next(iter(values[0].values()))) if values else ""


def assert_skips_nothing(spark: SparkSession, table: Table, customers: Sequence[int] = CUSTOMERS) -> None:
    """A search for each of these customers by the expression finds what a scan finds."""

    def rows(options: dict[str, str], where: str) -> set[tuple[int, str]]:
        found = spark.read.format("hudi").options(**options).load(str(table.path)).where(where)
        return {(row.id, row.city) for row in found.select("id", "city").collect()}

    for customer in customers:
        where = f"{SECOND} = from_unixtime({customer})"
        assert rows(SKIPPING, where) == rows(UNSKIPPED, where), customer


def build_next_to(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step]
) -> list[str]:
    """Build the index while these steps are done; return which index each build was of."""
    built = write_next_to(monkeypatch, *((lambda step=step: step(spark, table)) for step in steps))
    result = run(spark, indexing(table, BOTH, BY_SECOND))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert (complete(table) >= {PARTITION}, plans(table)) == (True, set())
    return built


def build_anew(spark: SparkSession, table: Table) -> None:
    dropped = run(spark, indexing(table, BOTH, BY_SECOND, lake__index__drop="true"))
    assert dropped.outcome is Outcome.COMPLETED, dropped.message
    assert PARTITION not in complete(table)
    result = run(spark, indexing(table, BOTH, BY_SECOND, lake__index__no_writer="true"))
    assert result.outcome is Outcome.COMPLETED, result.message


def assert_as_built_anew(spark: SparkSession, table: Table) -> None:
    """Searches find everything, and the bounds are those of a second build with the lock held."""
    assert_skips_nothing(spark, table)
    caught_up = read_bounds(spark, table)
    build_anew(spark, table)
    anew = read_bounds(spark, table)
    assert {partition for partition, file in anew if not file} == set(CITIES)
    # It has also entries of files that readers no longer open.
    assert {key: caught_up.get(key) for key in anew} == anew


@pytest.mark.soak(covered_by="tests/integration/spark/test_indexing_catch_up_on_hudi.py")
@pytest.mark.parametrize(("type", "version"), [("MOR", 9), ("COW", 9), ("MOR", 8)])
def test_what_writers_commit_during_the_build_of_an_expression_index_is_in_it(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    steps = next_to_a_compaction(CHANGES) if type == "MOR" else CHANGES
    assert build_next_to(spark, table, monkeypatch, steps) == [PARTITION]
    assert_as_built_anew(spark, table)
    # From here on writers update it.
    put(Row(2, 2_000_000), **IN_TASKS)(spark, table)
    assert_skips_nothing(spark, table)


@pytest.mark.soak(covered_by="tests/integration/spark/test_indexing_catch_up_on_hudi.py")
@pytest.mark.parametrize("seed", range(int(os.environ.get("LAKE_EXPRESSION_HISTORIES", "8"))))
def test_expression_index_that_is_built_next_to_a_random_history_has_the_bounds_of_a_new_one(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    type, version = ("MOR", "COW")[seed % 2], (9, 8)[seed // 2 % 2]
    table = make_table(type=type, version=version, **(STREAMING_OFF if seed % 5 == 4 else {}))
    assert set(build_next_to(spark, table, monkeypatch, draw_history(seed, type))) == {PARTITION}
    assert_as_built_anew(spark, table)


@pytest.mark.soak(covered_by="tests/integration/spark/test_indexing_catch_up_on_hudi.py")
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_files_that_were_cleaned_during_the_build_of_an_expression_index_are_passed_over(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    table = make_table(type=type)
    compaction = [serve(Service.COMPACTION)] if type == "MOR" else []
    steps = [put(Row(1, 900_000)), put(Row(1, 500_000)), *compaction, clean, put(Row(5, 1000))]
    assert build_next_to(spark, table, monkeypatch, steps) == [PARTITION]
    assert_as_built_anew(spark, table)

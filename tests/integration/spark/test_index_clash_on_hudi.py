"""Column statistics and an expression index on one table: Hudi 1.2's writers fail after a clean, so jobs refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, run
from py4j.protocol import Py4JJavaError
from test_clean_on_hudi import KEEP_ONE_VERSION, clean, data_files
from test_expression_catch_up_on_hudi import BY_SECOND, IN_TASKS, PARTITION, assert_skips_nothing
from test_indexing_on_hudi import complete, indexing, make_old, plans
from test_secondary_catch_up_on_hudi import BOTH, Row, put

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome
from lake_jobs.indexing import schedule
from lake_jobs.services import clean as clean_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "column_stats:amount,customer"
CUSTOMERS = (1, 2, 5)


@contextmanager
def without_the_guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let jobs do what Hudi's own client does."""
    with monkeypatch.context() as patch:
        for module in (schedule, clean_service):
            patch.setattr(module, "have_index_clash", lambda _: False)
        yield


def list_as_complete(table: Table, *names: str) -> None:
    """Name indexes in the properties, by which jobs go, without building them."""
    path, key = table.path / ".hoodie" / "hoodie.properties", "hoodie.table.metadata.partitions"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}=")]
    path.write_text("\n".join([*lines, f"{key}={','.join(names)}", ""]))
    # Hadoop's checksum of what was there before.
    (path.parent / ".hoodie.properties.crc").unlink()


@pytest.mark.parametrize(("there", "second"), [("column_stats", BY_SECOND), (PARTITION, COLUMNS)])
def test_second_index_of_the_two_is_refused(
    spark: SparkSession, make_table: MakeTable, there: str, second: str
) -> None:
    table = make_table()
    list_as_complete(table, "files", there)
    result = run(spark, indexing(table, BOTH, second))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "hoodie.metadata.index.column.stats.enable=false" in result.message
    assert (complete(table), plans(table)) == ({"files", there}, set())


def test_clean_of_a_table_with_both_is_refused_and_touches_nothing(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    list_as_complete(table, "files", "column_stats", PARTITION)
    before, timeline = data_files(table), table.files()
    for mode in (Mode.SCHEDULE, BOTH):
        result = run(spark, clean(table, mode, options=KEEP_ONE_VERSION))
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert (data_files(table), table.files()) == (before, timeline)


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_each_write_after_a_clean_of_such_a_table_fails_until_the_column_statistics_are_dropped(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    table = make_table(type=type, **IN_TASKS)
    with without_the_guard(monkeypatch):
        assert run(spark, indexing(table, BOTH, COLUMNS, BY_SECOND)).outcome is Outcome.COMPLETED
    for customer in (10, 20):
        put(Row(1, customer), Row(2, customer), **IN_TASKS)(spark, table)
    if type == "MOR":
        assert run(spark, table.request(BOTH)).outcome is Outcome.COMPLETED
    with without_the_guard(monkeypatch):
        assert run(spark, clean(table, BOTH, options=KEEP_ONE_VERSION)).outcome is Outcome.COMPLETED
    for _ in range(2):
        with pytest.raises(Py4JJavaError, match="mismatched partition path"):
            put(Row(1, 30), **IN_TASKS)(spark, table)
    # What waiting does, once the writers were stopped: the failed writes left no heartbeat.
    for left in (*table.timeline.iterdir(), *(table.path / ".hoodie" / ".temp").rglob("*")):
        make_old(left, 700)
    # Writers keep those of partitions with them.
    settings = {"lake__index__drop": "true", "lake__index__no_writer": "true", "lake__index__wait_s": "20"}
    dropped = run(spark, indexing(table, BOTH, COLUMNS, "partition_stats", **settings))
    assert dropped.outcome is Outcome.COMPLETED, dropped.message
    for customer in (40, 50):
        put(Row(1, customer), Row(2, customer), **IN_TASKS)(spark, table)
        assert run(spark, clean(table, BOTH, options=KEEP_ONE_VERSION)).outcome is not Outcome.FAILED
    assert complete(table) == {"files", PARTITION}
    assert_skips_nothing(spark, table, (*CUSTOMERS, 41, 51, 52))

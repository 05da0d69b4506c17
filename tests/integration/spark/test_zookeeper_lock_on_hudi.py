"""The lock provider that the documentation recommends, ZooKeeper's: services, index builds and crashes with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run
from paused_writers import STREAMING_OFF, insert, start_paused_writer, wait_until
from test_indexing_on_hudi import FEW_GROUPS, complete, found_by_keys, half_built, make_old, missing, plans
from test_real_processes import _kill_family, submit  # noqa: F401 - a fixture

from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from local_stack.zookeeper import LocalZooKeeper
from tests.support.patience import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOTH = Mode.SCHEDULE_AND_EXECUTE
SESSION_MS = 4000
MANY_GROUPS = {"hoodie.metadata.global.record.level.index.min.filegroup.count": "30"}
Submit = Callable[[JobRequest], "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    server = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server.lock_options(SESSION_MS)
    server.stop()


def request(table: Table, lock: dict[str, str], service: Service, **options: str) -> JobRequest:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return table.request(BOTH, options=lock, service=service, service_options=named)


def indexing(table: Table, lock: dict[str, str], *indexes: str, **options: str) -> JobRequest:
    wish = requested_options(parse_indexes(indexes)) | FEW_GROUPS
    return table.request(BOTH, options=lock, service=Service.INDEXING, service_options=wish | options)


def test_services_run_next_to_a_writer(
    spark: SparkSession, make_table: MakeTable, lock: dict[str, str], tmp_path: Path
) -> None:
    table = make_table(**lock, **STREAMING_OFF)
    before = content(spark, table)
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **lock, **STREAMING_OFF)
    compacted = run(spark, request(table, lock, Service.COMPACTION, hoodie__compact__inline__max__delta__commits="1"))
    assert compacted.outcome is Outcome.COMPLETED, compacted.message
    cleaned = run(spark, request(table, lock, Service.CLEAN, hoodie__clean__commits__retained="1"))
    assert cleaned.outcome in {Outcome.COMPLETED, Outcome.NOTHING_TO_DO}, cleaned.message
    writer.finish()
    after = content(spark, table)
    assert len(after) == len(before) + 20


@pytest.mark.soak(covered_by="tests/integration/spark/test_indexing_on_hudi.py")
def test_index_is_built_next_to_a_writer(
    spark: SparkSession, make_table: MakeTable, lock: dict[str, str], tmp_path: Path
) -> None:
    table = make_table(**lock, **STREAMING_OFF)
    scheduled = table.request(
        Mode.SCHEDULE,
        options=lock,
        service=Service.INDEXING,
        service_options=requested_options(parse_indexes(["record_index"])),
    )
    assert run(spark, scheduled).scheduled_instants
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **lock, **STREAMING_OFF)
    result = run(spark, indexing(table, lock, "record_index", **{"lake.index.check": "full"}))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert writer.instant not in table.completed("deltacommit")
    writer.finish()
    assert missing(spark, table) == []
    assert found_by_keys(spark, table, [3, 70_003]) == 2


@pytest.mark.soak
def test_lock_of_a_builder_that_was_killed_is_free_when_its_session_ends(
    spark: SparkSession,
    make_table: MakeTable,
    lock: dict[str, str],
    submit: Submit,  # noqa: F811
) -> None:
    # Its writers stream, so it builds with the lock held.
    table = make_table(**lock)
    builder = submit(indexing(table, lock, "record_index", **MANY_GROUPS))
    wait_until(lambda: (table.path / ".hoodie" / "metadata" / "record_index").is_dir(), "the build")
    (instant,) = plans(table)
    _kill_family(builder.pid)
    builder.wait()
    began_s = time.monotonic()
    insert(spark, table, 70_000, **lock)
    assert time.monotonic() - began_s < patient(60)
    make_old(table.path / ".hoodie" / ".heartbeat" / instant)
    result = run(spark, indexing(table, lock, "record_index", **MANY_GROUPS, **{"lake.index.check": "full"}))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert (complete(table), half_built(table), plans(table)) == ({"files", "record_index"}, "", set())
    insert(spark, table, 71_000, **lock)
    assert missing(spark, table) == []
    assert found_by_keys(spark, table, [3, 70_003, 71_003]) == 3

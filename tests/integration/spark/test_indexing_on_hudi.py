"""Index builds on real tables, next to real writers, inside the test's own Spark session."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LOCK, MakeTable, Table, content, run
from paused_writers import STREAMING_OFF, insert, new_orders, start_paused_writer, wait_until
from pyspark.sql import functions as F

from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceResult
from lake_jobs.hudi.settings import service_settings
from lake_jobs.hudi.table import open_client, read_table_state
from lake_jobs.indexing import barrier, build, check, finish, hudi_writer, listing, samples, schedule
from lake_jobs.indexing.check import find_differences
from lake_jobs.indexing.settings import build_settings
from lake_jobs.services.context import open_context
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BOTH = Mode.SCHEDULE_AND_EXECUTE
BY_DAY = "expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd"
# Ten unless said otherwise, each a file and a task of every commit from then on.
FEW_GROUPS = {"hoodie.metadata.global.record.level.index.min.filegroup.count": "2"}


def indexing(table: Table, mode: Mode, *indexes: str, **options: str) -> JobRequest:
    named = FEW_GROUPS | {key.replace("__", "."): value for key, value in options.items()}
    return table.request(
        mode, service=Service.INDEXING, service_options=requested_options(parse_indexes(indexes)) | named
    )


def complete(table: Table) -> set[str]:
    return set(filter(None, table.properties().get("hoodie.table.metadata.partitions", "").split(",")))


def half_built(table: Table) -> str:
    return table.properties().get("hoodie.table.metadata.partitions.inflight", "")


def plans(table: Table) -> set[str]:
    """Requested times of index plans that are not completed."""
    requested = {name.split(".")[0] for name in table.files() if name.endswith(".indexing.requested")}
    return requested - table.completed("indexing")


def missing(spark: SparkSession, table: Table, index: str = "record_index") -> list[str]:
    return find_differences(spark, read_table_state(spark, str(table.path)), index)


def found_by_key(spark: SparkSession, table: Table, key: int) -> int:
    """How many rows of a key a reader finds that trusts the table's indexes, as Hudi's readers do by default."""
    return found_by_keys(spark, table, [key])


def found_by_keys(spark: SparkSession, table: Table, keys: Sequence[int]) -> int:
    """How many rows of these keys."""
    options = {
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
    }
    return (
        spark.read.format("hudi")
        .options(**options)
        .load(str(table.path))
        .where(F.col("id").isin([str(key) for key in keys]))
        .count()
    )


class InThread:
    """A job in a thread, and what it says meanwhile."""

    def __init__(self, spark: SparkSession, request: JobRequest) -> None:
        self.outcome: Future[ServiceResult] = Future()
        threading.Thread(target=self._run, args=(spark, request), daemon=True).start()

    def _run(self, spark: SparkSession, request: JobRequest) -> None:
        try:
            self.outcome.set_result(run(spark, request))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.outcome.set_exception(error)

    def result(self) -> ServiceResult:
        return self.outcome.result(timeout=120)


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice at once when what a build waits for has come; in production it may take two seconds longer."""
    for module in (barrier, finish, schedule):
        monkeypatch.setattr(module, "BARRIER_INTERVAL_S", 0.1)


MakeIndexed = Callable[..., tuple[Table, str]]
_built: dict[tuple[tuple[str, str], ...], tuple[Table, str]] = {}
"""Tables with a record index, by their settings, and the instant of its build; tests get copies."""


@pytest.fixture
def make_indexed(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> MakeIndexed:
    """Return a function that gives this test a table with a record index, and the instant of the index's build."""

    def make(**options: str) -> tuple[Table, str]:
        key = tuple(sorted(options.items()))
        if key not in _built:
            made = make_table(**options)
            folder = shutil.move(made.path, tmp_path_factory.mktemp("indexed") / "orders")
            table = Table(replace(made.written, base_path=str(folder)))
            (instant,) = run(spark, indexing(table, BOTH, "record_index")).completed_instants
            _built[key] = (table, instant)
        built, instant = _built[key]
        copied = shutil.copytree(built.path, tmp_path / "lake" / "orders")
        return Table(replace(built.written, base_path=str(copied))), instant

    return make


OF_COLUMNS = {"column_stats:amount,customer,ts": "column_stats", "partition_stats": "partition_stats"}
OF_EXPRESSION = {BY_DAY: "expr_index_by_day"}
OF_ANY_TABLE = {"bloom_filters": "bloom_filters", "record_index": "record_index"}
OF_ANY_TABLE |= {"secondary_index:customer": "secondary_index_customer"}


@pytest.mark.parametrize(
    ("type", "version", "kinds"),
    [
        pytest.param("MOR", 9, OF_COLUMNS, id="MOR-9-columns"),
        pytest.param("MOR", 9, OF_EXPRESSION, id="MOR-9-expression", marks=pytest.mark.soak),
        pytest.param("COW", 8, OF_COLUMNS, id="COW-8-columns", marks=pytest.mark.soak),
        pytest.param("COW", 8, OF_EXPRESSION, id="COW-8-expression", marks=pytest.mark.soak),
    ],
)
def test_every_kind_of_index_is_built_and_survives_writers(
    spark: SparkSession, make_table: MakeTable, type: str, version: int, kinds: dict[str, str]
) -> None:
    table = make_table(type=type, version=version, **STREAMING_OFF)
    before = content(spark, table)
    kinds = {**kinds, **OF_ANY_TABLE}
    wanted, partitions = tuple(kinds), set(kinds.values())

    with never_half_written(table) as readings:
        result = run(spark, indexing(table, BOTH, *wanted))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert readings.damaged == []
    assert readings.count > 100
    assert set(result.completed_instants) == table.completed("indexing")
    assert len(result.completed_instants) == len(wanted)
    assert complete(table) == {"files", *partitions}
    assert (half_built(table), plans(table)) == ("", set())
    assert content(spark, table) == before

    again = run(spark, indexing(table, BOTH, *wanted))
    assert (again.outcome, again.scheduled_instants) == (Outcome.NOTHING_TO_DO, ())
    # Partition statistics and expression indexes are computed in tasks, and there Hudi 1.2 needs the timeline server.
    insert(spark, table, 50_000, **STREAMING_OFF, **{"hoodie.embed.timeline.server": "true"})
    assert complete(table) == {"files", *partitions}
    for index in partitions - {"partition_stats", "expr_index_by_day"}:
        assert missing(spark, table, index) == []
    assert found_by_key(spark, table, 50_003) == 1


FULL_OPTION = {"lake__index__check": "full"}


def test_plan_is_written_once_and_a_second_one_of_another_builder_is_removed(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(**STREAMING_OFF)
    first = run(spark, indexing(table, Mode.SCHEDULE, "record_index"))
    assert first.outcome is Outcome.SCHEDULED
    second = run(spark, indexing(table, Mode.SCHEDULE, "record_index"))
    assert second.outcome is Outcome.NOTHING_TO_DO
    assert plans(table) == set(first.scheduled_instants)
    # Hudi itself writes a second plan, which can never run.
    duplicate = schedule_with_hudi(spark, table, "record_index")
    assert plans(table) == {*first.scheduled_instants, duplicate}

    result = run(spark, indexing(table, Mode.EXECUTE))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, first.scheduled_instants)
    assert duplicate in result.message
    assert plans(table) == set()
    assert missing(spark, table) == []


def test_second_plan_leaves_alone_what_a_living_builder_of_the_first_one_has_begun(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(**STREAMING_OFF)
    (first,) = run(spark, indexing(table, Mode.SCHEDULE, "record_index")).scheduled_instants
    duplicate = schedule_with_hudi(spark, table, "record_index")
    # A builder that does not beat, as Hudi's own: it began an hour ago, and writes.
    inflight = table.timeline / f"{first}.indexing.inflight"
    inflight.touch()
    make_old(inflight, 3600)
    config = read_table_state(spark, str(table.path)).meta_client
    names = spark._jvm.java.util.ArrayList()
    names.add("record_index")
    config.getTableConfig().setMetadataPartitionsInflight(config, names)
    log = table.path / ".hoodie" / "metadata" / "record_index" / f".record-index-0000-0_{first}.log.1_0-0-0"
    log.parent.mkdir()
    log.touch()
    job = indexing(table, Mode.EXECUTE)
    only = replace(job, services=(replace(job.services[0], instants=(duplicate,)),))
    busy = run(spark, only)
    assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY)
    assert first in busy.message
    assert log.exists()
    make_old(log, 3600)
    dead = run(spark, job)
    assert (dead.outcome, dead.completed_instants) == (Outcome.COMPLETED, (first,)), dead.message
    assert plans(table) == set()
    assert missing(spark, table) == []


@pytest.mark.soak(covered_by="tests/oracle/test_oracle.py")  # the oracle builds such a plan: case plan-of-two-indexes
def test_plan_of_several_indexes_becomes_one_for_each_and_all_are_built(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(**STREAMING_OFF)
    whole = schedule_with_hudi(spark, table, "column_stats", "record_index")
    # Its builder died when it had listed the first of them as being built.
    inflight = table.timeline / f"{whole}.indexing.inflight"
    inflight.touch()
    make_old(inflight, 3600)
    meta_client = read_table_state(spark, str(table.path)).meta_client
    names = spark._jvm.java.util.ArrayList()
    names.add("column_stats")
    meta_client.getTableConfig().setMetadataPartitionsInflight(meta_client, names)

    job = indexing(table, Mode.EXECUTE, **FULL_OPTION)
    result = run(spark, replace(job, services=(replace(job.services[0], instants=(whole,)),)))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert set(result.completed_instants) == table.completed("indexing")
    assert len(result.completed_instants) == 2
    assert whole not in table.completed("indexing")
    assert (complete(table), half_built(table), plans(table)) == ({"files", "column_stats", "record_index"}, "", set())
    insert(spark, table, 80_000, **STREAMING_OFF)
    assert (missing(spark, table), missing(spark, table, "column_stats")) == ([], [])


def test_plan_that_writers_have_overtaken_is_replaced(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**STREAMING_OFF)
    old = run(spark, indexing(table, Mode.SCHEDULE, "column_stats")).scheduled_instants
    # Hudi would leave the files of this write out, and its catch-up would pass over it.
    insert(spark, table, 70_000, **STREAMING_OFF)
    result = run(spark, indexing(table, Mode.EXECUTE, **FULL_OPTION))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert set(result.completed_instants).isdisjoint(old)
    assert (complete(table), plans(table)) == ({"files", "column_stats"}, set())
    assert missing(spark, table, "column_stats") == []


@pytest.mark.soak
def test_hudi_alone_loses_the_writer_that_is_in_flight(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table()
    writer = start_paused_writer(spark, table, tmp_path, 70_000)
    instant = schedule_with_hudi(spark, table, "record_index")
    settings = hudis_own_settings(spark, table) | {"hoodie.metadata.global.record.level.index.enable": "true"}
    built: Future[Any] = Future()

    def build() -> None:
        with open_client(spark, str(table.path), settings, {}) as client:
            built.set_result(client.index(instant))

    threading.Thread(target=build, daemon=True).start()
    wait_until(lambda: "record_index" in complete(table), "Hudi's build")
    writer.finish()
    built.result(timeout=60)
    # The index is complete, so Hudi says, and a reader that trusts it does not find the row.
    assert instant in table.completed("indexing")
    (lost,) = missing(spark, table)
    assert lost.startswith("20 entries missing in the index")
    assert found_by_key(spark, table, 70_003) == 0


def test_streaming_writer_in_flight_is_waited_for_and_is_in_the_index(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    writer = start_paused_writer(spark, table, tmp_path, 70_000)
    impatient = run(spark, indexing(table, BOTH, "record_index", lake__index__wait_s="0"))
    assert (impatient.outcome, impatient.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert writer.instant in impatient.message
    assert "hoodie.metadata.streaming.write.enabled=false" in impatient.message
    assert complete(table) == {"files"}
    (instant,) = plans(table)

    # The moment between two commits of a writer may be short: the build begins when the first of them has ended.
    monkeypatch.setattr(barrier, "BARRIER_INTERVAL_S", 3600.0)
    job = InThread(spark, indexing(table, BOTH, "record_index", **FULL_OPTION))
    time.sleep(3)
    assert complete(table) == {"files"}
    writer.finish()
    result = job.result()
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    insert(spark, table, 80_000)
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


@pytest.mark.soak
def test_writer_in_flight_that_does_not_stream_goes_on_and_is_in_the_index(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(**STREAMING_OFF)
    run(spark, indexing(table, Mode.SCHEDULE, "record_index"))
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **STREAMING_OFF)
    job = InThread(spark, indexing(table, Mode.EXECUTE, "record_index", **FULL_OPTION))
    wait_until(lambda: "record_index" in complete(table) or job.outcome.done(), "the build next to the writer")
    # Another one begins and commits while the first is in flight. The build waits for neither: they know of the index.
    insert(spark, table, 80_000, **STREAMING_OFF)
    result = job.result()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert writer.instant not in table.completed("deltacommit")
    writer.finish()
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


def test_write_that_is_older_than_the_plan_is_waited_for(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(**STREAMING_OFF)
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **STREAMING_OFF)
    job = InThread(spark, indexing(table, BOTH, "record_index", **FULL_OPTION))
    wait_until(lambda: bool(plans(table)), "the plan")
    (instant,) = plans(table)
    assert instant > writer.instant
    # Younger ones come and go meanwhile.
    insert(spark, table, 80_000, **STREAMING_OFF)
    time.sleep(3)
    assert (complete(table), half_built(table)) == ({"files"}, "")
    writer.finish()
    result = job.result()
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


@pytest.mark.soak
def test_plan_that_is_overtaken_during_that_wait_is_replaced_by_one_that_does_not_wait(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(**STREAMING_OFF)
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **STREAMING_OFF)
    job = InThread(spark, indexing(table, BOTH, "column_stats", **FULL_OPTION))
    wait_until(lambda: bool(plans(table)), "the plan")
    insert(spark, table, 80_000, **STREAMING_OFF)
    result = job.result()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert writer.instant not in table.completed("deltacommit")
    writer.finish()
    assert missing(spark, table, "column_stats") == []


def test_run_that_times_out_with_a_hole_in_front_is_completed_by_the_next_one(
    spark: SparkSession, make_indexed: MakeIndexed, tmp_path: Path
) -> None:
    table, instant = make_indexed()
    die_before_completing(table, instant)
    # Writers of this table settle what they update at their beginning: maybe before the index was.
    writer = start_paused_writer(spark, table, tmp_path, 70_000)
    timeout = {"hoodie__metadata__index__check__timeout__seconds": "1"}
    first = run(spark, indexing(table, BOTH, "record_index", **timeout))
    assert (first.outcome, first.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    # What was reached, and what was in the way.
    assert f"deltacommit {writer.instant}" in first.message
    assert f"every write up to {max(table.completed('deltacommit'))}" in first.message
    assert plans(table) == {instant}
    writer.finish()

    second = run(spark, indexing(table, BOTH, "record_index", **FULL_OPTION, **timeout))
    assert (second.outcome, second.completed_instants) == (Outcome.COMPLETED, (instant,)), second.message
    assert second.scheduled_instants == ()
    insert(spark, table, 80_000)
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


def test_writer_that_takes_no_part_in_locking_keeps_a_built_index_from_being_called_complete(
    spark: SparkSession, make_indexed: MakeIndexed
) -> None:
    table, instant = make_indexed(**STREAMING_OFF)
    die_before_completing(table, instant)
    # It begins when the build is past its fence, and no lock keeps it from committing.
    unguarded = begin_write(spark, table)
    (table.path / ".hoodie" / ".heartbeat" / unguarded).unlink()
    timeout = {"hoodie__metadata__index__check__timeout__seconds": "1"}
    for no_writer, words in (("false", "may not know of it"), ("true", "says that no writer runs")):
        options = {"lake__index__no_writer": no_writer}
        result = run(spark, indexing(table, BOTH, "record_index", **timeout, **options))
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
        assert unguarded in result.message
        assert words in result.message
        assert plans(table) == {instant}
    for name in table.files():
        if name.startswith(unguarded):
            make_old(table.timeline / name, 3600)
    # Its age proves nothing: it may be a commit of hours.
    assert unguarded in run(spark, indexing(table, BOTH, "record_index", **timeout)).message
    dead = run(spark, indexing(table, BOTH, "record_index", **timeout, **options))
    assert (dead.outcome, dead.completed_instants) == (Outcome.COMPLETED, (instant,)), dead.message


def test_index_that_fails_its_check_is_built_anew_in_the_same_run(
    spark: SparkSession, make_indexed: MakeIndexed
) -> None:
    table, instant = make_indexed(**STREAMING_OFF)
    die_before_completing(table, instant)
    # So it would have begun before the table's first write, and should mention all of them in its log.
    make_old(table.timeline / f"{instant}.indexing.inflight", 3600)
    result = run(spark, indexing(table, BOTH, "record_index", **FULL_OPTION))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    insert(spark, table, 80_000, **STREAMING_OFF)
    assert (complete(table), plans(table)) == ({"files", "record_index"}, set())
    assert missing(spark, table) == []


def test_index_is_checked_before_readers_may_use_it(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(**STREAMING_OFF)
    listed: dict[str, list[bool]] = {}
    find = check.find_missing_writes

    def find_and_note(spark: SparkSession, state: Any, partition: str, *times: Any) -> list[str]:
        seen = listed.setdefault(partition, [])
        seen.append(partition in complete(table))
        return ["deltacommit 1"] if len(seen) == 1 else find(spark, state, partition, *times)

    monkeypatch.setattr(check, "find_missing_writes", find_and_note)
    # One that writers update meanwhile, and one that they do not.
    result = run(spark, indexing(table, BOTH, "record_index", "secondary_index:customer"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert listed.keys() == {"record_index", "secondary_index_customer"}
    # The first build fails its check, and the second one, with the lock held, passes.
    assert listed == {"record_index": [False, False], "secondary_index_customer": [False, False]}
    assert missing(spark, table) == []


def test_index_is_listed_and_its_plan_completed_in_one_hold_of_the_lock(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(**STREAMING_OFF)
    lock, kept = table.path / ".hoodie" / "lock", tmp_path / "lock-of-the-listing"
    write, complete_plan, ended = hudi_writer.list_index, build.complete_plan, []
    read_file_listing, held = build.read_file_listing, []

    def read_and_note(*arguments: Any) -> None:
        held.append(lock.exists())
        read_file_listing(*arguments)

    def list_and_keep(context: Any, partition: str, how: Any, definition: Any = None) -> None:
        # A file that has another name keeps its number, so no later lock file gets it.
        kept.unlink(missing_ok=True)
        os.link(lock, kept)
        write(context, partition, how, definition)

    def complete_and_compare(context: Any, plan: Any, up_to: str) -> None:
        ended.append((plan.partition, kept.samefile(lock)))
        complete_plan(context, plan, up_to)

    monkeypatch.setattr(build, "read_file_listing", read_and_note)
    monkeypatch.setattr(hudi_writer, "list_index", list_and_keep)
    monkeypatch.setattr(build, "complete_plan", complete_and_compare)
    result = run(spark, indexing(table, BOTH, "record_index", "secondary_index:customer"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert ended == [("record_index", True), ("secondary_index_customer", True)]
    # What can be done without the lock is: writers wait for none of it.
    assert held == [False, False]
    assert set(result.completed_instants) == table.completed("indexing")


def test_writes_of_the_meantime_are_checked_before_the_lock_is_taken_and_once(
    spark: SparkSession, make_indexed: MakeIndexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, instant = make_indexed(**STREAMING_OFF)
    insert(spark, table, 80_000, **STREAMING_OFF)
    insert(spark, table, 81_000, **STREAMING_OFF)
    die_before_completing(table, instant)
    change_of, held = check.change_of, []

    def change_and_note(state: Any, instant: Any) -> Any:
        held.append((table.path / ".hoodie" / "lock").exists())
        return change_of(state, instant)

    monkeypatch.setattr(check, "change_of", change_and_note)
    result = run(spark, indexing(table, BOTH, "record_index"))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert held == [False, False]


def die_before_completing(table: Table, instant: str) -> None:
    """Leave what a builder leaves that dies when its index is complete and its plan is not."""
    (ended,) = table.timeline.glob(f"{instant}_*.indexing")
    ended.unlink()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / instant
    heartbeat.touch()
    make_old(heartbeat)


def hudis_own_settings(spark: SparkSession, table: Table) -> dict[str, str]:
    state = read_table_state(spark, str(table.path))
    return service_settings(Service.INDEXING, LOCK, state.table_version, state.metadata_partitions)


def schedule_with_hudi(spark: SparkSession, table: Table, *indexes: str) -> str:
    """Write one plan of all these indexes, as any program may that uses Hudi's client."""
    settings = hudis_own_settings(spark, table)
    types, partitions = spark._jvm.java.util.ArrayList(), spark._jvm.java.util.ArrayList()
    for index in indexes:
        settings |= build_settings(index, None, {})
        types.add(spark._jvm.org.apache.hudi.metadata.MetadataPartitionType.valueOf(index.upper()))
    with open_client(spark, str(table.path), settings, {}) as client:
        return str(client.scheduleIndexing(types, partitions).get())


def test_writer_that_dies_while_the_index_is_built_holds_nothing_up(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**STREAMING_OFF)
    run(spark, indexing(table, Mode.SCHEDULE, "record_index"))
    dead = begin_write(spark, table)
    before = max(table.completed("deltacommit"))
    result = run(spark, indexing(table, Mode.EXECUTE, "record_index", **FULL_OPTION))
    # It began before the build, and lives as far as storage shows: what it commits, it would add to the index.
    assert result.outcome is Outcome.COMPLETED, result.message
    assert before < dead
    make_old(table.path / ".hoodie" / ".heartbeat" / dead)
    # The dead one is rolled back later; that does not harm the index.
    insert(spark, table, 80_000, **STREAMING_OFF)
    assert run(spark, table.request(BOTH, service=Service.ROLLBACK)).outcome is Outcome.COMPLETED
    assert not any(name.startswith(dead) for name in table.files())
    assert missing(spark, table) == []


def test_table_without_a_metadata_table_gets_one_when_its_writers_keep_it(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW", **{"hoodie.metadata.enable": "false"})
    assert complete(table) == set()
    # With it, a writer that switches it off would write what no reader finds.
    refused = run(spark, indexing(table, BOTH, "files"))
    assert "hoodie.metadata.enable" in refused.message
    assert complete(table) == set()
    on = {"hoodie__metadata__enable": "true"}
    result = run(spark, indexing(table, BOTH, "files", **FULL_OPTION, **on))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert complete(table) == {"files"}
    before = content(spark, table)
    insert(spark, Table(replace(table.written, hudi_options={})), 80_000, **STREAMING_OFF)
    assert complete(table) == {"files"}
    assert len(content(spark, table)) == len(before) + 20


@pytest.mark.soak(covered_by="tests/integration/spark/test_every_service.py")
def test_indexes_survive_every_service_and_stay_whole(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**STREAMING_OFF)
    built = run(spark, indexing(table, BOTH, "record_index", "column_stats", "secondary_index:customer"))
    assert built.outcome is Outcome.COMPLETED, built.message
    indexes = complete(table)
    services = (
        (Service.COMPACTION, {}),
        (Service.CLUSTERING, {}),
        (Service.METACOMPACTION, {}),
        (
            Service.CLEAN,
            {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"},
        ),
        (Service.ARCHIVE, {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}),
    )
    for number, (service, options) in enumerate(services):
        # A writer that names no index in its settings.
        server = {"hoodie.embed.timeline.server": "true"}
        insert(spark, table, 90_000 + 100 * number, **STREAMING_OFF, **server)
        result = run(spark, table.request(BOTH, service=service, service_options=options))
        # One that found nothing to do would prove nothing.
        assert result.outcome is Outcome.COMPLETED, (service, result.message)
        # Hudi adds partition statistics to column statistics by itself; what matters is that nothing goes.
        assert indexes <= complete(table), service
    for index in ("record_index", "secondary_index_customer", "column_stats"):
        assert missing(spark, table, index) == [], index
    assert found_by_key(spark, table, 90_003) == 1


def test_writer_that_takes_no_part_in_locking_keeps_the_build_away(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**STREAMING_OFF)
    unguarded = begin_write(spark, table)
    (table.path / ".hoodie" / ".heartbeat" / unguarded).unlink()
    refused = run(spark, indexing(table, BOTH, "record_index", lake__index__wait_s="0"))
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert unguarded in refused.message
    assert "hoodie.write.concurrency.mode" in refused.message
    # Nor does it help to say that no writer writes.
    denied = run(spark, indexing(table, BOTH, "record_index", lake__index__wait_s="0", lake__index__no_writer="true"))
    assert denied.outcome is Outcome.FAILED
    assert "says that no writer runs" in denied.message
    without_lock = indexing(table, BOTH, "record_index")
    unlocked = run(spark, replace(without_lock, hudi_options={}))
    assert "hoodie.write.lock.provider" in unlocked.message
    assert complete(table) == {"files"}
    # A long write of such a writer: it has not touched the timeline for an hour, but it still makes markers.
    marker = table.path / ".hoodie" / ".temp" / unguarded / "Cork" / "file.parquet.marker.CREATE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    for name in table.files():
        if name.startswith(unguarded):
            make_old(table.timeline / name, 3600)
    long_write = indexing(table, BOTH, "record_index", lake__index__wait_s="0", lake__index__no_writer="true")
    assert unguarded in run(spark, long_write).message
    make_old(marker, 3600)
    # Its age alone proves nothing.
    silent = run(spark, indexing(table, BOTH, "record_index", lake__index__wait_s="0"))
    assert (silent.outcome, silent.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), silent.message
    dead = run(spark, long_write)
    assert (dead.outcome, complete(table)) == (Outcome.COMPLETED, {"files", "record_index"}), dead.message


def test_table_that_hudi_1_0_writes_is_refused_before_anything_is_touched(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """Real writers of 1.0.2 write in test_indexing_next_to_older_hudi; here is what their log files begin with."""
    table = make_table(type="COW", version=8, **STREAMING_OFF)
    header = b'#HUDI#{"type":"record","name":"HoodieMetadataRecord","fields":[{"name":"isTightBound"}]}'
    log = table.path / ".hoodie" / "metadata" / "files" / ".files-0000-0_20991231000000000.log.1_0-1-1"
    log.write_bytes(header)
    before = table.files()
    for mode in (Mode.SCHEDULE, BOTH):
        result = run(spark, indexing(table, mode, "record_index"))
        assert result.outcome is Outcome.FAILED
        assert "made with Hudi 1.0" in result.message
    assert (table.files(), complete(table)) == (before, {"files"})


def test_index_is_dropped_under_the_lock_under_which_no_writer_was_in_the_way(
    spark: SparkSession, make_indexed: MakeIndexed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = make_indexed(**STREAMING_OFF)
    lock, kept = table.path / ".hoodie" / "lock", tmp_path / "lock-of-the-question"
    find, write, dropped = schedule.find_writers_in_flight, listing.list_index, []

    def find_and_keep(context: Any, state: Any) -> Any:
        # A file that has another name keeps its number, so no later lock file gets it.
        kept.unlink(missing_ok=True)
        os.link(lock, kept)
        return find(context, state)

    def list_and_compare(context: Any, partition: str, how: Any, definition: Any = None) -> None:
        if how is listing.Listing.ABSENT:
            dropped.append((partition, kept.exists() and lock.exists() and kept.samefile(lock)))
        write(context, partition, how, definition)

    monkeypatch.setattr(schedule, "find_writers_in_flight", find_and_keep)
    monkeypatch.setattr(listing, "list_index", list_and_compare)
    again = indexing(table, Mode.SCHEDULE, "record_index", lake__index__drop_first="true")
    result = run(spark, replace(again, job_id="another/1"))
    assert result.outcome is Outcome.SCHEDULED, result.message
    assert (complete(table), plans(table)) == ({"files"}, set(result.scheduled_instants))
    assert dropped == [("record_index", True)]
    assert run(spark, indexing(table, Mode.EXECUTE)).outcome is Outcome.COMPLETED
    assert missing(spark, table) == []


def test_index_that_is_dropped_for_good_is_gone_with_its_plan_and_nothing_is_built(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(**STREAMING_OFF)
    assert run(spark, indexing(table, BOTH, "record_index", "secondary_index:customer")).outcome is Outcome.COMPLETED
    drop = {"lake__index__drop": "true"}
    refused = run(spark, indexing(table, BOTH, "record_index", **drop))
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "secondary_index_customer rests on record_index; name it in indexes as well" in refused.message
    assert complete(table) == {"files", "record_index", "secondary_index_customer"}
    assert run(spark, indexing(table, Mode.SCHEDULE, "column_stats:amount")).outcome is Outcome.SCHEDULED
    both = indexing(table, BOTH, "record_index", "secondary_index:customer", "column_stats:amount", **drop)
    dropped = run(spark, both)
    assert (dropped.outcome, dropped.completed_instants) == (Outcome.COMPLETED, ()), dropped.message
    assert "record_index was dropped" in dropped.message
    assert (complete(table), plans(table)) == ({"files"}, set())
    again = run(spark, both)
    assert (again.outcome, complete(table)) == (Outcome.NOTHING_TO_DO, {"files"})
    # Hudi's own writers and readers go on, and the index can be built again.
    insert(spark, table, 70_000)
    assert run(spark, indexing(table, BOTH, "record_index", **FULL_OPTION)).outcome is Outcome.COMPLETED
    assert missing(spark, table) == []


def test_index_that_is_dropped_next_to_a_streaming_writer_leaves_it_its_files(
    spark: SparkSession, make_indexed: MakeIndexed, tmp_path: Path
) -> None:
    table, _ = make_indexed()
    writer = start_paused_writer(spark, table, tmp_path, 70_000)
    folder = table.path / ".hoodie" / "metadata" / "record_index"
    before = {file.name for file in folder.iterdir()}
    job = indexing(table, BOTH, "record_index")
    listing.drop_index(open_context(spark, job, job.services[0]), "record_index")
    assert complete(table) == {"files"}
    assert {file.name for file in folder.iterdir()} >= before
    writer.finish()
    again = run(spark, indexing(table, BOTH, "record_index", **FULL_OPTION))
    assert again.outcome is Outcome.COMPLETED, again.message
    assert found_by_key(spark, table, 70_003) == 1


@pytest.mark.soak
def test_damaged_index_is_reported_with_what_differs_and_built_anew(
    spark: SparkSession, make_indexed: MakeIndexed
) -> None:
    table, _ = make_indexed(**STREAMING_OFF)
    # A writer with the metadata table switched off writes past every index.
    settings = {"hoodie.metadata.enable": "false", "hoodie.metadata.auto.delete.partitions": "false"}
    insert(spark, table, 95_000, **settings)
    assert complete(table) == {"files", "record_index"}
    (damage,) = missing(spark, table)
    assert damage.startswith("20 entries missing in the index, or other there: 950")
    verified = run(spark, indexing(table, BOTH, "record_index", **FULL_OPTION))
    assert (verified.outcome, verified.completed_instants) == (Outcome.FAILED, ())
    assert "record_index is damaged: 20 entries missing" in verified.message
    # Also in a run that builds another one, and while a writer has begun a file that has no footer yet.
    folder = min(file.parent for file in table.path.rglob("*.parquet") if ".hoodie" not in file.parts)
    (folder / f"{uuid.UUID(int=0)}-0_0-1-1_20990101000000000.parquet").write_bytes(b"PAR1")
    meanwhile = run(spark, indexing(table, BOTH, "column_stats", "record_index", **FULL_OPTION))
    assert (meanwhile.outcome, len(meanwhile.completed_instants)) == (Outcome.FAILED, 1)
    assert "record_index is damaged: 20 entries missing" in meanwhile.message

    dropped = {"lake__index__drop_first": "true", "lake__index__wait_s": "0"}
    request = indexing(table, BOTH, "files", "record_index", **FULL_OPTION, **dropped)
    # Readers keep what they have as long as nothing can take its place.
    unguarded = begin_write(spark, table)
    heartbeat = table.path / ".hoodie" / ".heartbeat" / unguarded
    heartbeat.unlink()
    kept = run(spark, request)
    assert (kept.outcome, kept.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert unguarded in kept.message
    assert complete(table) >= {"files", "record_index"}
    heartbeat.touch()
    make_old(heartbeat)
    again = run(spark, replace(request, job_id="run/1"))
    assert again.outcome is Outcome.COMPLETED, again.message
    assert missing(spark, table) == []
    # A later try of the same run does not drop what the first one built.
    retried = run(spark, replace(request, job_id="run/2"))
    assert (retried.outcome, retried.completed_instants) == (Outcome.NOTHING_TO_DO, ()), retried.message
    assert set(again.completed_instants) <= table.completed("indexing")
    again = run(spark, replace(request, job_id="another/1"))
    assert (again.outcome, len(again.completed_instants)) == (Outcome.COMPLETED, 2), again.message


def test_index_that_misses_rows_is_unlisted_by_sampled_searches_and_built_anew(
    spark: SparkSession, make_indexed: MakeIndexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "SAMPLE", 1000)
    table, _ = make_indexed(**STREAMING_OFF)
    sampled = indexing(table, BOTH, "record_index", lake__index__check="sample", lake__index__wait_s="0")
    rows = len(content(spark, table))
    whole = run(spark, sampled)
    assert (whole.outcome, whole.scheduled_instants) == (Outcome.NOTHING_TO_DO, ()), whole.message
    assert f"found the {rows} rows that a scan finds" in whole.message
    # What a commit wrote to the index is lost.
    folder = table.path / ".hoodie" / "metadata" / "record_index"
    shutil.copytree(folder, table.path.parent / "before")
    insert(spark, table, 95_000, **STREAMING_OFF)
    shutil.rmtree(folder)
    shutil.copytree(table.path.parent / "before", folder)
    assert found_by_key(spark, table, 95_003) == 0
    # Nothing can be built now; readers find the row all the same.
    unguarded = begin_write(spark, table)
    heartbeat = table.path / ".hoodie" / ".heartbeat" / unguarded
    heartbeat.unlink()
    unlisted = run(spark, sampled)
    assert unlisted.outcome is Outcome.FAILED
    assert f"record_index misses 20 of {rows + 20} sampled rows (keys 950" in unlisted.message
    assert complete(table) == {"files"}
    assert found_by_key(spark, table, 95_003) == 1
    heartbeat.touch()
    make_old(heartbeat)
    again = run(spark, sampled)
    assert again.outcome is Outcome.COMPLETED, again.message
    assert (complete(table), missing(spark, table)) == ({"files", "record_index"}, [])
    assert found_by_key(spark, table, 95_003) == 1
    # A key that is there twice has one place in the index, which no build changes.
    insert(spark, table, 95_000, **STREAMING_OFF, **{"hoodie.datasource.write.operation": "bulk_insert"})
    doubled = run(spark, sampled)
    assert (doubled.outcome, doubled.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "20 sampled keys stand in the table several times (950" in doubled.message
    assert complete(table) == {"files", "record_index"}


@pytest.mark.soak
def test_keys_that_hudi_leaves_out_as_they_come_back_are_found_by_sampled_searches(
    spark: SparkSession, make_indexed: MakeIndexed
) -> None:
    table, _ = make_indexed(**STREAMING_OFF)
    for operation in ("delete", "upsert"):
        insert(spark, table, 0, rows=2, **STREAMING_OFF, **{"hoodie.datasource.write.operation": operation})
    # A fault of Hudi, which docs/limitations.md describes; when it is gone, that sentence goes as well.
    assert [found_by_key(spark, table, key) for key in (0, 1)] == [0, 0]
    # All keys are in a few files: one search for all of them would read each file, and find those two as well.
    count = len(content(spark, table))
    sampled = indexing(table, BOTH, "record_index", lake__index__check="sample", lake__index__wait_s="0")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(samples, "SAMPLE", 1000)
        damaged = run(spark, sampled)
    assert damaged.outcome is Outcome.FAILED
    assert f"record_index misses 2 of {count} sampled rows (keys 0, 1)" in damaged.message
    assert [found_by_key(spark, table, key) for key in (0, 1)] == [1, 1]
    assert (complete(table), missing(spark, table)) == ({"files", "record_index"}, [])


@pytest.mark.soak
def test_secondary_indexes_are_compared_by_hudis_spelling_of_their_keys(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A table of its own: Hudi 1.2 builds no secondary index of a column that older files lack.
    table = Table(replace(make_table(**STREAMING_OFF).written, base_path=str(tmp_path / "odd")))
    insert_odd(spark, table, 60_000)
    compared = ("day", "due", "seen")
    wanted = [f"secondary_index:{column}" for column in (*compared, "amount")]
    result = run(spark, indexing(table, BOTH, "record_index", "column_stats", *wanted, **FULL_OPTION))
    assert result.outcome is Outcome.COMPLETED, result.message
    said = capsys.readouterr().out
    assert "index secondary_index_day: full check passed" in said
    assert "index secondary_index_amount: check by timeline only (values of the type of amount cannot be" in said
    # The writer spells them as the builder does, also where a value takes another one's place.
    insert_odd(spark, table, 60_001)
    assert {name: missing(spark, table, f"secondary_index_{name}") for name in compared} == {
        name: [] for name in compared
    }
    insert_odd(spark, table, 61_000, **{"hoodie.metadata.enable": "false"})
    assert [len(missing(spark, table, f"secondary_index_{name}")) for name in compared] == [1, 1, 1]

    assert missing(spark, table, "column_stats") == []
    for file in (table.path / ".hoodie" / "metadata" / "column_stats").iterdir():
        if not file.name.startswith(".hoodie_partition_metadata"):
            file.unlink()
    assert len(missing(spark, table, "column_stats")) == 1


def insert_odd(spark: SparkSession, table: Table, first_id: int, **options: str) -> None:
    """Insert or update orders with what stands for something in the key of a secondary index."""
    number = F.col("id") % 4 + F.lit(first_id % 2)
    days = F.array(*[F.lit(text) for text in ("a$b", "a\\b", None, "\\$", "")])
    orders = new_orders(spark, table, first_id - first_id % 2, 20).withColumns(
        {
            "day": F.element_at(days, number.cast("int") + 1),
            "due": F.when(number > 0, F.date_add(F.lit("2026-01-01"), number.cast("int"))),
            "seen": F.when(number > 0, F.timestamp_millis(number * 1234567)),
        }
    )
    settings = lake_writer.write_options(table.written, 1, None, {**STREAMING_OFF, **options})
    orders.write.format("hudi").options(**settings).mode("append").save(str(table.path))


class Readings:
    """What is found in the files that list a table's indexes, read again and again: Hudi's readers take no lock."""

    def __init__(self, table: Table) -> None:
        self.damaged: list[str] = []
        self.count = 0
        self._meta = table.path / ".hoodie"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _read(self) -> None:
        definitions = self._meta / ".index_defs" / "index.json"
        while not self._stop.wait(0.002):
            self._check_whole(self._meta / "hoodie.properties", "hoodie.table.checksum=")
            # Before the first index with a definition there is none.
            if definitions.exists():
                self._check_whole(definitions, "\n}")
            self.count += 1

    def _check_whole(self, file: Path, part: str) -> None:
        try:
            text = file.read_text()
        except FileNotFoundError:
            text = "absent"
        if part not in text:
            self.damaged.append(f"{file.name}: {text}")


@contextmanager
def never_half_written(table: Table) -> Iterator[Readings]:
    readings = Readings(table)
    try:
        yield readings
    finally:
        readings.stop()


def begin_write(spark: SparkSession, table: Table) -> str:
    """Begin a commit with Hudi's own client and leave it at that; its heartbeat is young."""
    settings = lake_writer.write_options(table.written, 3, None, STREAMING_OFF)
    with open_client(spark, str(table.path), settings, {}) as client:
        return str(client.startCommit())


def make_old(file: Path, age_s: float = 600) -> None:
    then = time.time() - age_s
    os.utime(file, (then, then))


AWKWARD = """
    select * from values
    ('1', 'a', double('-0.0'), double('NaN'), float('0.0'), '', repeat('x', 5000), cast(null as string), 'ÿ',
     bigint('-9223372036854775808'), decimal('-0.00'), timestamp'1969-12-31 23:59:59.999999', date'1969-12-31', X'00'),
    ('2', 'a', double('0.0'), double('1.5'), float('-0.0'), ' ', repeat('y', 70000), cast(null as string), '\U0001f600',
     bigint('9223372036854775807'), decimal('123.45'), timestamp'2026-11-21 10:00:00', date'9999-12-31', X'ff'),
    ('3', 'b', double('Infinity'), cast(null as double), cast(null as float), 'a$b', 'short', cast(null as string),
     '\uffee', bigint('0'), decimal('7.00'), timestamp'2026-11-21 10:00:00', date'2026-11-21', X'')
    as t(id, city, zero, odd, small, word, long, nothing, sign, big, price, moment, day, raw)
"""


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_strange_values_are_no_damage_and_statistics_that_hide_rows_are_not_listed(
    spark: SparkSession, make_table: MakeTable, type: str
) -> None:
    """Zeros with a sign, numbers that are none, long and strange texts, bounds of each type."""
    table = make_table(type=type)
    shutil.rmtree(table.path)
    settings = lake_writer.write_options(table.written, 0, None, {}) | {
        "hoodie.datasource.write.partitionpath.field": "city",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.table.ordering.fields": "big",
        "hoodie.datasource.write.precombine.field": "big",
    }
    values = spark.sql(AWKWARD)
    values.write.format("hudi").options(**settings).mode("append").save(str(table.path))
    values.where("id <> '2'").write.format("hudi").options(**settings).mode("append").save(str(table.path))
    names = [name for name in values.columns if name not in {"city", "raw"}]
    # Of these Hudi keeps wrong bounds, and readers would skip files that have what they search for.
    for check_level in ("cheap", "full"):
        refused = run(spark, indexing(table, BOTH, f"column_stats:{','.join(names)}", lake__index__check=check_level))
        assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
        assert "column statistics of long, odd would make readers miss rows" in refused.message
        assert (complete(table) & {"column_stats"}, half_built(table), plans(table)) == (set(), "", set())
    names = [name for name in names if name not in {"long", "odd"}]
    for index in (f"column_stats:{','.join(names)}", "record_index", "bloom_filters", "secondary_index:word"):
        result = run(spark, indexing(table, BOTH, index, **FULL_OPTION))
        assert result.outcome is Outcome.COMPLETED, result.message
    searches = ("zero = 0.0", "zero > 5", "odd > 1", "long > 'w'", "small = 0.0", "word = ''", "big > 5", "price > 7")
    for search in searches:
        found = [
            spark.read.format("hudi").options(**options).load(str(table.path)).where(search).select("id").collect()
            for options in ({"hoodie.enable.data.skipping": "true"}, {"hoodie.metadata.enable": "false"})
        ]
        assert sorted(found[0]) == sorted(found[1]) != [], search

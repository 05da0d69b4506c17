"""Builders as they run in production, processes of their own: stopped and killed while a writer goes on.

`LAKE_INDEX_KILLS` is the number of kills next to each kind of writer, one stage of the build after the other;
`LAKE_INDEX_SEED` is what the pause between stage and kill is drawn from.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, run
from paused_writers import STREAMING_OFF, insert, start_paused_writer, wait_until
from test_expression_catch_up_on_hudi import BY_SECOND, IN_TASKS, assert_skips_nothing
from test_indexing_on_hudi import complete, found_by_key, found_by_keys, half_built, indexing, make_old, missing, plans
from test_real_processes import _family, _kill_family, submit  # noqa: F401 - a fixture
from test_secondary_catch_up_on_hudi import assert_finds_everything

from airflow_lake_provider.indexing.index_spec import parse_index
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("LAKE_INDEX_KILLS", "1"))
SEED = int(os.environ.get("LAKE_INDEX_SEED", "1"))
INDEXES = ("record_index", "column_stats")
LONGEST_PAUSE_S = 1.0
"""About how long a stage takes."""
STREAMING = {"hoodie.metadata.streaming.write.enabled": "true"}
BOTH = Mode.SCHEDULE_AND_EXECUTE
# Many file groups take long to make and to write.
MANY_GROUPS = {"hoodie__metadata__global__record__level__index__min__filegroup__count": "30"}
Submit = Callable[[JobRequest], "subprocess.Popen[str]"]


class GoingOn:
    """A writer that inserts one commit after the other until it is asked to stop."""

    def __init__(self, spark: SparkSession, table: Table, options: Mapping[str, str]) -> None:
        self.first_ids: list[int] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(spark, table, options), daemon=True)
        self._thread.start()

    def _write(self, spark: SparkSession, table: Table, options: Mapping[str, str]) -> None:
        first_id = 100_000
        while not self._stop.is_set():
            try:
                insert(spark, table, first_id, **options)
            except Exception as error:  # noqa: BLE001 - handed to the test
                self.error = error
                return
            self.first_ids.append(first_id)
            first_id += 100
            self._stop.wait(0.5)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=240)
        assert not self._thread.is_alive(), "the writer hangs"
        assert self.error is None, str(self.error)


@contextmanager
def going_on(spark: SparkSession, table: Table, options: Mapping[str, str]) -> Iterator[GoingOn]:
    writer = GoingOn(spark, table, options)
    try:
        yield writer
    finally:
        writer.stop()


class Build:
    """What storage shows of the first index that a builder begins."""

    def __init__(self, table: Table, *indexes: str) -> None:
        self.table = table
        self.indexes = indexes
        """Their folders in the metadata table."""
        self.metadata = table.path / ".hoodie" / "metadata"
        self.plan = ""
        """The plan that is begun; one that writers overtook is replaced before."""

    def is_begun(self) -> bool:
        files = self.table.files()
        self.plan = self.plan or next((plan for plan in plans(self.table) if f"{plan}.indexing.inflight" in files), "")
        return bool(self.plan)

    def has_file_groups(self) -> bool:
        return self.is_begun() and any((self.metadata / index).is_dir() for index in self.indexes)

    def is_requested(self) -> bool:
        return self.is_begun() and f"{self.plan}.deltacommit.requested" in self._written()

    def is_writing(self) -> bool:
        return self.is_begun() and f"{self.plan}.deltacommit.inflight" in self._written()

    def is_written(self) -> bool:
        own = {name for name in self._written() if name.startswith(f"{self.plan}_")}
        return self.is_begun() and any(name.endswith(".deltacommit") for name in own)

    def is_catching_up(self) -> bool:
        """Whether a delta commit is begun that is neither the build's nor a writer's."""
        written = self._written()
        begun = {name.split(".")[0] for name in written if name.endswith(".deltacommit.requested")}
        ended = {name.split("_")[0] for name in written if name.endswith(".deltacommit") and "_" in name}
        known = {name.split(".")[0].split("_")[0] for name in self.table.files()}
        return self.is_begun() and bool(begun - ended - known)

    def is_listed(self) -> bool:
        # Hudi rewrites hoodie.properties in place: for a moment it is not there.
        with suppress(FileNotFoundError):
            return self.is_begun() and bool(complete(self.table) & set(self.indexes))
        return False

    def is_followed(self) -> bool:
        """Whether the second index is planned."""
        return self.is_begun() and bool(plans(self.table) - {self.plan})

    def _written(self) -> set[str]:
        return set(os.listdir(self.metadata / ".hoodie" / "timeline"))


STAGES: tuple[Callable[[Build], bool], ...] = (
    Build.is_begun,
    Build.has_file_groups,
    Build.is_requested,
    Build.is_writing,
    Build.is_written,
    Build.is_listed,
    Build.is_followed,
)


STAGES_NEXT_TO_STREAMING = (*STAGES, Build.is_catching_up)
"""Writers that stream do not update an index that is being built: its builder does it for them."""


@pytest.mark.soak
@pytest.mark.parametrize(
    "options", [pytest.param(STREAMING_OFF, id="at-commit"), pytest.param(STREAMING, id="streaming")]
)
@pytest.mark.parametrize("kill", range(max(KILLS, 1)))
def test_killed_builder_is_followed_by_one_that_completes(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
    kill: int,
    options: Mapping[str, str],
) -> None:
    stages = STAGES_NEXT_TO_STREAMING if options is STREAMING else STAGES
    stage = stages[(SEED - 1 + kill) % len(stages)]
    # Every other kill at once: a stage may be over within a pause.
    pause_s = random.Random(SEED * 1000 + kill).uniform(0, LONGEST_PAUSE_S) if kill // len(stages) % 2 else 0.0
    killed = f"killed {pause_s:.1f} s after {stage.__name__}"
    table = make_table(type="MOR" if kill % 2 == 0 else "COW", **options)
    request = indexing(table, BOTH, *INDEXES, lake__index__check="full")
    builder = submit(request)
    wait_until(lambda: bool(plans(table)) or builder.poll() is not None, "the plan")
    build = Build(table, *INDEXES)
    with going_on(spark, table, options) as writer:
        wait_until(lambda: stage(build) or builder.poll() is not None, stage.__name__, timeout_s=300)
        assert builder.poll() is None, "the builder ended"
        time.sleep(pause_s)
        _kill_family(builder.pid)
        builder.wait()
        expire_what_the_dead_left(table)
        result = run(spark, request)
        assert result.outcome is not Outcome.FAILED, f"{killed}: {result.message}"
        wait_until(lambda: len(writer.first_ids) > 1 or writer.error is not None, "two commits")
    assert (complete(table), plans(table)) == ({"files", *INDEXES}, set())
    for index in INDEXES:
        assert missing(spark, table, index) == [], killed
    everything = spark.read.format("hudi").load(str(table.path))
    without = spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(str(table.path))
    written = [first_id + number for first_id in writer.first_ids for number in range(20)]
    assert found_by_keys(spark, table, written[3::20]) == len(writer.first_ids)
    assert without.where(f"id between {written[0]} and {written[-1]}").count() == len(written)
    assert everything.count() == without.count()


@pytest.mark.soak
@pytest.mark.parametrize("stage", [Build.has_file_groups, Build.is_written, Build.is_catching_up, Build.is_listed])
@pytest.mark.parametrize("index", ["secondary_index:customer", BY_SECOND])
def test_killed_builder_of_an_index_that_only_it_catches_up_is_followed_by_one_that_completes(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
    index: str,
    stage: Callable[[Build], bool],
) -> None:
    options, partition = STREAMING | IN_TASKS, parse_index(index).partition
    table = make_table(**options)
    assert run(spark, indexing(table, BOTH, "record_index")).outcome is Outcome.COMPLETED
    request = indexing(table, BOTH, index, lake__index__check="full")
    builder, build = submit(request), Build(table, partition)
    with going_on(spark, table, options) as writer:
        wait_until(lambda: stage(build) or builder.poll() is not None, stage.__name__, timeout_s=300)
        assert builder.poll() is None, "the builder ended"
        _kill_family(builder.pid)
        builder.wait()
        expire_what_the_dead_left(table)
        result = run(spark, request)
        assert result.outcome is not Outcome.FAILED, result.message
        wait_until(lambda: len(writer.first_ids) > 1 or writer.error is not None, "two commits")
    assert (complete(table), plans(table)) == ({"files", "record_index", partition}, set())
    # One new order of each customer in each commit.
    if index == BY_SECOND:
        assert_skips_nothing(spark, table, (3, 17, 300))
    else:
        assert_finds_everything(spark, table, (3, 17, 300))


@pytest.mark.parametrize(
    ("options", "is_announced"),
    [
        pytest.param(STREAMING_OFF, False, id="before-it-is-announced"),
        # Next to writers that stream, no build is announced before it is complete.
        pytest.param(STREAMING, False, id="next-to-writers-that-stream", marks=pytest.mark.soak),
        pytest.param(STREAMING_OFF, True, id="after-it-was-announced", marks=pytest.mark.soak),
    ],
)
def test_writers_go_on_after_a_builder_that_died_when_it_had_made_file_groups(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
    options: Mapping[str, str],
    is_announced: bool,
) -> None:
    table = make_table(**options)
    request = indexing(table, BOTH, "record_index", **MANY_GROUPS)
    builder = submit(request)
    metadata = table.path / ".hoodie" / "metadata"
    if is_announced:
        # Hudi's rollback sees a folder from the first task on that has written to it.
        written = metadata / "record_index" / ".hoodie_partition_metadata"
        stop_when(builder, lambda: written.exists() and half_built(table) == "record_index" and not has_lock(table))
    else:
        stop_when(builder, (metadata / "record_index").is_dir)
    (instant,) = plans(table)
    assert half_built(table) == ("record_index" if is_announced else "")
    begun = metadata / ".hoodie" / "timeline" / f"{instant}.deltacommit.requested"
    assert begun.exists() == is_announced
    _kill_family(builder.pid)
    builder.wait()
    expire_what_the_dead_left(table)
    if is_announced:
        # Now a writer may roll back what the builder had begun in the metadata table.
        make_old(metadata / ".hoodie" / ".heartbeat" / instant)
    for first_id in (70_000, 71_000, 72_000):
        insert(spark, table, first_id, **options)
    if is_announced:
        assert not begun.exists(), "no writer rolled it back"
    result = run(spark, request)
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert not list((metadata / "record_index").glob("*.log.1_0-0-7"))
    insert(spark, table, 80_000, **options)
    assert (complete(table), half_built(table), plans(table)) == ({"files", "record_index"}, "", set())
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


@pytest.mark.soak
def test_compaction_of_the_metadata_table_that_hides_a_build_makes_it_begin_anew(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
    tmp_path: Path,
) -> None:
    table = make_table(**STREAMING_OFF)
    # Older than the plan: as its entries are, a compaction may take them up before the build's are committed.
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **STREAMING_OFF)
    # It takes longer than the build waits for it.
    settings = {**MANY_GROUPS, "lake__index__check": "full", "lake__index__wait_s": "1"}
    builder = submit(indexing(table, BOTH, "record_index", **settings))
    stop_when(builder, lambda: half_built(table) == "record_index" and not has_lock(table))
    writer.finish()
    insert(spark, table, 71_000, **STREAMING_OFF, **{"hoodie.metadata.compact.max.delta.commits": "1"})
    assert list((table.path / ".hoodie" / "metadata" / "record_index").glob("*.hfile"))
    signal_family(builder, signal.SIGCONT)
    output, _ = builder.communicate(timeout=240)
    assert builder.returncode == 0, output
    # The first try would have been declared complete without the rows of before.
    said = ("is older than the plan", "begins concurrently", "compactions of the metadata table", "begins alone")
    assert [text for text in said if text in output] == list(said)
    assert (complete(table), plans(table)) == ({"files", "record_index"}, set())
    assert missing(spark, table) == []
    keys = [3, *range(70_000, 70_020), *range(71_000, 71_020)]
    assert found_by_keys(spark, table, keys) == len(keys)


@pytest.mark.soak
def test_writer_commits_while_the_builder_stands_still_half_way(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
) -> None:
    table = make_table(**STREAMING_OFF)
    builder = submit(indexing(table, BOTH, "record_index", **MANY_GROUPS))
    stop_when(builder, lambda: half_built(table) == "record_index" and not has_lock(table))
    # From its announcement on, the index is every writer's business: none waits, and none fails.
    for first_id in (70_000, 71_000):
        insert(spark, table, first_id, **STREAMING_OFF)
    (instant,) = plans(table)
    signal_family(builder, signal.SIGCONT)
    output, _ = builder.communicate(timeout=240)
    assert builder.returncode == 0, output
    assert "begins concurrently" in output
    assert instant in table.completed("indexing")
    insert(spark, table, 80_000, **STREAMING_OFF)
    assert complete(table) == {"files", "record_index"}
    assert missing(spark, table) == []
    assert [found_by_key(spark, table, key) for key in (70_003, 71_003, 80_003)] == [1, 1, 1]


def stop_when(builder: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Let a builder and its helpers stand still as soon as something holds."""
    deadline = time.monotonic() + 180
    while True:
        # Hudi rewrites hoodie.properties in place: for a moment it is not there.
        with suppress(FileNotFoundError):
            if holds():
                break
        assert builder.poll() is None, "the builder ended"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    signal_family(builder, signal.SIGSTOP)


def signal_family(builder: subprocess.Popen[str], number: signal.Signals) -> None:
    for member in _family(builder.pid):
        # Spark's helpers come and go.
        with suppress(ProcessLookupError):
            os.kill(member, number)


def has_lock(table: Table) -> bool:
    return (table.path / ".hoodie" / "lock").exists()


def expire_what_the_dead_left(table: Table) -> None:
    """Do what waiting does: the killed builder's heartbeat and lock expire."""
    lock = table.path / ".hoodie" / "lock"
    for _ in range(60):
        if not lock.exists() or time.time() - _modified_s(lock) > 15:
            break
        time.sleep(0.5)
    if lock.exists() and time.time() - _modified_s(lock) > 15:
        lock.unlink(missing_ok=True)
    for plan in plans(table):
        heartbeat = table.path / ".hoodie" / ".heartbeat" / plan
        if heartbeat.exists():
            make_old(heartbeat)
        else:
            # Killed before its first beat: an inflight file of it cannot be there either.
            assert f"{plan}.indexing.inflight" not in table.files()


def _modified_s(path: os.PathLike[str]) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return time.time()

"""A running clustering gives way to a stock writer: stopped, withdrawn, and run again when the writer has committed.

A user's pre-flight task waits for the same writer meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.airflow import LocalAirflow
from local_stack.processes import pause, wait_until
from local_stack.writer_process import StandingWriter
from tests.support.whole_airflow import find_spark_submit, trigger
from tests.system.conftest import LOCK_OPTIONS, make_airflow

pytestmark = pytest.mark.system

RUN, SENSOR_DAG = "watched", "wait_for_free_partitions"
PATIENCE_S = 300.0
"""For a machine that is busy with others' work; alone it takes seconds."""
COMMITS = 3
"""In quick succession, so that the table's commit interval is some seconds, and nothing is expected when it pauses."""
TABLE: dict[str, Any] = {"name": "orders", "type": "COW", "version": 9, "keys": 100_000, "rows": 400}
# The writer may begin although a clustering of its file groups is pending; without it Hudi fails it at once.
ALLOW_UPDATES = {
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
}


@pytest.fixture
def airflow() -> Iterator[LocalAirflow]:
    # The plan is the run's alone: the manager would execute what it takes for left behind.
    airflow = make_airflow("conflict-watch", more_tables="  - name: orders\n    clustering: {enabled: false}\n")
    airflow.settings |= {"AIRFLOW__LAKE__RETRY_DELAY_S": "1"}
    airflow.more_dags = {"users": Path(__file__).parent / "dags"}
    try:
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StandingWriter]:
    writer = StandingWriter(tmp_path / "writer")
    yield writer
    writer.stop()


class HeldCommit:
    """A commit in flight that cannot be completed: it has a lock of its own, and the test takes that away from it."""

    def __init__(self, writer: StandingWriter, table: Path, folder: Path) -> None:
        folder.mkdir()
        self._lock = folder / "lock"
        self._pool = ThreadPoolExecutor(1)
        options = ALLOW_UPDATES | {
            "hoodie.write.lock.filesystem.path": str(folder),
            "hoodie.write.lock.filesystem.expire": "0",
            "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
            "hoodie.write.lock.client.num_retries": "3000",
        }
        fields = {**TABLE, "base_path": str(table)}
        before = set(table.glob(".hoodie/timeline/*.commit.requested"))
        self.seconds: Future[float] = self._pool.submit(writer.write, fields, COMMITS, None, options)
        wait_until(
            lambda: self.seconds.done() or set(table.glob(".hoodie/timeline/*.commit.requested")) > before,
            PATIENCE_S,
            "the writer's instant",
        )
        (requested,) = set(table.glob(".hoodie/timeline/*.commit.requested")) - before
        self.instant = requested.name.partition(".")[0]
        # With the profile in its inflight file the writer goes to work, and takes its lock again only to commit.
        inflight = requested.with_suffix(".inflight").with_name(f"{self.instant}.inflight")
        wait_until(lambda: self.seconds.done() or has_content(inflight), PATIENCE_S, "the writer's work")
        wait_until(lambda: self.seconds.done() or self._take(), PATIENCE_S, "the writer's lock")
        assert not self.seconds.done(), "the writer committed before its lock was taken"

    def release(self) -> None:
        """Let it commit; raises WriterFailedError with Hudi's complaint when it is rejected."""
        self._lock.unlink()
        self.seconds.result(timeout=PATIENCE_S)
        self._pool.shutdown()

    def _take(self) -> bool:
        try:
            self._lock.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


@pytest.mark.soak(covered_by="tests/integration/airflow/test_gives_way.py")
def test_clustering_is_stopped_and_withdrawn_for_a_writer_and_runs_when_it_has_committed(
    writer: StandingWriter, airflow: LocalAirflow, tmp_path: Path
) -> None:
    table = airflow.allowed_roots[0] / TABLE["name"]
    timeline = table / ".hoodie" / "timeline"
    with ThreadPoolExecutor(1) as pool:
        # Spark starts and writes while Airflow starts.
        written = pool.submit(write_commits, writer, table)
        airflow.start()
        airflow.wait_for_dags()
        written.result(timeout=PATIENCE_S)
    airflow.pause("lake_watch")  # its runs have nothing to do here

    conflict = {"period_s": "0.5", "initial_delay_s": "0.1"}
    conf: dict[str, Any] = {"base_path": str(table), "table_name": TABLE["name"], "service": "clustering"}
    # How often it has to wait for the writer, and then until no write is expected, is up to the machine.
    trigger(airflow, RUN, hudi_options=LOCK_OPTIONS, conflict=conflict, retries=1000, **conf)
    begun = wait_for(lambda: list(timeline.glob("*.clustering.inflight")), "the clustering", airflow)
    plan = begun[0].name.partition(".")[0]
    # With markers it writes, and holds no lock that would outlive it.
    wait_for((table / ".hoodie" / ".temp" / plan).exists, "the clustering's markers", airflow)
    pause(find_spark_submit(f"lake-clustering-{table_id_of(str(table))}"))
    assert not list(timeline.glob("*.replacecommit")), "the clustering was over before it was stopped"

    held = HeldCommit(writer, table, tmp_path / "lock")
    trigger(airflow, RUN, dag_id=SENSOR_DAG, base_path=str(table))
    wait_for(lambda: not list(timeline.glob(f"{plan}.*")), "the plan's withdrawal", airflow)
    assert not list(timeline.glob("*.replacecommit"))
    wait_for(lambda: state_of_sensor(airflow) == "deferred", "the pre-flight task's deferral", airflow)
    held.release()
    assert list(timeline.glob(f"{held.instant}_*.commit"))

    stopped = rf"clustering {plan} is stopped after [^\"]+"
    said = wait_for(lambda: said_in_logs(airflow, stopped), "the end of the try", airflow)
    assert f"commit {held.instant} plans to rewrite" in said or f"commit {held.instant} is writing" in said
    assert re.search(r" \d file groups?: [A-Z][a-z]+/[0-9a-f-]{36}", said), said
    assert re.search(r"where it would lose \d+ s of work", said), said
    wait_for(lambda: list(timeline.glob("*.replacecommit")), "the clustering of the next try", airflow)
    wait_for(lambda: state_of(airflow) == "success", "the run's success", airflow)
    wait_for(lambda: state_of_sensor(airflow) == "success", "the pre-flight task's end", airflow)
    plans = {path.name.partition(".")[0] for path in timeline.glob("*.clustering.requested")}
    assert plans == {path.name.partition("_")[0] for path in timeline.glob("*.replacecommit")}
    assert len(plans - {plan}) == len(plans) == 1
    read = writer.read(table)
    expected = TABLE["keys"] + COMMITS * (TABLE["rows"] // 10)
    assert (read["rows"], read["ids"]) == (expected, expected)


def write_commits(writer: StandingWriter, table: Path) -> None:
    writer.wait_until_ready()
    for commit in range(COMMITS):
        writer.write({**TABLE, "base_path": str(table)}, commit)


def wait_for(read: Callable[[], Any], what: str, airflow: LocalAirflow) -> Any:
    """Wait until there is something to see, and return it."""
    seen: list[Any] = []

    def ready() -> bool:
        seen[:] = [read()]
        return bool(seen[0])

    airflow.wait_until(ready, PATIENCE_S, what)
    return seen[0]


def said_in_logs(airflow: LocalAirflow, pattern: str) -> str:
    """Return what the run's tries said, one line for each match."""
    logs = sorted((airflow.home / "logs").glob(f"dag_id=*/run_id={RUN}/**/*.log"))
    return "\n".join(found for log in logs for found in re.findall(pattern, log.read_text(encoding="utf-8")))


def state_of_sensor(airflow: LocalAirflow) -> str:
    path = f"/api/v2/dags/{SENSOR_DAG}/dagRuns/{RUN}/taskInstances/wait"
    return str((airflow.airflow_get(path) or {}).get("state"))


def state_of(airflow: LocalAirflow) -> str:
    return next((str(run["state"]) for run in airflow.service_runs() if run["dag_run_id"] == RUN), "")

"""G2 with real processes: workers killed and paused while their job runs on a real standalone cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import hudi_bundle
from local_stack.processes import pause, resume
from local_stack.spark_cluster import LocalSparkCluster
from tests.integration.engines.lease_server import serve_leases
from tests.integration.engines.stage import PLAIN_CONF, Stage

pytestmark = pytest.mark.integration

LEASE_S = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSparkCluster]:
    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    cluster = LocalSparkCluster(tmp_path_factory.mktemp("spark"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, cluster: LocalSparkCluster) -> Iterator[Stage]:
    with serve_leases(LEASE_S) as manager_url:
        stage = Stage(tmp_path_factory.mktemp("stage"), manager_url, cluster.master)
        try:
            stage.write_table()
            yield stage
        finally:
            stage.close()


def find_markers(stage: Stage) -> list[Path]:
    """Return the folders of base files that are being written."""
    return [path for path in (stage.table / ".hoodie" / ".temp").glob("*/*") if path.exists()]


def test_worker_killed_then_worker_paused_and_still_the_plan_has_one_executor(
    stage: Stage, cluster: LocalSparkCluster
) -> None:
    # Killed in the middle: executors write base files, and no process is notified.
    killed = stage.start_task("first")
    deadline = time.monotonic() + 240
    while not find_markers(stage):
        assert killed.alive(), killed.log_tail(60)
        assert time.monotonic() < deadline
        time.sleep(0.002)
    # A completion takes the table's lock: on a busy machine the driver would complete before it ends with its worker.
    lock = stage.table / ".hoodie" / "lock"
    lock.touch()
    (plan,) = [name.split(".")[0] for name in stage.timeline() if name.endswith(".compaction.requested")]
    os.kill(killed.process.pid, signal.SIGKILL)
    lease_ends = time.monotonic() + LEASE_S
    assert stage.drivers("first")
    stage.wait_until(lambda: not stage.drivers("first"), "the driver ends with its worker", 30)
    stage.wait_until(lambda: not cluster.applications(), "the cluster lets its executors go", 60)
    lock.unlink()
    assert not [name for name in stage.timeline() if name.startswith(plan) and name.endswith(".commit")]

    time.sleep(max(0.0, lease_ends - time.monotonic()))

    # Paused, as a virtual machine is: it neither renews its lease nor ends its driver, which waits for the lock.
    paused = stage.start_task("first", 2)
    stage.wait_until(lambda: bool(stage.drivers("first", 2)) or not paused.alive(), "the second try's driver")
    lock.touch()
    stage.wait_until(
        lambda: "pending" in paused.log_path.read_text(encoding="utf-8") or not paused.alive(), "the driver at work"
    )
    assert paused.alive(), paused.log_tail(60)
    pause(paused.process.pid)
    time.sleep(LEASE_S + 1)
    assert stage.drivers("first", 2), "the paused worker's driver lives on, so the next try must end it"

    # Another run takes the lease over: never do both drivers live.
    other = stage.start_task("second")
    while not stage.drivers("second"):
        os.utime(lock)
        assert other.alive(), other.log_tail(60)
        time.sleep(0.01)
    assert stage.drivers("first", 2) == []
    lock.unlink(missing_ok=True)
    returned = stage.wait_for_task(other)
    assert returned["outcome"] == "completed"
    assert returned["completed_instants"] == [plan]
    assert sum(name.startswith(plan) and name.endswith(".commit") for name in stage.timeline()) == 1
    assert stage.result("second").spark_application_id.startswith("app-"), "it ran on the cluster"

    # Awake again, it finds its driver dead and its lease gone.
    resume(paused.process.pid)
    paused.process.wait(timeout=60)
    assert "RETURNED {" not in paused.log_path.read_text(encoding="utf-8")


def test_tiny_table_is_served_in_process(stage: Stage) -> None:
    # A session that a process of Python opens has a class path already.
    tiny = {"engine": "in-process", "spark_conf": PLAIN_CONF}
    task = stage.start_task("tiny", service="compaction", mode="schedule_and_execute", **tiny)
    # Python and its JVM: both are found, so both can be ended.
    stage.wait_until(lambda: len(stage.drivers("tiny")) >= 2 or not task.alive(), "the driver with its JVM")
    assert task.alive(), task.log_tail(60)
    assert stage.wait_for_task(task)["outcome"] in {"completed", "nothing_to_do"}
    assert stage.result("tiny").spark_application_id.startswith("local-")
    assert not stage.drivers("tiny")

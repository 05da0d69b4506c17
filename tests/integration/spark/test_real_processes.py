"""Jobs and writers as they run in production: processes of their own, started by spark-submit, killed for real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, ROOT, SPARK_JOBS, MakeTable, Table, rows, rows_written, run

from airflow_lake_provider.execution.engines.local_process import kill_marked
from airflow_lake_provider.execution.engines.packaging import find_package
from airflow_lake_provider.job_contract import (
    EXIT_NO_CLUSTER,
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    Submitter,
    from_json,
    to_json,
)
from lake_jobs.driver.shutdown import LOCK_TIMEOUT_S
from local_stack import hudi_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

PATIENCE_S = 120.0


@pytest.fixture
def submit(tmp_path: Path, spark: SparkSession) -> Iterator[Callable[[JobRequest], subprocess.Popen[str]]]:
    """Return a function that starts a job through spark-submit; `spark` makes it skip where Hudi is missing."""

    started: list[subprocess.Popen[str]] = []

    def start(
        request: JobRequest, jar: Path = hudi_bundle.JAR, master: str = "local[1]", *conf: str, is_plain: bool = False
    ) -> subprocess.Popen[str]:
        """`is_plain`: with the jar where users have it, and none of its classes archived."""
        quick = {} if is_plain or jar != hudi_bundle.JAR else hudi_bundle.quick_conf()
        request_path = tmp_path / "jobs of today" / "request.json"
        request_path.parent.mkdir(exist_ok=True)
        request_path.write_text(to_json(request), encoding="utf-8")
        env = hudi_bundle.spark_env()
        # Only the delivered files may be found, not this checkout.
        env.pop("PYTHONPATH", None)
        # Only YARN reads what lies there.
        env["HADOOP_CONF_DIR"] = str(tmp_path)
        command = [f"{env['SPARK_HOME']}/bin/spark-submit", "--master", master, "--driver-memory", "1g"]
        settings = (*conf, *(f"{key}={value}" for key, value in quick.items()))
        command += [part for setting in settings for part in ("--conf", setting)]
        command += ["--name", "lake-test", "--jars", str(jar), "--py-files", str(find_package())]
        command += ["--conf", "spark.ui.enabled=false", str(SPARK_JOBS / "run_services.py"), str(request_path)]
        started.append(
            subprocess.Popen(
                command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            _kill_family(process.pid)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def result_of(request: JobRequest) -> JobResult:
    with open(request.result_path, encoding="utf-8") as stream:
        return from_json(JobResult, stream.read())


def wait_for(ready: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S, interval_s: float = 0.01) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(interval_s)


@pytest.mark.soak(covered_by="tests/unit/spark_jobs/test_failure_kind.py")
@pytest.mark.parametrize(
    ("master", "conf"),
    [
        pytest.param("spark://127.0.0.1:9", (), id="standalone-master"),
        pytest.param(
            "yarn",
            (
                "spark.hadoop.yarn.resourcemanager.address=127.0.0.1:9",
                "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms=2000",
                "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms=500",
                "spark.hadoop.ipc.client.connect.max.retries=1",
            ),
            id="resource-manager",
        ),
    ],
)
def test_driver_whose_cluster_is_away_says_so_by_its_exit_code(
    submit: Callable[..., subprocess.Popen[str]], tmp_path: Path, master: str, conf: tuple[str, ...]
) -> None:
    """Spark itself waits for a standalone master for a minute."""
    request = JobRequest("run/1", "/nowhere", "orders", (), str(tmp_path / "result.json"))
    process = submit(request, hudi_bundle.JAR, master, *conf)
    output, _ = process.communicate(timeout=PATIENCE_S * 2)
    assert process.returncode == EXIT_NO_CLUSTER, output
    assert "lake: Spark's cluster does not answer" in output


def test_whole_job_through_spark_submit(
    spark: SparkSession, make_table: MakeTable, submit: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    table = make_table("orders $(id); ß")
    before = rows(spark, table)
    request = replace(
        table.request(Mode.SCHEDULE_AND_EXECUTE), result_path=f"file://{tmp_path}/results/first try/result.json"
    )
    process = submit(request, is_plain=True)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output

    result = result_of(replace(request, result_path=request.result_path.removeprefix("file://")))
    assert result.job_id == request.job_id
    assert result.spark_application_id.startswith("local-")
    (service,) = result.services
    assert service.outcome is Outcome.COMPLETED
    assert service.started_at < service.ended_at
    assert set(service.completed_instants) == table.completed()
    assert rows(spark, table) == before
    assert f"compaction {service.completed_instants[0]} completed in" in output
    # The task log is for people: ours, and no INFO flood.
    assert " INFO Hoodie" not in output
    assert list((tmp_path / "results" / "first try").iterdir()) == [tmp_path / "results" / "first try" / "result.json"]


def test_failed_service_gives_a_result_and_exit_code_1(
    make_table: MakeTable, submit: Callable[[JobRequest], subprocess.Popen[str]]
) -> None:
    request = make_table().request(Mode.SCHEDULE, options={})
    process = submit(request)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "hoodie.write.lock.provider" in result_of(request).services[0].message
    assert "hoodie.write.lock.provider" in output


@pytest.mark.parametrize(
    ("service", "version", "completes_as"),
    [
        (Service.COMPACTION, 9, "commit"),
        pytest.param(Service.COMPACTION, 6, "commit", marks=pytest.mark.soak),
        pytest.param(Service.CLUSTERING, 9, "replacecommit", marks=pytest.mark.soak),
    ],
)
def test_plan_killed_in_the_middle_is_completed_by_the_retry(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Callable[[JobRequest], subprocess.Popen[str]],
    service: Service,
    version: int,
    completes_as: str,
) -> None:
    table = make_table(version=version)
    before = rows(spark, table)
    (instant,) = run(spark, table.request(Mode.SCHEDULE, service=service)).scheduled_instants
    markers = table.path / ".hoodie" / ".temp" / instant
    request = table.request(Mode.SCHEDULE_AND_EXECUTE, service=service)

    process = submit(request)
    # The first marker stands for the first base file that is being written.
    wait_for(lambda: markers.exists() or process.poll() is not None, "files being written", interval_s=0.001)
    _kill_family(process.pid)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    assert f"{instant}.{service}.inflight" in table.files()
    assert table.completed(completes_as) == set()
    assert not os.path.exists(request.result_path)

    # No process can know yet that the executor is dead.
    early = run(spark, request)
    assert (early.outcome, early.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), early.message
    _age_heartbeat(table, instant)
    retry = run(spark, request)
    assert (retry.outcome, retry.completed_instants) == (Outcome.COMPLETED, (instant,)), retry.message
    assert retry.scheduled_instants == ()
    assert table.completed(completes_as) == {instant}
    assert rows(spark, table) == before


def test_driver_ends_with_its_submitter_even_while_java_blocks(
    make_table: MakeTable, submit: Callable[[JobRequest], subprocess.Popen[str]]
) -> None:
    table = make_table()
    files = table.files()
    # Another process holds the lock indefinitely, so the driver sits in a Java call.
    (table.path / ".hoodie" / "lock").touch()
    options = {**LOCK, "hoodie.write.lock.filesystem.expire": "0", "hoodie.write.lock.client.num_retries": "10000"}
    worker = subprocess.Popen(["sleep", "600"])
    request = replace(
        table.request(Mode.SCHEDULE, options=options),
        submitter=Submitter(socket.gethostname(), worker.pid, _start_ticks(worker.pid)),
    )
    process = submit(request)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "pending none" in line:
            break
    time.sleep(3)
    assert process.poll() is None, "".join(said)
    driver = _family(process.pid)

    worker.kill()
    worker.wait()
    output, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert f"the submitting process {worker.pid}" in output
    # What is left may be a zombie, where no process reaps orphans.
    assert len(driver) >= 2
    assert {_state(pid) for pid in driver} <= {"gone", "Z"}
    assert not os.path.exists(request.result_path)
    assert table.files() == files


def has_begun(lock: Path, process: subprocess.Popen[str]) -> bool:
    return lock.exists() or process.poll() is not None


def test_driver_that_is_ended_while_it_holds_the_lock_leaves_no_lock_file(
    make_table: MakeTable, submit: Callable[[JobRequest], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A lock file that is left stops the writers until it has expired."""
    for attempt in range(3):
        table = make_table(f"orders_{attempt}")
        lock = table.path / ".hoodie" / "lock"
        process = submit(table.request(Mode.SCHEDULE_AND_EXECUTE))
        wait_for(partial(has_begun, lock, process), "the lock", interval_s=0.0005)
        # No other process writes, so it is the driver's.
        assert lock.exists()
        begun_s = time.monotonic()
        kill_marked(str(tmp_path / "jobs of today" / "request.json"))
        took_s = time.monotonic() - begun_s
        output, _ = process.communicate(timeout=30)
        assert "SIGTERM arrived" in output
        if took_s < LOCK_TIMEOUT_S:
            break
    # On a busy machine each hold may last longer than the driver waits: then the file stays, and the driver says so
    # unless its own time is over, too.
    assert not lock.exists() or took_s >= LOCK_TIMEOUT_S, output


@pytest.mark.soak(covered_by="tests/integration/spark/test_planning_next_to_writers_on_hudi.py")
def test_writer_and_compactions_run_at_the_same_time_and_lose_nothing(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table()
    first, more = table.written.commits, 6
    settings = {
        "tables": [
            {
                "name": table.written.name,
                "base_path": str(table.path),
                "first_commit": first,
                "commits": more,
                "keys": table.written.keys,
                "rows": table.written.rows,
                "pause_s": 0,
            }
        ],
        "spark_conf": {"spark.jars": str(hudi_bundle.JAR)},
    }
    settings_path = tmp_path / "writer.json"
    settings_path.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(hudi_bundle.SPARK_PYTHON), str(ROOT / "local_stack" / "lake_writer.py"), str(settings_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    compacted: list[str] = []
    while writer.poll() is None:
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
        assert result.outcome is not Outcome.FAILED, result.message
        compacted += result.completed_instants
        time.sleep(0.5)
    output, errors = writer.communicate()
    assert writer.returncode == 0, errors
    assert [json.loads(line)["commit"] for line in output.splitlines() if line.startswith("{")] == list(
        range(first, first + more)
    )
    assert table.completed() == set(compacted)
    at_once = [
        (compaction, commit)
        for compaction in table.spans("commit")
        for commit in table.spans("deltacommit")
        if compaction[0] < commit[1] and commit[0] < compaction[1]
    ]
    assert at_once, "no compaction ran while a commit was in flight"
    assert rows(spark, table) == rows_written(spark, table.written, first + more)


def _kill_family(pid: int) -> None:
    for member in _family(pid):
        # The driver's Python ends by itself as soon as its JVM is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def _family(pid: int) -> list[int]:
    """Return a process and its children, as process ids."""
    others = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid, *(other for other in others if _stat_fields(other)[1:2] == [str(pid)])]


def _state(pid: int) -> str:
    return (_stat_fields(pid) or ["gone"])[0]


def _start_ticks(pid: int) -> int:
    return int(_stat_fields(pid)[19])


def _stat_fields(pid: int) -> list[str]:
    """Return what follows the command's name in /proc/<pid>/stat: state, parent, ...; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def _age_heartbeat(table: Table, instant: str) -> None:
    """Make an executor's last heartbeat ten minutes old, as waiting for ten minutes does."""
    then = time.time() - 600
    os.utime(table.path / ".hoodie" / ".heartbeat" / instant, (then, then))

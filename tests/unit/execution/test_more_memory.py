"""A try after one that ran out of memory has twice as much, once, on whatever worker it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import Death
from airflow_lake_provider.execution.engines.job_files import JobFolder, write_text
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.execution.more_memory import find_shortage, first_shortage, keep_shortage, with_more_memory
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    JobResult,
    Outcome,
    Service,
    ServiceResult,
    to_json,
)
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from airflow_lake_provider.replication.job import ReplicationResult
from tests.support.tables import HandMadeTable
from tests.support.task_context import as_its_file_says, task_instance

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


def result(kind: FailureKind | None, **memory: str) -> JobResult:
    outcome = Outcome.COMPLETED if kind is None else Outcome.FAILED
    return JobResult("job", (ServiceResult(Service.COMPACTION, outcome, failure_kind=kind),), memory=sizes(**memory))


def sizes(**memory: str) -> dict[str, str]:
    return {f"spark.{who}.memory": size for who, size in memory.items()}


FAILED = result(FailureKind.OUT_OF_MEMORY)


class TaskState(dict[str, Any]):
    """Airflow's store of a task's state, which every try of the task has."""

    set = dict.__setitem__


@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ([], None),
        ([None, result(FailureKind.LOCK)], None),
        ([FAILED, result(FailureKind.LOCK), None], {}),
        ([ReplicationResult("s", True, failure_kind=FailureKind.OUT_OF_MEMORY, memory=sizes(driver="3g"))],
         sizes(driver="3g")),
        ([ReplicationResult("s", True, failure_kind=FailureKind.OTHER, memory=sizes(driver="3g"))], None),
    ],
)  # fmt: skip
def test_any_earlier_try_that_ran_out_of_memory_counts(results: list[Any], answer: dict[str, str] | None) -> None:
    assert first_shortage(results) == answer


def test_memory_of_driver_and_executors_is_doubled_and_other_settings_stay() -> None:
    conf = {"spark.executor.memory": "4g", "spark.x": "1"}
    assert with_more_memory(conf, None) == conf
    assert with_more_memory(conf, {}) == {**sizes(executor="8g", driver="2g"), "spark.x": "1"}
    assert with_more_memory({"spark.driver.memory": "512MB"}, {})["spark.driver.memory"] == "1024M"


def test_memory_of_the_failed_try_is_doubled_wherever_it_was_set_and_once() -> None:
    """Spark's defaults file may say 8g; what this task does not know it must not make smaller."""
    first = result(FailureKind.OUT_OF_MEMORY, driver="8g")
    second = result(FailureKind.OUT_OF_MEMORY, driver="16g", executor="2g")
    shortage = first_shortage([None, first, second])
    assert shortage == first.memory
    assert with_more_memory({}, shortage) == sizes(driver="16g", executor="2g")


def test_memory_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory is 'much'"):
        with_more_memory({"spark.driver.memory": "much"}, {})


class NoAnswer:
    """A store whose server is away."""

    def get(self, _: str) -> Any:
        raise RuntimeError("the API server does not answer")

    def set(self, _: str, __: Any) -> None:
        raise RuntimeError("the API server does not answer")


@pytest.mark.parametrize("store", [None, NoAnswer(), TaskState(), TaskState(lake_out_of_memory="much")])
def test_store_without_an_answer_changes_nothing(tmp_path: Path, store: Any) -> None:
    context: Any = {"task_state_store": store}
    assert find_shortage(context, JobFolder(str(tmp_path), "run", 2), JobResult) is None
    keep_shortage(context, sizes(driver="3g"))


def test_first_try_asks_no_store(tmp_path: Path) -> None:
    state = TaskState(lake_out_of_memory={})
    assert find_shortage({"task_state_store": state}, JobFolder(str(tmp_path), "run", 2), JobResult) == {}  # type: ignore[typeddict-unknown-key]
    assert find_shortage({"task_state_store": state}, JobFolder(str(tmp_path), "run", 1), JobResult) is None  # type: ignore[typeddict-unknown-key]


# --- Three tries, each on a worker with a disk of its own: the first is out of memory, the second as well


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(_: httpx.Request) -> httpx.Response:
        answer = {"completed_time": "5", "changed_time": "4", "identified": False, "generation": 0, "sinks": []}
        return httpx.Response(200, json={**answer, "needs_snapshot": False, "request": ""})

    client = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)


def tries(operator: Any, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = TaskState()
    for number in (1, 2, 3):
        monkeypatch.setenv("AIRFLOW__LAKE__WORK_DIR", str(tmp_path / f"disk{number}"))
        context: Any = {"run_id": run_id, "ti": task_instance(number), "task_state_store": state}
        with pytest.raises(AirflowException, match="memory"):
            operator.execute(context)


@pytest.mark.usefixtures("manager")
def test_service_gets_twice_the_memory_on_a_worker_that_does_not_see_the_first_ones_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_ROOTS", str(tmp_path))
    had: list[Any] = []

    def run(_: Any, __: Any, ___: Any, job: Any, *____: Any) -> tuple[Timeline, JobRequest]:
        had.append(job.conf)
        memory = {**sizes(driver="3g", executor="4g"), **job.conf}
        failed = ServiceResult(Service.COMPACTION, Outcome.FAILED, (), (), FailureKind.OUT_OF_MEMORY, "out of memory")
        write_text(job.request.result_path, to_json(JobResult(job.request.job_id, (failed,), memory=memory)))
        return Timeline(), job.request

    monkeypatch.setattr(HudiTableServiceOperator, "_execute_job", run)
    operator = HudiTableServiceOperator(
        task_id="run_service", base_path=str(table.path), service="compaction", hudi_options=LOCK
    )
    tries(as_its_file_says(operator), "orders.compaction.20261121120000000.1a", tmp_path, monkeypatch)
    assert had == [{}, sizes(driver="6g", executor="8g"), sizes(driver="6g", executor="8g")]


@pytest.mark.parametrize("dies", [False, True], ids=["says-so", "is-killed"])
@pytest.mark.usefixtures("manager")
def test_replication_gets_twice_the_memory_on_a_worker_that_does_not_see_the_first_ones_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_ROOTS", str(tmp_path))
    had: list[Any] = []

    def submit(_: Any, run: JobRun, __: Any) -> JobRequest:
        had.append(run.job.conf)
        memory = {**sizes(driver="3g"), **run.job.conf}
        kind = None if dies else FailureKind.OUT_OF_MEMORY
        left = ReplicationResult("s", not dies, failure_kind=kind, message="out of memory", memory=memory)
        write_text(run.result_path, to_json(left))
        if dies:
            run.death = Death("the pod was out of memory", FailureKind.OUT_OF_MEMORY)
        return run.job.request

    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    operator = HudiReplicationOperator(task_id="replicate", base_path=str(tmp_path / "orders"), sink="noop")
    tries(operator, "run-1", tmp_path, monkeypatch)
    more = sizes(driver="6g", executor="2g")
    assert had == [{}, more, more]

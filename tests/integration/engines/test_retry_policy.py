"""The operator's own failures, as Airflow's task runner hands them to the task's retry policy."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import (
    ExecutorBusyError,
    LakeError,
    LeaseLostError,
    ServiceFailedError,
    ServiceRefusedError,
)
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    to_json,
)
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable
from tests.support.task_context import as_its_file_says, task_instance

pytestmark = pytest.mark.integration

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


def operator(base_path: Path, **arguments: Any) -> Any:
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    pauses = {"retries": 4, "retry_delay": timedelta(seconds=10), "max_retry_delay": timedelta(seconds=25)}
    task = HudiTableServiceOperator(
        task_id="run_service",
        base_path=str(base_path),
        hudi_options=LOCK,
        **pauses,
        **{"service": "compaction", **arguments},
    )
    return as_its_file_says(task)


def decide(task: Any, error: BaseException, try_number: int = 1) -> Any:
    return task.retry_policy.evaluate(error, try_number, task.retries, {"task": task})


def test_writer_that_stands_in_the_way_is_waited_for(tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    (table.path / ".hoodie" / "timeline" / "20261121120009000.deltacommit.inflight").write_bytes(b"")
    task = operator(table.path)
    context: Any = {"run_id": "orders.compaction.20261121120000000.1a", "ti": task_instance()}
    with pytest.raises(Exception, match="without a heartbeat") as raised:
        task.execute(context)
    decision = decide(task, raised.value)
    assert decision.retry_delay == timedelta(seconds=20)
    assert decision.reason.startswith("failed (conflict), a writer is in the way")
    assert "try 2 of 5 at " in decision.reason


@pytest.mark.parametrize(
    ("error", "try_number", "delay_s"),
    [
        (ServiceFailedError("m", FailureKind.LOCK), 2, 20),
        (ServiceFailedError("m", FailureKind.BUSY), 1, 20),
        (ServiceFailedError("m", FailureKind.OUT_OF_MEMORY), 1, 0),
        (ServiceFailedError("m"), 2, 20),
        (ServiceFailedError("m"), 4, 25),
        (ExecutorBusyError("m"), 1, 20),
        (LeaseLostError("m"), 1, 20),
    ],
)
def test_pause_follows_the_failure_and_the_tasks_own_settings(
    tmp_path: Path, error: LakeError, try_number: int, delay_s: float
) -> None:
    assert error.retriable
    wrapped = RuntimeError("as the operator raises it")
    wrapped.__cause__ = error
    assert decide(operator(tmp_path), wrapped, try_number).retry_delay == timedelta(seconds=delay_s)


def test_last_try_says_so_and_what_is_not_ours_is_left_to_airflow(tmp_path: Path) -> None:
    task = operator(tmp_path)
    assert decide(task, ServiceFailedError("m"), 5).reason.endswith("that was the last try")
    assert decide(task, RuntimeError("a bug")).reason is None


def test_job_that_was_refused_is_not_tried_again(tmp_path: Path) -> None:
    from airflow_lake_provider.execution.retry import judge_run
    from airflow_lake_provider.hooks.open_tables import AirflowMetrics
    from airflow_lake_provider.planner.verdict import TableReader

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    wanted = ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE)
    request = JobRequest("job-1", str(table.path), "orders", (wanted,), str(tmp_path / "result.json"))
    refused = ServiceResult(Service.COMPACTION, Outcome.FAILED, failure_kind=FailureKind.REFUSED, message="not so")
    Path(request.result_path).write_text(to_json(JobResult("job-1", (refused,))))
    reader = TableReader(str(table.path), open_storage)
    with pytest.raises(ServiceRefusedError, match="not so") as raised:
        judge_run(AirflowMetrics(), reader, reader.timeline(), request, has_more_memory=False)
    assert not raised.value.retriable


def test_users_own_policy_is_kept(tmp_path: Path) -> None:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

    policy = ExceptionRetryPolicy(rules=[])
    assert operator(tmp_path, retry_policy=policy).retry_policy is policy


def test_engine_that_no_package_registered_fails_for_good_before_anything_begins(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    context: Any = {"run_id": "orders.compaction.20261121120000000.1a", "ti": task_instance()}
    with pytest.raises(AirflowFailException, match="'emr' is not registered"):
        operator(table.path, engine="emr").execute(context)

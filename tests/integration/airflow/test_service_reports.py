"""In which order a task reports to the manager: a notice before the report shows the try before it as the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import JobResult, Outcome, Service, ServiceResult, to_json
from airflow_lake_provider.planner.verdict import TableReader
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.engine_jobs import engine_job
from tests.support.tables import HandMadeTable
from tests.support.task_context import task_instance

pytestmark = pytest.mark.integration


class NotingHook:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def report_run(self, table_id: str, report: dict[str, Any]) -> None:
        self.calls.append(("report", report["outcome"]))

    def send_hints(self, hints: list[dict[str, Any]]) -> None:
        self.calls.append(("notice", hints[0]["instants"]))


def conclude(tmp_path: Path, *, is_there: bool) -> NotingHook:
    from airflow.sdk import DAG

    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    table = HandMadeTable.create(tmp_path / "orders")
    job = engine_job(tmp_path)
    with DAG("reports"):
        operator = HudiTableServiceOperator(
            task_id="run_service", base_path=str(table.path), service="compaction", adds_event=False
        )
    hook = NotingHook()
    operator._hook = hook  # type: ignore[assignment]
    result = ServiceResult(Service.COMPACTION, Outcome.NOTHING_TO_DO)

    def execute() -> Any:
        if not is_there:
            raise LakeError("the driver died")
        write_text(job.request.result_path, to_json(JobResult(job.request.job_id, (result,))))
        return Timeline(), job.request

    reader = TableReader(str(table.path), open_storage)
    context: Any = {"run_id": "r", "ti": task_instance(2)}
    try:
        operator._conclude(context, reader, job, execute, 0.0)
    except LakeError:
        assert not is_there
    return hook


def test_notice_follows_the_report_of_what_completed(tmp_path: Path) -> None:
    hook = conclude(tmp_path, is_there=True)
    assert [kind for kind, _ in hook.calls] == ["report", "notice"]


def test_manager_is_notified_of_a_job_that_died_as_well(tmp_path: Path) -> None:
    assert conclude(tmp_path, is_there=False).calls == [("notice", [])]

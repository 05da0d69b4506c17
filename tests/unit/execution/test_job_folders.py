"""Tasks of one run, and of runs with the same id, have folders of their own: a driver reads the request in its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.execution.engines.job_files import JobFolder, prune_jobs, write_text
from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest
from airflow_lake_provider.operators.table_service import _folder_of
from tests.support.task_context import task_instance

RUN_ID = "scheduled__2026-11-27T00:00:00+00:00"


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__LAKE__WORK_DIR", str(tmp_path))
    return tmp_path


def folder(base_path: str, service: Service, try_number: int = 1) -> JobFolder:
    context: Any = {"run_id": RUN_ID, "ti": task_instance(try_number)}
    return _folder_of(context, base_path, ServiceRequest(service, Mode.EXECUTE))


def tag(files: JobFolder) -> str:
    request = JobRequest("job", "/lake/t", "t", (), files.result_path)
    return EngineJob("submit", "name", request, files.request_path, "host", "conn").tag


def test_tasks_of_one_run_have_folders_of_their_own() -> None:
    """Mapped tasks, a compaction before a clean, and two DAGs that are scheduled at the same time."""
    tasks = [
        folder("/lake/shop/orders", Service.COMPACTION),
        folder("/lake/shop/orders", Service.CLEAN),
        folder("/lake/bank/orders", Service.COMPACTION),
        folder("/lake/shop/orders", Service.COMPACTION, 2),
    ]
    for paths in ({one.request_path for one in tasks}, {one.result_path for one in tasks}, set(map(tag, tasks))):
        assert len(paths) == len(tasks)
    assert len({one.holder_path for one in tasks}) == len(tasks)


def test_two_dags_with_one_schedule_have_folders_and_leases_of_their_own() -> None:
    """Both runs have one id, both tasks one table and one service."""
    wanted = ServiceRequest(Service.CLEAN, Mode.EXECUTE)
    tasks = [
        task_instance(dag_id="shop_nightly", task_id="clean"),
        task_instance(dag_id="bank_nightly", task_id="clean"),
        task_instance(dag_id="bank_nightly", task_id="clean_again"),
        task_instance(dag_id="bank_nightly", task_id="clean", map_index=0),
        task_instance(),
    ]
    folders = [_folder_of({"run_id": RUN_ID, "ti": ti}, "/lake/orders", wanted) for ti in tasks]  # type: ignore[arg-type,typeddict-item]
    assert len({one.holder_path for one in folders}) == len({one.run_id for one in folders}) == len(tasks)
    retry = task_instance(2, "shop_nightly", "clean")
    again = _folder_of({"run_id": RUN_ID, "ti": retry}, "/lake/orders", wanted)  # type: ignore[arg-type,typeddict-item]
    assert (again.run_id, again.try_number) == (folders[0].run_id, 2)


def test_earlier_try_of_the_same_task_is_found_again() -> None:
    first, second = (folder("/lake/orders", Service.CLEAN, number) for number in (1, 2))
    assert second.of(RUN_ID, 1).holder_path == first.holder_path
    assert folder("s3://lake/orders", Service.CLEAN).part == folder("s3a://lake/orders", Service.CLEAN).part


def test_folders_of_parts_are_removed_with_their_run(work_dir: Path) -> None:
    files = folder("/lake/orders", Service.CLEAN)
    write_text(files.request_path, "{}")
    assert Path(files.request_path).is_relative_to(work_dir / "jobs")
    year_s = 400 * 86_400.0
    assert prune_jobs(str(work_dir), Path(files.request_path).stat().st_mtime + year_s) == 1
    assert not Path(files.request_path).exists()

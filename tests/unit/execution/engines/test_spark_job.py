"""What Spark runs a job with. Imports no Airflow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_lake_provider.execution.engines.job_files import JobFolder, read_result, remove, write_text
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import find_spark_jobs, submit_arguments
from airflow_lake_provider.job_contract import JobResult, Outcome, Service, ServiceResult, result_to_json
from tests.support.engine_jobs import engine_job


def test_arguments_send_every_module_and_keep_paths_out_of_argv(tmp_path: Path) -> None:
    job = engine_job(tmp_path, jars="/jars/hudi.jar", conf={"spark.x": "1"})
    arguments = submit_arguments(job)
    sent = {Path(path).name for path in arguments["py_files"].split(",")}
    jobs = {path.name for path in find_spark_jobs().glob("*.py")} - {"run_services.py"}
    assert sent == jobs | {"job_contract.py", "instant_clock.py"}
    assert arguments["application_args"] == [job.request_path]
    assert arguments["conf"]["spark.x"] == "1"
    assert arguments["jars"] == "/jars/hudi.jar"
    assert "packages" not in arguments


def test_arguments_without_jars_use_packages(tmp_path: Path) -> None:
    assert submit_arguments(engine_job(tmp_path, packages="g:a:1"))["packages"] == "g:a:1"


def test_tag_is_the_jobs_own_and_fit_for_clusters(tmp_path: Path) -> None:
    first, second = engine_job(tmp_path), engine_job(tmp_path, try_number=2)
    assert first.tag == engine_job(tmp_path).tag
    assert first.tag != second.tag
    # A label of Kubernetes, with "-driver" behind it.
    assert len(first.tag) < 56
    assert first.tag == first.tag.lower()


def test_this_submitter_names_this_process() -> None:
    submitter = this_submitter()
    assert submitter is not None
    assert submitter.pid == os.getpid()
    assert submitter.start_ticks > 0


def test_result_is_read_back_and_absent_or_half_written_ones_are_none(tmp_path: Path) -> None:
    path = JobFolder(str(tmp_path), "run; $(x)/../y", 1).result_path
    assert path.startswith(f"{tmp_path}/jobs/run____x__..")
    assert read_result(path) is None
    result = JobResult("j", (ServiceResult(Service.COMPACTION, Outcome.COMPLETED),))
    write_text(path, result_to_json(result))
    assert read_result(path) == result
    write_text(path, result_to_json(result)[:50])
    assert read_result(path) is None
    remove(path)
    remove(path)
    assert read_result(path) is None


@pytest.mark.parametrize("module", ["run_services.py", "compaction.py"])
def test_shipped_jobs_are_found(module: str) -> None:
    assert (find_spark_jobs() / module).is_file()

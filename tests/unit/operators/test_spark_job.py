"""What a job is submitted with. Imports no Airflow: the pure half of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.job_contract import JobResult, Outcome, Service, ServiceResult, result_to_json
from airflow_lake_provider.operators.spark_job import (
    SparkSettings,
    find_spark_jobs,
    hook_arguments,
    read_result,
    this_submitter,
    write_text,
)


def test_hook_arguments_send_every_module_and_keep_paths_out_of_argv() -> None:
    arguments = hook_arguments(
        SparkSettings(jars="/jars/hudi.jar", conf={"spark.x": "1"}), "lake-x", "/work/request.json"
    )
    sent = {Path(path).name for path in arguments["py_files"].split(",")}
    assert sent == {path.name for path in find_spark_jobs().glob("*.py")} - {"run_services.py"} | {"job_contract.py"}
    assert arguments["application_args"] == ["/work/request.json"]
    assert arguments["conf"]["spark.x"] == "1"
    assert arguments["jars"] == "/jars/hudi.jar"
    assert "packages" not in arguments


def test_hook_arguments_without_jars_use_packages() -> None:
    assert hook_arguments(SparkSettings(packages="g:a:1"), "n", "r")["packages"] == "g:a:1"


def test_this_submitter_names_this_process() -> None:
    import os

    submitter = this_submitter()
    assert submitter is not None
    assert submitter.pid == os.getpid()
    assert submitter.start_ticks > 0


def test_result_is_read_back_and_absent_or_half_written_ones_are_none(tmp_path: Path) -> None:
    path = str(tmp_path / "run; $(x)" / "1" / "result.json")
    assert read_result(path) is None
    result = JobResult("j", (ServiceResult(Service.COMPACTION, Outcome.COMPLETED),))
    write_text(path, result_to_json(result))
    assert read_result(path) == result
    write_text(path, result_to_json(result)[:50])
    assert read_result(path) is None


@pytest.mark.parametrize("module", ["run_services.py", "compaction.py"])
def test_shipped_jobs_are_found(module: str) -> None:
    assert (find_spark_jobs() / module).is_file()

"""What Spark runs a job with. Imports no Airflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines import spark_submit
from airflow_lake_provider.execution.engines.job_files import JobFolder, read_result, remove, write_text
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import (
    application_of,
    find_package,
    find_spark_jobs,
    submit_arguments,
)
from airflow_lake_provider.job_contract import JobResult, Outcome, Service, ServiceResult, to_json
from tests.support.engine_jobs import engine_job, replication_job


def test_arguments_send_one_zip_and_keep_paths_out_of_argv(tmp_path: Path) -> None:
    job = engine_job(tmp_path, jars="/jars/hudi.jar", conf={"spark.x": "1"})
    arguments = submit_arguments(job)
    assert arguments["py_files"] == str(find_package())
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


def test_run_ids_that_differ_have_folders_that_differ(tmp_path: Path) -> None:
    run_ids = ("a:b", "a+b", "a_b", "a/b", "..", ".", "x" * 250, "x" * 249 + "y", "manual__2026-01-01T00:00:00+00:00")
    paths = {JobFolder(str(tmp_path), run_id, 1).request_path for run_id in run_ids}
    assert len(paths) == len(run_ids)
    for path in paths:
        name = path.removeprefix(f"{tmp_path}/jobs/").removesuffix("/1/request.json")
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name), name
        assert name.strip("."), name
    assert JobFolder(str(tmp_path), "a_b", 1).request_path == f"{tmp_path}/jobs/a_b/1/request.json"


def test_result_is_read_back_and_absent_or_half_written_ones_are_none(tmp_path: Path) -> None:
    path = JobFolder(str(tmp_path), "run; $(x)/../y", 1).result_path
    assert path.startswith(f"{tmp_path}/jobs/run____x__..")
    assert read_result(path) is None
    result = JobResult("j", (ServiceResult(Service.COMPACTION, Outcome.COMPLETED),))
    write_text(path, to_json(result))
    assert read_result(path) == result
    write_text(path, to_json(result)[:50])
    assert read_result(path) is None
    remove(path)
    remove(path)
    assert read_result(path) is None


@pytest.mark.parametrize("module", ["run_services.py", "replicate.py", "lake_jobs/services/compaction.py"])
def test_shipped_jobs_are_found(module: str) -> None:
    assert (find_spark_jobs() / module).is_file()


def test_services_and_replication_travel_with_the_same_zip_and_have_their_own_application(tmp_path: Path) -> None:
    service, replication = engine_job(tmp_path), replication_job(tmp_path)
    assert submit_arguments(replication)["py_files"] == submit_arguments(service)["py_files"]
    assert application_of(service).endswith("/spark_jobs/run_services.py")
    assert application_of(replication).endswith("/spark_jobs/replicate.py")


def test_zip_is_all_that_the_modules_import(tmp_path: Path) -> None:
    """Another Python, which finds neither this checkout nor the installed package, imports what the drivers need."""
    modules = ["job_contract", "instant_clock", "obstacles", "table_layout", "timeline_head"]
    modules += [f"replication.{name}" for name in ("job", "pump", "sink")]
    modules += ["shared.partition_filter", "shared.recent_writes"]
    script = f"""
import importlib, sys
for name in {modules}:
    module = importlib.import_module(f"airflow_lake_provider.{{name}}")
    assert module.__file__.startswith(sys.path[1]), module.__file__
for name in ("driver.shutdown", "hudi.settings", "indexing.rules", "services.ttl_rules"):
    assert importlib.import_module(f"lake_jobs.{{name}}").__file__.startswith(sys.path[1])
"""
    env = {"PYTHONPATH": str(find_package())}
    subprocess.run([sys.executable, "-S", "-c", script], env=env, cwd=tmp_path, check=True)


def test_zip_holds_nothing_of_airflow_or_the_manager() -> None:
    names = zipfile.ZipFile(find_package()).namelist()
    assert {name.split("/")[1] for name in names if name.startswith("airflow_lake_provider/")} == {
        "__init__.py",
        "errors.py",
        "instant_clock.py",
        "timeline_head.py",
        "job_contract.py",
        "obstacles.py",
        "replication",
        "shared",
        "sink_options",
        "table_layout.py",
    }
    assert names == sorted(names)
    assert "lake_jobs/services/clustering.py" in names


def test_zip_is_made_once_and_is_the_same_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        path = find_package()
        inode = path.stat().st_ino
        assert find_package().stat().st_ino == inode
        assert [found.name for found in path.parent.iterdir()] == [path.name]
        made.append((path.name, path.read_bytes()))
    assert made[0] == made[1]


def test_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    find_package().parent.chmod(0o777)
    with pytest.raises(ConfigError, match="only user"):
        find_package()


def test_reason_of_a_submission_is_found_among_lines_as_long_as_a_record() -> None:
    """Java repeats in its message what a row holds."""
    record = "a." * 200_000
    said = f"Cannot execute: spark-submit\n{record}\nCaused by: org.apache.spark.SparkException: no {record}\nat x"
    assert spark_submit._reason_of(RuntimeError(said)) == f"org.apache.spark.SparkException: no {record}"
    assert spark_submit._reason_of(RuntimeError(record)) == record

"""Jobs that an image of drivers holds: where they are, and that another release's image is not taken for this one's."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_lake_provider.config.owned_options import executes_code
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines import packaging
from tests.support.engine_jobs import engine_job, replication_job


def test_command_fills_the_folder_that_drivers_are_started_from(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", packaging.__name__, str(tmp_path)], check=True, timeout=600)
    conf = {"spark.lake.jobs": f"local://{tmp_path}/"}
    found = packaging.find_in_image(engine_job(tmp_path, conf=conf))
    replication = packaging.find_in_image(replication_job(tmp_path, conf=conf))
    assert found is not None
    assert replication is not None
    for uri in (*found, *replication):
        assert Path(uri.removeprefix("local://")).is_file(), uri
    assert found[0].endswith("/run_services.py")
    assert replication == (found[0].replace("run_services.py", "replicate.py"), found[1])
    with zipfile.ZipFile(found[1].removeprefix("local://")) as archive:
        assert {"lake_jobs/driver/application.py", "airflow_lake_provider/job_contract.py"} <= set(archive.namelist())


def test_jobs_of_another_release_have_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packaging.jobs_name()
    jobs = tmp_path / "spark_jobs"
    jobs.mkdir()
    for name in (packaging.SERVICES, packaging.REPLICATION):
        (jobs / name).write_bytes((packaging.find_spark_jobs() / name).read_bytes() + b"# changed\n")
    monkeypatch.setattr(packaging, "find_spark_jobs", lambda: jobs)
    assert packaging.jobs_name() != before


def test_folder_must_be_one_of_the_image(tmp_path: Path) -> None:
    assert packaging.find_in_image(engine_job(tmp_path)) is None
    with pytest.raises(ConfigError, match="local:///"):
        packaging.find_in_image(engine_job(tmp_path, conf={"spark.lake.jobs": "/opt/lake"}))


def test_run_may_not_choose_the_jobs() -> None:
    """The folder is a place of code, so the tables file alone names it."""
    assert executes_code("spark.lake.jobs", "local:///tmp/mine")

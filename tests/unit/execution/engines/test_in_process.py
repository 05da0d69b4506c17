from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.packaging import application
from airflow_lake_provider.execution.engines.spark_submit import build_command
from tests.support.engine_jobs import engine_job


def test_child_runs_the_application_with_sparks_python_and_the_bundle_on_its_class_path(tmp_path: Path) -> None:
    job = engine_job(tmp_path, jars="/jars/a.jar, /jars/b.jar", conf={"spark.driver.memory": "2g"})
    (tmp_path / "spark" / "python" / "lib").mkdir(parents=True)
    (tmp_path / "spark" / "python" / "lib" / "py4j.zip").touch()
    environ = {"PYSPARK_PYTHON": "/spark/python", "SPARK_HOME": str(tmp_path / "spark")}
    command, variables = build_command(job, environ)
    assert command == ["/spark/python", application(), job.request_path]
    options = shlex.split(variables["PYSPARK_SUBMIT_ARGS"])
    assert options[-2:] == ["pyspark-shell", job.request_path]
    assert options[options.index("--driver-class-path") + 1] == "/jars/a.jar:/jars/b.jar"
    assert "spark.master=local[1]" in options
    assert "spark.driver.memory=2g" in options
    assert variables["PYTHONPATH"].endswith(f":{tmp_path}/spark/python/lib/py4j.zip")


@pytest.mark.parametrize(
    ("conf", "environ", "python"),
    [
        ({"spark.pyspark.python": "/a"}, {"PYSPARK_PYTHON": "/b"}, "/a"),
        ({"spark.pyspark.python": "/a", "spark.pyspark.driver.python": "/d"}, {}, "/d"),
        ({}, {"PYSPARK_PYTHON": "/b", "PYSPARK_DRIVER_PYTHON": "/c"}, "/c"),
        ({}, {}, "python3"),
    ],
)
def test_python_is_the_one_that_spark_would_take(
    tmp_path: Path, conf: dict[str, str], environ: dict[str, str], python: str
) -> None:
    assert build_command(engine_job(tmp_path, conf=conf), environ)[0][0] == python


def test_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs on local\[n\] only, not on 'yarn'"):
        build_command(engine_job(tmp_path, conf={"spark.master": "yarn"}), {})

"""Spark in a child of the worker's process, without spark-submit: for tiny tables, where start-up is most of the work.

PySpark cannot be imported into Airflow's own environment (`pyspark-client` occupies its name there), so this is the
nearest to "in the worker's process": the application run directly by Spark's Python, with `local[1]`, a JVM that
compiles little, and the Hudi bundle on its class path instead of being copied and served.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.local_process import LocalJob
from airflow_lake_provider.execution.engines.packaging import (
    SPARK_CONF,
    application,
    find_package,
    without_secrets,
    write_secret_conf,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.execution.engines.engine import EngineJob, Handle

PYTHON_KEYS = ("spark.pyspark.driver.python", "spark.pyspark.python")
PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
TINY_CONF: Mapping[str, str] = {
    "spark.master": "local[1]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
}


class InProcessEngine:
    """Runs the job in a direct child of the task's process; the connection is not used."""

    def __init__(self) -> None:
        self._local = LocalJob()

    def start(self, job: EngineJob) -> Handle:
        """Start Spark's Python. Raises EngineError when there is none, ConfigError when `spark.master` is not local."""
        command, variables = build_command(job, os.environ)
        return self._local.start(job, command, {**os.environ, **variables})

    def wait(self, handle: Handle) -> None:
        """Wait for the child's end."""
        self._local.wait(handle)

    def stop(self, handle: Handle) -> None:
        """Kill the child and its JVM. Raises EngineError when one still runs."""
        self._local.stop(handle)


def build_command(job: EngineJob, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of the child. Pure but for the shipped jobs and their zip."""
    conf = {**SPARK_CONF, **TINY_CONF, **without_secrets(job.conf)}
    if not conf["spark.master"].startswith("local"):
        raise ConfigError(f"engine in-process runs on local[n] only, not on {conf['spark.master']!r}: use spark-submit")
    named = (*(conf.get(key) for key in PYTHON_KEYS), *(environ.get(name) for name in PYTHON_VARIABLES))
    python = next((path for path in named if path), "python3")
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    options += ["--name", job.name]
    secrets = write_secret_conf(job.conf, environ)
    if secrets:
        options += ["--properties-file", secrets]
    if job.jars:
        options += ["--driver-class-path", ":".join(jar.strip() for jar in job.jars.split(","))]
    elif job.packages:
        options += ["--packages", job.packages]
    return [python, application(), job.request_path], {
        # The gateway ignores its argument; it marks the JVM, in case that does not end with Python.
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell", job.request_path]),
        "PYTHONPATH": os.pathsep.join(_module_folders(environ)),
    }


def _module_folders(environ: Mapping[str, str]) -> list[str]:
    spark_home = environ.get("SPARK_HOME", "")
    libraries = os.path.join(spark_home, "python", "lib")
    zips = sorted(name for name in os.listdir(libraries) if name.endswith(".zip")) if os.path.isdir(libraries) else []
    return [str(find_package()), *(os.path.join(libraries, name) for name in zips)]

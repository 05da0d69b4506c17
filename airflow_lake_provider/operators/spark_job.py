"""What a service job is submitted with: built by pure functions, sent through the apache-spark provider."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec

from airflow_lake_provider import job_contract
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import ContractError, JobResult, Submitter, result_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

APPLICATION = "run_services.py"

# Hudi needs Kryo and its own SQL extension; everything else is the connection's and the user's business.
SPARK_CONF: Mapping[str, str] = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where and with what jobs run."""

    conn_id: str = "spark_default"
    jars: str = ""
    packages: str = ""
    conf: Mapping[str, str] | None = None


def find_spark_jobs() -> Path:
    """Return the folder of the shipped Spark jobs: inside the wheel, else beside the package in a checkout."""
    package = Path(job_contract.__file__).parent
    for folder in (package / "_shipped" / "spark_jobs", package.parent / "spark_jobs"):
        if (folder / APPLICATION).is_file():
            return folder
    raise ConfigError(f"the Spark job {APPLICATION} is not where the package should have it; reinstall the package")


def hook_arguments(settings: SparkSettings, name: str, request_path: str) -> dict[str, Any]:
    """Return the arguments of SparkSubmitHook. Paths and table names travel in the request file, never in argv."""
    jobs = find_spark_jobs()
    siblings = sorted(str(path) for path in jobs.glob("*.py") if path.name != APPLICATION)
    arguments: dict[str, Any] = {
        "conn_id": settings.conn_id,
        "name": name,
        "conf": dict(SPARK_CONF) | dict(settings.conf or {}),
        "py_files": ",".join([job_contract.__file__, *siblings]),
        "application_args": [request_path],
    }
    if settings.jars:
        arguments["jars"] = settings.jars
    elif settings.packages:
        arguments["packages"] = settings.packages
    return arguments


def this_submitter() -> Submitter | None:
    """Describe this process to the driver, so that it ends with it; None where /proc does not tell."""
    try:
        # The command's name stands in parentheses and may contain anything; the fields after it are fixed.
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return Submitter(host=socket.gethostname(), pid=os.getpid(), start_ticks=int(after_name[19]))


def write_text(path: str, text: str) -> None:
    """Write a request file on any store that fsspec knows, making its folder."""
    fs, plain = fsspec.core.url_to_fs(path)
    fs.makedirs(fs._parent(plain), exist_ok=True)
    with fs.open(plain, "w", encoding="utf-8") as stream:
        stream.write(text)


def read_result(path: str) -> JobResult | None:
    """Return the job's result; None when there is none or it is not whole (the job died)."""
    fs, plain = fsspec.core.url_to_fs(path)
    try:
        with fs.open(plain, "r", encoding="utf-8") as stream:
            return result_from_json(stream.read())
    except (FileNotFoundError, ContractError):
        return None

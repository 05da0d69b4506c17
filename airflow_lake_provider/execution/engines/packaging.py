"""What Spark runs a job with, whatever starts it: the application, its modules, and Hudi's settings. Pure."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import instant_clock, job_contract
from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.execution.engines.engine import EngineJob

APPLICATION = "run_services.py"
CONTRACT = Path(job_contract.__file__)
SHARED_MODULES = (CONTRACT, Path(instant_clock.__file__))
"""Modules of this package that the jobs import by their own names."""

# Hudi needs Kryo and its own SQL extension; everything else is the connection's and the user's business.
SPARK_CONF: Mapping[str, str] = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    "spark.ui.enabled": "false",
}


def find_spark_jobs() -> Path:
    """Return the folder of the shipped Spark jobs: inside the wheel, else beside the package in a checkout."""
    package = CONTRACT.parent
    for folder in (package / "_shipped" / "spark_jobs", package.parent / "spark_jobs"):
        if (folder / APPLICATION).is_file():
            return folder
    raise ConfigError(f"the Spark job {APPLICATION} is not where the package should have it; reinstall the package")


def application() -> str:
    """Return the path of the application."""
    return str(find_spark_jobs() / APPLICATION)


def submit_arguments(job: EngineJob) -> dict[str, Any]:
    """Return the arguments of Spark's hook and operator. Paths and table names travel in the request file instead."""
    siblings = sorted(str(path) for path in find_spark_jobs().glob("*.py") if path.name != APPLICATION)
    arguments: dict[str, Any] = {
        "conn_id": job.conn_id,
        "name": job.name,
        "conf": dict(SPARK_CONF) | dict(job.conf),
        "py_files": ",".join([*map(str, SHARED_MODULES), *siblings]),
        "application_args": [job.request_path],
    }
    if job.jars:
        arguments["jars"] = job.jars
    elif job.packages:
        arguments["packages"] = job.packages
    return arguments


# --- What the replication job is submitted with: its replication_application, and the part of this package that
# travels with it

REPLICATION = "replicate.py"
_PACKAGE = CONTRACT.parent


def write_package(path: Path) -> None:
    """Write the zip that makes `airflow_lake_provider.replication` importable in the driver; nothing else is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in (_PACKAGE / "__init__.py", _PACKAGE / "errors.py", *sorted(_PACKAGE.glob("replication/**/*.py"))):
            archive.write(source, f"{_PACKAGE.name}/{source.relative_to(_PACKAGE)}")
    part.replace(path)


def replication_arguments(
    conn_id: str, name: str, request_path: str, package: Path, conf: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of Spark's hook. What is secret travels in the request file, never in argv."""
    modules = sorted(str(path) for path in find_spark_jobs().glob("*.py") if path.name != REPLICATION)
    return {
        "conn_id": conn_id,
        "name": name,
        "conf": dict(SPARK_CONF) | dict(conf),
        "py_files": ",".join([*map(str, SHARED_MODULES), str(package), *modules]),
        "application_args": [request_path],
    }


def replication_application() -> str:
    """Return the path of the replication_application."""
    return str(find_spark_jobs() / REPLICATION)

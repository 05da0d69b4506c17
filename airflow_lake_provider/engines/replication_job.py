"""What the replication job is submitted with: its application, and the part of this package that travels with it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.engines.spark_job import CONTRACT, SHARED_MODULES, SPARK_CONF, find_spark_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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


def submit_arguments(
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


def application() -> str:
    """Return the path of the application."""
    return str(find_spark_jobs() / REPLICATION)

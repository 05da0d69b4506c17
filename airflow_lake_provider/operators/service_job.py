"""The engine's job of a service: the request, with what the operator and `[lake]` say about where it runs."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from airflow_lake_provider.engines.engine import EngineJob
from airflow_lake_provider.engines.job_files import JobFolder, read_result
from airflow_lake_provider.engines.registry import DEFAULT_ENGINE
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.operators.memory import earlier_results
from airflow_lake_provider.table_id import table_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.job_contract import JobRequest, JobResult


def work_dir() -> str:
    """Return the folder of job files: `[lake] work_dir`, else `$AIRFLOW_HOME/lake`."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    return _option("work_dir", f"{home}/lake")


def manager_patience_s() -> float:
    """Return for how long a task waits for a manager that is away, in seconds. Raises ConfigError."""
    text = _option("manager_patience_s", "600")
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"[lake] manager_patience_s = {text!r}: expected seconds") from error


def open_folder(run_id: str, try_number: int) -> JobFolder:
    """Return where a try's files lie."""
    return JobFolder(work_dir(), run_id, try_number)


def build_job(
    request: JobRequest, folder: JobFolder, engine: str | None, conn_id: str | None, settings: Mapping[str, str]
) -> EngineJob:
    """Return the job of a request; an empty engine or connection is `[lake]`'s."""
    return EngineJob(
        engine=engine or _option("engine", DEFAULT_ENGINE),
        name=f"lake-{request.services[0].service.value}-{table_id_of(request.base_path)}",
        request=request,
        request_path=folder.request_path,
        host=socket.gethostname(),
        conn_id=conn_id or _option("spark_conn_id", "spark_default"),
        conf=settings,
        jars=_option("spark_jars", ""),
        packages=_option("spark_packages", ""),
    )


def results_before(folder: JobFolder) -> list[JobResult | None]:
    """Return what the tries before this one left."""
    return earlier_results(
        folder.try_number, lambda number: read_result(replace(folder, try_number=number).result_path)
    )


def _option(name: str, default: str) -> str:
    return str(conf.get("lake", name, fallback="") or default)

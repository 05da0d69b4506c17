"""What a run would start, as people read it. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from airflow_lake_provider.engines.registry import DEFAULT_ENGINE
from airflow_lake_provider.engines.spark_job import application, submit_arguments
from airflow_lake_provider.job_contract import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import ServiceRequest

# Spark's own default of `spark.redaction.regex`, and what Hudi's lock providers and stores call their secrets.
_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|credential")


def describe(job: EngineJob, pending: Sequence[str]) -> str:
    """Return one line for each thing that matters. `pending` are the service's plans on the timeline now."""
    (wanted,) = job.request.services
    lines = {
        "table": f"{job.request.base_path} ({job.request.table_name})",
        "service": f"{wanted.service}, mode {wanted.mode}",
        "plans": _plans(wanted, pending),
        "engine": f"{job.engine}, where connection {job.conn_id} says",
        "command": shlex.join(_command(job)) if job.engine == DEFAULT_ENGINE else f"that of engine {job.engine}",
        "settings": _settings(job.conf),
        "Hudi": _settings({**job.request.hudi_options, **wanted.options}),
        "request": f"would be written to {job.request_path}",
    }
    return "\n".join(f"  {name:<9} {text}" for name, text in lines.items())


def _plans(wanted: ServiceRequest, pending: Sequence[str]) -> str:
    if wanted.instants:
        return f"{', '.join(wanted.instants)} would be executed"
    if wanted.mode is Mode.SCHEDULE:
        return "a new one would be made"
    if pending:
        return f"all pending ones would be executed: {', '.join(pending)}"
    return "none is pending" + ("" if wanted.mode is Mode.EXECUTE else ": a new one would be made and executed")


def _command(job: EngineJob) -> list[str]:
    """Return spark-submit's arguments, without those that the connection adds (master, deploy mode, ...)."""
    arguments = submit_arguments(job)
    command = ["spark-submit", "--name", str(arguments["name"])]
    for key, value in arguments["conf"].items():
        command += ["--conf", f"{key}={_shown(key, value)}"]
    for option in ("jars", "packages", "py_files"):
        if option in arguments:
            command += [f"--{option.replace('_', '-')}", str(arguments[option])]
    return [*command, application(), *arguments["application_args"]]


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={_shown(key, value)}" for key, value in settings.items()) or "none"


def _shown(key: str, value: str) -> str:
    return "***" if _SECRET.search(key) else value

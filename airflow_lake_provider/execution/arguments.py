"""What a run would start, as people read it. Pure."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from airflow_lake_provider.config.owned_options import find_owned_option
from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import DEFAULT_ENGINE
from airflow_lake_provider.execution.engines.packaging import application, submit_arguments
from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest
from airflow_lake_provider.manager.scheduling import is_manager_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.execution.table_reader import TableReader
    from airflow_lake_provider.hooks.lake import LakeHook

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


# --- The operator's arguments as values. What is rendered from a template arrives as text. Pure


def parse_request(service: str, mode: str, instants: Sequence[str] | str) -> ServiceRequest:
    """Return what is to be done. Raises ServiceRefusedError that names the allowed values."""
    try:
        wanted_service, wanted_mode = Service(service), Mode(mode)
    except ValueError as error:
        allowed = f"services: {', '.join(Service)}; modes: {', '.join(Mode)}"
        raise ServiceRefusedError(f"{error}; allowed {allowed}") from error
    parts = instants.split(",") if isinstance(instants, str) else instants
    named = tuple(str(part).strip() for part in parts if str(part).strip())
    return ServiceRequest(wanted_service, wanted_mode, named)


def parse_settings(settings: Mapping[str, str] | str | None, what: str) -> dict[str, str]:
    """Return settings given as a mapping or as JSON text; empty means none. Raises ServiceRefusedError."""
    try:
        parsed = (json.loads(settings) or {}) if isinstance(settings, str) and settings.strip() else settings or {}
    except ValueError as error:
        raise ServiceRefusedError(f"{what} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ServiceRefusedError(f"{what} must be a mapping of settings, got {settings!r}")
    return {str(key): str(value) for key, value in parsed.items()}


def is_true(value: bool | str) -> bool:  # noqa: FBT001 - a template renders to text
    """Return a flag given as a value or as text."""
    return value if isinstance(value, bool) else value.strip().lower() in {"true", "1", "yes"}


# --- Params of the shipped DAGs that may stay empty


def optional(kind: str, **described: Any) -> Param:
    """Return a Param that may stay empty: then its value is None.

    With an empty text as the default Airflow's form calls a required text missing, and cannot be sent.
    """
    return Param(None, type=["null", kind], **described)


# --- What a service's job goes by: what its run was given, and for a run by hand below that the table's policy


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of one run. `timeout_s` is the table's for a try; None where nobody said."""

    hudi_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    spark_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    conflict: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    engine: str = ""
    spark_conn_id: str = ""
    timeout_s: float | None = None

    def under(self, given: TableSettings) -> TableSettings:
        """Return these settings with the given ones over them, key by key."""
        return TableSettings(
            hudi_options={**self.hudi_options, **given.hudi_options},
            spark_conf={**self.spark_conf, **given.spark_conf},
            conflict={**self.conflict, **given.conflict},
            engine=given.engine or self.engine,
            spark_conn_id=given.spark_conn_id or self.spark_conn_id,
            timeout_s=given.timeout_s or self.timeout_s,
        )


def parse_given(operator: Any) -> TableSettings:
    """Return what an operator's arguments say. Raises ServiceRefusedError that names the argument."""
    return TableSettings(
        hudi_options=parse_settings(operator.hudi_options, "hudi_options"),
        spark_conf=parse_settings(operator.spark_conf, "spark_conf"),
        conflict=parse_settings(operator.conflict, "conflict"),
        engine=operator.engine or "",
        spark_conn_id=operator.spark_conn_id or "",
    )


def complete_settings(
    given: TableSettings, run_id: str, hook: LakeHook, table: TableReader, service: Service
) -> TableSettings:
    """Return what holds for the run; the manager's own runs were given everything, all others take the table's policy.

    Raises ServiceRefusedError when a run by hand was given what a service sets itself, and what the manager's client
    raises: without the policy nothing may run, for a clean would remove by Hudi's retention instead of the table's.
    """
    if is_manager_run(run_id):
        return given
    owned = find_owned_option(given.hudi_options)
    if owned is not None:
        raise ServiceRefusedError(f"table {table.base_path}: hudi_options: {owned}")
    return ask_settings(hook, table, service).under(given)


def ask_settings(hook: LakeHook, table: TableReader, service: Service) -> TableSettings:
    """Return what the table's policy says of a service, as the manager reads the tables file now."""
    said = hook.find_policy(table.base_path, table.properties().name, service)
    return TableSettings(
        hudi_options=parse_settings(said["hudi_options"], "hudi_options"),
        spark_conf=parse_settings(said["spark_conf"], "spark_conf"),
        conflict=parse_settings(said["conflict"], "conflict"),
        engine=str(said["engine"]),
        spark_conn_id=str(said["spark_conn_id"]),
        timeout_s=float(said["timeout_s"]),
    )

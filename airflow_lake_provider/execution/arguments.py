"""What a run starts: the operator's arguments as values, the table's policy below them, the job; and that as text."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.owned_options import (
    OWNED_OPTIONS,
    REFERENCE,
    SECRET_KEY,
    explain_secret,
    find_code_option,
    find_owned_option,
    is_open_secret,
)
from airflow_lake_provider.config.run_options import (
    SPARK_CONN_ID,
    chooses_lock,
    find_connection,
    find_unlisted,
    may_set_hudi,
    may_set_sink,
    may_set_spark,
)
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError, LakeError, ServiceFailedError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import DEFAULT_ENGINE
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import application, submit_arguments
from airflow_lake_provider.execution.engines.warm import expected_bytes
from airflow_lake_provider.execution.job import build_job
from airflow_lake_provider.execution.more_memory import find_shortage, with_more_memory
from airflow_lake_provider.execution.sink_connections import options_with_connection
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import is_below, normalise_base_path, require_allowed, table_id_of
from airflow_lake_provider.job_contract import (
    SAFEPOINT,
    TRAITS,
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Service,
    ServiceRequest,
)
from airflow_lake_provider.manager.runs.run_ids import is_manager_run
from airflow_lake_provider.planner.verdict import TableReader, UpgradedTableReader
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, MERGE_ON_READ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.execution.engines.job_files import JobFolder
    from airflow_lake_provider.hooks.lake import LakeHook


def describe(job: EngineJob, pending: Sequence[str]) -> str:
    """Return one line for each part. `pending` are the service's plans on the timeline now."""
    (wanted,) = job.request.services
    lines = {
        "table": f"{job.request.base_path} ({job.request.table_name})",
        "service": f"{wanted.service}, mode {wanted.mode}",
        "plans": _plans(wanted, pending),
        "engine": f"{job.engine}, where connection {job.conn_id} points",
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
    return "***" if SECRET_KEY.search(key) or is_open_secret(key, value) else value


# --- The operator's arguments as values. Templates render to text. Pure


def parse_request(service: str, mode: str, instants: Sequence[str] | str) -> ServiceRequest:
    """Return the request. Raises ServiceRefusedError that names the allowed values."""
    try:
        wanted_service = Service(service)
        wanted_mode = Mode(mode)
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

    With an empty text as the default, Airflow's form reports a required text as missing and cannot be sent.
    """
    return Param(None, type=["null", kind], **described)


def with_draft(params: dict[str, Param]) -> dict[str, Param]:
    """Name the draft of JSON Schema in each Param's schema, and return the Params.

    Airflow checks each schema against its draft's own one whenever it creates a run or begins a task. That of the
    newest draft, the default, spans nine documents: the check takes three times as long, 8 of a new run's 20 ms.
    """
    for param in params.values():
        param.schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    return params


def growing_pauses(retry_delay_s: float) -> dict[str, Any]:
    """Return the pauses between the tries of a job: each twice as long as the one before, half an hour at most."""
    return {
        "retry_delay": timedelta(seconds=retry_delay_s),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=30),
    }


def step_retries(retry_delay_s: float) -> dict[str, Any]:
    """Return the retries of a step that a person waits for, whose job may take hours."""
    return {"retries": 4, **growing_pauses(retry_delay_s), "execution_timeout": timedelta(hours=12)}


# --- The settings of a service's job: the run's own, and for a run by hand the table's policy below them


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of one run. `timeout_s` is the table's for a try; None where it is not set."""

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

    def without(self, other: TableSettings) -> TableSettings:
        """Return these settings without the settings of Hudi and Spark that the others have with the same value."""
        return replace(
            self,
            hudi_options=without_same(self.hudi_options, other.hudi_options),
            spark_conf=without_same(self.spark_conf, other.spark_conf),
        )


def without_same(settings: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the others have not, or with another value."""
    return {key: value for key, value in settings.items() if other.get(key) != value}


def parse_given(operator: Any) -> TableSettings:
    """Return the settings in an operator's arguments. Raises ServiceRefusedError that names the argument."""
    return TableSettings(
        hudi_options=parse_settings(operator.hudi_options, "hudi_options"),
        spark_conf=parse_settings(operator.spark_conf, "spark_conf"),
        conflict=parse_settings(operator.conflict, "conflict"),
        engine=operator.engine or "",
        spark_conn_id=operator.spark_conn_id or "",
    )


def parse_of_file(operator: Any) -> TableSettings:
    """Return the settings of Hudi and Spark, and the connection, that the DAG's file itself gives an operator."""
    return TableSettings(
        hudi_options=operator.settings_of_file("hudi_options"),
        spark_conf=operator.settings_of_file("spark_conf"),
        spark_conn_id=operator.text_of_file("spark_conn_id"),
    )


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """What a run is given: `settings` are all of it, `of_file` those that the DAG's file itself says."""

    run_id: str
    settings: TableSettings
    of_file: TableSettings = field(default_factory=TableSettings)


def complete_settings(run: GivenSettings, hook: LakeHook, table: TableReader, wanted: ServiceRequest) -> TableSettings:
    """Return the run's settings; the manager's own runs have all of them, other runs add the table's policy.

    What the DAG's file itself says counts as what the tables file says, except what services set themselves.

    Raises ServiceRefusedError for an option that services set themselves and for one that no run may set (by hand), a
    retention that is not the tables file's, a secret, and an option that executes code and is not the tables file's;
    and what the manager's client raises: nothing runs without the policy, because a clean would use Hudi's retention
    instead of the table's.
    """
    given = run.settings
    for place, options in (("spark_conf", given.spark_conf), ("hudi_options", given.hudi_options)):
        refuse_secrets(options, place, f"table {table.base_path}")
    # A user may give a run any id, so the id alone proves nothing where rows are removed, or more is set than may be.
    is_managers = is_manager_run(run.run_id)
    removes = wanted.mode in TRAITS[wanted.service].removes_in
    # Without the policy nothing says whether the lock is the one that the writers take.
    needs_policy = removes or chooses_lock(given.without(run.of_file).hudi_options)
    if is_managers and not needs_policy and _only_listed(run, TableSettings(), wanted.service) == given:
        return given
    owned = None if is_managers else find_owned_option(given.hudi_options)
    if owned is not None:
        raise ServiceRefusedError(f"table {table.base_path}: hudi_options: {owned}")
    policy = load_settings(hook, table, wanted.service)
    code = _find_code(given.without(run.of_file), policy)
    if code is not None:
        raise ServiceRefusedError(f"table {table.base_path}: {code}")
    listed = _only_listed(run, policy, wanted.service)
    if not is_managers:
        _refuse_rest(given, listed, table.base_path)
        return policy.under(given)
    if removes and _owned(given) != _owned(policy):
        # What is removed does not come back, and the owner may have raised the retention since.
        raise ServiceRefusedError(
            f"table {table.base_path}: hudi_options: the run's retention ({_settings(_owned(given))}) is not that of "
            f"the tables file ({_settings(_owned(policy))}); the manager's next run takes the tables file's"
        )
    # What the run may not set is the tables file's, of now.
    return given if listed == given else policy.under(listed)


def _only_listed(run: GivenSettings, policy: TableSettings, service: Service) -> TableSettings:
    """Return the settings without those that a run may not set: they are not listed, and stand in neither file."""
    given = run.settings
    has_lock = LOCK_PROVIDER in policy.hudi_options
    outside = given.without(run.of_file)
    lake = LakeSettings.from_conf(conf)
    allowed = lake.allowed_run_options
    spark = find_unlisted(outside.spark_conf, policy.spark_conf, may_set_spark, allowed)
    hudi = find_unlisted(outside.hudi_options, policy.hudi_options, may_set_hudi(service, has_lock=has_lock), allowed)
    configured = (policy.spark_conn_id, lake.spark_conn_id, run.of_file.spark_conn_id)
    return replace(
        given,
        spark_conf={key: value for key, value in given.spark_conf.items() if key not in spark},
        hudi_options={key: value for key, value in given.hudi_options.items() if key not in hudi},
        spark_conn_id=find_connection(given.spark_conn_id, configured, allowed),
    )


def _refuse_rest(given: TableSettings, listed: TableSettings, base_path: str) -> None:
    for place, mine, theirs in (
        ("spark_conf", given.spark_conf, listed.spark_conf),
        ("hudi_options", given.hudi_options, listed.hudi_options),
    ):
        rest = sorted(mine.keys() - theirs.keys())
        if rest:
            raise ServiceRefusedError(f"table {base_path}: {_explain_unlisted(rest, place)}")
    if given.spark_conn_id != listed.spark_conn_id:
        raise ServiceRefusedError(
            f"table {base_path}: {SPARK_CONN_ID}: a run may not choose connection {given.spark_conn_id!r}: set it in "
            f"the tables file, or name {SPARK_CONN_ID} in [lake] allowed_run_options"
        )


def _explain_unlisted(keys: Sequence[str], place: str) -> str:
    return (
        f"{place}: a run may not set {', '.join(keys)}: set it in the tables file ({place} of the table), or name it "
        "in [lake] allowed_run_options"
    )


def _owned(settings: TableSettings) -> dict[str, str]:
    return {
        key: value for key, value in settings.hudi_options.items() if key in OWNED_OPTIONS or key.startswith("lake.")
    }


def _find_code(given: TableSettings, policy: TableSettings) -> str | None:
    allowed = LakeSettings.from_conf(conf).allowed_run_options
    for place, mine, theirs in (
        ("spark_conf", given.spark_conf, policy.spark_conf),
        ("hudi_options", given.hudi_options, policy.hudi_options),
    ):
        found = find_code_option(mine, theirs, allowed)
        if found is not None:
            return explain_code(found, place)
    return None


def explain_code(key: str, place: str) -> str:
    """Say why a run must not set an option, and where it may stand."""
    return (
        f"{place}: {key} executes code in the job, or refers to a secret: set it in the tables file ({place} of the "
        "table), or name it in [lake] allowed_run_options"
    )


def refuse_secrets(settings: Mapping[str, str], place: str, what: str) -> None:
    """Raise ServiceRefusedError when a setting holds a secret itself."""
    found = next((key for key, value in settings.items() if is_open_secret(key, value)), None)
    if found is not None:
        raise ServiceRefusedError(f"{what}: {place}: {explain_secret(found)}")


def require_allowed_table(base_path: str) -> None:
    """Raise PathNotAllowedError for a table outside the roots that this worker's `[lake] allowed_roots` names."""
    require_allowed(base_path, LakeSettings.from_conf(conf).allowed_roots)


def load_settings(hook: LakeHook, table: TableReader, service: Service) -> TableSettings:
    """Return the table's policy of a service, as the manager reads the tables file now."""
    answered = hook.find_policy(table.base_path, table.properties().name, service)
    return TableSettings(
        hudi_options=parse_settings(answered["hudi_options"], "hudi_options"),
        spark_conf=parse_settings(answered["spark_conf"], "spark_conf"),
        conflict=parse_settings(answered["conflict"], "conflict"),
        engine=str(answered["engine"]),
        spark_conn_id=str(answered["spark_conn_id"]),
        timeout_s=float(answered["timeout_s"]),
    )


def open_table(base_path: str, storage_options: Mapping[str, Any] | None, wanted: ServiceRequest) -> TableReader:
    """Open the table of a service. Raises ServiceRefusedError for a compaction of a table that has no log files."""
    if wanted.mode is Mode.UPGRADE:
        return UpgradedTableReader(base_path, table_opener(storage_options))
    table = TableReader(base_path, table_opener(storage_options))
    table_type = table.properties().table_type
    if wanted.service in {Service.COMPACTION, Service.LOGCOMPACTION} and table_type != MERGE_ON_READ:
        raise ServiceRefusedError(f"table {base_path} is {table_type}: only merge-on-read is compacted")
    return table


def hold_back(hook: LakeHook, base_path: str, wanted: ServiceRequest) -> dict[str, str]:
    """Return the safepoint as an option, read at the last moment; without an answer nothing is removed."""
    if wanted.service not in (Service.CLEAN, Service.ARCHIVE) and wanted.mode is not Mode.ERASE:
        return {}
    safepoint = hook.find_safepoint(table_id_of(base_path))
    return {} if safepoint is None else {SAFEPOINT: safepoint}


def require_known_holds(hook: LakeHook, request: JobRequest) -> None:
    """Raise ServiceFailedError when a hold has come that a job does not know; for a try that has its executor's lease.

    A reader's hold waits for executors that had their leases before it. So what is read under the lease counts.
    """
    known = request.hudi_options.get(SAFEPOINT)
    now = hold_back(hook, request.base_path, request.services[0]).get(SAFEPOINT)
    if now is not None and (known is None or now < known):
        raise ServiceFailedError(
            f"table {request.base_path}: a hold from {now} on came while the job was prepared; the next try keeps it",
            FailureKind.CONFLICT,
        )


# --- The job of a try


def prepare_job(
    folder: JobFolder, table: tuple[str, str], wanted: ServiceRequest, settings: TableSettings, context: Context
) -> tuple[EngineJob, bool]:
    """Return the job of a try, and whether it gets more memory than the table's, because an earlier try ran out of it.

    `table` is its base path and name. Raises ConfigError.
    """
    base_path, table_name = table
    shortage = find_shortage(context, folder, JobResult)
    request = JobRequest(
        job_id=f"{folder.run_id}/{folder.try_number}",
        base_path=base_path,
        table_name=table_name,
        services=(wanted,),
        result_path=folder.result_path,
        hudi_options=settings.hudi_options,
        submitter=this_submitter(),
    )
    params: Mapping[str, Any] = context.get("params") or {}
    job = build_job(
        request,
        folder,
        settings.engine,
        settings.spark_conn_id,
        with_more_memory(settings.spark_conf, shortage),
        expected_bytes(params.get("evidence")),
        "it needs more memory" if shortage is not None else "",
    )
    return replace(job, queue=str(params.get("queue") or "")), shortage is not None


def find_number(name: str, value: float | str | None) -> float | None:
    """Return an operator's argument, which a template may have made; None for none. Raises ConfigError."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 0 < number < math.inf:
        raise ConfigError(f"{name} is {value!r:.100}: give a number above 0")
    return number


# --- A sink's settings from an Airflow connection, so that no file contains passwords


@dataclass(frozen=True, slots=True)
class SinkByHand:
    """What a run by hand sets of a sink, next to what the tables file has of it; nothing where it has no such sink.

    `file_options` and `file_spark_conf` are those of them that the DAG's file itself says.
    """

    what: str
    sink: str
    options: Mapping[str, str]
    spark_conf: Mapping[str, str]
    file_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    file_spark_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sets_places(self) -> bool:
        """Whether the run sets something that only a file may set, or where data go."""
        options, spark_conf = self._outside({})
        names_place = "path" in self.options or bool(self.options.get("conn_id"))
        is_unlisted = bool(_unlisted_of_sink(options, spark_conf, (), has_lock=True))
        return is_unlisted or (bool(options) and names_place)

    def check(self, entry: Mapping[str, Any], settings: LakeSettings) -> None:
        """Raise ServiceRefusedError for what a run by hand may not set; `entry` is what the tables file has."""
        options, spark_conf = self._outside(entry)
        allowed = settings.allowed_run_options
        for place, mine in (("spark_conf", spark_conf), ("options", options)):
            code = find_code_option(mine, {}, allowed)
            if code is not None:
                raise ServiceRefusedError(f"{self.what}: {explain_code(code, place)}")
        # The login of a connection that the run chose goes not even where a file says: that is another one's place.
        places = self.options if "conn_id" in options else options
        if self.options.get("conn_id") or self._secrets:
            self._refuse_detour(places)
        has_lock = chooses_lock(entry.get("options") or {})
        for place, keys in _unlisted_of_sink(options, spark_conf, allowed, has_lock=has_lock).items():
            raise ServiceRefusedError(f"{self.what}: {_explain_unlisted(keys, place)}")
        if "path" in places:
            self._require_place(places["path"], settings.sink_roots, (entry.get("options") or {}).get("path", ""))

    @property
    def _secrets(self) -> list[str]:
        """The options that refer to secrets: a file's, since a run may set none."""
        return [key for key, value in self.options.items() if value.startswith(REFERENCE)]

    def _outside(self, entry: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the options and the settings of Spark that stand neither in the tables file nor in the DAG's."""
        options = without_same(self.options, entry.get("options") or {})
        spark_conf = without_same(self.spark_conf, entry.get("spark_conf") or {})
        return without_same(options, self.file_options), without_same(spark_conf, self.file_spark_conf)

    def _refuse_detour(self, own: Mapping[str, str]) -> None:
        """Refuse every option that could send a connection's login to another server, whatever it is called."""
        for key, value in own.items():
            if key == "bootstrap_servers" or key.startswith("kafka.") or not may_set_sink()(key, value):
                login = "conn_id" if self.options.get("conn_id") else f"the secret of {self._secrets[0]}"
                raise ServiceRefusedError(
                    f"{self.what}: options: {key} stands next to {login}, and a run by hand sends the login of a "
                    "connection or of the tables file only where these point: set it there"
                )

    def _require_place(self, path: str, roots: tuple[str, ...], path_of_file: str) -> None:
        """Refuse a path that is not plain, lies below no root, or leads from a login's store to another one."""
        problem = find_path_problem(path, roots)
        conn_id = self.options.get("conn_id")
        if not problem and conn_id:
            theirs = options_with_connection(self.sink, {"conn_id": conn_id}).get("path", "")
            if find_path_problem(path, (theirs,) if theirs else ()):
                problem = f"it does not lie below the path of connection {conn_id!r}, whose login it would get"
        elif not problem and self._secrets and find_path_problem(path, (path_of_file,)):
            problem = "it does not lie below the path in the tables file, whose login it would get"
        if problem:
            raise ServiceRefusedError(
                f"{self.what}: options: path {path!r}: {problem}; a run by hand writes below [lake] sink_roots only, "
                "or where the tables file says"
            )


def _unlisted_of_sink(
    options: Mapping[str, str], spark_conf: Mapping[str, str], allowed: Sequence[str], *, has_lock: bool
) -> dict[str, list[str]]:
    found = {
        "spark_conf": find_unlisted(spark_conf, {}, may_set_spark, allowed),
        "options": find_unlisted(options, {}, may_set_sink(has_lock=has_lock), allowed),
    }
    return {place: keys for place, keys in found.items() if keys}


_FILE_SYSTEMS = frozenset({"", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hdfs", "viewfs"})


def find_path_problem(path: str, roots: tuple[str, ...]) -> str:
    """Return why a sink's path may not be written by hand; empty for a plain path below one of the roots. Pure."""
    if "::" in path:
        return "chained file systems are not allowed"
    try:
        normalised = normalise_base_path(path)
    except LakeError as error:
        return str(error)
    scheme = normalised.partition("://")[0] if "://" in normalised else ""
    if scheme not in _FILE_SYSTEMS:
        return f"{scheme} is not one of {', '.join(sorted(_FILE_SYSTEMS - {''}))}"
    if normalised != path.rstrip("/"):
        return f"write it as {normalised}"
    return "" if is_below(normalised, roots) else f"it lies below none of {', '.join(roots) or 'no root'}"

"""Run one table service of one table: lease, Spark job, verdict from the timeline."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.errors import LakeError, LeaseLostError, ServiceFailedError, ServiceRefusedError
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook
from airflow_lake_provider.hooks.metrics import AirflowMetrics
from airflow_lake_provider.hooks.timeline import table_opener
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    request_to_json,
)
from airflow_lake_provider.metrics import outcomes
from airflow_lake_provider.operators.executor_lease import ExecutorLease
from airflow_lake_provider.operators.memory import (
    MEMORY_KEYS,
    earlier_results,
    ran_out_of_memory,
    with_more_memory,
)
from airflow_lake_provider.operators.service_metrics import measure_service, measure_try
from airflow_lake_provider.operators.spark_job import (
    APPLICATION,
    SparkSettings,
    find_spark_jobs,
    hook_arguments,
    read_result,
    this_submitter,
    write_text,
)
from airflow_lake_provider.operators.table_reader import TableReader
from airflow_lake_provider.planner.judgement import PLANNED_AS, Judgement, judge
from airflow_lake_provider.planner.lock_rule import require_lock
from airflow_lake_provider.table_id import normalise_base_path, table_id_of
from airflow_lake_provider.timeline.instant import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.timeline.timeline import Timeline


class HudiTableServiceOperator(BaseOperator):
    """Schedules and executes a table service with real Hudi, through spark-submit.

    It succeeds only when a fresh look at the timeline shows the service's instant completed (G3). Errors that a retry
    cannot mend fail the task at once. One executor runs per table and service (G2): a second one fails with the
    holder's name and is retried.

    :param base_path: the table's base path (templated).
    :param table_name: the table's name, for people (templated).
    :param service: a table service, for example `compaction` (templated).
    :param mode: `schedule`, `execute` or `schedule_and_execute` (templated).
    :param instants: requested times of the plans to execute; empty means all pending ones (templated).
    :param hudi_options: Hudi settings of the job; the lock provider must be among them (templated).
    :param spark_conf: Spark settings of the job (templated).
    :param is_dry_run: say what would be submitted, and do nothing (templated).
    :param spark_conn_id: where the job runs; without it `[lake] spark_conn_id`.
    :param lake_conn_id: connection to the manager.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    """

    template_fields: Sequence[str] = (
        "base_path",
        "table_name",
        "service",
        "mode",
        "instants",
        "hudi_options",
        "spark_conf",
        "is_dry_run",
    )
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        base_path: str,
        table_name: str = "",
        service: str = Service.COMPACTION.value,
        mode: str = Mode.SCHEDULE_AND_EXECUTE.value,
        instants: Sequence[str] | str = (),
        hudi_options: dict[str, str] | str | None = None,
        spark_conf: dict[str, str] | str | None = None,
        is_dry_run: bool | str = False,
        spark_conn_id: str | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        storage_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.table_name = table_name
        self.service = service
        self.mode = mode
        self.instants = instants
        self.hudi_options = hudi_options
        self.spark_conf = spark_conf
        self.is_dry_run = is_dry_run
        self.spark_conn_id = spark_conn_id
        self.lake_conn_id = lake_conn_id
        self.storage_options = storage_options
        self._spark_hook: SparkSubmitHook | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the service; return outcome, reason and instants for people (XCom), not for decisions."""
        try:
            judgement = self._run(context)
        except LakeError as error:
            wrapped = AirflowException if error.retriable else AirflowFailException
            raise wrapped(str(error)) from error
        return {
            "outcome": judgement.outcome.value,
            "reason": judgement.reason,
            "completed_instants": list(judgement.completed_instants),
            "pending_instants": list(judgement.pending_instants),
        }

    def on_kill(self) -> None:
        """Kill spark-submit; the driver ends with it, and what it left inflight is taken up by the next run."""
        if self._spark_hook is not None:
            self._spark_hook.on_kill()

    def _run(self, context: Context) -> Judgement:
        base_path = normalise_base_path(self.base_path)
        options = _settings_of(self.hudi_options, "hudi_options")
        wanted = self._service_request()
        require_lock(options, base_path)
        table = self._open_table(base_path, wanted)
        before = table.timeline()
        self.log.info(
            "table %s: %s, mode %s, plans %s", base_path, wanted.service, wanted.mode, _shown(wanted.instants)
        )
        if _is_true(self.is_dry_run):
            return self._dry_run(before, wanted, options)
        table.require_guarded_writers()
        hook = LakeHook(self.lake_conn_id)
        measure_try(AirflowMetrics(), wanted.service, context)
        run_id, try_number = str(context["run_id"]), int(context["ti"].try_number)
        request = JobRequest(
            job_id=f"{run_id}/{try_number}",
            base_path=base_path,
            table_name=self.table_name or base_path.rsplit("/", 1)[-1],
            services=(wanted,),
            result_path=job_path(run_id, try_number, "result.json"),
            hudi_options=options,
            submitter=this_submitter(),
        )
        table_id, began_s = table_id_of(base_path), time.monotonic()
        lease = ExecutorLease(hook, table_id, wanted.service, run_id, try_number, on_lost=self.on_kill)
        try:
            with lease:
                self._submit(request, run_id, try_number, lease)
            if lease.lost:
                raise LeaseLostError(f"{wanted.service} of {base_path} was ended because its lease could not be kept")
            judgement = self._judge(table, before, request)
        finally:
            self._tell_manager(hook, request)
        self.log.info("table %s: %s: %s", base_path, judgement.outcome, judgement.reason)
        measure_service(AirflowMetrics(), table, wanted.service, judgement, time.monotonic() - began_s)
        return judgement

    def _service_request(self) -> ServiceRequest:
        try:
            service, mode = Service(self.service), Mode(self.mode)
        except ValueError as error:
            allowed = f"services: {', '.join(Service)}; modes: {', '.join(Mode)}"
            raise ServiceRefusedError(f"{error}; allowed {allowed}") from error
        instants = self.instants.split(",") if isinstance(self.instants, str) else self.instants
        return ServiceRequest(service, mode, tuple(str(part).strip() for part in instants if str(part).strip()))

    def _open_table(self, base_path: str, wanted: ServiceRequest) -> TableReader:
        table = TableReader(base_path, table_opener(self.storage_options))
        properties = table.properties()
        if wanted.service is Service.COMPACTION and properties.table_type != "MERGE_ON_READ":
            raise ServiceRefusedError(f"table {base_path} is {properties.table_type}: only merge-on-read is compacted")
        is_plan_told = properties.layout is not Layout.V1 or wanted.mode is not Mode.SCHEDULE
        if wanted.service is Service.CLUSTERING and not is_plan_told:
            raise ServiceRefusedError(
                f"table {base_path} has version {properties.version}, where a clustering plan cannot be told from an "
                f"insert overwrite: use mode {Mode.SCHEDULE_AND_EXECUTE}"
            )
        return table

    def _dry_run(self, before: Timeline, wanted: ServiceRequest, options: dict[str, str]) -> Judgement:
        arguments = hook_arguments(self._spark_settings(), "lake-dry-run", "REQUEST_FILE")
        self.log.info("dry run, nothing is submitted. Arguments: %s. Hudi options: %s", arguments, options)
        action = PLANNED_AS.get(wanted.service)
        pending = () if action is None else tuple(instant.requested_time for instant in before.pending(action))
        return Judgement(Outcome.NOTHING_TO_DO, f"dry run of {wanted.service} {wanted.mode}", (), pending)

    def _submit(self, request: JobRequest, run_id: str, try_number: int, lease: ExecutorLease) -> None:
        request_path = job_path(run_id, try_number, "request.json")
        write_text(request_path, request_to_json(request))
        name = f"lake-{request.services[0].service.value}-{table_id_of(request.base_path)}"
        settings = self._spark_settings()
        earlier = earlier_results(try_number, lambda number: read_result(job_path(run_id, number, "result.json")))
        if ran_out_of_memory(earlier):
            conf_with_more = with_more_memory(settings.conf or {})
            self.log.info("an earlier try ran out of memory: %s", {key: conf_with_more[key] for key in MEMORY_KEYS})
            settings = replace(settings, conf=conf_with_more)
        self._spark_hook = SparkSubmitHook(**hook_arguments(settings, name, request_path))
        # The process may have slept since it took the lease.
        lease.require_held()
        try:
            self._spark_hook.submit(str(find_spark_jobs() / APPLICATION))
        except AirflowException as error:
            # Not the verdict: a driver may die after its plan was completed. The timeline decides below.
            self.log.warning("spark-submit failed: %s", error)

    def _judge(self, table: TableReader, before: Timeline, request: JobRequest) -> Judgement:
        result = read_result(request.result_path)
        said = result.services[0] if result is not None and result.services else None
        judgement = judge(before, table.timeline(), request.services[0], said)
        if judgement.done:
            return judgement
        AirflowMetrics().incr(outcomes(request.services[0].service, Outcome.FAILED))
        message = f"table {table.base_path}: {request.services[0].service} {judgement.reason}"
        if judgement.failure_kind is FailureKind.PLAN_GONE:
            raise ServiceRefusedError(message)
        raise ServiceFailedError(message)

    def _tell_manager(self, hook: LakeHook, request: JobRequest) -> None:
        hint = {"base_path": request.base_path, "table_name": request.table_name, "instants": []}
        try:
            hook.send_hints([hint])
        except LakeError as error:
            self.log.warning("the manager was not told and will see by itself: %s", error)

    def _spark_settings(self) -> SparkSettings:
        return SparkSettings(
            conn_id=self.spark_conn_id or conf.get("lake", "spark_conn_id", fallback="spark_default"),
            jars=conf.get("lake", "spark_jars", fallback="") or "",
            packages=conf.get("lake", "spark_packages", fallback="") or "",
            conf=_settings_of(self.spark_conf, "spark_conf"),
        )


def job_path(run_id: str, try_number: int, file_name: str) -> str:
    """Return where a job's file lies: `<work_dir>/jobs/<run id, made safe>/<try>/<file name>`."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    work_dir = conf.get("lake", "work_dir", fallback="") or f"{home}/lake"
    safe_run_id = re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)
    return f"{work_dir.rstrip('/')}/jobs/{safe_run_id}/{try_number}/{file_name}"


def _settings_of(settings: dict[str, str] | str | None, what: str) -> dict[str, str]:
    # What is rendered from a template arrives as JSON text.
    try:
        parsed = json.loads(settings) if isinstance(settings, str) and settings.strip() else settings or {}
    except ValueError as error:
        raise ServiceRefusedError(f"{what} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ServiceRefusedError(f"{what} must be a mapping of settings, got {settings!r}")
    return {str(key): str(value) for key, value in parsed.items()}


def _is_true(value: bool | str) -> bool:  # noqa: FBT001 - a template renders to text
    return value if isinstance(value, bool) else value.strip().lower() in {"true", "1", "yes"}


def _shown(instants: Sequence[str]) -> str:
    return ", ".join(instants) or "all pending, else a new one"

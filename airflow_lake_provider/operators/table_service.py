"""Run one table service of one table: lease, job, verdict from the timeline."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from getpass import getuser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.conflict.admission import AdmissionVerdict
from airflow_lake_provider.errors import EngineError, LakeError, ServiceFailedError, WorkDirError
from airflow_lake_provider.execution.admission import (
    ConflictWatch,
    PlanWithdrawal,
    ServiceAdmission,
    narrow,
    parse_conflict_policy,
)
from airflow_lake_provider.execution.arguments import (
    GivenSettings,
    TableSettings,
    complete_settings,
    describe,
    hold_back,
    is_true,
    load_settings,
    open_table,
    parse_given,
    parse_of_file,
    parse_request,
    prepare_job,
    require_allowed_table,
    require_known_holds,
)
from airflow_lake_provider.execution.engines.engine import create_engine
from airflow_lake_provider.execution.engines.job_files import ExecutorRecord, JobFolder, read_result, remove, write_text
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.warm import SUBMIT, WARM, carry, keep_result, submit_item, take_carried
from airflow_lake_provider.execution.holder import holder_of
from airflow_lake_provider.execution.job import (
    JobRun,
    manager_patience_s,
    open_folder,
    work_dir,
)
from airflow_lake_provider.execution.lease import LeaseKeeper, LeaseRequest
from airflow_lake_provider.execution.more_memory import find_shortage, first_shortage, keep_shortage
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.execution.reporting import (
    TABLE_ASSETS,
    ServiceLineage,
    emit_asset_event,
    measure_service,
    measure_try,
    notify_manager,
    report_failure,
    report_run,
)
from airflow_lake_provider.execution.retry import (
    FailureRetryPolicy,
    as_task_error,
    explain_short,
    judge_run,
    read_limits,
)
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook
from airflow_lake_provider.hooks.open_tables import AirflowMetrics, table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import TRAITS, FailureKind, JobRequest, JobResult, Mode, Outcome, lease_of
from airflow_lake_provider.planner.rules import require_lock
from airflow_lake_provider.planner.verdict import PLANNED_AS, RunVerdict, TableReader
from airflow_lake_provider.triggers.work import WorkTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.types import TaskInstanceKey

    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import ServiceRequest


class LakeTableLink(BaseOperatorLink):
    """The button *Lake table* of a task: it leads to the table's page."""

    name = "Lake table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page's address, below whatever path Airflow is served; empty when the operator has no table."""
        path = getattr(operator, "base_path", "")
        try:
            table_id = table_id_of(normalise_base_path(path))
        except LakeError:
            return ""
        return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/plugin/lake/tables/{quote(table_id)}"


class HudiTableServiceOperator(RendersOwnText, ServiceLineage, BaseOperator):
    """Schedules and executes a table service with real Hudi, through an engine.

    It succeeds only when a fresh read of the timeline shows the service's instant completed (G3). Errors that a retry
    cannot fix fail the task immediately; the failure's kind decides the retry of the others. One executor runs per
    table and service (G2): a second one fails with the holder's name and is retried.

    Each success that completed an instant adds an event to the table's asset (`s3://bucket/a/b`, `file:///a/b`).

    A run that the manager did not create reads the table's policy (tables file) from the manager: Hudi's options with
    lock and retention, Spark's settings, engine, connection, conflict. The operator's arguments override it.

    :param base_path: the table's base path (templated).
    :param table_name: the table's name, for people (templated).
    :param service: a table service, for example `compaction` (templated).
    :param mode: `schedule`, `execute` or `schedule_and_execute`; `undo` puts orphan files back (templated).
    :param instants: requested times of the plans to execute; empty means all pending ones (templated).
    :param hudi_options: Hudi settings over the table's; what services set themselves is refused (templated).
    :param engine: what runs the job, for example `spark-submit`, `warm` or `auto`; empty takes `[lake] engine`
        (templated).
    :param spark_conn_id: where the engine runs it, that of the tables file or `[lake] spark_conn_id`; empty takes the
        tables file's, and without one `[lake] spark_conn_id` (templated).
    :param spark_conf: the engine's settings of the job (templated).
    :param conflict: early conflict detection: `enabled`, `strategy`, `period_s`, `initial_delay_s` (templated).
    :param is_dry_run: log what would be submitted, and do nothing (templated).
    :param adds_event: whether a completed instant adds an event to the table's asset (templated).
    :param lake_conn_id: connection to the manager.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    :param deferrable: with engine `warm`: wait in the triggerer, without a worker, while an application runs the job;
        by default as `[operators] default_deferrable` says.
    """

    template_fields: Sequence[str] = (
        "base_path",
        "table_name",
        "service",
        "mode",
        "instants",
        "hudi_options",
        "engine",
        "spark_conn_id",
        "spark_conf",
        "conflict",
        "is_dry_run",
        "adds_event",
    )
    ui_color = "#d5e8d4"
    operator_extra_links = (LakeTableLink(),)

    def __init__(
        self,
        *,
        base_path: str,
        service: str,
        table_name: str = "",
        mode: str = Mode.SCHEDULE_AND_EXECUTE.value,
        instants: Sequence[str] | str = (),
        hudi_options: dict[str, str] | str | None = None,
        engine: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | str | None = None,
        conflict: dict[str, Any] | str | None = None,
        is_dry_run: bool | str = False,
        adds_event: bool | str = True,
        lake_conn_id: str = DEFAULT_CONN_ID,
        storage_options: dict[str, Any] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", FailureRetryPolicy())
        kwargs["outlets"] = [*(kwargs.get("outlets") or ()), TABLE_ASSETS]
        super().__init__(**kwargs)
        self.base_path = base_path
        self.table_name = table_name
        self.service = service
        self.mode = mode
        self.instants = instants
        self.hudi_options = hudi_options
        self.engine = engine
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.conflict = conflict
        self.is_dry_run = is_dry_run
        self.adds_event = adds_event
        self.lake_conn_id = lake_conn_id
        self.storage_options = storage_options
        self.deferrable = deferrable
        self._hook: LakeHook | None = None
        self._job_run: JobRun | None = None
        self._has_more_memory = False
        self._began_s: float | None = None
        """When the job of this try began, as far as this process knows."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the service; return outcome, reason and instants for people (XCom), not for decisions."""
        return self._answer(context, self._run)

    def _answer(self, context: Context, run: Callable[[Context], RunVerdict]) -> dict[str, Any]:
        try:
            verdict = run(context)
        except LakeError as error:
            raise self._failed(error, context) from error
        except OSError as error:
            # Stores and engines have errors of their own: what is left concerns the job's files.
            unusable = WorkDirError(f"[lake] work_dir {work_dir()} is not usable: {error}; {_remedy_of(error)}")
            raise self._failed(unusable, context) from error
        return verdict.to_dict()

    def _failed(self, error: LakeError, context: Context) -> AirflowException:
        """Return the error that fails the try, which the manager keeps, or with which it waits for infrastructure."""
        failed = as_task_error(error, context)
        if isinstance(failed, AirflowRescheduleException):
            return failed  # the same try goes on later, and reports then
        with suppress(LakeError):  # of a request that nothing can be made of there is no run of a table either
            service = parse_request(self.service, self.mode, self.instants).service
            base_path = normalise_base_path(self.base_path)
            hook = self._hook or LakeHook(self.lake_conn_id)
            seconds = 0.0 if self._began_s is None else time.time() - self._began_s
            report_failure(hook, base_path, service, context, error, seconds)
        return failed

    def on_kill(self) -> None:
        """End the job; the next run resumes what it left inflight."""
        if self._hook is not None:
            self._hook.give_up()
        self._end_job()

    def _end_job(self) -> None:
        if self._job_run is not None:
            self._job_run.stop()

    def options_below(self) -> Mapping[str, str]:
        """Return Hudi settings that hold unless the table's policy or the run sets them."""
        return {}

    def options_above(self) -> Mapping[str, str]:
        """Return settings that the operator itself adds to the job."""
        return {}

    def find_timeout_s(self, context: Context) -> float:
        """Return the time-out of a try in the table's policy, seconds. Raises AirflowException."""
        try:
            base_path = normalise_base_path(self.base_path)
            require_allowed_table(base_path)
            table = TableReader(base_path, table_opener(self.storage_options))
            service = parse_request(self.service, self.mode, ()).service
            settings = load_settings(LakeHook(self.lake_conn_id), table, service)
        except LakeError as error:
            raise as_task_error(error, context) from error
        return settings.timeout_s or TablePolicy().timeout_s

    def _run(self, context: Context) -> RunVerdict:
        base_path = normalise_base_path(self.base_path)
        require_allowed_table(base_path)
        wanted = parse_request(self.service, self.mode, self.instants)
        given = GivenSettings(holder_of(context), parse_given(self), parse_of_file(self))
        table = open_table(base_path, self.storage_options, wanted)
        hook = self._hook = LakeHook(self.lake_conn_id, manager_patience_s())
        settings = complete_settings(given, hook, table, wanted)
        options = {**self.options_below(), **settings.hudi_options, **self.options_above()}
        if TRAITS[wanted.service].needs_lock:
            require_lock(options, base_path)
        before = table.timeline_of(wanted.service)
        for line in table.explain_holes(wanted.service, options):
            self.log.info("table %s: %s", base_path, line)
        plans = ", ".join(wanted.instants) or "all pending, else a new one"
        self.log.info("table %s: %s, mode %s, plans %s", base_path, wanted.service, wanted.mode, plans)
        folder = _folder_of(context, base_path, wanted)
        settings = replace(settings, hudi_options=options | hold_back(hook, base_path, wanted))
        job = self._job(folder, base_path, wanted, settings, context)
        if is_true(self.is_dry_run):
            report_run(hook, job.request, context, "dry_run")
            return self._dry_run(before, job)
        if TRAITS[wanted.service].needs_lock:
            table.require_guarded_writers(wanted)
        admission = self._admission(base_path, replace(settings, hudi_options=options))
        admitted = admission.check(wanted)
        waits = ServiceFailedError(
            f"table {base_path}: {wanted.service} waits: {admitted.reason}", FailureKind.CONFLICT
        )
        if admitted.verdict is AdmissionVerdict.WAIT and not admitted.withdraw:
            raise waits
        self.log.info("table %s: %s: %s", base_path, admitted.verdict, admitted.reason)
        job = replace(job, request=replace(job.request, services=(narrow(wanted, admitted),)))
        measure_try(AirflowMetrics(), wanted.service, context)
        if self.deferrable and job.engine == WARM and admission.watch(job.request.services[0]) is None:
            self._defer_until_ended(hook, folder, job, table)
        return self._conclude(
            context,
            table,
            job,
            lambda: self._execute_job(hook, folder, job, admission, table),
            time.time(),
            waits if admitted.withdraw else None,
        )

    def _conclude(
        self,
        context: Context,
        table: TableReader,
        job: EngineJob,
        execute: Callable[[], tuple[Timeline, JobRequest]],
        began_s: float,
        then: LakeError | None = None,
    ) -> RunVerdict:
        """Execute the job, or take what it left, and judge it; then measure, report and notify, or raise `then`."""
        hook = self._hook or LakeHook(self.lake_conn_id)
        completed: tuple[str, ...] = ()
        self._began_s = began_s
        try:
            before, ran = execute()
            verdict = judge_run(AirflowMetrics(), table, before, ran, has_more_memory=self._has_more_memory)
            completed = verdict.completed_instants
            self.log.info("table %s: %s: %s", table.base_path, verdict.outcome, verdict.reason)
            if then is not None:
                raise then
            took_s = time.time() - began_s
            service = job.request.services[0].service
            effect = measure_service(AirflowMetrics(), table, service, verdict, took_s)
            report_run(hook, job.request, context, verdict.outcome.value, took_s, effect)
        except ServiceFailedError as error:
            if error.failure_kind == FailureKind.OUT_OF_MEMORY:
                keep_shortage(context, first_shortage([read_result(ran.result_path)]) or {})
            raise
        finally:
            # Behind the report: an evaluation would still find that the try before this one has failed.
            notify_manager(hook, job.request, completed)
        if is_true(self.adds_event):
            emit_asset_event(context, job.request, service, verdict, effect)
        self.keep_lineage(verdict, effect)
        return verdict

    # --- Warm Spark: the task waits in the triggerer while a standing application runs its job

    def _defer_until_ended(self, hook: LakeHook, folder: JobFolder, job: EngineJob, table: TableReader) -> None:
        """Submit the job's item and leave the worker; return when the job has to run here."""
        table_id = table_id_of(job.request.base_path)
        service = job.request.services[0].service
        if ExecutorRecord(folder.work_dir, table_id, service).find() is not None:
            return  # what an earlier executor left has to be ended first
        lease = LeaseRequest(hook, table_id, service, folder).acquire()
        try:
            require_known_holds(hook, job.request)
            before = table.timeline_of(service)
            is_item = submit_item(hook, job)
        except LakeError:
            hook.release_executor(table_id, service, lease.token)
            raise
        if not is_item:
            return  # this try's own request gets the lease again
        # This process ends now, and the lease stays the try's: no other run may take it for that of a dead holder. The
        # run's next try may, when the item has ended.
        write_text(folder.item_path, job.tag)
        remove(folder.holder_path)
        carried = carry(job, before.instants, time.time())
        self.defer(
            trigger=WorkTrigger(job.tag, table_id, service.value, lease.token, self.lake_conn_id, carried),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Judge the job whose item has ended; a job that no standing application can run runs here, alone."""
        return self._answer(context, partial(self._resume, event=event))

    def _resume(self, context: Context, event: Mapping[str, Any]) -> RunVerdict:
        job, instants, began_s = take_carried(event)
        (wanted,) = job.request.services
        hook = self._hook = LakeHook(self.lake_conn_id, manager_patience_s())
        table = open_table(job.request.base_path, self.storage_options, wanted)
        folder = _folder_of(context, table.base_path, wanted)
        self._has_more_memory = find_shortage(context, folder, JobResult) is not None

        def take_result() -> tuple[Timeline, JobRequest]:
            hook.release_executor(table_id_of(job.request.base_path), wanted.service, str(event["lease"]))
            remove(job.request.result_path)
            keep_result(job, event)
            if event["state"] == "cancelled" and not event["result"]:
                raise ServiceFailedError(
                    f"table {table.base_path}: {wanted.service}: its work was cancelled: {event['message']}"
                )
            return Timeline(instants), job.request

        def run_alone() -> tuple[Timeline, JobRequest]:
            self.log.warning("table %s: %s runs alone now: %s", table.base_path, wanted.service, event["message"])
            alone = replace(job, engine=SUBMIT, request=replace(job.request, submitter=this_submitter()))
            # Services that are watched for writers never come here.
            admission = self._admission(table.base_path, TableSettings(hudi_options=job.request.hudi_options))
            return self._execute_job(hook, folder, alone, admission, table)

        execute = run_alone if event["state"] == "alone" else take_result
        return self._conclude(context, table, job, execute, began_s)

    def _job(
        self, folder: JobFolder, base_path: str, wanted: ServiceRequest, settings: TableSettings, context: Context
    ) -> EngineJob:
        table_name = self.table_name or base_path.rsplit("/", 1)[-1]
        job, self._has_more_memory = prepare_job(folder, (base_path, table_name), wanted, settings, context)
        timeout = self.execution_timeout
        return replace(
            job, lake_conn_id=self.lake_conn_id, timeout_s=timeout.total_seconds() if timeout is not None else 0.0
        )

    def _dry_run(self, before: Timeline, job: EngineJob) -> RunVerdict:
        (wanted,) = job.request.services
        action = PLANNED_AS.get(wanted.service)
        pending = () if action is None else tuple(instant.requested_time for instant in before.pending(action))
        self.log.info("dry run: nothing is started. A run would start:\n%s", describe(job, pending))
        return RunVerdict(Outcome.NOTHING_TO_DO, f"dry run of {wanted.service} {wanted.mode}", (), pending)

    def _admission(self, base_path: str, settings: TableSettings) -> ServiceAdmission:
        policy = parse_conflict_policy(settings.conflict, base_path)
        opener = table_opener(self.storage_options)
        return ServiceAdmission(base_path, opener, policy, settings.hudi_options, settings.spark_conf)

    def _execute_job(
        self, hook: LakeHook, folder: JobFolder, job: EngineJob, admission: ServiceAdmission, table: TableReader
    ) -> tuple[Timeline, JobRequest]:
        """Run the job under the lease of its table and service; return the timeline before, and what ran.

        The timeline is read under the lease: what another run completes while this one waits is not this one's.

        A clustering that gave way to a writer leaves no plan behind: it raises ServiceFailedError.
        """
        table_id = table_id_of(job.request.base_path)
        service = lease_of(job.request.services[0])
        record = ExecutorRecord(folder.work_dir, table_id, service)
        began_s = time.monotonic()
        self._job_run = JobRun(job, record, create_engine)
        if short := explain_short(read_limits()):
            self.log.warning("%s", short)
        policy = admission.policy
        watched = admission.watch(job.request.services[0])
        watch = ConflictWatch(watched, self._end_job, policy.period_s, policy.initial_delay_s)
        # Created before anything begins: a wrong name fails here.
        create_engine(job.engine)
        lease = LeaseKeeper(LeaseRequest(hook, table_id, service, folder), on_lost=self._end_job)
        with lease:
            require_known_holds(hook, job.request)
            before = table.timeline_of(job.request.services[0].service)
            plans = PlanWithdrawal(before, table.timeline)
            with watch:
                ran = self._run_to_end(self._job_run, lease, watch)
            lost = plans.find_lost(ran, watch.conflict, time.monotonic() - began_s)
            if lost is not None:
                return before, plans.give_way(lost, ran, job, partial(self._run_after, lease, record))
        if lease.error is not None:
            raise type(lease.error)(f"{service} of {job.request.base_path} was ended: {lease.error}") from lease.error
        return before, ran

    def _run_after(self, lease: LeaseKeeper, record: ExecutorRecord, job: EngineJob) -> None:
        # Without the lease even the record belongs to another run.
        lease.require_held()
        self._job_run = JobRun(job, record, create_engine)
        self._job_run.run(lease.require_held)

    def _run_to_end(self, run: JobRun, lease: LeaseKeeper, watch: ConflictWatch) -> JobRequest:
        try:
            return run.run(lease.require_held)
        except EngineError as error:
            # The result of a job that was stopped for a writer may report a failure.
            if watch.conflict is None:
                raise
            self.log.info("%s", error)
            return run.job.request


def _folder_of(context: Context, base_path: str, wanted: ServiceRequest) -> JobFolder:
    """Return the folder of a try."""
    part = f"{table_id_of(base_path)}.{wanted.service}"
    return open_folder(holder_of(context), int(context["ti"].try_number), part)


def _remedy_of(error: OSError) -> str:
    """Return what makes `work_dir` usable."""
    if isinstance(error, PermissionError):
        return f"let user {getuser()} of this task write there"
    return "free or mount it"


# --- The time-out of one try, from the run's Params: one DAG for all tables has no time-out of its own for each


def set_time_out(context: Any) -> None:
    """`pre_execute` of the service's task: Airflow ends the try after the run's `timeout_s`, and retries it.

    A run by hand without one takes the table's.
    """
    task = context["ti"].task
    given_s = context["params"]["timeout_s"]
    timeout_s = float(given_s) if given_s is not None else task.find_timeout_s(context)
    task.execution_timeout = timedelta(seconds=timeout_s)

"""The operators of replication: one brings one sink up to date with one table, one serves many sinks in one driver.

Each begins at the manager, runs a Spark job and reports what is durable. `execution/streams.py` has the task's half of
a driver of many streams.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    ReplicationFailedError,
    ReplicationRefusedError,
    SinkBusyError,
)
from airflow_lake_provider.execution.arguments import (
    SinkByHand,
    find_number,
    parse_settings,
    refuse_secrets,
    require_allowed_table,
)
from airflow_lake_provider.execution.engines.engine import Death, Engine, Handle, create_engine
from airflow_lake_provider.execution.engines.job_files import (
    ExecutorRecord,
    JobFolder,
    find_result,
    remove,
    resolve_secrets,
    write_request,
)
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import FAIR
from airflow_lake_provider.execution.engines.spark_submit import NearTaskEngine
from airflow_lake_provider.execution.holder import claimant_of, holder_of
from airflow_lake_provider.execution.job import JobRun, replication_job, work_dir
from airflow_lake_provider.execution.more_memory import (
    find_shortage,
    first_shortage,
    keep_shortage,
    with_more_memory,
)
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.execution.reporting import HoldCap, ProgressReporter, report_result, report_sink
from airflow_lake_provider.execution.sink_connections import options_with_connection
from airflow_lake_provider.execution.streams import StreamRuns
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook, as_airflow_error
from airflow_lake_provider.hooks.open_tables import AirflowMetrics
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.job_contract import (
    WORK_AT_ONCE,
    WORK_IDLE_S,
    WORK_MAX_AGE_S,
    FailureKind,
)
from airflow_lake_provider.metrics import REPLICATION_FAILURES
from airflow_lake_provider.operators.table_service import LakeTableLink
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.feed import parse_seek_time
from airflow_lake_provider.replication.job import CHANNEL, Channel, ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.where import EXAMPLE, WhereError, parse_where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import JobRequest

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {"base_path": "", "sink": "", "is_claimed": True}
"""The arguments of a task that replicates nothing and succeeds: no sink was due."""
DEFAULT_TTL_S = 86_400.0
ACTIONS = ("replicate", "snapshot", "seek", "verify", "repair")


class HudiReplicationOperator(RendersOwnText, BaseOperator):
    """Replicates what is new in a table to one sink, beginning with a snapshot where one is needed.

    It may die anywhere, and be cleared at any time: the sink itself holds what is durable. While another run has the
    sink, this one does not begin: it is retried, or skipped when it had claimed the sink and lost the claim.

    :param base_path: the table's base path (templated).
    :param table_name: the table's name, for people (templated).
    :param sink: the name under which the sink is registered, for example `kafka` (templated).
    :param name: name of the stream; the sink's unless set (templated).
    :param mode: `changes` or `latest` (templated).
    :param key: fields of the key; empty takes the table's record key and its partition fields (templated).
    :param options: the sink's settings; `conn_id` among them names an Airflow connection (templated).
    :param ttl_s: time to live of the hold in seconds, where the tables file does not have this sink (templated).
    :param action: `replicate`, `snapshot` (a new one), `seek`, or `verify`, which replicates, compares the sink's rows
        with the table's, and fails with what differs; `repair` sends those rows again first (templated).
    :param rows: for `snapshot`: comparisons of columns, as in the option `where`; the sink gets the rows that fit them
        once more, between its other changes. Empty takes all rows, in a new generation (templated).
    :param seek_until: for `seek`: continue with commits that completed after this time (templated).
    :param spark_conf: Spark settings of the job (templated).
    :param max_hold_s: as the run ends, release the hold of a sink that lacks a commit older than this (templated).
    :param max_held_bytes: release the hold when it is more bytes of replaced files as the run ends (templated).
    :param is_claimed: the DAG run has claimed the sink from the manager; no caller waits for this very run. Without a
        base path it has claimed none, and the task succeeds at once.
    """

    template_fields: Sequence[str] = (
        "base_path",
        "table_name",
        "sink",
        "name",
        "mode",
        "key",
        "options",
        "ttl_s",
        "max_hold_s",
        "max_held_bytes",
        "action",
        "rows",
        "seek_until",
        "spark_conf",
    )
    ui_color = "#dae8fc"
    operator_extra_links = (LakeTableLink(),)

    def __init__(
        self,
        *,
        base_path: str,
        sink: str,
        table_name: str = "",
        name: str = "",
        mode: str = ChangeMode.CHANGES.value,
        key: Sequence[str] = (),
        options: dict[str, str] | str | None = None,
        ttl_s: float | str = DEFAULT_TTL_S,
        max_hold_s: float | str | None = None,
        max_held_bytes: float | str | None = None,
        action: str = "replicate",
        rows: str = "",
        seek_until: str = "",
        spark_conf: dict[str, str] | str | None = None,
        spark_conn_id: str | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        is_claimed: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.sink = sink
        self.table_name = table_name
        self.name = name
        self.mode = mode
        self.key = key
        self.options = options
        self.ttl_s = ttl_s
        self.max_hold_s = max_hold_s
        self.max_held_bytes = max_held_bytes
        self.action = action
        self.rows = rows
        self.seek_until = seek_until
        self.spark_conf = spark_conf
        self.spark_conn_id = spark_conn_id
        self.lake_conn_id = lake_conn_id
        self.is_claimed = is_claimed
        self._job_run: JobRun | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run; return how much was replicated (XCom, for people)."""
        if self.is_claimed and not self.base_path:
            self.log.info("there is nothing to replicate now")
            return {"commits": 0, "rows": 0, "snapshot_reason": "", "waits_for": ""}
        try:
            result = self._run(context)
        except SinkBusyError as error:
            raise (AirflowSkipException(str(error)) if self.is_claimed else as_airflow_error(error)) from error
        except Exception as error:
            AirflowMetrics().incr(REPLICATION_FAILURES)
            self._report_sink()
            if not isinstance(error, LakeError):
                raise
            raise as_airflow_error(error) from error
        self._report_sink()
        return {
            "commits": result.commits,
            "rows": result.rows,
            "snapshot_reason": result.snapshot_reason,
            "waits_for": result.waits_for,
            "verified": result.verified,
        }

    def on_kill(self) -> None:
        """End the driver, wherever it runs; the sink drops what was not committed."""
        if self._job_run is not None:
            self._job_run.stop()

    def _result_path(self, folder: JobFolder) -> str:
        return folder.result_path if self._job_run is None else self._job_run.result_path

    def _run(self, context: Context) -> ReplicationResult:
        self._require_action()
        ttl_s = find_number("ttl_s", self.ttl_s)
        self._cap()  # before the work, of which it is the end
        base_path = normalise_base_path(self.base_path)
        name = self.name or self.sink
        require_allowed_table(base_path)
        table_id = table_id_of(base_path)
        hook = LakeHook(self.lake_conn_id)
        self._check_settings(f"table {base_path}, sink {name}", lambda: hook.find_sink_entry(table_id, name))
        run_id = claimant_of(context) if self.is_claimed else holder_of(context)
        try_number = int(context["ti"].try_number)
        folder = JobFolder(work_dir(), f"{run_id}.{table_id}.{name}", try_number)
        table = hook.get_table(table_id)
        begun = hook.begin_replication(table_id, name, ttl_s or DEFAULT_TTL_S, run_id)
        progress = ProgressReporter(
            hook, table_id, name, run_id, lambda: self._result_path(folder), on_lost=self.on_kill
        )
        try:
            order = self._order(f"{table_id}.{name}", run_id, begun)
            request = self._request(table, base_path, order, folder.result_path)
            shortage = find_shortage(context, folder, ReplicationResult)
            if shortage is not None:
                self.log.info("an earlier try ran out of memory: this one gets twice as much")
            settings = with_more_memory(parse_settings(self.spark_conf, "spark_conf"), shortage)
            job = replication_job(request, folder, f"{run_id}/{try_number}", self.spark_conn_id, settings)
            self._job_run = JobRun(job, ExecutorRecord.for_sink(folder.work_dir, table_id, name), create_engine)
            with progress:
                try:
                    ran = self._submit(self._job_run, progress)
                finally:
                    # Then this run has ended its driver, which is no failure of it.
                    progress.require_claim()
            if shortage is None:
                _keep_shortage(context, ran.result_path, self._job_run.death)
            result = _result_of(ran.result_path, order.stream, self._job_run.death)
        except SinkBusyError:
            # The reports of the run that has the sink now are newer.
            raise
        except Exception as error:
            progress.end(
                {"problem": str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"}
            )
            raise
        # A manager that is older than this worker compares with the newest instant of any kind.
        seen = table.get("changed_time", table["completed_time"])
        progress.end_with(result, seen)
        if result.has_failed:
            is_refused = result.failure_kind is FailureKind.REFUSED
            raise (ReplicationRefusedError if is_refused else ReplicationFailedError)(result.message)
        if result.waits_for:
            self.log.warning("table %s, sink %s: %s", base_path, name, result.waits_for)
        report_result(AirflowMetrics(), result)
        return result

    def _report_sink(self) -> None:
        try:
            cap = self._cap()
        except ConfigError:
            cap = HoldCap()
        report_sink(AirflowMetrics(), LakeHook(self.lake_conn_id), self.base_path, self.name or self.sink, cap)

    def _cap(self) -> HoldCap:
        held_bytes = find_number("max_held_bytes", self.max_held_bytes)
        return HoldCap(find_number("max_hold_s", self.max_hold_s), None if held_bytes is None else int(held_bytes))

    def _require_action(self) -> None:
        if self.action not in ACTIONS or (self.action == "seek") != bool(self.seek_until):
            raise ConfigError(f"action is {self.action!r}: allowed are {', '.join(ACTIONS)}; seek with seek_until")
        if self.seek_until:
            parse_seek_time(self.seek_until)
        if self.rows and self.action != "snapshot":
            raise ConfigError(f"rows is {self.rows!r}, and action is {self.action!r}: rows is for snapshot")
        try:
            parse_where(self.rows)
        except WhereError as error:
            raise ConfigError(f"rows is {self.rows!r}, in which {error}; for example: {EXAMPLE}") from error

    def _check_settings(self, what: str, find_entry: Callable[[], Mapping[str, Any]]) -> None:
        """Raise ServiceRefusedError for a secret, and in a run by hand for what only the tables file may set."""
        options = parse_settings(self.options, "options")
        spark_conf = parse_settings(self.spark_conf, "spark_conf")
        for place, settings in (("spark_conf", spark_conf), ("options", options)):
            refuse_secrets(settings, place, what)
        by_hand = SinkByHand(
            *(what, self.sink, options, spark_conf),
            file_options=self.settings_of_file("options"),
            file_spark_conf=self.settings_of_file("spark_conf"),
        )
        if not self.is_claimed and by_hand.sets_places:
            by_hand.check(find_entry(), LakeSettings.from_conf(conf))

    def _submit(self, job_run: JobRun, progress: ProgressReporter) -> JobRequest:
        return job_run.run(progress.require_claim)

    def _order(self, stream: str, run_id: str, begun: Mapping[str, Any]) -> Order:
        release = str(begun["request"]) if begun["needs_snapshot"] else ""
        catches_up = self.action in {"replicate", "verify", "repair"} or bool(self.rows)
        request = release if catches_up else run_id
        snapshot = bool(release) if catches_up else self.action == "snapshot"
        # An older manager does not say the generation: only a sink that has lost its checkpoint would need it.
        generation = int(begun.get("generation", 0))
        return Order(stream, request=request, snapshot=snapshot, seek_until=self.seek_until, generation=generation)

    def _request(self, table: Mapping[str, Any], base_path: str, order: Order, result_path: str) -> ReplicationRequest:
        # A name from a notice must not choose a topic: those of the table's own properties do.
        # An older manager does not say which it is.
        is_identified = bool(table.get("identified"))
        known = table["table_name"] if is_identified else base_path.rsplit("/", 1)[-1]
        return ReplicationRequest(
            base_path=base_path,
            table_name=self.table_name or known,
            database=table["database"] if is_identified else "",
            kind=self.sink,
            order=order,
            result_path=result_path,
            mode=ChangeMode(self.mode),
            key=tuple(self.key),
            options=resolve_secrets(options_with_connection(self.sink, parse_settings(self.options, "options"))),
            is_verification=self.action in {"verify", "repair"},
            is_repair=self.action == "repair",
            rows=self.rows,
            submitter=this_submitter(),
        )


class HudiMappedReplicationOperator(HudiReplicationOperator):
    """One sink of those that a task before it found; its arguments are data, and are not rendered.

    Airflow renders what `expand_kwargs` takes from an XCom like an argument in a DAG file. So a template in a run's
    conf, or in the name of a table, could read every connection and Variable.
    """

    template_fields: Sequence[str] = ()


class HudiStreamsOperator(BaseOperator):
    """Brings the sinks that are due up to date, many side by side in one driver, until it is idle or old.

    It takes those of tables that have no Spark settings of their own. What fails in one stream is that sink's problem,
    and is retried with growing pauses; the others go on. Without a due sink it succeeds at once, and starts no Spark.

    :param at_once: how many streams the driver serves at the same time.
    :param idle_s: the driver ends when nothing was due for so long, in seconds.
    :param max_age_s: it takes no more work after so long, in seconds; the next run of the DAG begins a new one.
    """

    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        at_once: int,
        idle_s: float,
        max_age_s: float,
        spark_conn_id: str | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.at_once = at_once
        self.idle_s = idle_s
        self.max_age_s = max_age_s
        self.spark_conn_id = spark_conn_id
        self.lake_conn_id = lake_conn_id
        self._driver: tuple[Engine, Handle] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run a driver to its end; return how much was replicated (XCom, for people)."""
        run_id = holder_of(context)
        try_number = int(context["ti"].try_number)
        folder = JobFolder(work_dir(), f"{run_id}.streams", try_number)
        runs = StreamRuns(LakeHook(self.lake_conn_id), run_id, folder, self.at_once)
        try:
            if not runs.claim():
                self.log.info("there is nothing to replicate now")
                return {"commits": 0, "rows": 0, "failures": 0}
            self._run(runs, folder, context)
        except LakeError as error:
            runs.end_all(f"{error}")
            raise as_airflow_error(error) from error
        except BaseException as error:
            runs.end_all(f"the task of the driver has ended: {type(error).__name__}: {error}")
            raise
        return {"commits": runs.commits, "rows": runs.rows, "failures": runs.failures}

    def on_kill(self) -> None:
        """End the driver; the sinks drop what was not committed."""
        if self._driver is not None:
            engine, handle = self._driver
            engine.stop(handle)

    def _run(self, runs: StreamRuns, folder: JobFolder, context: Context) -> None:
        channel = Channel(runs.answer)
        options = {
            CHANNEL: channel.path,
            WORK_AT_ONCE: str(self.at_once),
            WORK_IDLE_S: str(self.idle_s),
            WORK_MAX_AGE_S: str(self.max_age_s),
        }
        request = ReplicationRequest(
            base_path="",
            table_name="streams",
            kind="",
            order=Order("streams"),
            result_path=folder.result_path,
            options=options,
            submitter=this_submitter(),
        )
        job_id = f"{folder.run_id}/{folder.try_number}"
        shortage = find_shortage(context, folder, ReplicationResult)
        settings = with_more_memory(FAIR, shortage)
        with channel:
            death = self._submit(replication_job(request, folder, job_id, self.spark_conn_id, settings))
        if shortage is None:
            _keep_shortage(context, folder.result_path, death)
        if channel.error is not None:
            raise channel.error
        result = _result_of(folder.result_path, "streams", death)
        runs.end_all("the driver of many streams has ended")
        if result.has_failed:
            raise ReplicationFailedError(result.message)

    def _submit(self, job: EngineJob) -> Death | None:
        engine = NearTaskEngine()
        self._driver = (engine, Handle(job))
        write_request(job)
        try:
            return engine.wait(engine.start(job))
        finally:
            # It may hold passwords.
            remove(job.request_path)


def _keep_shortage(context: Context, path: str, death: Death | None) -> None:
    """Keep for the next try how much memory this one had, if it ran out of it."""
    left = find_result(path, ReplicationResult)
    memory = first_shortage([left])
    if memory is None and death is not None and death.failure_kind is FailureKind.OUT_OF_MEMORY:
        memory = {} if left is None else left.memory
    if memory is not None:
        keep_shortage(context, memory)


def _result_of(path: str, stream: str, death: Death | None) -> ReplicationResult:
    result = find_result(path, ReplicationResult)
    if result is not None and result.ended:
        return result
    if death is not None:
        is_refused = death.failure_kind is FailureKind.REFUSED
        end = "" if is_refused else "; the next try continues from the sink's checkpoint"
        raise (ReplicationRefusedError if is_refused else ReplicationFailedError)(
            f"the driver of stream {stream} died: {death.reason}{end}"
        )
    raise ReplicationFailedError(
        f"the driver of stream {stream} died; the next try continues from the sink's checkpoint"
    )

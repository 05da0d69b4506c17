"""Bring one sink up to date with one table: begin, Spark job, report what is durable to the manager."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    ReplicationFailedError,
    ReplicationRefusedError,
    ServiceRefusedError,
    SinkBusyError,
)
from airflow_lake_provider.execution.arguments import parse_settings, refuse_code, refuse_secrets, require_allowed_table
from airflow_lake_provider.execution.engines.engine import Death, find_failed_login, login_of
from airflow_lake_provider.execution.engines.job_files import (
    JobFolder,
    find_result,
    find_text,
    remove,
    resolve_secrets,
    write_text,
)
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import (
    close_output,
    replication_application,
    replication_arguments,
    write_secret_conf,
)
from airflow_lake_provider.execution.job import work_dir
from airflow_lake_provider.execution.reporting import HoldCap, report_result, report_sink
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook, as_airflow_error
from airflow_lake_provider.hooks.open_tables import AirflowMetrics
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.job_contract import FailureKind, to_json
from airflow_lake_provider.metrics import REPLICATION_FAILURES
from airflow_lake_provider.operators.table_service import LakeTableLink
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.feed import parse_seek_time
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.pump import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection, Context

log = logging.getLogger(__name__)

# --- A sink's settings from an Airflow connection, so that no file contains passwords


def options_with_connection(sink: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options with `conn_id` replaced by its connection's settings; other options override them.

    Raises ConfigError when there is no such connection.
    """
    options = dict(options)
    conn_id = options.pop("conn_id", "")
    if not conn_id:
        return options
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(f"sink {sink}: there is no connection {conn_id!r}") from error
    return {**connection_options(sink, connection), **options}


def refuse_detour(options: Mapping[str, str], what: str) -> None:
    """Raise ServiceRefusedError when a run by hand would send a connection's login to a server of its own choice."""
    if not options.get("conn_id"):
        return
    found = next((key for key in options if key in {"url", "bootstrap_servers"} or key.startswith("kafka.")), None)
    if found is not None:
        raise ServiceRefusedError(
            f"{what}: options: {found} stands next to conn_id, and a run by hand sends the login of a connection "
            "only where the connection points: set it in the connection, or in the tables file"
        )


def connection_options(sink: str, connection: Connection) -> dict[str, str]:
    """Return a connection as a sink's options: its URL for `database`, the client's settings for `kafka`."""
    extra = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    if sink == "database":
        return {"url": connection.get_uri().replace("postgres://", "postgresql://", 1)}
    if sink == "kafka":
        servers = extra.pop("bootstrap.servers", "")
        client = {f"kafka.{key}": value for key, value in extra.items()}
        return client | ({"bootstrap_servers": servers} if servers else {})
    return extra


PROGRESS_INTERVAL_S = 20.0
NOTHING: Mapping[str, Any] = {"base_path": "", "sink": "", "is_claimed": True}
"""The arguments of a task that replicates nothing and succeeds: no sink was due."""
ACTIONS = ("replicate", "snapshot", "seek", "verify")


class HudiReplicationOperator(BaseOperator):
    """Replicates what is new in a table to one sink, beginning with a snapshot where one is needed.

    It may die anywhere, and be cleared at any time: the sink itself holds what is durable. While another run has the
    sink, this one does not begin: it is retried, or skipped when it had claimed the sink and lost the claim.

    :param base_path: the table's base path (templated).
    :param table_name: the table's name, for people (templated).
    :param sink: the name under which the sink is registered, for example `kafka` (templated).
    :param name: name of the stream; the sink's unless set (templated).
    :param mode: `changes` or `latest` (templated).
    :param key: fields of the key; empty takes the table's record key (templated).
    :param options: the sink's settings; `conn_id` among them names an Airflow connection (templated).
    :param ttl_s: time to live of the hold in seconds, where the tables file does not have this sink (templated).
    :param action: `replicate`, `snapshot` (a new one), `seek`, or `verify`, which replicates, compares the sink's rows
        with the table's, and fails with what differs (templated).
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
        ttl_s: float | str = 86_400.0,
        max_hold_s: float | str | None = None,
        max_held_bytes: float | str | None = None,
        action: str = "replicate",
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
        self.seek_until = seek_until
        self.spark_conf = spark_conf
        self.spark_conn_id = spark_conn_id
        self.lake_conn_id = lake_conn_id
        self.is_claimed = is_claimed
        self._spark_hook: SparkSubmitHook | None = None

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
        """Kill spark-submit; the driver ends with it, and the sink drops what was not committed."""
        if self._spark_hook is not None:
            self._spark_hook.on_kill()

    def _run(self, context: Context) -> ReplicationResult:
        self._require_action()
        base_path, name = normalise_base_path(self.base_path), self.name or self.sink
        require_allowed_table(base_path)
        for place, given in (("spark_conf", self.spark_conf), ("options", self.options)):
            settings, what = parse_settings(given, place), f"table {base_path}, sink {name}"
            refuse_secrets(settings, place, what)
            if not self.is_claimed:
                refuse_code(settings, place, what)
                refuse_detour(settings, what)
        table_id = table_id_of(base_path)
        hook = LakeHook(self.lake_conn_id)
        run_id, try_number = str(context["run_id"]), int(context["ti"].try_number)
        folder = JobFolder(work_dir(), f"{run_id}.{table_id}.{name}", try_number)
        table = hook.get_table(table_id)
        begun = hook.begin_replication(table_id, name, float(self.ttl_s), run_id)
        progress = _ProgressReporter(hook, table_id, name, run_id, folder.result_path, on_lost=self.on_kill)
        try:
            order = self._order(f"{table_id}.{name}", run_id, begun)
            request = self._request(table, base_path, order, folder.result_path)
            with progress:
                death = self._submit(request, folder)
            if progress.lost is not None:
                raise progress.lost
            result = _result_of(folder.result_path, order.stream, death)
        except SinkBusyError:
            # The reports of the run that has the sink now are newer.
            raise
        except Exception as error:
            progress.end(
                {"problem": str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"}
            )
            raise
        finally:
            # It may hold the sink's password.
            remove(folder.request_path)
        problem = result.message or result.waits_for
        # A manager that is older than this worker compares with the newest instant of any kind.
        seen = table.get("changed_time", table["completed_time"])
        progress.end({"checkpoint": result.checkpoint, "problem": problem, "completed_time": seen})
        if result.has_failed:
            is_refused = result.failure_kind is FailureKind.REFUSED
            raise (ReplicationRefusedError if is_refused else ReplicationFailedError)(result.message)
        if result.waits_for:
            self.log.warning("table %s, sink %s: %s", base_path, name, result.waits_for)
        report_result(AirflowMetrics(), result)
        return result

    def _report_sink(self) -> None:
        cap = HoldCap(
            float(self.max_hold_s) if self.max_hold_s else None,
            int(self.max_held_bytes) if self.max_held_bytes else None,
        )
        report_sink(AirflowMetrics(), LakeHook(self.lake_conn_id), self.base_path, self.name or self.sink, cap)

    def _require_action(self) -> None:
        if self.action not in ACTIONS or (self.action == "seek") != bool(self.seek_until):
            raise ConfigError(f"action is {self.action!r}: allowed are {', '.join(ACTIONS)}; seek with seek_until")
        if self.seek_until:
            parse_seek_time(self.seek_until)

    def _order(self, stream: str, run_id: str, begun: Mapping[str, Any]) -> Order:
        release = str(begun["request"]) if begun["needs_snapshot"] else ""
        catches_up = self.action in {"replicate", "verify"}
        request = release if catches_up else run_id
        snapshot = self.action == "snapshot" or (bool(release) and catches_up)
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
            is_verification=self.action == "verify",
            submitter=this_submitter(),
        )

    def _submit(self, request: ReplicationRequest, folder: JobFolder) -> Death | None:
        """Run the driver to its end; return why it got no Kerberos ticket, if that is how it ended."""
        write_text(folder.request_path, to_json(request))
        lake = LakeSettings.from_conf(conf)
        conn_id = self.spark_conn_id or lake.spark_conn_id
        settings = parse_settings(self.spark_conf, "spark_conf")
        arguments = replication_arguments(
            conn_id, f"lake-replicate-{request.order.stream}", folder.request_path, settings
        )
        packages = {"jars": lake.spark_jars} if lake.spark_jars else {"packages": lake.spark_packages or None}
        # Not at the top: it imports Kubernetes' client, and Airflow imports this file whenever it parses the DAG.
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        secrets = write_secret_conf(settings, os.environ) or None
        self._spark_hook = SparkSubmitHook(**arguments, **packages, properties_file=secrets)
        try:
            self._spark_hook.submit(replication_application())
        except AirflowException as error:
            # The result has more detail; without one, the driver died.
            self.log.warning("spark-submit failed: %s", error)
            login = login_of(settings, self._spark_hook._connection, conn_id)
            return find_failed_login(str(error).splitlines(), login)
        except OSError as error:
            raise ReplicationFailedError(
                f"spark-submit of stream {request.order.stream} could not be started ({error}): install Spark on this "
                f"worker, or correct the binary and PATH of connection {conn_id!r}"
            ) from error
        finally:
            close_output(self._spark_hook)
        return None


class _ProgressReporter:
    """Reports the run's progress to the manager, from a thread, so that the hold advances during a long run.

    The thread also renews the run's claim on the sink, so no error ends it. When another run has taken the sink over,
    it calls `on_lost` until the run ends.
    """

    def __init__(
        self,
        hook: LakeHook,
        table_id: str,
        name: str,
        run_id: str,
        result_path: str,
        *,
        on_lost: Callable[[], None],
    ) -> None:
        self._hook, self._table_id, self._name, self._result_path = hook, table_id, name, result_path
        self._run_id = run_id
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lake-replication-progress", daemon=True)
        self.lost: SinkBusyError | None = None
        """The error that names the run with the sink; None while this run has it."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, progress: Mapping[str, Any]) -> None:
        """Report that the run has ended. An unreachable manager changes nothing: the sink has the true checkpoint."""
        try:
            self._report({**progress, "ended": True})
        except LakeError as error:
            log.warning("the end of sink %s's run on table %s was not reported: %s", self._name, self._table_id, error)

    def _loop(self) -> None:
        while not self._stop.wait(PROGRESS_INTERVAL_S):
            try:
                self._renew()
            except LakeError as error:
                log.warning("sink %s of table %s was not renewed: %s", self._name, self._table_id, error)
            except Exception:  # the outermost loop: without renewals another run would take the sink from this one
                log.exception("sink %s of table %s was not renewed, the thread retries", self._name, self._table_id)

    def _renew(self) -> None:
        try:
            self._report({"checkpoint": self._checkpoint()})
        except SinkBusyError as error:
            self.lost = error
            self._on_lost()

    def _checkpoint(self) -> str:
        """Return what the driver last wrote; empty when that cannot be read: the claim is renewed all the same."""
        try:
            text = find_text(self._result_path)
            return str(json.loads(text)["checkpoint"]) if text else ""
        except Exception:  # of the store's library, or of a half-written file
            log.exception(
                "%s, how far sink %s of table %s is, cannot be read", self._result_path, self._name, self._table_id
            )
            return ""

    def _report(self, progress: Mapping[str, Any]) -> None:
        self._hook.report_progress(self._table_id, self._name, {"run_id": self._run_id, **progress})


def _result_of(path: str, stream: str, death: Death | None) -> ReplicationResult:
    result = find_result(path, ReplicationResult)
    if result is not None and result.ended:
        return result
    if death is not None:
        is_refused = death.failure_kind is FailureKind.REFUSED
        raise (ReplicationRefusedError if is_refused else ReplicationFailedError)(f"stream {stream}: {death.reason}")
    raise ReplicationFailedError(
        f"the driver of stream {stream} died; the next try continues from the sink's checkpoint"
    )

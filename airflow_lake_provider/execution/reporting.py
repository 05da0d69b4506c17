"""What a try of a service reports: metrics, its row on the manager's pages, an event of the table's asset, OpenLineage.

The OpenLineage provider (extra `openlineage`) calls `get_openlineage_facets_on_*` of an operator, in the task's process
and never where it is not installed: so only those methods import its classes.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from airflow_lake_provider import metrics as names
from airflow_lake_provider.errors import LakeError, SinkBusyError
from airflow_lake_provider.execution.engines.job_files import find_text
from airflow_lake_provider.execution.holder import holder_of
from airflow_lake_provider.hooks.open_tables import policy_of, table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.hudi.pending import ServiceEffect
from airflow_lake_provider.job_contract import Outcome
from airflow_lake_provider.manager.supervision.writers_and_sinks import (
    SinkState,
    hold_of,
    load_sink_state,
    report_state,
)
from airflow_lake_provider.metrics import (
    REPLICATED_COMMITS,
    REPLICATED_ROWS,
    REPLICATION_BYTES_PER_S,
    REPLICATION_ROWS_PER_S,
)
from airflow_lake_provider.replication.checkpoint import from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import JobRequest, Service
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.verdict import RunVerdict, TableReader
    from airflow_lake_provider.replication.job import ReplicationResult

log = logging.getLogger(__name__)


def measure_try(metrics: Metrics, service: Service, context: Any) -> None:
    """Measure how long the run waited for its first try; count every other one."""
    if context["ti"].try_number > 1:
        metrics.incr(names.retries(service))
        return
    run_after = getattr(context.get("dag_run"), "run_after", None)
    if isinstance(run_after, datetime):
        metrics.timing(names.queue_time(service), (datetime.now(UTC) - run_after).total_seconds() * 1000)


def measure_service(
    metrics: Metrics, table: TableReader, service: Service, verdict: RunVerdict, seconds: float
) -> ServiceEffect:
    """Measure a successful try: its duration, and the effect of its completed instants, which is returned."""
    metrics.incr(names.outcomes(service, verdict.outcome))
    metrics.timing(names.duration(service), seconds * 1000)
    effect = _effect_of(table, service, verdict)
    for entry in fields(effect):
        value = getattr(effect, entry.name)
        if value is not None:
            metrics.gauge(names.effect(service, names.EFFECT_NAMES[entry.name]), value)
    return effect


def _effect_of(table: TableReader, service: Service, verdict: RunVerdict) -> ServiceEffect:
    if not verdict.completed_instants:
        return ServiceEffect()
    try:
        return table.effect_of(verdict.completed_instants)
    except (LakeError, OSError) as error:
        log.warning("the effect of %s is not measured: %s", service, error)
        return ServiceEffect()


MAX_ERROR = 500
"""Characters of an error that the manager keeps of a run."""


def report_failure(
    hook: LakeHook, base_path: str, service: Service, context: Any, error: BaseException, seconds: float = 0.0
) -> None:
    """Report to the manager that a try failed, and why, as its task's log says it."""
    _report(hook, base_path, service, context, Outcome.FAILED.value, seconds, error=_sentence(error))


def _sentence(error: BaseException) -> str:
    text = str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"
    return str(redact(" ".join(text.split())))[:MAX_ERROR]


def report_run(
    hook: LakeHook,
    request: JobRequest,
    context: Any,
    outcome: str,
    seconds: float = 0.0,
    effect: ServiceEffect | None = None,
) -> None:
    """Report to the manager what a try did, for its pages. A failure is only logged: the timeline has it all."""
    _report(hook, request.base_path, request.services[0].service, context, outcome, seconds, effect)


def _report(  # noqa: PLR0913 - a row of the manager's
    hook: LakeHook,
    base_path: str,
    service: Service,
    context: Any,
    outcome: str,
    seconds: float,
    effect: ServiceEffect | None = None,
    error: str = "",
) -> None:
    done = effect or ServiceEffect()
    deletes = effect is not None and effect.files_deleted is not None
    report = {
        "run_id": holder_of(context),
        "try_number": int(context["ti"].try_number),
        "service": service.value,
        "outcome": outcome,
        "error": error,
        "job_ms": round(seconds * 1000),
        "files_in": done.files_deleted if deletes else done.files_before,
        "bytes_in": done.read_bytes,
        "files_out": 0 if deletes else done.files_after,
        "bytes_out": done.written_bytes,
    }
    try:
        hook.report_run(table_id_of(base_path), report)
    except LakeError as problem:
        log.warning("the manager's pages will not show what this try did: %s", problem)


def notify_manager(hook: LakeHook, request: JobRequest, completed: Sequence[str]) -> None:
    """Have the manager evaluate the table, and record which instants the service completed as the provider's own."""
    hint = {
        "base_path": request.base_path,
        "table_name": request.table_name,
        "instants": list(completed),
        "is_own": True,
    }
    try:
        hook.send_hints([hint])
    except LakeError as error:
        log.warning("the manager was not notified and will find the result itself: %s", error)


# --- The metrics of a replication run that has ended, in success or failure


def report_result(metrics: Metrics, result: ReplicationResult) -> None:
    """Count what a run replicated, and how fast."""
    metrics.incr(REPLICATED_COMMITS, result.commits)
    metrics.incr(REPLICATED_ROWS, result.rows)
    if result.rows and result.seconds:
        metrics.gauge(REPLICATION_ROWS_PER_S, result.rows / result.seconds)
        metrics.gauge(REPLICATION_BYTES_PER_S, result.bytes / result.seconds)


@dataclass(frozen=True, slots=True)
class HoldCap:
    """How much a sink may hold back, whatever progress it makes; None is any amount."""

    seconds: float | None = None
    bytes: int | None = None

    def find_excess(self, state: SinkState) -> str:
        """Return in words by what a hold is beyond the cap; empty when it is not.

        A sink that has every commit holds back no more than the table's own retention, however quiet the table is.
        """
        if not state.lag.commits:
            return ""
        if self.seconds is not None and state.lag_s > self.seconds:
            return f"it lacks commits since {state.lag_s:.0f} s, max_hold_s is {self.seconds:.0f}"
        if self.bytes is not None and state.held_bytes > self.bytes:
            return f"it holds {state.held_bytes} bytes of replaced files, max_held_bytes is {self.bytes}"
        return ""


def report_sink(
    metrics: Metrics,
    hook: LakeHook,
    base_path: str,
    name: str,
    cap: HoldCap = HoldCap(),
) -> None:
    """Set the gauges of lag and hold, from the manager and the timeline of now, and release a hold beyond its cap.

    A failure is only logged.
    """
    try:
        base_path = normalise_base_path(base_path)
        sink = next((sink for sink in hook.list_sinks(table_id_of(base_path)) if sink["name"] == name), None)
        if sink is not None:
            hold = hold_of(sink["hold"], needs_snapshot=sink["needs_snapshot"])
            storage = table_opener(None)(base_path)
            state = load_sink_state(
                storage, sink["checkpoint_text"], hold, time.time(), policy_of(base_path).spark_conf
            )
            report_state(metrics, state)
            # A snapshot would only begin again, and a sink that has not begun has its time to live.
            begun = from_text(sink["checkpoint_text"]) if sink["checkpoint_text"] else None
            excess = cap.find_excess(state) if hold and begun is not None and begun.snapshot is None else ""
            if excess:
                log.error("sink %s of %s: %s: its hold is released, a new snapshot follows", name, base_path, excess)
                hook.release_hold(table_id_of(base_path), name, hold, excess)
    except (LakeError, OSError) as error:
        # The replication is done, whether or not it is counted.
        log.warning("sink %s of %s was not measured: %s", name, base_path, error)


# --- How far a run of replication is, while it lasts


PROGRESS_INTERVAL_S = 20.0
MAX_TEXT = 10_000
"""Of a text in a report, a checkpoint apart."""


class ProgressReporter:
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
        find_path: Callable[[], str],
        *,
        on_lost: Callable[[], None],
    ) -> None:
        self._hook = hook
        self._table_id = table_id
        self._name = name
        self._find_path = find_path
        self._run_id = run_id
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lake-replication-progress", daemon=True)
        self.lost: SinkBusyError | None = None
        """The error that names the run with the sink; None while this run has it."""

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def require_claim(self) -> None:
        """Raise SinkBusyError when another run has taken the sink over."""
        if self.lost is not None:
            raise self.lost

    def stop(self) -> None:
        """Report no more. A report that came after the end would renew the claim of a run that is over."""
        self._stop.set()
        self._thread.join()

    def end_with(self, result: ReplicationResult, changed_time: str) -> None:
        """Report that the run has ended with this result; `changed_time` is the table's as the run began."""
        self.end(
            {
                "checkpoint": result.checkpoint,
                "problem": result.message or result.waits_for,
                "completed_time": changed_time,
                "snapshot_reason": result.snapshot_reason,
            }
        )

    def end(self, progress: Mapping[str, str]) -> None:
        """Report that the run has ended. An unreachable manager changes nothing: the sink has the true checkpoint."""
        try:
            # The manager refuses longer ones, and then knows neither the problem nor that the run has ended.
            short = {name: text if name == "checkpoint" else text[:MAX_TEXT] for name, text in progress.items()}
            self._report({**short, "ended": True})
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
            self._report(self._durable())
        except SinkBusyError as error:
            self.lost = error
            self._on_lost()

    def _durable(self) -> dict[str, str]:
        """Return what the driver last wrote; nothing when that cannot be read: the claim is renewed all the same."""
        path = self._find_path()
        try:
            text = find_text(path)
            body = json.loads(text) if text else {}
            return {name: str(body.get(name, "")) for name in ("checkpoint", "snapshot_reason")}
        except Exception:  # of the store's library, or of a half-written file
            log.exception("%s, how far sink %s of table %s is, cannot be read", path, self._name, self._table_id)
            return {"checkpoint": ""}

    def _report(self, progress: Mapping[str, Any]) -> None:
        self._hook.report_progress(self._table_id, self._name, {"run_id": self._run_id, **progress})


# --- One asset per table, with an event for each service that completed an instant of it

TABLE_ASSETS = AssetAlias("lake_tables")
"""What the operators name as their outlet: Airflow creates the asset of a table with its first event."""


def table_asset(base_path: str) -> Asset:
    """Return the asset of a table; its name and URI are those of OpenLineage's dataset: `s3://bucket/a/b`, `file:///a/b`."""
    normalised = normalise_base_path(base_path)
    namespace, name = dataset_name(normalised)
    root = "file://" if namespace == "file" else namespace
    # Airflow on MySQL accepts ASCII alone, and a `?` or `#` would end the path.
    uri = f"{root}/{quote(name.lstrip('/'), safe=_PLAIN_IN_PATHS)}"
    return Asset(uri, group="lake", extra={"table_id": table_id_of(normalised)})


_PLAIN_IN_PATHS = "/:@!$&'()*+,;=-._~"


def emit_asset_event(
    context: Any, request: JobRequest, service: Service, verdict: RunVerdict, effect: ServiceEffect
) -> None:
    """Add an event to the table's asset, for DAGs that begin after a service; none when it completed no instant.

    Airflow records it when the task succeeds.
    """
    events = context.get("outlet_events")
    if events is None or not verdict.completed_instants:
        return
    events[TABLE_ASSETS].add(
        table_asset(request.base_path),
        extra={
            "table": request.table_name,
            "service": service.value,
            "instants": list(verdict.completed_instants),
            "files_before": effect.files_before,
            "files_after": effect.files_after,
            "files_deleted": effect.files_deleted,
        },
    )


# --- OpenLineage: the table is read and written, and these are the numbers

FACET = "hudi_tableService"


class ServiceLineage:
    """Mixin of the operator that runs a service; reads the operator's own arguments after they were rendered."""

    base_path: str
    table_name: str
    service: str
    mode: str
    _lineage: tuple[RunVerdict, ServiceEffect] | None = None

    def keep_lineage(self, verdict: RunVerdict, effect: ServiceEffect) -> None:
        """Store what a try did, for the event that follows it."""
        self._lineage = (verdict, effect)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the table that the try will read and write."""
        return self._to_lineage({})

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return what the try did, by the timeline; only the table for a try that ended before its verdict."""
        if self._lineage is None:
            return self._to_lineage({})
        verdict, effect = self._lineage
        done = {
            "outcome": verdict.outcome.value,
            "reason": verdict.reason,
            "completedInstants": list(verdict.completed_instants),
            "pendingInstants": list(verdict.pending_instants),
            "filesBefore": effect.files_before,
            "filesAfter": effect.files_after,
            "filesDeleted": effect.files_deleted,
        }
        return self._to_lineage(done, effect, verdict.completed_instants)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the table of the failed try."""
        return self._to_lineage({"outcome": "failed"})

    def _to_lineage(
        self, done: dict[str, Any], effect: ServiceEffect | None = None, instants: tuple[str, ...] = ()
    ) -> OperatorLineage[Any, Any]:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.facet_v2 import JobFacet, RunFacet

        base_path = normalise_base_path(self.base_path)
        source, target = _datasets(base_path, self.table_name, effect or ServiceEffect(), instants)
        what = {"service": self.service, "mode": self.mode}
        run_facets: dict[str, Any] = {FACET: RunFacet().with_additional_properties(**what, **done)}
        job_facets: dict[str, Any] = {FACET: JobFacet().with_additional_properties(**what)}
        return OperatorLineage(inputs=[source], outputs=[target], run_facets=run_facets, job_facets=job_facets)


def dataset_name(base_path: str) -> tuple[str, str]:
    """Return namespace and name of a table's dataset, by OpenLineage's rules for paths: `s3://bucket` and `a/b`."""
    scheme, separator, rest = base_path.partition("://")
    if not separator:
        return "file", base_path
    authority, _, path = rest.partition("/")
    if scheme == "file":
        return "file", f"/{path}"
    if scheme in {"s3a", "s3n"}:
        scheme = "s3"
    # Object stores name an object without the slash, file systems by its absolute path.
    return f"{scheme}://{authority}", path if scheme in {"s3", "gs", "abfs", "abfss"} else f"/{path}"


def _datasets(base_path: str, table_name: str, effect: ServiceEffect, instants: tuple[str, ...]) -> tuple[Any, Any]:
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        InputDatasetFacet,
        OutputDatasetFacet,
        dataset_version_dataset,
        input_statistics_input_dataset,
        output_statistics_output_dataset,
        symlinks_dataset,
    )

    namespace, name = dataset_name(base_path)
    facets: dict[str, DatasetFacet] = {}
    if table_name:
        link = symlinks_dataset.Identifier(namespace=namespace, name=table_name, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[link])
    read: dict[str, InputDatasetFacet] = {}
    if effect.files_before is not None:
        read["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            size=effect.read_bytes, fileCount=effect.files_before
        )
    written: dict[str, OutputDatasetFacet] = {}
    if effect.files_after is not None:
        written["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=effect.records_written, size=effect.written_bytes, fileCount=effect.files_after
        )
    versioned = dict(facets)
    if instants:
        versioned["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=instants[-1])
    return (
        InputDataset(namespace=namespace, name=name, facets=facets, inputFacets=read),
        OutputDataset(namespace=namespace, name=name, facets=versioned, outputFacets=written),
    )

"""The metrics of one try of a service."""

from __future__ import annotations

import logging
import time
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import metrics as names
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.table_reader import ServiceEffect
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.sink_state import load_sink_state, report_state
from airflow_lake_provider.metrics import (
    REPLICATED_COMMITS,
    REPLICATED_ROWS,
    REPLICATION_BYTES_PER_S,
    REPLICATION_ROWS_PER_S,
)

if TYPE_CHECKING:
    from airflow_lake_provider.execution.table_reader import TableReader
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import JobRequest, Service
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.verdict import Judgement
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
    metrics: Metrics, table: TableReader, service: Service, judgement: Judgement, seconds: float
) -> ServiceEffect:
    """Measure a successful try: its duration, and the effect of its completed instants, which is returned."""
    metrics.incr(names.outcomes(service, judgement.outcome))
    metrics.timing(names.duration(service), seconds * 1000)
    effect = _effect_of(table, service, judgement)
    for entry in fields(effect):
        value = getattr(effect, entry.name)
        if value is not None:
            metrics.gauge(names.effect(service, names.EFFECT_NAMES[entry.name]), value)
    return effect


def _effect_of(table: TableReader, service: Service, judgement: Judgement) -> ServiceEffect:
    if not judgement.completed_instants:
        return ServiceEffect()
    try:
        return table.effect_of(judgement.completed_instants)
    except (LakeError, OSError) as error:
        log.warning("the effect of %s is not measured: %s", service, error)
        return ServiceEffect()


def report_run(
    hook: LakeHook,
    request: JobRequest,
    context: Any,
    outcome: str,
    seconds: float = 0.0,
    effect: ServiceEffect | None = None,
) -> None:
    """Report to the manager what a try did, for its pages. A failure is only logged: the timeline has it all."""
    done, deletes = effect or ServiceEffect(), effect is not None and effect.files_deleted is not None
    report = {
        "run_id": str(context["run_id"]),
        "try_number": int(context["ti"].try_number),
        "service": request.services[0].service.value,
        "outcome": outcome,
        "job_ms": round(seconds * 1000),
        "files_in": done.files_deleted if deletes else done.files_before,
        "bytes_in": done.read_bytes,
        "files_out": 0 if deletes else done.files_after,
        "bytes_out": done.written_bytes,
    }
    try:
        hook.report_run(table_id_of(request.base_path), report)
    except LakeError as error:
        log.warning("the manager's pages will not show what this try did: %s", error)


# --- The metrics of a replication run that has ended, in success or failure


def report_result(metrics: Metrics, result: ReplicationResult) -> None:
    """Count what a run replicated, and how fast."""
    metrics.incr(REPLICATED_COMMITS, result.commits)
    metrics.incr(REPLICATED_ROWS, result.rows)
    if result.rows and result.seconds:
        metrics.gauge(REPLICATION_ROWS_PER_S, result.rows / result.seconds)
        metrics.gauge(REPLICATION_BYTES_PER_S, result.bytes / result.seconds)


def report_sink(metrics: Metrics, hook: LakeHook, base_path: str, name: str) -> None:
    """Set the gauges of lag and hold, from the manager and the timeline of now. A failure is only logged."""
    try:
        base_path = normalise_base_path(base_path)
        sink = next((sink for sink in hook.list_sinks(table_id_of(base_path)) if sink["name"] == name), None)
        if sink is not None:
            hold = "" if sink["needs_snapshot"] else sink["hold"]
            storage = table_opener(None)(base_path)
            report_state(metrics, load_sink_state(storage, sink["checkpoint_text"], hold, time.time()))
    except (LakeError, OSError) as error:
        # The replication is done, whether or not it is counted.
        log.warning("sink %s of %s was not measured: %s", name, base_path, error)

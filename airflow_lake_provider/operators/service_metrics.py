"""What one try of a service is measured by."""

from __future__ import annotations

import logging
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import metrics as names
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.operators.service_effect import ServiceEffect

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.operators.table_reader import TableReader
    from airflow_lake_provider.planner.judgement import Judgement

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
    """Measure a try that ended well: its duration, and what its completed instants did, which is returned."""
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
        log.warning("what %s did is not measured: %s", service, error)
        return ServiceEffect()

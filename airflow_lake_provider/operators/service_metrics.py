"""What one try of a service is measured by."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import metrics as names
from airflow_lake_provider.errors import LakeError

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
) -> None:
    """Measure a try that ended well: its duration, and what its completed instants wrote."""
    metrics.incr(names.outcomes(service, judgement.outcome))
    metrics.timing(names.duration(service), seconds * 1000)
    if not judgement.completed_instants:
        return
    try:
        files, written_bytes = table.sizes_of(judgement.completed_instants)
    except (LakeError, OSError) as error:
        log.warning("what %s wrote is not measured: %s", service, error)
        return
    metrics.gauge(names.files_written(service), files)
    metrics.gauge(names.bytes_written(service), written_bytes)

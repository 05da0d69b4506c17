"""Tells people what the doctor found on a table and nobody mends by itself: each shape of each instant once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.instances import PEOPLE, Instance, InstanceState
from airflow_lake_provider.manager.notifier import NoNotifier
from airflow_lake_provider.manager.reports import Reports, report_id_of
from airflow_lake_provider.metrics import STUCK_SHAPES, NoMetrics

if TYPE_CHECKING:
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.manager.notifier import Notifier
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)


class StuckTables:
    """Remembers in the database what was told, so that servers and restarts do not tell it again."""

    def __init__(self, registry: Registry, metrics: Metrics | None = None, notifier: Notifier | None = None) -> None:
        self._reports = Reports(registry)
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._notifier = notifier if notifier is not None else NoNotifier()

    def tell(self, base_path: str, finding: Finding) -> None:
        """Log it, count it, and notify, unless that was done."""
        report_id = report_id_of(base_path, "doctor", finding.shape.value, finding.instant)
        if not self._reports.begin(report_id):
            return
        reason = f"{finding.says}; holds up {finding.holds_up}; mended by: {finding.repair}"
        log.error("table %s is stuck (%s): %s", base_path, finding.shape, reason)
        self._metrics.incr(STUCK_SHAPES)
        plans = (finding.instant,) if finding.instant else ()
        instance = Instance(finding.shape.value, InstanceState.ABANDONED, PEOPLE, reason, plans=plans)
        self._notifier.stuck(base_path, instance, lambda: self._reports.end(report_id))

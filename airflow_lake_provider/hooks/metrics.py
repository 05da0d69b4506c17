"""Metrics through Airflow's own (`[metrics]`: StatsD, OpenTelemetry, ...)."""

from __future__ import annotations

from airflow.sdk.observability import stats


class AirflowMetrics:
    """Implements `metrics.Metrics`."""

    def incr(self, name: str, count: int = 1) -> None:
        """See Metrics."""
        stats.incr(name, count)

    def gauge(self, name: str, value: float) -> None:
        """See Metrics."""
        stats.gauge(name, value)

    def timing(self, name: str, duration_ms: float) -> None:
        """See Metrics."""
        stats.timing(name, duration_ms)

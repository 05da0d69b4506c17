"""Names of the metrics, and where they go. After Hudi's own where one exists (`HoodieMetrics`: `<action>.duration`).

No table is part of a name or a label: tables are without bound. StatsD drops labels, so the service, the verdict and
the outcome, all from closed sets, are part of the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import Outcome, Service
    from airflow_lake_provider.planner.decision import Verdict

NOTICES = "lake.notices"
LOOKS = "lake.looks"
FAILED_LOOKS = "lake.failed_looks"
DECISION_LATENCY = "lake.decision_latency"
"""From the oldest mark of a table to the end of the look that answers it, ms."""


class Metrics(Protocol):
    """Where metrics go; must be quick and must not raise."""

    def incr(self, name: str, count: int = 1) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""

    def timing(self, name: str, duration_ms: float) -> None:
        """Record a duration in ms."""


class NoMetrics:
    """Goes nowhere."""

    def incr(self, name: str, count: int = 1) -> None:
        """See Metrics."""

    def gauge(self, name: str, value: float) -> None:
        """See Metrics."""

    def timing(self, name: str, duration_ms: float) -> None:
        """See Metrics."""


def decisions(service: Service, verdict: Verdict) -> str:
    """Return the counter of decisions, for example `lake.compaction.due`."""
    return f"lake.{service.value}.{verdict.value}"


def runs_started(service: Service) -> str:
    """Return the counter of DAG runs that were created."""
    return f"lake.{service.value}.runs_started"


def outcomes(service: Service, outcome: Outcome) -> str:
    """Return the counter of tries that ended so, for example `lake.clean.completed`."""
    return f"lake.{service.value}.{outcome.value}"


def duration(service: Service) -> str:
    """Return the timing of one try, from the lease to the verdict (Hudi: `<action>.duration`)."""
    return f"lake.{service.value}.duration"


def retries(service: Service) -> str:
    """Return the counter of tries that were not the first."""
    return f"lake.{service.value}.retries"


def queue_time(service: Service) -> str:
    """Return the timing from the run's creation to its first try."""
    return f"lake.{service.value}.queue_time"


def bytes_written(service: Service) -> str:
    """Return the gauge of the bytes that the last completed instant wrote (Hudi: `totalBytesWritten`)."""
    return f"lake.{service.value}.totalBytesWritten"


def files_written(service: Service) -> str:
    """Return the gauge of the files that the last completed instant wrote."""
    return f"lake.{service.value}.totalFilesWritten"

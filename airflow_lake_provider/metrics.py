"""Names of the metrics, and their receivers. After Hudi's own where one exists (`HoodieMetrics`: `<action>.duration`).

No table is part of a name or a label: the number of tables is unbounded. StatsD drops labels, so service, verdict and
outcome, all from closed sets, are part of the names.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.job_contract import Outcome, Service
    from airflow_lake_provider.planner.rules import Verdict

NOTICES = "lake.notices"
REFUSED_NOTICES = "lake.refused_notices"
EVALUATIONS = "lake.evaluations"
FAILED_EVALUATIONS = "lake.failed_evaluations"
STUCK_EVALUATIONS = "lake.stuck_evaluations"
"""Evaluations that should have returned: their store does not answer, and each costs a thread."""
COMMIT_EVENTS = "lake.commit_events"
FAILED_COMMIT_EVENTS = "lake.failed_commit_events"
"""Counters of events of tables' assets, and of tries to add some."""
DECISION_LATENCY = "lake.decision_latency"
"""From the oldest mark of a table to the end of the evaluation that answers it, ms."""

HOLES = "lake.holes"
"""Pending writes and plans with completed writes behind them, over all tables at their last evaluation."""
HEARTBEAT_AGE = "lake.heartbeat_age"
"""From a table's last evaluation to the end of this one, ms: the heartbeat pulls tables with silent writers."""
FIGURES_ERROR = "lake.figures.error"
"""Of the last sampled table: by how much the log bytes of its commit metadata are wrong, as a share of those listed."""
WRONG_FIGURES = "lake.figures.wrong"
"""Counter of sampled tables whose figures were wrong by more than a quarter."""
NEED_ATTENTION = "lake.tables.need_attention"
"""Tables whose state a person has to act on."""
REPAIRS = "lake.repairs"
"""Counter of repairs that the doctor did by itself."""
NOTIFICATIONS = "lake.notifications"
FAILED_NOTIFICATIONS = "lake.failed_notifications"
EFFECT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        # HoodieMetrics: totalBytesWritten, totalRecordsWritten, numFilesDeleted. The others have no name there.
        "written_bytes": "totalBytesWritten",
        "records_written": "totalRecordsWritten",
        "files_deleted": "numFilesDeleted",
        "files_after": "totalFilesWritten",
        "files_before": "totalFilesRead",
        "read_bytes": "totalBytesRead",
    }
)
"""Names of the gauges by the field of a service's effect."""

BACKLOG_WAITING = "lake.backlog.waiting"
"""Services that wait for a budget."""
BACKLOG_CORE_HOURS = "lake.backlog.core_hours"
"""What they are expected to cost."""
BACKLOG_PRESSURE = "lake.backlog.pressure"
"""0: the budgets cover what arrives; 1: writers should slow down; 2: writers should stop. Of the worst budget."""
OVERDUE = "lake.instances.overdue"
"""Instances that are past the deadline of their state now."""
STUCK = "lake.instances.stuck"
"""Counter of instances whose delay, block or abandonment the manager reported."""
STUCK_PROBLEMS = "lake.stuck_shapes"
"""Counter of problems of the doctor that the manager reported."""
DEADLINES = "lake.instances.deadlines"
"""Counter of runs that the manager ended because they passed `deadline_s`."""


REPLICATED_COMMITS = "lake.replication.commits"
REPLICATED_ROWS = "lake.replication.rows"
REPLICATION_FAILURES = "lake.replication.failures"
REPLICATION_LAG_COMMITS = "lake.replication.lag_commits"
"""How many commits the sink lacks that was measured last, as its run ended or at a lag sensor's poke."""
REPLICATION_LAG = "lake.replication.lag"
"""The same in seconds since the oldest commit completed that the sink does not have."""
REPLICATION_SAFEPOINT_AGE = "lake.replication.safepoint_age"
"""Seconds of history that the sink of the last run, or of a sensor's last poke, holds back."""
REPLICATION_HELD_BYTES = "lake.replication.held_bytes"
"""Bytes in files that newer ones have replaced since that hold."""
REPLICATION_ROWS_PER_S = "lake.replication.rows_per_s"
"""Of the last run that replicated something; the driver's start is not part of it."""
REPLICATION_BYTES_PER_S = "lake.replication.bytes_per_s"
"""The same in bytes of the changes as JSON."""


class Metrics(Protocol):
    """The receiver of metrics; must be quick and must not raise."""

    def incr(self, name: str, count: int = 1) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""

    def timing(self, name: str, duration_ms: float) -> None:
        """Record a duration in ms."""


class NoMetrics:
    """Drops all metrics."""

    def incr(self, name: str, count: int = 1) -> None:
        """Do nothing."""

    def gauge(self, name: str, value: float) -> None:
        """Do nothing."""

    def timing(self, name: str, duration_ms: float) -> None:
        """Do nothing."""


def decisions(service: Service, verdict: Verdict) -> str:
    """Return the counter of decisions, for example `lake.compaction.due`."""
    return f"lake.{service.value}.{verdict.value}"


def tables_in(state: str) -> str:
    """Return the gauge of tables in a state, for example `lake.tables.blocked`."""
    return f"lake.tables.{state}"


def runs_started(service: Service) -> str:
    """Return the counter of DAG runs that were created."""
    return f"lake.{service.value}.runs_started"


def outcomes(service: Service, outcome: Outcome) -> str:
    """Return the counter of tries with this outcome, for example `lake.clean.completed`."""
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


def effect(service: Service, what: str) -> str:
    """Return the gauge of one effect of a service's last completed instants, for example `numFilesDeleted`."""
    return f"lake.{service.value}.{what}"

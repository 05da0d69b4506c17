"""How people are notified: of problems of tables, as the stored health has them, and of what is no table's; each once.

The sweep (`DeadlineSweep`) calls it, in the API server, whichever server finds it. People are notified of a table's
problem when the stored health has had it for long enough, and once more when the health has it no longer.
Notifications of failed runs use the DAG's own callbacks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.manager.db.notification_log import NotificationLog, report_id_of
from airflow_lake_provider.manager.health.health import SEVERITY, FoundBy
from airflow_lake_provider.manager.health.table_problems import problem_of_sink
from airflow_lake_provider.metrics import STUCK, STUCK_PROBLEMS, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.health.sink_events import SinkEvent
    from airflow_lake_provider.manager.health.table_problems import TableProblem
    from airflow_lake_provider.manager.supervision.instances import Instance
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Digest:
    """The problems of all tables at one moment."""

    tables: int
    need_attention: int
    problems: Sequence[TableProblem]
    """The worst first."""


class Notifier(Protocol):
    """Notifies people; must be quick, and must not raise.

    `on_notified` is called, from any thread, when people are notified: until then another server may notify them.
    """

    def deadline(self, base_path: str, instance: Instance) -> None:
        """Notify that an instance was ended because its run passed `deadline_s`."""

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        """Notify of what is no problem of a registered table; called once for each state of each instance."""

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        """Notify that a table has a problem; called once while it lasts."""

    def resolved(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        """Notify that a problem has ended of which people were notified."""

    def sink(self, event: SinkEvent, on_notified: Callable[[], None]) -> None:
        """Notify of a replication's sink; called once for each event."""

    def digest(self, digest: Digest, on_notified: Callable[[], None]) -> None:
        """Notify of all problems together; called once a day."""


class NoNotifier:
    """Notifies of nothing."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """Do nothing."""

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()

    def resolved(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()

    def sink(self, event: SinkEvent, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()

    def digest(self, digest: Digest, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()


class OnceNotifier:
    """Notifies people once of each thing, whichever server finds it; safe with any number of servers."""

    def __init__(
        self,
        registry: Registry,
        notifier: Notifier,
        metrics: Metrics | None = None,
        load_tables: Callable[[], TablesConfig] | None = None,
    ) -> None:
        self._log = NotificationLog(registry)
        self._notifier = notifier
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._load_tables = load_tables
        self._digest_day = -1
        """The last day whose digest this process has seen to."""

    def notify(self, base_path: str, instance: Instance, *key: str) -> bool:
        """Notify people, and return true, unless that is done or another server is doing it."""
        return self._once(lambda on_notified: self._notifier.stuck(base_path, instance, on_notified), base_path, *key)

    def notify_of_sink(self, event: SinkEvent) -> bool:
        """Notify people of an event, and return true, unless that is done, or another server is doing it.

        Of one whose problem is silenced people are notified when that ends, as long as the event is kept.
        """
        report_id = report_id_of(event.base_path, event.sink, event.kind.value, str(event.at_ms))
        lasting = problem_of_sink(table_id_of(event.base_path), event)
        if (lasting is not None and self._log.is_snoozed(lasting)) or not self._log.begin(report_id):
            return False
        self._notifier.sink(event, lambda: self._log.end(report_id, lasting))
        return True

    def notify_of_tables(self, now_ms: int) -> None:
        """Notify people of each problem of the tables' stored health, and of each that has ended."""
        found, open_ones = self._log.load_problems()
        there = {problem.key for problem in found}
        for problem in found:
            is_ripe = problem.due_ms is not None and problem.due_ms <= now_ms
            if is_ripe and problem.key not in open_ones and not self._is_muted(problem):
                self._notify_of_problem(problem)
        for key, problem in open_ones.items():
            if key not in there:
                self._notify_of_end(problem)

    def notify_of_day(self, now_ms: int, hour: int, count: Callable[[], tuple[int, int]]) -> None:
        """Send the day's digest from an hour (UTC) on; a negative hour is never.

        `count` returns how many tables there are, and how many of them need a person.
        """
        day = now_ms // DAY_MS
        if hour < 0 or now_ms % DAY_MS < hour * HOUR_MS or day == self._digest_day:
            return
        self._digest_day = day
        found, _ = self._log.load_problems()
        heard = [one for one in found if not one.is_snoozed]
        worst = sorted(heard, key=lambda one: (-SEVERITY[one.state], one.since_ms))
        digest = Digest(*count(), worst)
        self._once(lambda on_notified: self._notifier.digest(digest, on_notified), "digest", str(day))

    def forget_old(self) -> None:
        """Allow notifications of long ago to be repeated."""
        self._log.forget_old()

    def _notify_of_problem(self, problem: TableProblem) -> None:
        report_id = report_id_of("problem", *problem.key, str(problem.since_ms))
        if not self._log.begin(report_id):
            return
        log.error("table %s: %s is stuck: %s", problem.base_path, problem.service, problem.reason)
        self._metrics.incr(STUCK_PROBLEMS if problem.source is FoundBy.DOCTOR else STUCK)
        self._notifier.problem(problem, lambda: self._log.end(report_id, problem))

    def _notify_of_end(self, problem: TableProblem) -> None:
        report_id = report_id_of("resolved", *problem.key, str(problem.since_ms))
        if not self._log.begin(report_id):
            return
        log.info("table %s: %s has this problem no longer: %s", problem.base_path, problem.service, problem.reason)

        def on_notified() -> None:
            self._log.end(report_id)
            self._log.close(problem)

        self._notifier.resolved(problem, on_notified)

    def _is_muted(self, problem: TableProblem) -> bool:
        if self._load_tables is None:
            return False
        try:
            return not self._load_tables().policy_for(problem.base_path, problem.table).doctor.notify
        except LakeError:
            return False  # `/health` reports wrong settings

    def _once(self, send: Callable[[Callable[[], None]], None], *key: str) -> bool:
        report_id = report_id_of(*key)
        if not self._log.begin(report_id):
            return False
        send(lambda: self._log.end(report_id))
        return True

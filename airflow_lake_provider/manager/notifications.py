"""How people are notified of instances that need them, each once, whichever server finds them.

The sweep (`DeadlineSweep`) calls it, in the API server. Notifications of failed runs use the DAG's own callbacks;
notifications of deadlines and of stuck instances implement `Notifier`, which `plugins/lake_plugin.py` passes in.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.manager.db.notification_log import NotificationLog, report_id_of
from airflow_lake_provider.manager.instances import (
    PEOPLE,
    Instance,
    InstanceState,
)
from airflow_lake_provider.metrics import (
    STUCK,
    STUCK_PROBLEMS,
    NoMetrics,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.sink_events import SinkEvent
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)


class Notifier(Protocol):
    """Notifies people; must be quick, and must not raise."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """Notify that an instance was ended because its run passed `deadline_s`."""

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        """Notify that an instance is past the deadline of its state; called once for each state of each instance.

        `on_notified` is called, from any thread, when people are notified: until then another server may notify them.
        """

    def sink(self, event: SinkEvent, on_notified: Callable[[], None]) -> None:
        """Notify of a replication's sink, as `stuck` does of an instance; called once for each event."""


class NoNotifier:
    """Notifies of nothing."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """Do nothing."""

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()

    def sink(self, event: SinkEvent, on_notified: Callable[[], None]) -> None:
        """Count as notified."""
        on_notified()


class OnceNotifier:
    """Notifies people of an instance once per key, whichever server finds it; safe with any number of servers."""

    def __init__(self, registry: Registry, notifier: Notifier) -> None:
        self._log = NotificationLog(registry)
        self._notifier = notifier

    def notify(self, base_path: str, instance: Instance, *key: str) -> bool:
        """Notify people, and return true, unless that is done or another server is doing it."""
        return self._once(lambda on_notified: self._notifier.stuck(base_path, instance, on_notified), base_path, *key)

    def notify_of_sink(self, event: SinkEvent) -> bool:
        """Notify people of an event, and return true, unless that is done or another server is doing it."""
        key = (event.base_path, event.sink, event.kind.value, str(event.at_ms))
        return self._once(lambda on_notified: self._notifier.sink(event, on_notified), *key)

    def _once(self, send: Callable[[Callable[[], None]], None], *key: str) -> bool:
        report_id = report_id_of(*key)
        if not self._log.begin(report_id):
            return False
        send(lambda: self._log.end(report_id))
        return True

    def forget_old(self) -> None:
        """Allow notifications of long ago to be repeated."""
        self._log.forget_old()


class StuckNotifier:
    """Records notifications in the database, so that servers and restarts do not repeat them."""

    def __init__(self, registry: Registry, metrics: Metrics | None = None, notifier: Notifier | None = None) -> None:
        self._people = OnceNotifier(registry, notifier if notifier is not None else NoNotifier())
        self._metrics = metrics if metrics is not None else NoMetrics()

    def notify(self, base_path: str, finding: Finding) -> None:
        """Log it, count it, and notify, unless that is done."""
        reason = f"{finding.message}; holds up {finding.holds_up}; repaired by: {finding.repair}"
        plans = (finding.instant,) if finding.instant else ()
        instance = Instance(finding.kind.value, InstanceState.ABANDONED, PEOPLE, reason, plans=plans)
        if self._people.notify(base_path, instance, "doctor", finding.kind.value, finding.instant):
            log.error("table %s is stuck (%s): %s", base_path, finding.kind, reason)
            self._metrics.incr(STUCK_PROBLEMS)

    def notify_once(self, base_path: str, instance: Instance) -> None:
        """Log, count and notify of services that are given up or blocked, once since `instance.since_ms`."""
        if self._people.notify(base_path, instance, "stuck", instance.service, str(instance.since_ms)):
            log.error("table %s: %s needs %s: %s", base_path, instance.service, instance.owner, instance.reason)
            self._metrics.incr(STUCK)

"""Sends each event to the notifiers of `[lake] notifiers`.

Each entry is a dotted path: a notifier class that needs no arguments, an instance of one (`my_alerts.slack`), or a
function of the event. Airflow's own notifiers work as they are; their templates find the event as `lake_event`.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import queue
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook
from airflow_lake_provider.hooks.open_tables import AirflowMetrics
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.metrics import FAILED_NOTIFICATIONS, NOTIFICATIONS
from airflow_lake_provider.notifications.event import (
    EventKind,
    LakeEvent,
    event_of_digest,
    event_of_failure,
    event_of_instance,
    event_of_problem,
    event_of_sink,
)
from airflow_lake_provider.notifications.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.manager.health.sink_events import SinkEvent
    from airflow_lake_provider.manager.health.table_problems import TableProblem
    from airflow_lake_provider.manager.supervision.instances import Instance
    from airflow_lake_provider.manager.supervision.notifications import Digest
    from airflow_lake_provider.metrics import Metrics

    Notify = Callable[["LakeEvent", Mapping[str, Any]], None]
    OnNotified = Callable[[], None]

log = logging.getLogger(__name__)

MAX_WAITING = 1000
"""Events that wait for slow notifiers; further events are logged and lost."""


def load_notifiers(paths: Sequence[str]) -> tuple[Notify, ...]:
    """Return a function per notifier that takes an event and its Airflow context. Raises ConfigError with the path."""
    return tuple(_load(path) for path in paths)


def configured_notifiers() -> tuple[Notify, ...]:
    """Return the notifiers of `[lake] notifiers`. Raises ConfigError."""
    return load_notifiers(LakeSettings.from_conf(conf).notifiers)


def notify_all(
    notifiers: Sequence[Notify], event: LakeEvent, context: Mapping[str, Any], metrics: Metrics | None = None
) -> None:
    """Call every notifier; one that fails is logged and does not stop the others."""
    sink = metrics if metrics is not None else AirflowMetrics()
    for notify in notifiers:
        try:
            notify(event, context)
        except Exception:  # a user's notifier may raise anything
            sink.incr(FAILED_NOTIFICATIONS)
            log.exception("a notifier failed to send: %s", event.text)
        else:
            sink.incr(NOTIFICATIONS)


def notify_failure(context: Any) -> None:
    """`on_failure_callback` of the service DAG: runs in the task's process after its last try failed."""
    try:
        notifiers = configured_notifiers()
    except ConfigError:
        log.exception("no notifier is called for the failure")
        return
    event = event_of_failure(context, _now())
    if notifiers and _is_silenced(event, context):
        log.info("a person has snoozed this failure, so no notifier is called: %s", event.text)
        return
    notify_all(notifiers, event, context)


def _is_silenced(event: LakeEvent, context: Mapping[str, Any]) -> bool:
    """Return whether a person has snoozed the service's failures; false where no manager says so."""
    conn_id = getattr(context.get("task"), "lake_conn_id", None)
    try:
        table_id = table_id_of(normalise_base_path(event.base_path))
        table = LakeHook(conn_id if isinstance(conn_id, str) else DEFAULT_CONN_ID).get_table(table_id)
    except Exception:  # a failure without an answer is notified
        log.warning("whether this failure is snoozed is not known", exc_info=True)
        return False
    return event.service in table.get("silenced_services", ())


class BackgroundNotifier:
    """Implements the manager's `Notifier` with a thread of its own, because a webhook may be slow."""

    def __init__(self, notifiers: Sequence[Notify], metrics: Metrics, now: Callable[[], str] | None = None) -> None:
        self._notifiers = tuple(notifiers)
        self._metrics = metrics
        self._now = now if now is not None else _now
        self._waiting: queue.Queue[tuple[LakeEvent, OnNotified]] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def deadline(self, base_path: str, instance: Instance) -> None:
        """Send the event of an instance that was ended at its deadline."""
        self._put(event_of_instance(EventKind.DEADLINE, base_path, instance, self._now()), lambda: None)

    def stuck(self, base_path: str, instance: Instance, on_notified: OnNotified) -> None:
        """Send the event of a stuck instance."""
        self._put(event_of_instance(EventKind.STUCK, base_path, instance, self._now()), on_notified)

    def problem(self, problem: TableProblem, on_notified: OnNotified) -> None:
        """Send the event of a table's problem."""
        self._put(event_of_problem(EventKind.STUCK, problem, self._now()), on_notified)

    def resolved(self, problem: TableProblem, on_notified: OnNotified) -> None:
        """Send the event of a problem that has ended."""
        self._put(event_of_problem(EventKind.RESOLVED, problem, self._now()), on_notified)

    def digest(self, digest: Digest, on_notified: OnNotified) -> None:
        """Send the daily digest."""
        self._put(event_of_digest(digest, self._now()), on_notified)

    def sink(self, event: SinkEvent, on_notified: OnNotified) -> None:
        """Send the event of a replication's sink."""
        self._put(event_of_sink(event, self._now()), on_notified)

    def drain(self) -> None:
        """Wait until all queued events are sent."""
        self._waiting.join()

    def _put(self, event: LakeEvent, on_notified: OnNotified) -> None:
        if not self._notifiers:
            on_notified()
            return
        try:
            self._waiting.put_nowait((event, on_notified))
        except queue.Full:
            self._metrics.incr(FAILED_NOTIFICATIONS)
            log.error("the notifiers are too slow, this event is not sent: %s", event.text)
            return
        with self._lock:
            # The first event starts it: a server's processes are forked before that.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="lake-notifier", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            event, on_notified = self._waiting.get()
            try:
                notify_all(self._notifiers, event, {}, self._metrics)
                on_notified()
            except Exception:  # the outermost loop; the event may be sent again
                log.exception("the notification is sent but not recorded: %s", event.text)
            finally:
                self._waiting.task_done()


def _load(path: str) -> Notify:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"[lake] notifiers = {path!r} cannot be imported: {error}") from error
    if inspect.isclass(found) and issubclass(found, BaseNotifier):
        try:
            found = found()
        except TypeError as error:
            raise ConfigError(
                f"[lake] notifiers = {path!r} needs arguments; name an instance of it instead: {error}"
            ) from error
    if isinstance(found, Route):
        return _notify_by(found, _to_notify(found.notifier, path))
    return _to_notify(found, path)


def _to_notify(found: Any, path: str) -> Notify:
    if isinstance(found, BaseNotifier):
        return _notify_through(found)
    if callable(found):
        return lambda event, context: found(event)
    raise ConfigError(f"[lake] notifiers = {path!r} is neither a notifier nor a function of the event")


def _notify_by(route: Route, notify: Notify) -> Notify:
    def notify_selected(event: LakeEvent, context: Mapping[str, Any]) -> None:
        selected = route.select(event)
        if selected is not None:
            notify(selected, context)

    return notify_selected


def _notify_through(notifier: BaseNotifier) -> Notify:
    def notify(event: LakeEvent, context: Mapping[str, Any]) -> None:
        # Airflow renders a notifier's templates into the notifier itself: each event gets a fresh one.
        fresh = copy.copy(notifier)
        fresh({**context, "lake_event": event.to_dict()})

    return notify


def _now() -> str:
    return datetime.now(UTC).isoformat()

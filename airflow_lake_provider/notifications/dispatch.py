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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hooks.open_tables import AirflowMetrics
from airflow_lake_provider.manager.sink_events import SinkEventKind
from airflow_lake_provider.metrics import FAILED_NOTIFICATIONS, NOTIFICATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.manager.instances import Instance
    from airflow_lake_provider.manager.sink_events import SinkEvent
    from airflow_lake_provider.metrics import Metrics

    Notify = Callable[["LakeEvent", Mapping[str, Any]], None]
    OnNotified = Callable[[], None]

log = logging.getLogger(__name__)

# --- A notification as a value: one shape for webhooks, for templates of any notifier, and for tests


class EventKind(StrEnum):
    """Why the event is sent."""

    FAILED = "failed"
    """The last try of a run has failed."""
    DEADLINE = "deadline"
    """The manager ended a run that passed its `deadline_s`."""
    STUCK = "stuck"
    """Something is past the deadline of its state, and its owner has not acted."""
    SINK_FAILING = SinkEventKind.FAILING.value
    SINK_STANDS_STILL = SinkEventKind.STANDS_STILL.value
    SINK_RELEASED = SinkEventKind.RELEASED.value
    SINK_SNAPSHOT = SinkEventKind.SNAPSHOT.value


_VERBS: Mapping[EventKind, str] = MappingProxyType(
    {
        EventKind.FAILED: "failed",
        EventKind.DEADLINE: "passed its deadline",
        EventKind.STUCK: "is stuck",
        EventKind.SINK_FAILING: "fails",
        EventKind.SINK_STANDS_STILL: "stands still",
        EventKind.SINK_RELEASED: "holds the table's files no longer",
        EventKind.SINK_SNAPSHOT: "begins a new snapshot",
    }
)


@dataclass(frozen=True, slots=True)
class LakeEvent:
    """One notification. `at` is ISO 8601 with zone; an unknown field is empty."""

    kind: EventKind
    base_path: str
    service: str
    reason: str
    at: str
    table: str = ""
    run_id: str = ""
    instants: tuple[str, ...] = ()
    state: str = ""
    owner: str = ""
    """What has to act: the manager, Airflow's scheduler, a worker, a person."""
    try_number: int = 0
    log_url: str = ""
    sink: str = ""
    """Of replication: the sink that the event is about."""

    @property
    def text(self) -> str:
        """One sentence."""
        what = f"{self.service} of {self.table or self.base_path}{f' to {self.sink}' if self.sink else ''}"
        return f"{what} {_VERBS[self.kind]}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that webhooks post, and templates find under `lake_event`."""
        body = asdict(self) | {"kind": self.kind.value, "instants": list(self.instants), "text": self.text}
        return {"event": f"lake.service.{self.kind.value}", **body}


def event_of_instance(kind: EventKind, base_path: str, instance: Instance, at: str) -> LakeEvent:
    """Return the event of an instance that the manager's sweep reports."""
    return LakeEvent(
        kind=kind,
        base_path=base_path,
        service=instance.service,
        reason=instance.reason,
        at=at,
        table=base_path.rsplit("/", 1)[-1],
        run_id=instance.run_id,
        instants=instance.plans,
        state=instance.state.value,
        owner=instance.owner,
        try_number=instance.tries,
    )


def event_of_sink(event: SinkEvent, at: str) -> LakeEvent:
    """Return the event of a replication's sink."""
    return LakeEvent(
        kind=EventKind(event.kind.value),
        base_path=event.base_path,
        service="replication",
        reason=event.reason,
        at=at,
        table=event.base_path.rsplit("/", 1)[-1],
        sink=event.sink,
    )


def event_of_failure(context: Mapping[str, Any], at: str) -> LakeEvent:
    """Return the event of a failed task of the service DAG, from the context of `on_failure_callback`."""
    params = dict(context.get("params") or {})
    instance = context.get("ti") or context.get("task_instance")
    return LakeEvent(
        kind=EventKind.FAILED,
        base_path=str(params.get("base_path", "")),
        service=str(params.get("service", "")),
        reason=str(context.get("exception") or context.get("reason") or "no reason was given"),
        at=at,
        table=str(params.get("table_name", "")),
        run_id=str(context.get("run_id") or getattr(instance, "run_id", "")),
        instants=tuple(str(instant) for instant in params.get("instants") or ()),
        state="failed",
        try_number=int(getattr(instance, "try_number", 0) or 0),
        log_url=str(getattr(instance, "log_url", "") or ""),
    )


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
    notify_all(notifiers, event_of_failure(context, _now()), context)


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
    if isinstance(found, BaseNotifier):
        return _notify_through(found)
    if callable(found):
        return lambda event, context: found(event)
    raise ConfigError(f"[lake] notifiers = {path!r} is neither a notifier nor a function of the event")


def _notify_through(notifier: BaseNotifier) -> Notify:
    def notify(event: LakeEvent, context: Mapping[str, Any]) -> None:
        # Airflow renders a notifier's templates into the notifier itself: each event gets a fresh one.
        fresh = copy.copy(notifier)
        fresh({**context, "lake_event": event.to_dict()})

    return notify


def _now() -> str:
    return datetime.now(UTC).isoformat()

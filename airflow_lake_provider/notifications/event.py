"""A notification as a value: one shape for webhooks, for templates of any notifier, and for tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.manager.health.sink_events import SinkEventKind
from airflow_lake_provider.manager.health.table_problems import SINK_PROBLEMS
from airflow_lake_provider.manager.health.times import moment
from airflow_lake_provider.manager.supervision.instances import PEOPLE
from airflow_lake_provider.shared.plain_text import plain, without_links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.manager.health.sink_events import SinkEvent
    from airflow_lake_provider.manager.health.table_problems import TableProblem
    from airflow_lake_provider.manager.supervision.instances import Instance
    from airflow_lake_provider.manager.supervision.notifications import Digest


class EventKind(StrEnum):
    """Why the event is sent."""

    FAILED = "failed"
    """The last try of a run has failed."""
    DEADLINE = "deadline"
    """The manager ended a run that passed its `deadline_s`."""
    STUCK = "stuck"
    """A table has a problem that a person has to act on, or something is past the deadline of its state."""
    RESOLVED = "resolved"
    """A problem of which people were notified has ended."""
    DIGEST = "digest"
    """The problems of all tables, once a day."""
    SINK_FAILING = SinkEventKind.FAILING.value
    SINK_STANDS_STILL = SinkEventKind.STANDS_STILL.value
    SINK_RELEASED = SinkEventKind.RELEASED.value
    SINK_SNAPSHOT = SinkEventKind.SNAPSHOT.value


class Severity(StrEnum):
    """How severe an event is, the least first."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


_VERBS: Mapping[EventKind, str] = MappingProxyType(
    {
        EventKind.FAILED: "failed",
        EventKind.DEADLINE: "passed its deadline",
        EventKind.STUCK: "is stuck",
        EventKind.RESOLVED: "has this problem no longer",
        EventKind.SINK_FAILING: "fails",
        EventKind.SINK_STANDS_STILL: "stands still",
        EventKind.SINK_RELEASED: "holds the table's files no longer",
        EventKind.SINK_SNAPSHOT: "begins a new snapshot",
    }
)
_CRITICAL = frozenset({TableState.STUCK.value, TableState.UNREADABLE.value})


MAX_IN_DIGEST = 200
"""Problems, the worst first, that a digest names to each notifier: those of other owners take no place."""


@dataclass(frozen=True, slots=True)
class DigestLine:
    """A problem in the daily digest."""

    table: str
    owner: str
    base_path: str
    state: str
    text: str


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
    table_owner: str = ""
    """The owner of the table, as the writer's callback named it."""
    lines: tuple[DigestLine, ...] = ()
    """Of a digest: the problems, the worst first."""

    @property
    def severity(self) -> Severity:
        """How severe it is; what has ended is as severe as it was."""
        if self.state in _CRITICAL or self.kind is EventKind.SINK_RELEASED:
            return Severity.CRITICAL
        is_calm = self.kind in {EventKind.SINK_SNAPSHOT, EventKind.DIGEST}
        return Severity.INFO if is_calm else Severity.WARNING

    @property
    def text(self) -> str:
        """One sentence; of a digest a line for each problem. No chat program finds a link or a call in it."""
        return without_links(self._said())

    def _said(self) -> str:
        if self.kind is EventKind.DIGEST:
            shown = self.lines[:MAX_IN_DIGEST]
            # A table's name is its writer's choice, and must not make a line of another table's.
            lines = [plain(f"{one.state}: {one.table} ({one.owner or 'no owner'}): {one.text}", "") for one in shown]
            more = [f"and {len(self.lines) - len(shown):,} more"] if len(self.lines) > len(shown) else []
            return "\n".join((self.reason, *lines, *more))
        what = f"{self.service} of {self.table or self.base_path}{f' to {self.sink}' if self.sink else ''}"
        # A trace of Java's has lines that a mail's subject, which this may be, takes for headers.
        return f"{plain(what, '')} {_VERBS[self.kind]}: {plain(' '.join(self.reason.split()), '')}"

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that webhooks post, and templates find under `lake_event`."""
        body = asdict(self) | {"kind": self.kind.value, "instants": list(self.instants), "text": self.text}
        body |= {"severity": self.severity.value, "lines": [asdict(line) for line in self.lines[:MAX_IN_DIGEST]]}
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


def event_of_problem(kind: EventKind, problem: TableProblem, at: str) -> LakeEvent:
    """Return the event of a table's problem that has begun, or ended."""
    return LakeEvent(
        kind=kind,
        base_path=problem.base_path,
        service=problem.service,
        reason=problem.reason,
        at=at,
        table=problem.table,
        run_id=problem.run_id,
        instants=problem.instants,
        state=problem.state.value,
        owner=PEOPLE,
        sink=problem.sink,
        table_owner=problem.owner,
    )


def event_of_sink(event: SinkEvent, at: str) -> LakeEvent:
    """Return the event of a replication's sink."""
    known = SINK_PROBLEMS.get(event.kind)
    return LakeEvent(
        kind=EventKind(event.kind.value),
        base_path=event.base_path,
        service="replication",
        reason=event.reason,
        at=at,
        table=event.base_path.rsplit("/", 1)[-1],
        state="" if known is None else known[1].value,
        sink=event.sink,
        table_owner=event.owner,
    )


def event_of_digest(digest: Digest, at: str) -> LakeEvent:
    """Return the event of the daily digest."""
    lines = tuple(
        DigestLine(
            one.table, one.owner, one.base_path, one.state.value, f"{one.reason} (since {moment(one.since_ms)} UTC)"
        )
        for one in digest.problems
    )
    reason = f"{digest.need_attention:,} of {digest.tables:,} tables need a person"
    return LakeEvent(EventKind.DIGEST, "", "lake", reason, at, lines=lines)


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
        table_owner=str(params.get("table_owner") or ""),
    )

"""The state of a table: one pure function of all that the manager knows of it. Every place shows its answer.

A table is as healthy as the worst that was found of it: by its evaluation, its last runs, the doctor, the check of its
writers, its sinks, and what is past its deadline. The registry keeps the answer with its causes and what to do about
each (`db.health`); lists, pages, commands, metrics and routes read that and derive nothing of their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_lake_provider.manager.health.sink_events import SinkEventKind
from airflow_lake_provider.manager.health.times import moment
from airflow_lake_provider.planner.conformance import Conformity, parse_learnt
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.planner.conformance import Row


class TableState(StrEnum):
    """The state of a table in one word, the worst first."""

    STUCK = "stuck"
    """Something on the timeline, or past its deadline, that nothing repairs before a person acts."""
    UNREADABLE = "unreadable"
    """The last evaluation failed: no table at the path, a store that does not answer, damaged files."""
    FAILING = "failing"
    """Runs of a service, or of a sink, fail."""
    BLOCKED = "blocked"
    """A service would be due, but must not run before a person changes what its reason names."""
    MISCONFIGURED = "misconfigured"
    """A writer, or a sink, is not set up as the table needs it."""
    WAITING = "waiting"
    """A service is due, and waits for a limit, a window or another run."""
    RUNNING = "running"
    """A run of a service is queued or running."""
    NEW = "new"
    """Not evaluated yet."""
    HEALTHY = "healthy"
    """Nothing is due that has not been done."""


SEVERITY: Mapping[TableState, int] = MappingProxyType(
    {
        TableState.STUCK: 70,
        TableState.UNREADABLE: 60,
        TableState.FAILING: 50,
        TableState.BLOCKED: 40,
        TableState.MISCONFIGURED: 35,
        TableState.WAITING: 30,
        TableState.RUNNING: 20,
        TableState.NEW: 10,
        TableState.HEALTHY: 0,
    }
)
"""Greater is worse. The registry keeps and sorts by it: a state's number never changes."""
ATTENTION = (
    TableState.STUCK,
    TableState.UNREADABLE,
    TableState.FAILING,
    TableState.BLOCKED,
    TableState.MISCONFIGURED,
)
"""States that a person has to act on."""
LEAST_ATTENTION = min(SEVERITY[state] for state in ATTENTION)
OWED = frozenset({TableState.FAILING, TableState.BLOCKED, TableState.WAITING})
"""States of a service that would be due and does not run."""
_OF_RUN: Mapping[str, TableState] = MappingProxyType(
    {
        "start": TableState.RUNNING,
        "already_active": TableState.RUNNING,
        "waiting": TableState.WAITING,
        "backing_off": TableState.FAILING,
        "abandoned": TableState.FAILING,
        "already_ran": TableState.HEALTHY,
    }
)
"""By `scheduling.StartVerdict`."""
BLOCKED_FOR_MS = 3_600_000
"""How long a service is blocked before people are notified: a writer at work blocks services for minutes."""
RECENT_MS = 86_400_000
"""How long a failed run counts of a service that is not due any more: nothing would run it again."""
LONG_HOLD_MS = 6 * 3_600_000
"""How long a reader holds a table's files before the table is marked: cleaning leaves them all that time."""


def parse_decisions(decisions_json: str | None) -> list[dict[str, Any]]:
    """Return an evaluation's decisions, as the registry stores them."""
    decisions: list[dict[str, Any]] = json.loads(decisions_json or "[]")
    return decisions


def state_of_decision(decision: Mapping[str, Any]) -> TableState:
    """Return the state of one service's decision, as the registry stores it."""
    if decision.get("verdict") == Verdict.BLOCKED:
        return TableState.BLOCKED
    if decision.get("verdict") != Verdict.DUE:
        return TableState.HEALTHY
    if decision.get("never_starts"):
        return TableState.BLOCKED
    return _OF_RUN.get(str(decision.get("run", "")), TableState.WAITING)


# --- What is known of a table


class FoundBy(StrEnum):
    """What found a problem."""

    EVALUATION = "evaluation"
    SERVICE = "service"
    """The decision about a service."""
    RUN = "run"
    """The last run of a service that is not due."""
    DOCTOR = "doctor"
    DEADLINE = "deadline"
    SETTINGS = "settings"
    """What the table's own hoodie.properties sets, and may not."""
    WRITERS = "writers"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """What a finder of `_OF_FINDERS` found of a table. It counts until that one finds it no more."""

    kind: str
    instant: str
    cause: str
    remedy: str
    since_ms: int = 0
    """When it was found first; 0 is now."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The last run of a service that ended, where it failed."""

    service: str
    run_id: str
    error: str
    ended_ms: int


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """What the registry has of one sink of replication."""

    sink: str
    problem: str
    retiring: str = ""
    """Why, and until when, it holds although it is not configured any more; empty when it is."""


class ProblemKey(NamedTuple):
    """What a problem is silenced by: with another cause it is the same problem, with another state it is not."""

    state: TableState
    source: FoundBy
    subject: str

    @classmethod
    def of(cls, state: TableState, source: FoundBy, subject: str) -> ProblemKey:
        """Return the key of a problem. A service that fails is one problem, whether it is due just now or not."""
        return cls(state, FoundBy.SERVICE if source is FoundBy.RUN else source, subject)

    @property
    def is_failing_service(self) -> bool:
        """Whether it is that runs of a service fail."""
        return self.state is TableState.FAILING and self.source is FoundBy.SERVICE


class Snooze(NamedTuple):
    """A problem that a person has silenced until a time."""

    key: ProblemKey
    why: str
    """By whom, and why."""
    since_ms: int
    ends_ms: int


class ReaderOfTable(NamedTuple):
    """A reader that has held files of a table for long."""

    reader: str
    """Its name, and why it reads."""
    since_ms: int
    until_ms: int
    """When the hold ends whatever the reader does."""


class PausedService(NamedTuple):
    """By whom a service is paused, and why, and when that ends."""

    why: str
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """All that a table's state follows from."""

    decisions: Sequence[Mapping[str, Any]] = ()
    """Of its last evaluation, as the registry stores them."""
    problem: str = ""
    """Of its last evaluation."""
    is_evaluated: bool = True
    missing_since_ms: int | None = None
    found: Mapping[FoundBy, Sequence[OpenFinding]] = field(default_factory=lambda: MappingProxyType({}))
    """By the doctor, by the sweep, and of the table's own settings."""
    conformance: str | None = None
    """What the check of its writers proved (`planner.conformance`)."""
    sinks: Sequence[SinkFacts] = ()
    failed_runs: Sequence[FailedRun] = ()
    observed: str = ""
    """Why the manager starts nothing on the table; empty when it does."""
    paused: Mapping[str, PausedService] = field(default_factory=lambda: MappingProxyType({}))
    """Paused services."""
    snoozes: Sequence[Snooze] = ()
    readers: Sequence[ReaderOfTable] = ()
    """Those that have held files for `LONG_HOLD_MS`."""


# --- What follows


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person has to act on, or may."""

    state: TableState
    source: FoundBy
    subject: str
    """A service, a kind of the doctor's, a requirement, a sink; empty: the table."""
    cause: str
    """A sentence without its full stop."""
    remedy: str
    """What to do; empty where the cause says it."""
    since_ms: int
    notify_after_ms: int | None = 0
    """How long it lasts before people are notified of it; None: a task, an event or a later finding notifies them."""
    snoozed_until_ms: int | None = None
    """Until then it counts for no state, and notifies no one; None: it is not silenced."""

    @property
    def key(self) -> ProblemKey:
        """What it is silenced by."""
        return ProblemKey.of(self.state, self.source, self.subject)

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


class MarkKind(StrEnum):
    """What a table, or a service of it, is marked with besides its state."""

    PAUSED = "paused"
    OBSERVED = "observed"
    HELD = "held"
    """A reader has kept cleaning from the table's files for long."""
    SNOOZED = "snoozed"
    """A person has silenced a problem."""


@dataclass(frozen=True, slots=True)
class TableMark:
    """A wish that holds something back; no problem, but not to be forgotten either."""

    kind: MarkKind
    service: str
    """The paused one, or what the silenced problem is about; empty: the table."""
    why: str
    since_ms: int
    """When the manager first saw it; of a hold, or a snooze, when it began."""
    ends_ms: int | None = None
    """When it ends by itself; None: when a person ends it."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a table, since when, why, and what to do. The worst problem comes first, silenced ones last."""

    state: TableState = TableState.NEW
    since_ms: int = 0
    problems: tuple[Problem, ...] = ()
    marks: tuple[TableMark, ...] = ()

    @property
    def heard(self) -> tuple[Problem, ...]:
        """The problems that are not silenced."""
        return tuple(one for one in self.problems if one.snoozed_until_ms is None)

    def has_mark(self, kind: MarkKind) -> bool:
        """Whether a mark of that kind is on the table or a service."""
        return any(mark.kind is kind for mark in self.marks)


def judge(facts: KnownFacts, before: Health, now_ms: int) -> Health:
    """Return the table's state: that of the worst found of it. What is still so keeps its time from `before`.

    A silenced problem is shown, and counts for no state.
    """
    known = {(one.source, one.subject, one.state): one.since_ms for one in before.problems}
    silenced = {one.key: one.ends_ms for one in facts.snoozes if now_ms < one.ends_ms}
    problems = sorted(
        (
            replace(_since(problem, known, now_ms), snoozed_until_ms=silenced.get(problem.key))
            for problem in _problems(facts, now_ms)
        ),
        key=lambda one: (one.snoozed_until_ms or 0, -SEVERITY[one.state], one.since_ms, one.source, one.subject),
    )
    heard = [problem for problem in problems if problem.snoozed_until_ms is None]
    states = [problem.state for problem in heard]
    for decision in facts.decisions:
        state = state_of_decision(decision)
        if ProblemKey(state, FoundBy.SERVICE, str(decision.get("service", ""))) not in silenced:
            states.append(state)
    states.append(TableState.HEALTHY if facts.is_evaluated else TableState.NEW)
    state = max(states, key=SEVERITY.__getitem__)
    since_ms = min((problem.since_ms for problem in heard if problem.state is state), default=now_ms)
    if before.since_ms and before.state is state:
        since_ms = min(since_ms, before.since_ms)
    return Health(state, since_ms, tuple(problems), _marks(facts, before, now_ms))


def _since(problem: Problem, known: Mapping[tuple[FoundBy, str, TableState], int], now_ms: int) -> Problem:
    since_ms = problem.since_ms or known.get((problem.source, problem.subject, problem.state)) or now_ms
    return replace(problem, since_ms=since_ms)


def _marks(facts: KnownFacts, before: Health, now_ms: int) -> tuple[TableMark, ...]:
    since = {(mark.kind, mark.service): mark.since_ms for mark in before.marks}
    wanted = [(MarkKind.OBSERVED, "", PausedService(facts.observed))] if facts.observed else []
    wanted += [(MarkKind.PAUSED, service, pause) for service, pause in facts.paused.items()]
    marks = [
        TableMark(kind, service, pause.why, since.get((kind, service), now_ms), pause.ends_ms)
        for kind, service, pause in wanted
    ]
    if facts.readers:
        first = min(facts.readers, key=lambda one: one.since_ms)
        more = f", and {len(facts.readers) - 1} more readers" if len(facts.readers) > 1 else ""
        ends_ms = max(one.until_ms for one in facts.readers)
        marks.append(TableMark(MarkKind.HELD, "", f"{first.reader}{more}", first.since_ms, ends_ms))
    marks += [
        TableMark(MarkKind.SNOOZED, one.key.subject or one.key.source, one.why, one.since_ms, one.ends_ms)
        for one in facts.snoozes
    ]
    return tuple(mark for mark in marks if mark.ends_ms is None or now_ms < mark.ends_ms)


def _problems(facts: KnownFacts, now_ms: int) -> Iterator[Problem]:
    yield from _of_evaluation(facts)
    yield from _of_services(facts)
    for source, (state, remedy) in _OF_FINDERS.items():
        for one in facts.found.get(source, ()):
            subject = f"{one.kind} {one.instant}".rstrip()
            after_ms = None if one.kind in _NOTIFIED_BY_EVENTS else 0
            yield Problem(state, source, subject, one.cause, one.remedy or remedy, one.since_ms, after_ms)
    for row in parse_learnt(facts.conformance).rows:
        if row.state is Conformity.BROKEN:
            yield _of_writers(row)
    yield from _of_sinks(facts)
    at_work = {str(d.get("service")) for d in facts.decisions if state_of_decision(d) is not TableState.HEALTHY}
    for run in facts.failed_runs:
        if run.service not in at_work and now_ms - run.ended_ms < RECENT_MS:
            cause = f"the last run of {run.service} failed: {run.error or 'its log has the reason'}"
            remedy = f"remove the cause and run it again, or leave it: it counts for a day; run {run.run_id}"
            yield Problem(TableState.FAILING, FoundBy.RUN, run.service, cause, remedy, run.ended_ms, None)


_NOTIFIED_BY_EVENTS = frozenset({SinkEventKind.STANDS_STILL.value})
"""Kinds of findings whose own events notify people (`sink_events`)."""
_OF_FINDERS: Mapping[FoundBy, tuple[TableState, str]] = MappingProxyType(
    {
        FoundBy.DOCTOR: (TableState.STUCK, "`airflow lake doctor` shows the whole finding"),
        FoundBy.DEADLINE: (TableState.STUCK, "`airflow lake runs` shows what has to act"),
        FoundBy.SETTINGS: (
            TableState.MISCONFIGURED,
            "take it out of hoodie.properties, or let table_may_set of the tables file name it",
        ),
    }
)
"""The state of what each finds, and what to do where the finding itself does not say it."""


def own_settings_finding(problems: Sequence[str]) -> list[OpenFinding]:
    """Return what is wrong with what a table sets of its own policy, as one finding; none when nothing is."""
    return [OpenFinding("own_settings", "", "; ".join(problems), "")] if problems else []


def _of_evaluation(facts: KnownFacts) -> Iterator[Problem]:
    if facts.missing_since_ms is not None:
        cause = "no table is at this path any more"
        remedy = "bring it back, or forget the table; the manager forgets it after seven days"
        subject = "missing"  # not silenced by a snooze of a store that does not answer
        yield Problem(TableState.UNREADABLE, FoundBy.EVALUATION, subject, cause, remedy, facts.missing_since_ms, None)
    elif facts.problem:
        remedy = "the manager tries again by itself; `airflow lake doctor` examines the table's files"
        cause = f"the table cannot be read: {facts.problem}"
        yield Problem(TableState.UNREADABLE, FoundBy.EVALUATION, "", cause, remedy, 0, None)


def _of_services(facts: KnownFacts) -> Iterator[Problem]:
    for decision in facts.decisions:
        state = state_of_decision(decision)
        service = str(decision.get("service", ""))
        since_ms = decision.get("since_ms") or 0
        if state is TableState.BLOCKED:
            # The rules say why it is due, then what is in its way, with what to do.
            due, _, problem = str(decision.get("reason", "")).partition(", but ")
            never = decision.get("run_reason", "") if decision.get("never_starts") else ""
            cause = f"{service} is blocked: {never or problem or due}"
            yield Problem(state, FoundBy.SERVICE, service, cause, "", since_ms, 0 if never else BLOCKED_FOR_MS)
        elif state is TableState.FAILING:
            is_given_up = decision.get("run") == "abandoned"
            what = "is given up for some hours" if is_given_up else "failed and is tried again"
            remedy = "its run's log has the reason; run it again when that is gone" if is_given_up else ""
            cause = f"{service} {what}: {decision.get('run_reason', '')}"
            # The task of each run that fails notifies people.
            yield Problem(state, FoundBy.SERVICE, service, cause, remedy, since_ms, 0 if is_given_up else None)


def _of_writers(row: Row) -> Problem:
    settings = ", ".join(row.settings)
    remedy = f"set {settings} in the writers" if settings else ""
    cause = f"a writer does not conform ({row.requirement}): {row.evidence}; it endangers {row.endangers}"
    return Problem(TableState.MISCONFIGURED, FoundBy.WRITERS, row.requirement.value, cause, remedy, row.since_ms)


def _of_sinks(facts: KnownFacts) -> Iterator[Problem]:
    for sink in facts.sinks:
        if sink.problem:
            cause = f"sink {sink.sink}: {sink.problem}"
            remedy = "replication tries again by itself; `airflow lake replication` shows what it holds back"
            yield Problem(TableState.FAILING, FoundBy.SINK, sink.sink, cause, remedy, 0, None)
        if sink.retiring:
            cause = f"sink {sink.sink} is {sink.retiring}"
            yield Problem(TableState.MISCONFIGURED, FoundBy.SINK, sink.sink, cause, "", 0)


def retiring_text(retire_ms: int) -> str:
    """Return the text that people read about a sink that is no longer configured."""
    return (
        f"no longer configured: its hold is released at {moment(retire_ms)} UTC. Configured again before, it continues "
        "from its hold; action forget of lake_replication releases it now"
    )


# --- As the registry keeps it


def health_to_text(health: Health) -> str:
    """Return it as text, for the registry."""
    return json.dumps(asdict(health), separators=(",", ":"))


def parse_health(text: str | None) -> Health:
    """Return what such a text says; one of another release, or none, is that of a new table."""
    try:
        record = json.loads(text or "{}")
        problems = tuple(
            Problem(**one | {"state": TableState(one["state"]), "source": FoundBy(one["source"])})
            for one in record.get("problems", ())
        )
        marks = tuple(TableMark(**one | {"kind": MarkKind(one["kind"])}) for one in record.get("marks", ()))
        state = TableState(record.get("state", TableState.NEW))
        return Health(state, record.get("since_ms", 0), problems, marks)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Health()

"""Which problems of tables people are notified of; pure. The stored health says what the problems are.

A problem is one notification for as long as it lasts. Blocked services of a table are one problem; so are those that
were given up, and the requirements that its writers do not meet.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.health.health import FoundBy, Health, TableState
from airflow_lake_provider.manager.health.sink_events import SinkEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_lake_provider.manager.health.health import Problem
    from airflow_lake_provider.manager.health.sink_events import SinkEvent

MAX_REASON = 4000
_TOGETHER = frozenset({FoundBy.SERVICE, FoundBy.WRITERS})
"""Sources whose problems of one state are one notification."""
SINK_PROBLEMS = {
    SinkEventKind.FAILING: (FoundBy.SINK, TableState.FAILING, ""),
    SinkEventKind.STANDS_STILL: (FoundBy.DEADLINE, TableState.STUCK, f"{SinkEventKind.STANDS_STILL.value} "),
}
"""What a table's health has of a sink while such an event is true: source, state, and what its subject begins with."""


@dataclass(frozen=True, slots=True)
class TableProblem:
    """A problem of a table as people are notified of it."""

    table_id: str
    base_path: str
    table: str
    owner: str
    """The table's owner."""
    source: FoundBy
    state: TableState
    subject: str
    reason: str
    since_ms: int
    due_ms: int | None = None
    """When people are notified of it, unless it has ended by then; None: something else does, or it is silenced."""
    is_snoozed: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What stays the same while it lasts."""
        return problem_key(self.table_id, self.state, self.source, self.subject)

    @property
    def service(self) -> str:
        """The service, or what else has the problem."""
        if self.sink:
            return "replication"
        named = {FoundBy.WRITERS: "conformance", FoundBy.EVALUATION: "evaluation"}.get(self.source)
        return named or (self.subject if self.source is FoundBy.SERVICE else self.subject.partition(" ")[0])

    @property
    def sink(self) -> str:
        """The sink of replication; empty where it is about none."""
        stands_still = SINK_PROBLEMS[SinkEventKind.STANDS_STILL][2]
        if self.source is FoundBy.DEADLINE and self.subject.startswith(stands_still):
            return self.subject.removeprefix(stands_still)
        return self.subject if self.source is FoundBy.SINK else ""

    @property
    def run_id(self) -> str:
        """The run that is past a deadline."""
        return self.subject.partition(" ")[2] if self.source is FoundBy.DEADLINE and not self.sink else ""

    @property
    def instants(self) -> tuple[str, ...]:
        """The instant that the doctor names."""
        instant = self.subject.partition(" ")[2] if self.source is FoundBy.DOCTOR else ""
        return (instant,) if instant else ()


def problem_key(table_id: str, state: TableState, source: FoundBy, subject: str) -> tuple[str, ...]:
    """Return what a notification is known by."""
    return table_id, source.value, state.value, "" if source in _TOGETHER else subject


@dataclass(frozen=True, slots=True)
class TableOfProblems:
    """What names a table that has problems."""

    table_id: str
    base_path: str
    table_name: str
    owner: str
    is_identified: bool
    """As that of the registry's row."""


def problems_of(row: TableOfProblems, health: Health) -> list[TableProblem]:
    """Return the problems of a table."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for one in health.problems:
        groups.setdefault(problem_key(row.table_id, one.state, one.source, one.subject), []).append(one)
    # What the last readable evaluation decided may be long over.
    is_readable = all(one.source is not FoundBy.EVALUATION for one in health.problems)
    # An announced name must not select the policy that mutes another table.
    name = row.table_name if row.is_identified else row.base_path.rsplit("/", 1)[-1]
    return [
        TableProblem(
            table_id=row.table_id,
            base_path=row.base_path,
            table=name,
            owner=row.owner,
            source=some[0].source,
            state=some[0].state,
            subject=", ".join(one.subject for one in some),
            reason="; ".join(dict.fromkeys(one.text for one in some))[:MAX_REASON],
            since_ms=min(one.since_ms for one in some),
            due_ms=min(_times_of(some), default=None) if is_readable or some[0].source is not FoundBy.SERVICE else None,
            is_snoozed=some[0].snoozed_until_ms is not None,
        )
        for some in map(_heard, groups.values())
    ]


def _heard(problems: list[Problem]) -> list[Problem]:
    """Return those that are not silenced; all where all are."""
    return [one for one in problems if one.snoozed_until_ms is None] or problems


def _times_of(problems: Sequence[Problem]) -> Iterator[int]:
    return (
        one.since_ms + one.notify_after_ms
        for one in problems
        if one.notify_after_ms is not None and one.snoozed_until_ms is None
    )


def problem_of_sink(table_id: str, event: SinkEvent) -> TableProblem | None:
    """Return the problem that lasts after an event of a sink; None for an event that nothing ends."""
    known = SINK_PROBLEMS.get(event.kind)
    if known is None:
        return None
    source, state, prefix = known
    table = event.base_path.rsplit("/", 1)[-1]
    subject = f"{prefix}{event.sink}"
    return TableProblem(
        table_id, event.base_path, table, event.owner, source, state, subject, event.reason[:MAX_REASON], event.at_ms
    )


def problem_to_text(problem: TableProblem) -> str:
    """Return it as text, for the log of notifications."""
    return json.dumps(asdict(problem), separators=(",", ":"))


def parse_problem(text: str) -> TableProblem:
    """Return what such a text says."""
    body = json.loads(text)
    return TableProblem(**body | {"source": FoundBy(body["source"]), "state": TableState(body["state"])})

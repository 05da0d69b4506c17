"""Checks how a table's writers are configured: with an evaluation that follows a commit, and for people who ask.

A quiet table costs nothing, and a busy one two listings and up to nine stats in ten minutes. What was proved is kept in
the registry, with the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import LAST_VERSION_OF_1_0
from airflow_lake_provider.manager.db.registry import parse_instants
from airflow_lake_provider.manager.instances import PEOPLE, Instance, InstanceState
from airflow_lake_provider.planner.conformance import (
    SERVICE_OPERATIONS,
    Check,
    Conformance,
    Conformity,
    Registered,
    Span,
    learnt_to_text,
    parse_learnt,
)
from airflow_lake_provider.planner.writer_rules import check_writers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.monitoring import InstanceGateway
    from airflow_lake_provider.planner.conformance import Learnt, Row
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache

EVERY_MS = 600_000
"""How often the writers of a table with new commits are checked."""
MOST_RUNS = 100
MOST_COMMITS = 3
"""Of how many of the newest commits the updates of the metadata table are examined."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The report on a table's writers. `text` is for the registry; None when nothing was checked again."""

    report: Conformance
    text: str | None = None
    breach: Instance | None = None
    """What people get notified of: a writer that conformed does not any more."""


class WriterChecks:
    """Checks tables for the manager's loop, for commands and for pages. `check` may be called from any thread."""

    def __init__(self, registry: Registry, views: TableViewCache, gateway: InstanceGateway) -> None:
        self._registry = registry
        self._views = views
        self._gateway = gateway

    def check_if_changed(self, row: Mapping[Any, Any], view: TableView, policy: TablePolicy, now_ms: int) -> Checked:
        """Return the report of the last check, or a new one where a commit or a service was completed since.

        `row` is what the registry knows of the table. Raises StorageError.
        """
        learnt = parse_learnt(row["conformance"])
        is_new = learnt.version != view.version and now_ms - learnt.checked_ms >= EVERY_MS
        if learnt.rows and not is_new:
            return Checked(Conformance(learnt.rows))
        now = self._learn(row, view, policy, now_ms, learnt, reads_headers=not learnt.rows)
        return Checked(Conformance(now.rows), learnt_to_text(now), find_new_breach(learnt, now))

    def check(self, row: Mapping[Any, Any] | None, view: TableView, policy: TablePolicy, now_ms: int) -> Conformance:
        """Return a new report, and store nothing; `row` is None for a table that is not registered.

        Raises StorageError.
        """
        learnt = parse_learnt(None if row is None else row["conformance"])
        return Conformance(self._learn(row, view, policy, now_ms, learnt, reads_headers=True).rows)

    def _learn(
        self,
        row: Mapping[Any, Any] | None,
        view: TableView,
        policy: TablePolicy,
        now_ms: int,
        learnt: Learnt,
        *,
        reads_headers: bool,
    ) -> Learnt:
        known = dict(learnt.streamed)
        newest = newest_commits(view)
        signs = self._views.load_signs(
            view,
            [commit for commit in newest if commit.requested_time not in known],
            reads_headers=reads_headers and view.properties.version <= LAST_VERSION_OF_1_0,
        )
        return check_writers(Check(view, policy, signs, self._registered(row), now_ms), learnt)

    def _registered(self, row: Mapping[Any, Any] | None) -> Registered | None:
        if row is None:
            return None
        with self._registry.transaction() as session:
            runs = self._gateway.list_runs(session, f"{row['table_id']}.", MOST_RUNS)
        return Registered(
            row["registered_ms"],
            parse_instants(row["announced"]),
            parse_instants(row["served"]),
            tuple(Span(run.service, run.created_ms, run.ended_ms) for run in runs),
        )


def newest_commits(view: TableView) -> list[Instant]:
    """Return the newest completed commits of writers, the newest first; services are left out."""
    commits = []
    for write in reversed(view.timeline.completed_writes):
        metadata = view.commits.get(write.requested_time)
        if metadata is not None and metadata.operation not in SERVICE_OPERATIONS:
            commits.append(write)
        if len(commits) == MOST_COMMITS:
            break
    return commits


def find_new_breach(before: Learnt, now: Learnt) -> Instance | None:
    """Return what people get notified of after a check: each requirement that has just been broken; None for nothing.

    A table's first check is none: the service that it blocks is reported.
    """
    states = {row.requirement: row.state for row in before.rows}
    rows = [
        row
        for row in now.rows
        if row.state is Conformity.BROKEN and states.get(row.requirement, Conformity.BROKEN) is not Conformity.BROKEN
    ]
    if not rows:
        return None
    reason = Conformance(tuple(rows)).explain_broken()
    return Instance("conformance", InstanceState.ABANDONED, PEOPLE, reason, since_ms=rows[0].since_ms)


def row_of(lease: TableLease) -> dict[str, Any]:
    """Return what the registry knows of a leased table, as `check_if_changed` takes it."""
    names = ("table_id", "registered_ms", "announced", "served", "conformance")
    return {name: getattr(lease, name) for name in names}


def recorded_report(row: Mapping[Any, Any]) -> tuple[Conformance, int]:
    """Return the report of the last check in the registry, and when it was made (ms since the epoch, 0: never)."""
    learnt = parse_learnt(row["conformance"])
    return Conformance(learnt.rows), learnt.checked_ms


def row_to_dict(row: Row) -> dict[str, Any]:
    """Return one requirement as commands, pages and the HTTP API print it."""
    return {
        "requirement": row.requirement.value,
        "state": row.state.value,
        "evidence": row.evidence,
        "endangers": row.endangers,
        "settings": list(row.settings),
        "blocks": [service.value for service in row.blocks],
    }

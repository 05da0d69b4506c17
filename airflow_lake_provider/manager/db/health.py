"""The state of a table in the registry: what was found of it, and the one answer that all places read.

Whatever changes what a table's state follows from calls `refresh_health` in the same transaction: an evaluation, an
examination, the sweep over deadlines, a sink, an executor's report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, or_, select, update

from airflow_lake_provider.manager.db.schema import lake_finding, lake_run, lake_search, lake_sink, lake_table
from airflow_lake_provider.manager.health import (
    RECENT_MS,
    SEVERITY,
    FailedRun,
    FoundBy,
    Health,
    KnownFacts,
    MarkKind,
    OpenFinding,
    SinkFacts,
    health_to_text,
    judge,
    parse_decisions,
    parse_health,
    retiring_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.orm import Session

MAX_RUNS = 30
"""So many of a table's newest runs say whether the last one of a service failed."""
MAX_TEXT = 2000


def refresh_health(
    session: Session, table_id: str, now_ms: int, marks: tuple[str, Mapping[str, str]] | None = None
) -> Health | None:
    """Judge a table by what the registry has of it, and keep the answer; None of a table that is not registered.

    `marks` are why it is observed and which services are paused, as an evaluation found them; without them those of
    the last evaluation stay.
    """
    table = lake_table.c
    names = (
        table.decisions, table.problem, table.evaluated_ms, table.missing_since_ms, table.conformance, table.health,
    )  # fmt: skip
    # The lock keeps one answer from covering another that was found of newer facts.
    row = session.execute(select(*names).where(table.table_id == table_id).with_for_update()).one_or_none()
    if row is None:
        return None
    before = parse_health(row.health)
    if marks is None:
        observed = next((mark.why for mark in before.marks if mark.kind is MarkKind.OBSERVED), "")
        paused = {mark.service: mark.why for mark in before.marks if mark.kind is MarkKind.PAUSED}
    else:
        observed = marks[0]
        paused = dict(marks[1])
    known = KnownFacts(
        decisions=parse_decisions(row.decisions),
        problem=row.problem,
        is_evaluated=row.evaluated_ms is not None,
        missing_since_ms=row.missing_since_ms,
        found=_load_findings(session, table_id),
        conformance=row.conformance,
        sinks=_load_sinks(session, table_id),
        failed_runs=_load_failed_runs(session, table_id, now_ms),
        observed=observed,
        paused=paused,
    )
    health = judge(known, before, now_ms)
    if health != before:
        text = health_to_text(health)
        session.execute(update(lake_table).where(table.table_id == table_id).values(health=text))
    _keep_short(session, table_id, health)
    return health


def search_health(health: Health) -> dict[str, Any]:
    """Return what `lake_search` has of a table's state."""
    return {
        "state": health.state.value,
        "severity": SEVERITY[health.state],
        "is_paused": health.has_mark(MarkKind.PAUSED),
        "is_observed": health.has_mark(MarkKind.OBSERVED),
    }


def _keep_short(session: Session, table_id: str, health: Health) -> None:
    short = lake_search.c
    values = search_health(health)
    differs = or_(*(short[name] != value for name, value in values.items()))
    session.execute(update(lake_search).where(short.table_id == table_id, differs).values(**values))


def _load_findings(session: Session, table_id: str) -> dict[FoundBy, list[OpenFinding]]:
    found: dict[FoundBy, list[OpenFinding]] = {}
    for row in session.execute(select(lake_finding).where(lake_finding.c.table_id == table_id)):
        one = OpenFinding(row.kind, row.instant, row.cause, row.remedy, row.since_ms)
        found.setdefault(FoundBy(row.found_by), []).append(one)
    return found


def _load_sinks(session: Session, table_id: str) -> list[SinkFacts]:
    sink = lake_sink.c
    query = select(sink.sink, sink.problem, sink.retire_ms).where(sink.table_id == table_id)
    rows = session.execute(query.where(or_(sink.problem != "", sink.retire_ms.is_not(None))))
    return [
        SinkFacts(row.sink, row.problem, "" if row.retire_ms is None else retiring_text(row.retire_ms)) for row in rows
    ]


def _load_failed_runs(session: Session, table_id: str, now_ms: int) -> list[FailedRun]:
    run = lake_run.c
    ended = (run.table_id == table_id, run.ended_ms > now_ms - RECENT_MS, run.outcome != "dry_run")
    query = select(run.service, run.run_id, run.outcome, run.ended_ms).where(*ended)
    last: dict[str, Any] = {}
    for row in session.execute(query.order_by(run.created_ms.desc()).limit(MAX_RUNS)):
        last.setdefault(row.service, row)
    return [FailedRun(r.service, r.run_id, "", r.ended_ms) for r in last.values() if r.outcome == "failed"]


# --- What the doctor and the sweep find


def keep_findings(
    session: Session, table_id: str, found_by: FoundBy, findings: Sequence[OpenFinding], now_ms: int
) -> None:
    """Make these a finder's open findings of a table, those that are gone leave, and refresh the table's state."""
    rows = lake_finding.c
    mine = (rows.table_id == table_id, rows.found_by == found_by.value)
    before = {(row.kind, row.instant): row for row in session.execute(select(lake_finding).where(*mine))}
    now = {(one.kind[:40], one.instant[:250]): one for one in findings}
    for kind, instant in before.keys() - now.keys():
        session.execute(delete(lake_finding).where(*mine, rows.kind == kind, rows.instant == instant))
    for (kind, instant), one in now.items():
        texts = {"cause": one.cause[:MAX_TEXT], "remedy": one.remedy[:MAX_TEXT]}
        known = before.get((kind, instant))
        if known is None:
            key = {"table_id": table_id, "found_by": found_by.value, "kind": kind, "instant": instant}
            session.execute(insert(lake_finding).values(**key, **texts, since_ms=one.since_ms or now_ms))
        elif (known.cause, known.remedy) != (texts["cause"], texts["remedy"]):
            same = (rows.kind == kind, rows.instant == instant)
            session.execute(update(lake_finding).where(*mine, *same).values(**texts))
    if before or now:
        refresh_health(session, table_id, now_ms)


def find_tables_with(session: Session, found_by: FoundBy) -> frozenset[str]:
    """Return the tables of which a finder has open findings."""
    rows = lake_finding.c
    return frozenset(session.scalars(select(rows.table_id).where(rows.found_by == found_by.value).distinct()))

"""What kept services of a table from running, and from when until when: why something did not run last night.

An evaluation keeps what is over, at the moment at which the situation of a service changes. What lasts is in the
table's newest decisions, and runs have records of their own, so a quiet table costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.db.schema import lake_history, lake_run, lake_table
from airflow_lake_provider.manager.health.health import FoundBy, parse_decisions, parse_health
from airflow_lake_provider.manager.read_model import HistoryLine
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy.orm import Session

KEEP_DAYS = 8
"""A week, and the day on which people come back to it."""
MAX_LINES = 200
"""So many are kept of a table, the newest: about 25 a day."""
LEAST_MS = 60_000
"""What lasted less is not kept: it delayed a run by less than a minute."""
MAX_REASON = 500
RUNNING = "running"
"""The situation of a service with a run; `lake_run` has its record."""
_UNREADABLE = "unreadable"
_WORDS: Mapping[str, str] = {
    "not_due": "not due",
    "due": "due",
    "pause": "paused",
    "observed": "only observed",
    "lock": "blocked: no lock in common with the writers",
    "writers": "blocked by a writer's settings",
    "conflict": "giving way to a writer",
    "table": "blocked by the table's state or settings",
    "blocked": "blocked",
    "dag": "waiting for its DAG",
    "window": "waiting for the maintenance window",
    "run": "waiting for another run of the table",
    "budget": "waiting for a budget",
    "spread": "waiting for its turn",
    "waiting": "waiting",
    "backing_off": "pausing after a failed run",
    "abandoned": "given up after failed runs",
    "already_ran": "nothing to do",
    RUNNING: "running",
    _UNREADABLE: "the table cannot be read",
}
"""The situations (`evaluation.ServiceEvaluation.situation`, `planner.rules.KeptBy`) as people read them."""


def keep_history(session: Session, before: Mapping[str, Any], decisions_json: str, now_ms: int) -> None:
    """Keep the situations that end with an evaluation that did not fail; `before` is the table's row until now."""
    ended = [*_ended(before, decisions_json, now_ms)]
    lines = [line for line in ended if line["until_ms"] - line["from_ms"] >= LEAST_MS]
    if not lines:
        return
    table_id = before["table_id"]
    session.execute(insert(lake_history), [{"table_id": table_id} | line for line in lines])
    row = lake_history.c
    newest = select(row.until_ms).where(row.table_id == table_id).order_by(row.until_ms.desc())
    oldest_ms = session.scalar(newest.offset(MAX_LINES).limit(1))
    if oldest_ms is not None:
        session.execute(delete(lake_history).where(row.table_id == table_id, row.until_ms <= oldest_ms))


def _ended(before: Mapping[str, Any], decisions_json: str, now_ms: int) -> Iterator[dict[str, Any]]:
    if before["problem"]:
        found = [one for one in parse_health(before["health"]).problems if one.source is FoundBy.EVALUATION]
        if found:
            yield _line("", _UNREADABLE, found[0].since_ms, now_ms, None, before["problem"])
    if before["decisions"] == decisions_json:
        return
    now = {one["service"]: one.get("situation") for one in parse_decisions(decisions_json)}
    for one in parse_decisions(before["decisions"]):
        situation = one.get("situation", RUNNING)
        if situation not in {RUNNING, now.get(one["service"])}:
            yield _line_of(one, now_ms)


def _line_of(decision: Mapping[str, Any], until_ms: int | None) -> dict[str, Any]:
    is_due = decision["verdict"] == Verdict.DUE
    due_ms = decision["since_ms"] if is_due else None
    waits_for = decision.get("run_reason")
    reason = f"{waits_for} (due: {decision['reason']})" if waits_for else decision["reason"]
    return _line(decision["service"], decision["situation"], decision["situation_ms"], until_ms, due_ms, reason)


def _line(
    service: str, situation: str, from_ms: int, until_ms: int | None, due_ms: int | None, reason: str
) -> dict[str, Any]:
    parts = {"service": service, "situation": situation, "from_ms": from_ms, "until_ms": until_ms}
    return {**parts, "due_ms": due_ms, "reason": reason[:MAX_REASON]}


def _end_unreported(lines: list[dict[str, Any]]) -> None:
    """End each run without a report, unless it is its service's newest line, where the next line begins."""
    for one in lines:
        if one["until_ms"] is None and one["situation"] == RUNNING:
            later = [
                other["from_ms"]
                for other in lines
                if other["service"] == one["service"] and other["from_ms"] > one["from_ms"]
            ]
            one["until_ms"] = min(later, default=None)


def forget_old_history(session: Session, now_ms: int) -> None:
    """Delete what ended too long ago."""
    session.execute(delete(lake_history).where(lake_history.c.until_ms < now_ms - KEEP_DAYS * DAY_MS))


def _said_error(outcome: str, error: str | None) -> str:
    """Return why a run failed, or what an earlier try of one that did not fail ended with."""
    if not error:
        return ""
    return f", {error}" if outcome in ("", "failed") else f"; an earlier try failed: {error}"


def load_history(session: Session, table_id: str, at_ms: int | None = None) -> list[HistoryLine]:
    """Return what was so with each service of a table, and its runs, the newest first; `at_ms`: at that moment.

    What goes on has no `until_ms`.
    """
    table = lake_table.c
    now = session.execute(select(table.decisions).where(table.table_id == table_id)).scalar_one_or_none()
    lines = [_line_of(one, None) for one in parse_decisions(now) if one.get("situation", RUNNING) != RUNNING]
    row = lake_history.c
    columns = row.service, row.situation, row.from_ms, row.until_ms, row.due_ms, row.reason
    of_table = select(*columns).where(row.table_id == table_id).order_by(row.until_ms.desc())
    lines += [dict(line) for line in session.execute(of_table.limit(MAX_LINES)).mappings()]
    run = lake_run.c
    runs = select(run.run_id, run.service, run.created_ms, run.ended_ms, run.due_ms, run.outcome, run.error)
    is_run = and_(run.table_id == table_id, run.outcome.not_in(("dry_run", "observed")))
    for one in session.execute(runs.where(is_run).order_by(run.created_ms.desc()).limit(MAX_LINES)):
        outcome = one.outcome.replace("_", " ") or "not reported"
        reason = f"run {one.run_id}: {outcome}{_said_error(one.outcome, one.error)}"
        lines.append(_line(one.service, RUNNING, one.created_ms, one.ended_ms, one.due_ms, reason))
    _end_unreported(lines)
    if at_ms is not None:
        lines = [one for one in lines if one["from_ms"] <= at_ms and (one["until_ms"] or at_ms + 1) > at_ms]
    lines.sort(key=lambda one: (one["from_ms"], one["service"]), reverse=True)
    return [HistoryLine(**one, what=_WORDS.get(one["situation"], one["situation"])) for one in lines]

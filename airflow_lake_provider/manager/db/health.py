"""The state of a table in the registry: what was found of it, and the one answer that all places read.

Whatever changes what a table's state follows from calls `refresh_health` in the same transaction: an evaluation, an
examination, the sweep over deadlines, a sink, an executor's report.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Select,
    String,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)

from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.manager.db.holds import holder_of
from airflow_lake_provider.manager.db.schema import (
    lake_finding,
    lake_hold,
    lake_run,
    lake_search,
    lake_sink,
    lake_snooze,
    lake_table,
)
from airflow_lake_provider.manager.health.health import (
    LONG_HOLD_MS,
    RECENT_MS,
    SEVERITY,
    FailedRun,
    FoundBy,
    Health,
    KnownFacts,
    MarkKind,
    OpenFinding,
    PausedService,
    ProblemKey,
    ReaderOfTable,
    SinkFacts,
    Snooze,
    TableState,
    health_to_text,
    judge,
    parse_decisions,
    parse_health,
    retiring_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import CompoundSelect, Update
    from sqlalchemy.orm import Session

MAX_RUNS = 30
"""So many of a table's newest runs say whether the last one of a service failed."""
MAX_TEXT = 2000


Marks: TypeAlias = "tuple[str, Mapping[str, PausedService]]"
"""Why a table is observed, and its paused services with by whom and why, as an evaluation found them."""


def lock_row(session: Session, table_id: str) -> dict[str, Any] | None:
    """Return what a table's state follows from in its own row, which is locked until the transaction ends.

    So no answer covers another one that was found of newer facts.
    """
    table = lake_table.c
    names = (
        table.table_id, table.table_name, table.database_name, table.base_path, table.owner, table.dirty_seq,
        table.claim_token, table.decisions, table.problem, table.evaluated_ms, table.missing_since_ms,
        table.conformance, table.health,
    )  # fmt: skip
    query = select(*names).where(table.table_id == table_id).with_for_update()
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def judge_row(session: Session, row: Mapping[str, Any], now_ms: int, marks: Marks | None = None) -> Health:
    """Judge a table by its row and all else that the registry has of it; without `marks` those before stay."""
    before = parse_health(row["health"])
    if marks is None:
        observed = next((mark.why for mark in before.marks if mark.kind is MarkKind.OBSERVED), "")
        marked = [mark for mark in before.marks if mark.kind is MarkKind.PAUSED]
        paused = {mark.service: PausedService(mark.why, mark.ends_ms) for mark in marked}
    else:
        observed = marks[0]
        paused = dict(marks[1])
    known = KnownFacts(
        decisions=parse_decisions(row["decisions"]),
        problem=row["problem"],
        is_evaluated=row["evaluated_ms"] is not None,
        missing_since_ms=row["missing_since_ms"],
        conformance=row["conformance"],
        observed=observed,
        paused=paused,
        **_load_rest(session, row["table_id"], now_ms),
    )
    return judge(known, before, now_ms)


def refresh_health(session: Session, table_id: str, now_ms: int) -> bool:
    """Judge a table by what the registry has of it, and keep the answer; return whether it is registered."""
    row = lock_row(session, table_id)
    if row is None:
        return False
    health = judge_row(session, row, now_ms)
    text = health_to_text(health)
    if text != row["health"]:
        session.execute(update(lake_table).where(lake_table.c.table_id == table_id).values(health=text))
    keep_short(session, table_id, search_health(health))
    return True


def search_health(health: Health) -> dict[str, Any]:
    """Return what `lake_search` has of a table's state."""
    return {
        "state": health.state.value,
        "severity": SEVERITY[health.state],
        **{f"is_{kind.value}": health.has_mark(kind) for kind in MarkKind},
    }


def keep_short(session: Session, table_id: str, values: Mapping[str, Any]) -> None:
    """Bring a table's row for searches up to date; most changes of a table change nothing there."""
    given = {f"new_{name}": value for name, value in values.items()}
    session.execute(_update_of(tuple(values)), {"of_table": table_id, **given})


@cache
def _update_of(names: tuple[str, ...]) -> Update:
    """Return the statement that updates these columns where one differs: few sets of names, each built once."""
    short = lake_search.c
    new = {name: bindparam(f"new_{name}", type_=short[name].type) for name in names}
    differs = or_(*(short[name] != value for name, value in new.items()))
    return update(lake_search).where(short.table_id == bindparam("of_table"), differs).values(**new)


def _find_rest() -> CompoundSelect[Any]:
    """Return the query for findings, sinks, readers, snoozes and the last runs of services at `now_ms`."""
    table_id = bindparam("of_table", type_=String)
    now_ms = bindparam("now_ms", type_=BigInteger)
    finding = lake_finding.c
    sink = lake_sink.c
    run = lake_run.c
    findings = select(
        literal("finding"), finding.found_by, finding.kind, finding.instant, finding.cause, finding.remedy,
        finding.since_ms,
    ).where(finding.table_id == table_id)  # fmt: skip
    none = literal("")
    sinks = select(literal("sink"), sink.sink, sink.problem, none, none, none, func.coalesce(sink.retire_ms, 0))
    troubled = or_(sink.problem != "", sink.retire_ms.is_not(None))
    hold = lake_hold.c
    until_ms = cast(hold.until_ms, String(20))
    holds = select(literal("hold"), hold.reader, hold.reason, until_ms, none, none, hold.created_ms).where(
        hold.table_id == table_id, hold.created_ms <= now_ms - LONG_HOLD_MS, hold.ends_ms > now_ms
    )
    error = func.coalesce(run.error, "")
    newest = select(run.service, run.run_id, run.outcome, error.label("error"), run.ended_ms)
    ended = (run.table_id == table_id, run.ended_ms > now_ms - RECENT_MS, run.outcome != "dry_run")
    last_runs = newest.where(*ended).order_by(run.created_ms.desc()).limit(MAX_RUNS).subquery().c
    runs = select(
        literal("run"), last_runs.service, last_runs.run_id, last_runs.outcome, last_runs.error, none,
        last_runs.ended_ms,
    )  # fmt: skip
    snooze = lake_snooze.c
    ends_ms = cast(snooze.ends_ms, String(20))
    key = (snooze.state, snooze.source, snooze.subject)
    snoozes = select(literal("snooze"), *key, snooze.why, ends_ms, snooze.since_ms).where(
        snooze.table_id == table_id, snooze.ends_ms > now_ms
    )
    return union_all(findings, sinks.where(sink.table_id == table_id, troubled), holds, snoozes, runs)


_REST = _find_rest()
"""Built once: to build it takes longer than to execute it, and each evaluation asks."""


def _load_rest(session: Session, table_id: str, now_ms: int) -> dict[str, Any]:
    """Return findings, sinks, readers, snoozes and the last runs of services, in one query."""
    found: dict[FoundBy, list[OpenFinding]] = {}
    of_sinks: list[SinkFacts] = []
    last: dict[str, tuple[str, FailedRun]] = {}
    readers: list[ReaderOfTable] = []
    silenced: list[Snooze] = []
    rows = session.execute(_REST, {"of_table": table_id, "now_ms": now_ms})
    for kind, first, second, third, fourth, fifth, at_ms in rows:
        if kind == "finding":
            found.setdefault(FoundBy(first), []).append(OpenFinding(second, third, fourth, fifth, at_ms))
        elif kind == "sink":
            of_sinks.append(SinkFacts(first, second, retiring_text(at_ms) if at_ms else ""))
        elif kind == "snooze":
            problem = ProblemKey(TableState(first), FoundBy(second), third)
            silenced.append(Snooze(problem, fourth, at_ms, int(fifth)))
        elif kind == "hold":
            readers.append(ReaderOfTable(holder_of(first, second), at_ms, int(third)))
        elif first not in last or at_ms > last[first][1].ended_ms:
            last[first] = third, FailedRun(first, second, fourth, at_ms)
    failed = [one for outcome, one in last.values() if outcome == "failed"]
    rest = {"found": found, "sinks": of_sinks, "failed_runs": failed, "readers": readers}
    return rest | {"snoozes": sorted(silenced, key=lambda one: (one.since_ms, one.key))}


# --- What the doctor and the sweep find


def keep_findings(
    session: Session, table_id: str, found_by: FoundBy, findings: Sequence[OpenFinding], now_ms: int
) -> bool:
    """Make these a finder's open findings of a table, those that are gone leave, and refresh the table's state.

    Returns false when there was something to refresh, and the table is not registered.
    """
    is_changed = replace_findings(session, table_id, found_by, findings, now_ms)
    return refresh_health(session, table_id, now_ms) if is_changed else True


def replace_findings(
    session: Session, table_id: str, found_by: FoundBy, findings: Sequence[OpenFinding], now_ms: int
) -> bool:
    """Make these a finder's open findings of a table; return whether there are any, or were. The caller judges it."""
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
    return bool(before or now)


def _of_findings(found_by: FoundBy) -> Select[tuple[str]]:
    return select(lake_finding.c.table_id).where(lake_finding.c.found_by == found_by.value).distinct()


def find_tables_with(session: Session, found_by: FoundBy) -> frozenset[str]:
    """Return the tables of which a finder has open findings."""
    return frozenset(session.scalars(_of_findings(found_by)))


def find_suspects(session: Session, since_ms: int) -> frozenset[str]:
    """Return the tables of which the doctor has open findings, or a check of integrity has found damage since then."""
    run = lake_run.c
    checked = and_(run.service == Service.INTEGRITY.value, run.outcome == Outcome.COMPLETED.value)
    found = _of_findings(FoundBy.DOCTOR)
    return frozenset(session.scalars(found.union(select(run.table_id).where(checked, run.ended_ms >= since_ms))))

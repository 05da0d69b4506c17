"""The records of runs: why each ran, what was expected of it, what it cost and brought; and pages of them.

A table keeps all of its newest records and samples of older ones, so a record of years ago may still say how a service
has changed, while the rows of a table stay bounded (`find_thinned`). The pages show those whose DAG run Airflow has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, insert, select, update

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.job_contract import Mode, Outcome
from airflow_lake_provider.manager.db.bill import BillKey, add_to_bill, day_of
from airflow_lake_provider.manager.db.schema import lake_run
from airflow_lake_provider.manager.db.search import PAGE_SIZE, ROWS_PER_QUERY
from airflow_lake_provider.manager.read_model import QuotedPrice, ReportedOperation
from airflow_lake_provider.planner.price import NEWEST, Operation, Work
from airflow_lake_provider.shared.typed_json import read_known

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.run_phases import Phase

MAX_RECORDED = 100
"""So many of a table's newest runs are all kept; more than can be active at once."""
NEWEST_OF_SERVICE = 20
"""And so many of each service's, which a busier service does not displace."""
SAMPLE_STEP = 4
"""Of older ones every 4th stays, then every 16th, then every 64th of those that are four times as old."""
MAX_STEPS = 3
THIN_EVERY = 10
"""A table's records are thinned with every so many-th new one of a service."""
MAX_PASSED = 1000
"""How many recorded runs one page of runs passes at most, so that a rare filter cannot read them all."""
MAX_OF_FLEET = 200
AGED = "aged"
"""Scope of the row of a service that waited and is not due just now: its age, which no list shows."""
OBSERVED = "observed"
"""The outcome of a run that was never created, and what its id begins with."""
COMPLETED = "completed"
NOTHING_TO_DO = "nothing_to_do"
DONE = frozenset({COMPLETED, NOTHING_TO_DO})
"""The outcomes of a try that did its service's work."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A decision with its inputs, as it was priced and ranked."""

    price: Mapping[str, Any]
    """`Price.to_dict`."""
    work: Work
    urgency: str
    density: float
    since_ms: int
    rank_ms: int
    core_ms: int
    bytes: int
    mode: str = ""
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    queue: str = ""
    pool: str = ""
    owner: str = ""
    label: str = ""
    cooldown_ms: int = 0
    """Until when it is not repeated because it brought little; 0: it may be at once."""
    is_proven: bool = False
    """Whether the price rests on runs of this table's service (`Price.is_proven`)."""

    def to_text(self) -> str:
        """Return it as the registry keeps it."""
        body = {entry: value for entry, value in asdict_shallow(self).items() if value not in ("", None)}
        return json.dumps(body, separators=(",", ":"), default=str)


def asdict_shallow(quote: Quote) -> dict[str, Any]:
    """Return a quote's fields as JSON has them."""
    names = [name for name in Quote.__dataclass_fields__ if name not in {"work", "price", "evidence"}]
    return {name: getattr(quote, name) for name in names} | {
        "work": asdict(quote.work),
        "price": dict(quote.price),
        "evidence": dict(quote.evidence),
    }


def parse_quote(text: str | None) -> Quote | None:
    """Return the quote of such a text; None without one, or when another release wrote it."""
    try:
        body = json.loads(text or "null")
        return None if body is None else Quote(**{**body, "work": Work(**body["work"])})
    except (ValueError, TypeError, KeyError):
        return None


def read_price(price: Mapping[str, Any] | None) -> QuotedPrice | None:
    """Return a stored price; None without one, or when another release wrote it."""
    try:
        return read_known(QuotedPrice, dict(price)) if price else None
    except ValueError:
        return None


# --- What pages and commands show of runs


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Which runs. `before` is the key of the page before: created time in ms and run id; None is from the newest on."""

    table_id: str = ""
    service: str = ""
    state: str = ""
    before: tuple[int, str] | None = None
    limit: int = PAGE_SIZE
    audience: Audience = field(default_factory=Audience)
    run_id: str = ""
    text: str = ""
    """Part of the table's name, database or path."""
    owner: str = ""
    """The table's."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Created before it."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What an executor reports of its try. `job_ms` is its job's time; what is None is not known, or not measured."""

    try_number: int = 0
    outcome: str = ""
    """`completed`, `nothing_to_do`, `failed` or `dry_run`; empty: nothing was reported yet."""
    job_ms: int = 0
    files_in: int | None = None
    """Files that the service read and replaced, or deleted."""
    bytes_in: int | None = None
    files_out: int | None = None
    bytes_out: int | None = None
    error: str = ""
    """Why the last try that failed did so."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One DAG run of a service, by the manager or by hand."""

    run_id: str
    dag_id: str
    table_id: str
    table_name: str
    database: str
    service: str
    state: str
    by: str
    """`manager`, or the user that started it in Airflow."""
    reason: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    tries: int
    report: RunReport
    caused_by: str = ""
    """What made the manager evaluate the table: a notice's source, or `retry`."""
    due_ms: int | None = None
    """Since when the service was due."""
    quote: Quote | None = None
    """The decision that created it, with its price; None of runs by hand."""
    phases: tuple[Phase, ...] = ()
    """Where its time went (`run_phases`)."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page, perhaps with fewer runs than the limit, and the key of the next one; None at the end."""

    rows: tuple[RecordedRun, ...]
    before: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class RunHour:
    """The runs of one service that were created within an hour and have one state, with the sum of their reports.

    `run_s` is their tasks' time, `job_s` that of their jobs alone.
    """

    hour_ms: int
    service: str
    state: str
    runs: int
    run_s: float
    job_s: float = 0.0
    files_in: int = 0
    bytes_out: int = 0


# --- What a list of tables shows of each table's newest runs


@dataclass(frozen=True, slots=True)
class NewestRuns:
    """The last run of a table that ended, and what the newest runs that rewrote files wrote, in bytes, oldest first."""

    service: str = ""
    """Of the last run; empty: none is known."""
    outcome: str = ""
    ended_ms: int = 0
    run_id: str = ""
    rewritten: tuple[int, ...] = ()


NO_RUNS = NewestRuns()
MAX_NEWEST = 24
"""So many of a table's newest runs are read for a list."""
MAX_REWRITTEN = 12


def load_newest_runs(session: Session, table_ids: Sequence[str]) -> dict[str, NewestRuns]:
    """Return the newest runs of a page's tables that their executors reported; a table without any is left out.

    It reads the records of these tables alone, by their index.
    """
    run = lake_run.c
    found: dict[str, list[RowMapping]] = {}
    number = func.row_number().over(partition_by=run.table_id, order_by=run.created_ms.desc()).label("place")
    columns = (run.table_id, run.service, run.outcome, run.ended_ms, run.run_id, run.bytes_out, number)
    for begin in range(0, len(table_ids), ROWS_PER_QUERY):
        mine = run.table_id.in_(table_ids[begin : begin + ROWS_PER_QUERY])
        ranked = select(*columns).where(mine, run.ended_ms.is_not(None), run.outcome != "dry_run").subquery()
        newest = select(ranked).where(ranked.c.place <= MAX_NEWEST).order_by(ranked.c.table_id, ranked.c.place)
        for row in session.execute(newest).mappings():
            found.setdefault(row["table_id"], []).append(row)
    return {table_id: _newest_of(rows) for table_id, rows in found.items()}


def _newest_of(rows: Sequence[RowMapping]) -> NewestRuns:
    # The newest may have been created before another that ended earlier.
    last = max(rows, key=lambda row: row["ended_ms"])
    rewritten = [row["bytes_out"] for row in rows if row["bytes_out"] and row["outcome"] == COMPLETED]
    return NewestRuns(
        last["service"], last["outcome"], last["ended_ms"], last["run_id"], tuple(rewritten[:MAX_REWRITTEN][::-1])
    )


# --- A run's record: when it is created, when it begins, when a try of it ends


def record_run(
    session: Session, table_id: str, run_id: str, service: str, now_ms: int, more: Mapping[str, Any] | None = None
) -> None:
    """Record a run of a table, once; older records are thinned now and then. `more` replaces what is recorded."""
    run, more = lake_run.c, more or {}
    last_of_service = select(func.max(run.number)).where(run.table_id == table_id, run.service == service)
    same = select(run.run_id).where(run.run_id == run_id)
    last, known = session.execute(select(last_of_service.scalar_subquery(), same.scalar_subquery())).one()
    if known is not None:
        if more:
            session.execute(update(lake_run).where(run.run_id == run_id).values(**more))
        return
    number = (last or 0) + 1
    values = {"run_id": run_id, "table_id": table_id, "created_ms": now_ms, "service": service, "number": number}
    session.execute(insert(lake_run).values(**values, **more))
    if number % THIN_EVERY == 0:
        _thin(session, table_id)


def drop_claim(session: Session, table_id: str, run_id: str) -> None:
    """Remove the record of a table's run that says it is another table's: a caller of that one only said so."""
    session.execute(delete(lake_run).where(lake_run.c.run_id == run_id, lake_run.c.table_id != table_id))


def _thin(session: Session, table_id: str) -> None:
    run = lake_run.c
    mine = select(run.run_id, run.service, run.number).where(run.table_id == table_id)
    rows = session.execute(mine.order_by(run.created_ms.desc(), run.run_id.desc())).all()
    surplus = find_thinned([(row.run_id, row.service, row.number) for row in rows])
    for begin in range(0, len(surplus), PAGE_SIZE):
        session.execute(delete(lake_run).where(run.run_id.in_(surplus[begin : begin + PAGE_SIZE])))


def find_thinned(records: Sequence[tuple[str, str, int]]) -> list[str]:
    """Return the run ids of the records to delete. Records are run id, service and number, the newest first.

    What is deleted once would never be kept later, so that thinning may run at any time, any number of times.
    """
    newest: dict[str, int] = {}
    for _, service, number in records:
        newest[service] = max(number, newest.get(service, 0))
    return [
        run_id for run_id, service, number in records[MAX_RECORDED:] if not _is_kept(newest[service] - number, number)
    ]


def _is_kept(age: int, number: int) -> bool:
    step = 1
    for _ in range(MAX_STEPS + 1):
        if age < NEWEST_OF_SERVICE * step:
            return number % step == 0
        step *= SAMPLE_STEP
    return False


def begin_run(session: Session, table_id: str, run_id: str, now_ms: int) -> None:
    """Record when the run's first try acquired its executor's lease."""
    mine = and_(lake_run.c.run_id == run_id, lake_run.c.table_id == table_id, lake_run.c.started_ms.is_(None))
    session.execute(update(lake_run).where(mine).values(started_ms=now_ms))


def quote_columns(quote: Quote, caused_by: str, scopes: Sequence[str]) -> dict[str, Any]:
    """Return why a run was created, what is expected of it, and the budgets that it is charged to, as columns."""
    return {
        "quote": quote.to_text(),
        "caused_by": caused_by[:40],
        "due_ms": quote.since_ms,
        "scopes": list_scopes(scopes),
        "cores": int(quote.price.get("cores", 1)),
        "charged_core_ms": quote.core_ms,
        "charged_bytes": quote.bytes,
    }


def list_scopes(scopes: Sequence[str]) -> str:
    """Return budgets as a column has them."""
    return "".join(f"{scope}\n" for scope in scopes)


def parse_scopes(text: str | None) -> tuple[str, ...]:
    """Return the budgets of such a column."""
    return tuple(scope for scope in (text or "").split("\n") if scope)


@dataclass(frozen=True, slots=True)
class Correction:
    """By how much a run cost more, or less, than its budgets were charged."""

    scopes: tuple[str, ...]
    hour_ms: int
    core_ms: int
    bytes: int


def report_run(
    session: Session, table_id: str, run_id: str, service: str, report: RunReport, now_ms: int
) -> Correction | None:
    """Keep what an executor reports of its try, once: a report that is sent again counts no time twice.

    Returns what its budgets have to be corrected by, once it has succeeded; None while there is nothing to correct.
    """
    record_run(session, table_id, run_id, service, now_ms)
    run = lake_run.c
    mine = and_(run.run_id == run_id, run.table_id == table_id)
    columns = ("outcome", "files_in", "bytes_in", "files_out", "bytes_out")
    values = {column: getattr(report, column) for column in columns}
    if report.error:
        values["error"] = report.error
    job_ms = run.job_ms + report.job_ms
    reported: Any = session.execute(
        update(lake_run)
        .where(mine, run.reported_try < report.try_number)
        .values(reported_try=report.try_number, job_ms=job_ms, ended_ms=now_ms, **values)
    )
    if not reported.rowcount or report.outcome == "dry_run":
        return None
    row = session.execute(select(lake_run).where(mine)).mappings().one()
    _bill(session, row, report, now_ms)
    return _correct(session, row) if report.outcome in DONE else None


def _bill(session: Session, row: RowMapping, report: RunReport, now_ms: int) -> None:
    quote = parse_quote(row["quote"])
    # A plan that a run only made has ended it as well.
    ended = "failed_tries" if report.outcome == Outcome.FAILED else "runs"
    figures = {"core_ms": report.job_ms * row["cores"], ended: 1}
    if report.outcome in DONE:
        figures |= {name: getattr(report, name) or 0 for name in ("bytes_out", "files_in", "files_out")}
        if quote is not None:
            figures |= {"expected_core_ms": quote.core_ms, "expected_bytes": quote.bytes}
    label = None if quote is None else quote.label
    add_to_bill(session, BillKey(row["table_id"], row["service"], day_of(now_ms)), label, figures)


def keep_error(session: Session, run_id: str, error: str) -> None:
    """Keep why a run was ended, where no executor reports it any more."""
    session.execute(update(lake_run).where(lake_run.c.run_id == run_id).values(error=error))


def _correct(session: Session, row: RowMapping) -> Correction | None:
    scopes = parse_scopes(row["scopes"])
    if not scopes:
        return None
    core_ms = row["job_ms"] * row["cores"]
    size_bytes = row["bytes_out"] or 0
    mine = lake_run.c.run_id == row["run_id"]
    session.execute(update(lake_run).where(mine).values(charged_core_ms=core_ms, charged_bytes=size_bytes))
    hour_ms = row["created_ms"] - row["created_ms"] % 3_600_000
    return Correction(scopes, hour_ms, core_ms - row["charged_core_ms"], size_bytes - row["charged_bytes"])


def record_observed(session: Session, table_id: str, service: str, quote: Quote, now_ms: int) -> None:
    """Record what would have run on a table that is observed: once a day, as long as the service stays due."""
    run_id = f"{OBSERVED}.{table_id}.{service}.{now_ms // 86_400_000}"
    if session.execute(select(lake_run.c.run_id).where(lake_run.c.run_id == run_id)).first() is not None:
        return
    record_run(session, table_id, run_id, service, now_ms, quote_columns(quote, "observe", ()) | {"outcome": OBSERVED})


# --- Records as the prediction reads them


def load_own(session: Session, table_id: str, service: str) -> list[Operation]:
    """Return a table's newest records of a service that ended in success, the newest first."""
    run = lake_run.c
    newest = select(lake_run).where(run.table_id == table_id, run.service == service).order_by(run.created_ms.desc())
    rows = session.execute(newest.limit(2 * NEWEST)).mappings()
    return [found for row in rows if (found := operation_of(row)) is not None]


def load_fleet(session: Session, service: str) -> list[Operation]:
    """Return the newest records of a service over all tables that ended in success, the newest first."""
    run = lake_run.c
    newest = select(lake_run).where(run.service == service, run.ended_ms.is_not(None)).order_by(run.ended_ms.desc())
    rows = session.execute(newest.limit(MAX_OF_FLEET)).mappings()
    return [found for row in rows if (found := operation_of(row)) is not None]


def load_outcomes(session: Session, run_ids: Sequence[str]) -> dict[str, ReportedOperation]:
    """Return what was expected of runs, and what they cost and brought, by run id; for people."""
    found: dict[str, ReportedOperation] = {}
    for begin in range(0, len(run_ids), PAGE_SIZE):
        mine = lake_run.c.run_id.in_(run_ids[begin : begin + PAGE_SIZE])
        for row in session.execute(select(lake_run).where(mine)).mappings():
            quote = parse_quote(row["quote"])
            names = ("caused_by", "due_ms", "started_ms", "outcome", "files_in", "bytes_in", "files_out", "bytes_out")
            found[row["run_id"]] = ReportedOperation(
                **{name: row[name] for name in names},
                error=row["error"] or "",
                job_s=row["job_ms"] / 1000,
                price=None if quote is None else read_price(quote.price),
            )
    return found


def operation_of(row: Mapping[Any, Any]) -> Operation | None:
    """Return the record of a run as the prediction reads it; None of one that has not succeeded, or was by hand."""
    quote = parse_quote(row["quote"])
    if quote is None or row["outcome"] not in DONE or quote.mode == Mode.WITHDRAW:
        return None
    promised = quote.price.get("benefit") or {}
    return Operation(
        work=quote.work,
        seconds=row["job_ms"] / 1000,
        bytes=row["bytes_out"],
        files=row["files_in"],
        points=float(quote.price.get("points", 0.0)),
        expected_files=quote.work.items if promised.get("files") else 0.0,
        ended_ms=row["ended_ms"] or row["created_ms"],
        found_nothing=row["outcome"] == NOTHING_TO_DO,
    )

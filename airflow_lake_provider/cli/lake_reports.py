"""The reports of `airflow lake` on all tables: overview, tables, backlog, bill."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import (
    NoManagerError,
    ago,
    ask,
    build_report,
    columns,
    duration,
    load_report,
    moment,
    print_columns,
    print_document,
    print_plainly,
    size,
    warn,
    with_times,
)
from airflow_lake_provider.cli.prices import describe_benefit
from airflow_lake_provider.cli.report_commands import MAX_DAYS
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.read_model import (
    BacklogReport,
    BillReport,
    OverviewReport,
    ProblemsReport,
    QuotedPrice,
    TablesReport,
)
from airflow_lake_provider.shared.plain_text import escape_cell

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_lake_provider.manager.read_model import (
        BillLine,
        ReportedBudget,
        ReportedMark,
        ReportedTable,
        SpanFigures,
        WaitingService,
    )


@print_plainly
def overview(args: Namespace) -> None:
    """Print the lake in numbers: tables by state, backlog, services of the last day; first what stops them all."""
    lake = load_report(OverviewReport)
    if args.output != "text":
        document = with_times(asdict(lake))
        numbers = {key: value for key, value in document.items() if not isinstance(value, (dict, tuple))}
        print_document(args, document, [{**numbers, **lake.states}])
        return
    _warn_of(lake.problems)
    shown = ", ".join(f"{count:,} {state}" for state, count in lake.states.items() if count) or "none yet"
    print(f"tables        {lake.tables:,}: {shown}")
    if not lake.tables:
        print(EMPTY)
        return
    print(f"attention     {lake.need_attention:,} need a person" if lake.need_attention else "attention     none")
    marked = ", ".join(f"{count:,} {mark}" for mark, count in lake.marked.items() if count)
    if marked:
        print(f"marked        {marked}")
    print(f"backlog       {size(lake.backlog_bytes)} in log files that no compaction has merged")
    if lake.oldest_due_ms is not None:
        waited_s = (lake.now_ms - lake.oldest_due_ms) / 1000
        print(f"longest wait  a service has been due for {duration(waited_s)} and does not run")
    if lake.oldest_dirty_ms is not None:
        print(f"waiting       the oldest request for an evaluation came {ago(lake.oldest_dirty_ms, lake.now_ms)}")
    if lake.holes:
        print(f"unfinished    {lake.holes:,} writes or plans that later writes have overtaken")
    print("last 24 h     " + ("no service has run" if not lake.last_day else ""))
    rows = [
        {"": "", "service": one.service, "state": one.state, "runs": one.runs, "time": duration(one.run_s)}
        for one in lake.last_day
    ]
    for line in columns(rows, "   ", ""):
        print(line)
    for line in columns(_span_lines(lake.days, lake.weeks), "   ", ""):
        print(line)


def _span_lines(days: Sequence[SpanFigures], weeks: Sequence[SpanFigures]) -> list[dict[str, Any]]:
    """Return one line for each figure of two days and two weeks; nothing of what is not recorded for so long."""
    spans = dict(zip(("last 24 h", "24 h before"), days, strict=True)) if len(days) == 2 else {}
    spans |= dict(zip(("last 7 d", "7 d before"), weeks, strict=True)) if len(weeks) == 2 else {}
    if not spans:
        return []
    figures: dict[str, Callable[[SpanFigures], str]] = {
        "ended runs": lambda day: f"{day.runs:,}",
        "failed tries": lambda day: f"{day.failed_tries:,}",
        "core hours": lambda day: f"{day.core_s / 3600:,.2f}",
        "rewritten": lambda day: size(day.rewritten_bytes),
        "due and waiting": lambda day: f"{day.waiting:,}",
        "log files": lambda day: size(day.log_bytes),
    }
    return [
        {"": "", "all tables": name} | {head: show(span) for head, span in spans.items()}
        for name, show in figures.items()
    ]


EMPTY = """\
no table is registered yet. Either
  - point a writer to the manager (`airflow lake init --table PATH` prints how): its next commit registers it, or
  - name tables, or a root to search, in the tables file: `airflow lake init --discover ROOT` prints one"""


def warn_of_all_tables() -> None:
    """Print on the error output what stops or delays all tables, as far as it is known without the manager."""
    try:
        found = ask(ProblemsReport)
    except NoManagerError as error:
        if str(error):
            warn(f"! {error}; whether its loop makes passes, and which notices it refused, is not known here")
        found = build_report(ProblemsReport, {})
    _warn_of(found.problems)


def _warn_of(problems: Iterable[str]) -> None:
    for problem in problems:
        warn(f"! {problem}")


@print_plainly
def tables(args: Namespace) -> None:
    """Print the registry, one table per line, and on the error output what stops them all."""
    rows = list(islice(_all_tables(args), args.limit))
    if not rows and args.output == "text":
        print("no table matches" if _filters(args) else EMPTY)
        return
    print_columns(args, [with_times(asdict(row)) for row in rows], [_table_line(row) for row in rows])


def _filters(args: Namespace) -> dict[str, str]:
    """Return what chooses among the tables; several states in one text."""
    given = {name: getattr(args, name) for name in ("search", "database", "owner", "mark")}
    return {name: value for name, value in (given | {"state": ",".join(args.state or ())}).items() if value}


def _all_tables(args: Namespace) -> Iterator[ReportedTable]:
    query = _filters(args) | {"sort": args.sort} | ({"reverse": "true"} if args.reverse else {})
    after = "[]"
    while True:
        page = load_report(TablesReport, **query, after=after)
        _warn_of(page.problems)
        yield from page.tables
        if not page.next:
            return
        after = json.dumps(page.next)


def _table_line(row: ReportedTable) -> dict[str, Any]:
    more = sum(one.snoozed_until_ms is None for one in row.problems) - 1
    return {
        "table": _name_of(row),
        "state": row.state,
        "since": moment(row.since_ms),
        "marks": ", ".join(_mark_text(mark) for mark in row.marks) or "-",
        "due": ", ".join(row.due) or "-",
        "log files": size(row.log_bytes),
        "base files": _files_text(row),
        "evaluated": moment(row.evaluated_ms),
        "next": moment(row.next_evaluation_ms),
        "path": row.base_path,
        "problem": row.problem + (f" (and {more} more)" if more > 0 else ""),
        "what to do": row.remedy,
    }


def _name_of(row: ReportedTable | WaitingService) -> str:
    return f"{row.database}.{row.table}" if row.database else row.table


def _files_text(row: ReportedTable) -> str:
    if not row.files:
        return "-"
    return f"{row.files:,} of {size(row.file_bytes // row.files)}, {size(row.file_bytes)}"


def _mark_text(mark: ReportedMark) -> str:
    until = "" if mark.ends_ms is None else f" until {moment(mark.ends_ms)}"
    return f"{mark.service} {mark.kind}{until}".lstrip()


MAX_BACKLOGS = 50


@print_plainly
def backlog(args: Namespace) -> None:
    """Print what is due and waits, in its ranked order, what would run on observed tables, and the budgets.

    Then the tables with the most bytes in log files that no compaction has merged, at most 50.
    """
    found = load_report(BacklogReport)
    page = load_report(TablesReport, sort="backlog", after="[]")
    _warn_of(page.problems)
    rows = [row for row in page.tables if row.log_bytes][:MAX_BACKLOGS]
    if args.output != "text":
        document = {
            "pressure": found.pressure,
            "waiting": [with_times(asdict(row)) for row in found.waiting],
            "observed": [with_times(asdict(row)) for row in found.observed],
            "budgets": [asdict(row) for row in found.budgets],
            "log_files": [with_times(asdict(row)) for row in rows],
        }
        print_document(args, document, [_waiting_line(row, found.now_ms) for row in found.waiting])
        return
    _print_table("due, in the order in which it starts", [_waiting_line(row, found.now_ms) for row in found.waiting])
    for row in found.waiting:
        if row.why:
            print(f"  {row.rank}. {row.service} of {row.table}: {row.why}")
    _print_table("due, only observed", [_waiting_line(row, found.now_ms) for row in found.observed])
    _print_table("daily budgets", [_budget_line(row) for row in found.budgets])
    if rows:
        _print_table("log files that no compaction has merged", [_backlog_line(row) for row in rows])
    elif not found.waiting:
        print("nothing waits, and no table has log files that wait for a compaction" if page.tables else EMPTY)


@print_plainly
def bill(args: Namespace) -> None:
    """Print what the services cost and brought, the most expensive first."""
    if not 1 <= args.days <= MAX_DAYS:
        raise LakeError(f"--days {args.days}: the manager keeps {MAX_DAYS} days; name 1 to {MAX_DAYS}")
    found = load_report(BillReport, by=args.by, days=str(args.days))
    lines = [asdict(line) for line in found.lines]
    if found.is_cut:
        warn(f"these are the {len(lines)} most expensive lines; there are more")
    if args.output == "csv":
        writer = csv.DictWriter(sys.stdout, list(lines[0]) if lines else ["name"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: escape_cell(value) for key, value in line.items()} for line in lines)
        return
    if not lines and args.output == "text":
        print(f"no service has run in the last {args.days} days")
        return
    print_columns(args, lines, [_bill_line(args.by, line) for line in found.lines])


def _bill_line(by: str, line: BillLine) -> dict[str, Any]:
    return {
        by: line.name or "none",
        "runs": line.runs,
        "failed tries": line.failed_tries,
        "core hours": f"{line.core_s / 3600:.2f}",
        "predicted": f"{line.expected_core_s / 3600:.2f}",
        "rewritten": size(line.rewritten_bytes),
        "predicted bytes": size(line.expected_bytes),
        "files before": line.files_before,
        "after": line.files_after,
        "saved": line.files_saved,
    }


def _print_table(heading: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        print(f"# {heading}")
        for line in columns(rows, gap="  ", ruler=""):
            print(line)


def _waiting_line(row: WaitingService, now_ms: int) -> dict[str, Any]:
    price = row.price or QuotedPrice()
    seconds = [duration(one_s) for one_s in price.seconds] or ["-"]
    return {
        "rank": row.rank,
        "table": _name_of(row),
        "service": row.service,
        "urgency": row.urgency,
        "duration": seconds[0],
        "between": " - ".join(seconds[1:]) or "-",
        "output": size(int(price.bytes[0]) if price.bytes else None),
        "benefit": describe_benefit(price),
        "since": ago(row.since_ms, now_ms),
        "expected start": "-" if row.expected_ms is None else ago(row.expected_ms, now_ms),
        "waits for": row.short_of or "-",
    }


def _budget_line(row: ReportedBudget) -> dict[str, Any]:
    def of(have: float | None, used: float) -> str:
        return "-" if have is None else f"{used} of {have}"

    return {
        "budget": row.shown,
        "slots": "-" if row.slots is None else row.slots,
        "core hours": of(row.core_hours_per_day, row.spent_core_hours),
        "bytes": of(row.bytes_per_day, row.spent_bytes),
        "wait": row.waiting,
        "core hours that wait": row.waiting_core_hours,
        "arrived": row.arrived_core_hours,
        "pressure": row.pressure,
    }


def _backlog_line(row: ReportedTable) -> dict[str, Any]:
    ratio = f"{100 * row.log_bytes / row.base_bytes:.0f} %" if row.base_bytes else "-"
    return {
        "table": _name_of(row),
        "log files": size(row.log_bytes),
        "of their base files": ratio,
        "state": row.state,
        "due": ", ".join(row.due) or "-",
        "path": row.base_path,
    }

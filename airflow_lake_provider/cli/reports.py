"""The reports of `airflow lake`, and `lake`, the same without Airflow's start."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
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
    start_airflow,
    warn,
    with_times,
)
from airflow_lake_provider.cli.report_commands import BY_NAME, COMMANDS, MAX_DAYS
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.read_model import (
    BacklogReport,
    BillReport,
    ExplanationReport,
    HistoryReport,
    OverviewReport,
    ProblemsReport,
    QuotedPrice,
    RunsReport,
    TablesReport,
)
from airflow_lake_provider.shared.plain_text import escape_cell

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_lake_provider.manager.read_model import (
        BillLine,
        ExplainedService,
        HistoryLine,
        ReportedBudget,
        ReportedHold,
        ReportedMark,
        ReportedOperation,
        ReportedRequirement,
        ReportedRun,
        ReportedTable,
        SpanFigures,
        WaitingService,
    )

# --- `lake`: the console script


def main() -> None:
    """Run a report from the manager's answer; leave every other command to `airflow lake`."""
    if len(sys.argv) < 2 or sys.argv[1] not in BY_NAME:
        start_airflow("")
    args = create_parser().parse_args()
    found: dict[str, Callable[[Namespace], None]] = {
        "overview": overview,
        "tables": tables,
        "backlog": backlog,
        "bill": bill,
        "history": history,
        "runs": runs,
        "explain": explain,
    }
    try:
        found[args.command](args)
    except BrokenPipeError:
        # `lake tables | head`: nothing is wrong, and Python must not complain at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def create_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands that `lake` runs itself."""
    parser = argparse.ArgumentParser(prog="lake", description="Table services of a Hudi lake; more: lake --help")
    commands = parser.add_subparsers(dest="command", required=True)
    for one in COMMANDS:
        command = commands.add_parser(one.name, help=one.help, description=one.help, epilog=one.note)
        for argument in one.arguments:
            command.add_argument(*argument.flags, **argument.kwargs)
    return parser


# --- The whole lake


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
        "urgency": row.rank_class,
        "duration": seconds[0],
        "between": " - ".join(seconds[1:]) or "-",
        "output": size(int(price.bytes[0]) if price.bytes else None),
        "benefit": _benefit_text(price),
        "since": ago(row.since_ms, now_ms),
        "expected start": "-" if row.expected_ms is None else ago(row.expected_ms, now_ms),
        "waits for": row.short_of or "-",
    }


def _benefit_text(price: QuotedPrice) -> str:
    """Return what a run is expected to bring: `1.2 GiB of log files merged, 30 files less`."""
    benefit = price.benefit
    parts = (
        f"{size(int(benefit.log_bytes))} of log files merged" if benefit.log_bytes else "",
        f"{benefit.files:,.0f} files less" if benefit.files else "",
        f"{benefit.instants:,.0f} instants less" if benefit.instants else "",
        f"{size(int(benefit.freed_bytes))} freed" if benefit.freed_bytes else "",
        f"counted {price.weight:g} times" if price.weight else "",
    )
    return ", ".join(filter(None, parts)) or "-"


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


# --- One table: `runs`


@print_plainly
def runs(args: Namespace) -> None:
    """Print what is requested, scheduled, running or retrying, then the newest ended instances."""
    found = load_report(RunsReport, table=args.table)
    chosen = (one for one in found.instances if args.service in {"", one.service} and args.state in {"", one.state})
    rows = list(islice(chosen, args.limit))
    if args.output != "text":
        shown = [with_times(asdict(row)) for row in rows]
        print_document(args, shown, shown)
        return
    for row in rows:
        print(_run_text(row))
    if not rows and found.instances:
        print("no instance matches")
    elif not rows:
        print(f"no service of {found.base_path} was ever requested; `airflow lake explain` says what is due and why")


@print_plainly
def history(args: Namespace) -> None:
    """Print what kept services of a table from running, and their runs, the newest first."""
    at = {"at_ms": str(_parse_moment(args.at))} if args.at else {}
    found = load_report(HistoryReport, table=args.table, **at)
    lines = [line for line in found.lines if args.service in {"", line.service}][: args.limit]
    if args.output != "text":
        shown = [with_times(asdict(line)) for line in lines]
        print_document(args, shown, shown)
        return
    for line in lines:
        print(_history_text(line))
    if not lines:
        when = "then: it lasted less than a minute, or is forgotten" if args.at else f"in the last {found.days} days"
        print(f"nothing is known of {found.base_path} {when}")


def _parse_moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError as error:
        raise LakeError(f"--at {text!r} is no time; write it as 2026-11-27 03:00, which is UTC") from error
    moment_ms = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    if moment_ms < 0:
        raise LakeError(f"--at {text!r} is before 1970; write it as 2026-11-27 03:00, which is UTC")
    return moment_ms


def _history_text(line: HistoryLine) -> str:
    until = "now" if line.until_ms is None else moment(line.until_ms)
    due = f", due since {moment(line.due_ms)}" if line.due_ms else ""
    return f"{moment(line.from_ms)} to {until}  {line.service} {line.what}{due}\n  {line.reason}"


def _run_text(row: ReportedRun) -> str:
    late = " LATE" if row.overdue else ""
    until = f", until {moment(row.until_ms)}{late}: {row.owner}" if row.owner else ""
    since = moment(row.since_ms)
    text = f"{row.state:<10} {row.service:<14} since {since}{until}  {row.run_id}\n  {row.reason}"
    operation = "" if row.operation is None else _operation_text(row.operation)
    return f"{text}\n  {operation}" if operation else text


def _operation_text(found: ReportedOperation) -> str:
    """Return what was expected of a run next to what it cost: `expected 32 s (20 s - 50 s), 1.2 GiB; took 30 s`."""
    price = found.price
    parts = []
    if price is not None and price.seconds:
        value, low, high = price.seconds
        of = f"expected {duration(value)} ({duration(low)} - {duration(high)}), {size(int(price.bytes[0]))} written"
        parts.append(f"{of}, {_benefit_text(price)}, by {price.basis}")
    if found.outcome:
        written = f", {size(found.bytes_out)} written" if found.bytes_out is not None else ""
        parts.append(f"{found.outcome.replace('_', ' ')}: took {duration(found.job_s)}{written}")
    if found.error:
        parts.append(f"last error: {found.error}")
    return "; ".join(parts)


# --- One table: `explain`

MAX_SHOWN = 80
"""Characters of a setting's value in the text form; JSON and YAML have all of it."""

TABLE_COLUMNS = ("service", "verdict", "now", "run_id", "reason")
"""What a table shows of a service; JSON and YAML have all."""


@print_plainly
def explain(args: Namespace) -> None:
    """Print every service with its rules, the actual values, what blocks it, and what would be started now."""
    found = load_report(ExplanationReport, table=args.table)
    if args.dry_run:
        _print_dry_run(args, found.services)
        return
    if args.output == "text":
        _print_explanation(found, is_whole=args.all)
        return
    # The value of a setting is JSON, so that a text and a number differ.
    settings = [asdict(one) | {"value": json.loads(one.value)} for one in found.settings]
    instances = [with_times(asdict(row)) for row in found.instances]
    document = with_times(asdict(found)) | {"instances": instances, "settings": settings}
    print_document(args, document, [_columns_of(row) for row in found.services])


def _columns_of(row: ExplainedService) -> dict[str, Any]:
    return {name: getattr(row, name) for name in TABLE_COLUMNS}


def _print_dry_run(args: Namespace, services: Sequence[ExplainedService]) -> None:
    wanted = [row for row in services if row.now == "start"]
    if args.output != "text":
        print_document(args, [asdict(row) for row in wanted], [_columns_of(row) for row in wanted])
        return
    for row in wanted:
        plans = f" of {', '.join(row.plans)}" if row.plans else ""
        print(f"would start {row.run_id}: {row.mode}{plans}: {row.run_reason}")
    if not wanted:
        print("nothing would be started now")


def _print_explanation(found: ExplanationReport, *, is_whole: bool) -> None:
    for problem in found.dag_problems:
        print(f"in the way of all tables: {problem}")
    evaluation = moment(found.next_evaluation_ms) if found.registered else "never: not in the registry"
    print(f"{found.table} at {found.base_path}: {found.type}, version {found.version}")
    print(f"{found.timeline}; next evaluation {evaluation}")
    for line in found.holes:
        print(line)
    problems = {
        "damaged or unknown files": found.damaged,
        "the last evaluation failed": found.evaluation_problem if not found.damaged else "",
        "in the way of every service": found.lock_problem,
        "writers do not conform (airflow lake check-writer)": _describe_writers(found.writers),
        "the tables' settings are wrong, these are the last good ones": found.settings_problem,
        "the table sets what it may not": "; ".join(found.own_problems),
    }
    for what, problem in problems.items():
        if problem:
            print(f"{what}: {problem}")
    for service in found.services:
        _print_service(service, found.lock_problem, is_whole=is_whole)
    for hold in found.holds:
        print(f"{'held':<14} {describe_hold(hold)}")
    for row in found.instances:
        late = " (LATE)" if row.overdue else ""
        print(f"{row.service:<14} {row.state}{_of(row.run_id)}, {row.owner} until {moment(row.until_ms)}{late}:")
        print(f"{'':<14} {row.reason}")
    if not is_whole:
        print("--all also prints the rules of what is not due, and where each setting stands")
        return
    for one in found.settings:
        print(f"{'set':<14} {one.name} = {_short(one.value)}  ({one.place})")


def _print_service(row: ExplainedService, lock_problem: str, *, is_whole: bool) -> None:
    """Print a service: in one line what is not due, unless the whole is wanted."""
    print(f"{row.service:<14} {row.verdict.replace('_', ' '):<8} {_brief(row.reason, lock_problem)}")
    if row.now:
        why = f": {row.run_reason}" if row.run_reason != row.reason else ""
        print(f"{'':<14} now      {row.now.replace('_', ' ')}{_of(row.run_id)}{why}")
    if row.price is not None and row.price.weight:
        print(f"{'':<14} weight   {row.price.weight:g}: what it brings counts so many times in the ranking")
    if row.verdict == "not_due" and not is_whole:
        return
    for label, figures in (("rules", row.rules), ("found", row.found)):
        values = ", ".join(f"{key} {_brief(_shown(key, value), lock_problem)}" for key, value in figures.items())
        if values:
            print(f"{'':<14} {label:<8} {values}")


def describe_hold(row: ReportedHold) -> str:
    """Return a reader's hold in a line."""
    why = f" ({row.reason})" if row.reason else ""
    waits = "" if row.is_firm else "; waits for services that began before it"
    ends = f"until {moment(row.ends_ms)} unless renewed, {moment(row.until_ms)} in any case"
    return f"from {row.hold} on, for {duration(row.held_s)}, by reader {row.reader}{why}, {ends}{waits}"


def _short(value: str) -> str:
    return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}..."


def _describe_writers(rows: Sequence[ReportedRequirement]) -> str:
    broken = [row for row in rows if row.state == "broken"]
    return "; ".join(", set ".join((f"{row.requirement}: {row.evidence}", *row.settings)) for row in broken)


def _of(run_id: str) -> str:
    return f" {run_id}" if run_id else ""


def _brief(text: str, lock_problem: str) -> str:
    """Return a text without the problem that the head prints once for all services."""
    return text.replace(lock_problem, "a lock provider is missing (see above)") if lock_problem else text


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, (int, float)) and name.endswith("_bytes"):
        return size(int(value))
    if isinstance(value, (int, float)) and name.endswith("_s"):
        return duration(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "off" if value is None else str(value)


if __name__ == "__main__":
    main()

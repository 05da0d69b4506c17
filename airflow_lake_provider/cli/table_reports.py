"""The reports of `airflow lake` on one table: its runs, what kept services from running, why each service is due."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import (
    duration,
    load_report,
    moment,
    print_document,
    print_plainly,
    print_rows,
    size,
    with_times,
)
from airflow_lake_provider.cli.prices import describe_benefit
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.read_model import ExplanationReport, HistoryReport, RunsReport

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_lake_provider.manager.read_model import (
        ExplainedService,
        HistoryLine,
        ReportedHold,
        ReportedOperation,
        ReportedRequirement,
        ReportedRun,
    )


@print_plainly
def runs(args: Namespace) -> None:
    """Print what is requested, scheduled, running or retrying, then the newest ended instances."""
    found = load_report(RunsReport, table=args.table)
    chosen = (one for one in found.instances if args.service in {"", one.service} and args.state in {"", one.state})
    rows = list(islice(chosen, args.limit))
    print_rows(args, rows, _run_text, _with_times)
    if rows or args.output != "text":
        return
    if found.instances:
        print("no instance matches")
    else:
        print(f"Airflow has no run of a service of {found.base_path}; `airflow lake explain` says what is due and why")


@print_plainly
def history(args: Namespace) -> None:
    """Print what kept services of a table from running, and their runs, the newest first."""
    at = {"at_ms": str(_parse_moment(args.at))} if args.at else {}
    found = load_report(HistoryReport, table=args.table, **at)
    lines = [line for line in found.lines if args.service in {"", line.service}][: args.limit]
    print_rows(args, lines, _history_text, _with_times)
    if not lines and args.output == "text":
        when = "then: it lasted less than a minute, or is forgotten" if args.at else f"in the last {found.days} days"
        print(f"nothing is known of {found.base_path} {when}")


def _with_times(row: ReportedRun | HistoryLine) -> dict[str, Any]:
    return with_times(asdict(row))


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
    is_marked = row.state == "done" and row.operation is not None and row.operation.outcome == "failed"
    reason = "the run was marked as a success after a failed try" if is_marked else row.reason
    text = f"{row.state:<10} {row.service:<14} since {since}{until}  {row.run_id}\n  {reason}"
    operation = "" if row.operation is None else _operation_text(row.operation)
    return f"{text}\n  {operation}" if operation else text


def _operation_text(found: ReportedOperation) -> str:
    """Return what was expected of a run next to what it cost: `expected 32 s (20 s - 50 s), 1.2 GiB; took 30 s`."""
    price = found.price
    parts = []
    if price is not None and price.seconds:
        value, low, high = price.seconds
        of = f"expected {duration(value)} ({duration(low)} - {duration(high)}), {size(int(price.bytes[0]))} written"
        parts.append(f"{of}, {describe_benefit(price)}, by {price.basis}")
    if found.outcome:
        written = f", {size(found.bytes_out)} written" if found.bytes_out is not None else ""
        parts.append(f"{found.outcome.replace('_', ' ')}: took {duration(found.job_s)}{written}")
    if found.error:
        parts.append(f"last error: {found.error}")
    return "; ".join(parts)


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

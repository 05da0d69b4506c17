"""`airflow lake snooze`: silence problems of a table until a time, by Airflow's database."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import moment, print_document, print_plainly, with_times
from airflow_lake_provider.cli.tables import find_table
from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.snoozes import Snoozes
from airflow_lake_provider.manager.health.health import Problem, parse_health
from airflow_lake_provider.manager.scheduling.whatif import parse_span_ms
from airflow_lake_provider.plugins.lake_plugin import open_registry

if TYPE_CHECKING:
    from argparse import Namespace


@print_plainly
def snooze(args: Namespace) -> None:
    """Silence the problems that a table has now, or end that; then print its problems."""
    registry = open_registry()
    base_path = find_table(args.table)
    table_id = table_id_of(base_path)
    chosen = [one for one in parse_health(registry.get(table_id).health).problems if args.problem in ("", _name(one))]
    snoozes = Snoozes(registry)
    if args.end:
        # A snooze outlives its problem, which may come back.
        snoozes.end(
            table_id, [key for key in snoozes.find(table_id) if args.problem in ("", key.subject or key.source)]
        )
    elif args.lasts:
        if not chosen:
            raise MalformedRequestError(f"table {base_path} has no such problem: airflow lake snooze {args.table}")
        by = getpass.getuser()
        why = f"{by}: {args.reason}" if args.reason else by
        ends_ms = registry.now_ms() + parse_span_ms(args.lasts, "--for")
        snoozes.add(table_id, [one.key for one in chosen], why, ends_ms)
    found = parse_health(registry.get(table_id).health)
    if args.output != "text":
        rows = [_row(one) for one in found.problems]
        print_document(args, rows, rows)
        return
    for one in found.problems:
        print(_line(one))
    if not found.problems:
        print(f"table {base_path} has no problem")


def _name(problem: Problem) -> str:
    return problem.key.subject or problem.key.source


def _row(problem: Problem) -> dict[str, Any]:
    row = {
        "problem": _name(problem),
        "state": problem.state.value,
        "cause": problem.cause,
        "remedy": problem.remedy,
        "since_ms": problem.since_ms,
        "snoozed_until_ms": problem.snoozed_until_ms,
    }
    return with_times(row)


def _line(problem: Problem) -> str:
    ends_ms = problem.snoozed_until_ms
    until = "" if ends_ms is None else f"snoozed until {moment(ends_ms)}: "
    return f"{problem.state.value:<14} {_name(problem)}: {until}{problem.cause}"

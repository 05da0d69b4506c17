"""`lake`: the reports of `airflow lake` without Airflow's start."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import start_airflow
from airflow_lake_provider.cli.lake_reports import backlog, bill, overview, tables
from airflow_lake_provider.cli.report_commands import BY_NAME, COMMANDS
from airflow_lake_provider.cli.table_reports import explain, history, runs

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


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


if __name__ == "__main__":
    main()

"""The commands that `lake` runs without Airflow: their texts and arguments, once for both command lines."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from typing import Any

from airflow_lake_provider.job_contract import Service

OUTPUTS = ("text", "table", "json", "yaml", "plain")
STATES = (
    *("stuck", "unreadable", "failing", "blocked", "misconfigured"),
    *("waiting", "running", "new", "healthy"),
)
"""The values of `manager.health.TableState`, which is not imported here: it takes longer than the command."""
SORTS = ("worst", "name", "backlog", "size", "commit")
"""The values of `manager.db.search.Sort`."""
BILLS = ("table", "owner", "label", "service")
"""The values of `manager.db.bill.BillBy`."""
MAX_DIGITS = 9
MAX_DAYS = 31
"""`manager.db.bill.KEEP_DAYS`."""
MARKS = ("paused", "observed", "held", "snoozed")
"""The values of `manager.health.MarkKind`."""
RUN_STATES = ("requested", "scheduled", "running", "retrying", "done", "failed", "abandoned")
"""The values of `manager.instances.InstanceState`."""
FAST_NOTE = "The manager answers; `lake` in place of `airflow lake` does the same without Airflow's start of seconds."


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, as argparse takes it."""

    flags: tuple[str, ...]
    kwargs: dict[str, Any]


def argument(*flags: str, **kwargs: Any) -> Argument:
    """Return an argument."""
    return Argument(flags, kwargs)


def count(text: str) -> int:
    """Return a number of rows, from 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) == 0:
        raise ArgumentTypeError(f"{text[:100]!r} is no number of rows: name 1 or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class ReportCommand:
    """One command: what its help says, and what it takes."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    note: str = FAST_NOTE


OUTPUT = argument(
    "-o",
    "--output",
    choices=OUTPUTS,
    default="text",
    help="How to print: text is for people; json and yaml also print errors so",
)
TABLE = argument("table", help="Base path, name or id of a table of the registry")

COMMANDS = (
    ReportCommand(
        "overview",
        "Show the whole lake in numbers: tables by state, backlog, the services of the last day",
        (OUTPUT,),
    ),
    ReportCommand(
        "backlog",
        "List what waits, by rank: price, what is ahead of it, expected start, why; and the budgets",
        (OUTPUT,),
    ),
    ReportCommand(
        "bill",
        "Show what the services cost and brought in the last days, next to what was predicted",
        (
            argument("--by", choices=BILLS, default="table", help="What a line is about"),
            argument(
                "--days",
                type=int,
                default=30,
                metavar="N",
                help=f"Days, UTC, with today; up to {MAX_DAYS}",
            ),
            argument("-o", "--output", choices=(*OUTPUTS, "csv"), default="text", help="How to print"),
        ),
    ),
    ReportCommand(
        "tables",
        "List the tables of the registry, with filters and orders as on the page",
        (
            argument("--search", default="", metavar="TEXT", help="Part of a name, a database or a path"),
            argument("--state", action="append", choices=STATES, help="Only tables in this state; once or more"),
            argument("--database", default="", help="Only this database"),
            argument("--owner", default="", help="Only this owner"),
            argument("--mark", choices=MARKS, default="", help="Only tables with this mark"),
            argument("--sort", choices=SORTS, default="name", help="The order; size and commit as on the page"),
            argument("--reverse", action="store_true", help="The order turned around"),
            argument("--limit", type=count, metavar="N", help="At most so many tables"),
            OUTPUT,
        ),
    ),
    ReportCommand(
        "explain",
        "Show what is due on a table and what is in the way, with rules and values",
        (
            TABLE,
            OUTPUT,
            argument("--all", action="store_true", help="Also the rules of what is not due, and every setting's place"),
            argument("--dry-run", action="store_true", help="Print only what would be started now"),
        ),
        f"Changes nothing. Also shows what would be started now, and the active runs. {FAST_NOTE}",
    ),
    ReportCommand(
        "history",
        "Show when what kept a table's services from running in the last 8 days, and when they ran",
        (
            TABLE,
            argument("--at", default="", metavar="TIME", help="Only what was so then: 2026-11-27 03:00, UTC"),
            argument("--service", choices=[one.value for one in Service], default="", help="Only this service"),
            argument("--limit", type=count, metavar="N", help="At most so many lines"),
            OUTPUT,
        ),
    ),
    ReportCommand(
        "runs",
        "List the instances of a table's services: state, what acts next, until when, why",
        (
            TABLE,
            argument("--service", choices=[one.value for one in Service], default="", help="Only this service"),
            argument("--state", choices=RUN_STATES, default="", help="Only those in this state"),
            argument("--limit", type=count, metavar="N", help="At most so many, the newest ended ones last"),
            OUTPUT,
        ),
    ),
)
BY_NAME = {command.name: command for command in COMMANDS}

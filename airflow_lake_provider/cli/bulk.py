"""`airflow lake bulk run|pause|resume|snooze`: one action on several tables, by Airflow's database."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from airflow.models import Variable
from airflow.utils.cli import action_cli, suppress_logs_and_warning
from sqlalchemy import select

from airflow_lake_provider.cli.command import open_reports, print_rows, run_command, warn
from airflow_lake_provider.cli.tables import find_table
from airflow_lake_provider.config.access import EVERYONE
from airflow_lake_provider.errors import ConfigError, MalformedRequestError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.bulk import (
    BulkActions,
    BulkChoice,
    BulkVerdict,
    ByPerson,
    choose_tables,
)
from airflow_lake_provider.manager.db.search import TableSearch
from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.manager.scheduling.run_scheduler import ByHand
from airflow_lake_provider.manager.scheduling.whatif import parse_span_ms
from airflow_lake_provider.plugins.lake_plugin import load_settings, read_variable
from airflow_lake_provider.plugins.metadata_database import open_session

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from airflow_lake_provider.manager.bulk import BulkLine, Chosen
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.reports.reports import Reports

_WORDS = {
    "run": ("started", "would start"),
    "pause": ("paused", "would be paused"),
    "resume": ("resumed", "would be resumed"),
    "snooze": ("silenced", "would be silenced"),
    "end": ("heard again", "would be heard again"),
}
"""What was done, and what a dry run would do."""


def run(args: Namespace) -> None:
    """Start a run of a service of each table."""
    _act(args, "run", _run)


def pause(args: Namespace) -> None:
    """Pause tables, or a service of each."""
    _act(args, "pause", lambda args, actions, rows: _edit_pauses(args, actions, rows, is_paused=True))


def resume(args: Namespace) -> None:
    """End the pauses of tables, or of a service of each."""
    _act(args, "resume", lambda args, actions, rows: _edit_pauses(args, actions, rows, is_paused=False))


def snooze(args: Namespace) -> None:
    """Silence what each table has now, or end that."""
    _act(args, "end" if args.end else "snooze", _snooze)


def _act(
    args: Namespace, verb: str, act: Callable[[Namespace, BulkActions, Sequence[TableRow]], list[BulkLine]]
) -> None:
    args.verbose = False  # Airflow prints its log on the output, where programs read the rows

    @action_cli  # type: ignore[untyped-decorator]
    @suppress_logs_and_warning
    def command(args: Namespace) -> None:
        reports = open_reports()
        chosen = _choose(args, reports)
        lines = [*act(args, BulkActions(reports, load_settings().allowed_roots), chosen.rows), *chosen.unknown]
        print_rows(args, lines, lambda line: _line(line, _WORDS[verb][args.dry_run]))
        if any(line.verdict is BulkVerdict.REFUSED for line in lines):
            raise SystemExit(1)

    run_command(args, command)


def _line(line: BulkLine, done: str) -> str:
    verdict = done if line.verdict is BulkVerdict.DONE else line.verdict.value
    return f"{verdict:<12} {line.table}: {line.reason or line.base_path}"


def _choose(args: Namespace, reports: Reports) -> Chosen:
    given = {"--match": args.match, "--owner": args.owner, "--label": args.label, "--database": args.database}
    filters = [name for name, value in (*given.items(), ("--state", args.state), ("--all", args.all)) if value]
    if bool(args.tables) == bool(filters):
        raise MalformedRequestError("give either tables, or --match, --owner, --label, --database, --state or --all")
    search = TableSearch(args.match, tuple(map(TableState, args.state or ())), args.database, owner=args.owner)
    ids = tuple(table_id_of(find_table(one)) for one in args.tables)
    choice = BulkChoice(ids, search if filters else None, args.label)
    return choose_tables(reports.registry, reports.tables.load(), choice, EVERYONE)


def _run(args: Namespace, actions: BulkActions, rows: Sequence[TableRow]) -> list[BulkLine]:
    user = getpass.getuser()
    by = ByHand(user, args.reason or f"requested by {user} with airflow lake bulk run")
    lines = actions.run(rows, Service(args.service), by, is_dry=args.dry_run)
    if problem := actions.find_run_problem():
        warn(f"! {problem}")
    return lines


def _snooze(args: Namespace, actions: BulkActions, rows: Sequence[TableRow]) -> list[BulkLine]:
    if bool(args.lasts) == args.end:
        raise MalformedRequestError("give either --for or --end")
    until_ms = None if args.end else actions.reports.registry.now_ms() + parse_span_ms(args.lasts, "--for")
    return actions.snooze(rows, ByPerson(getpass.getuser(), args.reason, until_ms), is_dry=args.dry_run)


# --- Pauses: an edit of the Variable over the tables file


def _edit_pauses(args: Namespace, actions: BulkActions, rows: Sequence[TableRow], *, is_paused: bool) -> list[BulkLine]:
    now_ms = actions.reports.registry.now_ms()
    lasts = args.lasts if is_paused else ""
    until_ms = now_ms + parse_span_ms(lasts, "--for") if lasts else None
    service = Service(args.service) if args.service else None
    by = ByPerson(getpass.getuser(), args.reason, until_ms).pause(service, now_ms, is_paused=is_paused)
    lines: list[BulkLine] = []

    def edit(text: str) -> str:
        changed, lines[:] = actions.pause(rows, text, service, by)
        return changed

    edit_variable(load_settings().tables_variable, edit, is_dry=args.dry_run)
    return lines


def edit_variable(key: str, edit: Callable[[str], str], *, is_dry: bool) -> None:
    """Write what `edit` makes of the Variable's text, which no other session changes meanwhile. Raises ConfigError."""
    if key == "off":
        raise ConfigError("[lake] tables_variable is off: pause in the tables file")
    with open_session() as session, session.begin():
        row = session.scalar(select(Variable).where(Variable.key == key).with_for_update())
        text = "" if row is None else row.get_val() or ""
        if read_variable(key) != text:
            raise ConfigError(
                f"Variable {key} comes from another secrets backend than Airflow's database: edit it there"
            )
        changed = edit(text)
        if not is_dry and changed != text:
            Variable.set(key, changed, row.description if row else None, session=session)

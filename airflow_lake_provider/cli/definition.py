"""The commands of `airflow lake`. Each `airflow` command imports this, so it imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

from airflow_lake_provider.cli.report_commands import BY_NAME, OUTPUT, STATES, TABLE, Argument
from airflow_lake_provider.job_contract import Service

if TYPE_CHECKING:
    from collections.abc import Callable

# Airflow prints help texts by Rich, which takes `[lake]` for a style: its bracket is escaped.


def _arg(argument: Argument) -> Arg:
    return Arg(argument.flags, **argument.kwargs)  # type: ignore[no-untyped-call]


def _report(name: str, func: Callable[..., None]) -> ActionCommand:
    """Return a command that `lake` runs as well."""
    command = BY_NAME[name]
    args = tuple(map(_arg, command.arguments))
    return ActionCommand(name=name, help=command.help, func=func, args=args, epilog=command.note)


ARG_HOST = Arg(("--host",), default="127.0.0.1", help="Address to listen on")  # type: ignore[no-untyped-call]
ARG_PORT = Arg(("--port",), type=int, default=8090, help="Port to listen on; 0 takes a free one")  # type: ignore[no-untyped-call]
ARG_TABLE = _arg(TABLE)
ARG_OUTPUT = _arg(OUTPUT)
ARG_REPLICATION = Arg(  # type: ignore[no-untyped-call]
    ("words",),
    nargs="*",
    metavar="TABLE",
    help="Base path, name or id of a table; without it, all tables. Or: verify TABLE SINK, which compares rows",
)
ARG_SEND_AGAIN = Arg(  # type: ignore[no-untyped-call]
    ("--repair",), action="store_true", help="With verify: send the rows that differ again, and compare once more"
)
ARG_REPAIR = Arg(("--repair",), metavar="KIND", help="Repair this kind of problem, if the table's policy allows it")  # type: ignore[no-untyped-call]
ARG_INSTANT = Arg(("--instant",), help="Repair only this instant")  # type: ignore[no-untyped-call]
ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Print what --repair would do, and do nothing")  # type: ignore[no-untyped-call]
ARG_CHECK = Arg(("--check",), metavar="PATH", help="The file; without it the one of \\[lake] tables_file")  # type: ignore[no-untyped-call]
ARG_SCHEMA = Arg(("--schema",), action="store_true", help="Print the JSON schema, for editors")  # type: ignore[no-untyped-call]
ARG_SERVICE = Arg(  # type: ignore[no-untyped-call]
    ("service",), choices=[service.value for service in Service], help="The service"
)
ARG_RUN_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Print the run's settings, and start nothing")  # type: ignore[no-untyped-call]
ARG_HISTORY = Arg(("--history",), action="store_true", help="Print the repairs, each with its user and its result")  # type: ignore[no-untyped-call]

ARG_SAVEPOINT = Arg(("savepoint",), help="Instant of the savepoint")  # type: ignore[no-untyped-call]
ARG_ALL = Arg(("--all",), action="store_true", help="One line per registered table, by its last check")  # type: ignore[no-untyped-call]
ARG_CHECKED_TABLE = Arg(("table",), nargs="?", help="Base path, name or id of a table of the registry")  # type: ignore[no-untyped-call]


ARG_TABLES = Arg(  # type: ignore[no-untyped-call]
    ("--table",),
    action="append",
    metavar="TABLE",
    help="Print the entry and the writer's settings of this table; once or more",
)
ARG_DISCOVER = Arg(("--discover",), metavar="ROOT", help="Search the tables below this root")  # type: ignore[no-untyped-call]
ARG_DEPTH = Arg(("--depth",), type=int, default=3, help="How many levels below the root")  # type: ignore[no-untyped-call]
ARG_LOCK = Arg(  # type: ignore[no-untyped-call]
    ("--lock-provider",),
    help="The class of the writers' lock provider; without it a file's where the store allows it, else ZooKeeper's",
)
ARG_ENGINE = Arg(  # type: ignore[no-untyped-call]
    ("--engine",),
    choices=("spark", "flink"),
    default="spark",
    help="What the writers are (flink: experimental, not tried against Flink)",
)
ARG_HUDI_DEFAULTS = Arg(  # type: ignore[no-untyped-call]
    ("--hudi-defaults",),
    action="store_true",
    help="Print only a hudi-defaults.conf with the settings of all writers of a cluster",
)
ARG_WRITE = Arg(("--write",), metavar="PATH", help="Ask whether to write the tables file there, as a new file")  # type: ignore[no-untyped-call]

ARG_LASTS = Arg(("--for",), dest="lasts", required=True, metavar="SPAN", help="How long: 2h, 1d")  # type: ignore[no-untyped-call]
ARG_REASON = Arg(("--reason",), default="", help="Why, for people")  # type: ignore[no-untyped-call]
ARG_AT = Arg(("--at",), default="", metavar="INSTANT", help="As of when is read; without it the newest snapshot")  # type: ignore[no-untyped-call]
ARG_HELD_TABLE = Arg(("table",), nargs="?", help="Only this table")  # type: ignore[no-untyped-call]
ARG_HOLD_ID = Arg(("hold_id",), help="The hold, as `list` prints it")  # type: ignore[no-untyped-call]

ARG_SNOOZE_SPAN = Arg(("--for",), dest="lasts", default="", metavar="SPAN", help="How long: 12h, 3d")  # type: ignore[no-untyped-call]
ARG_PROBLEM = Arg(  # type: ignore[no-untyped-call]
    ("--problem",),
    default="",
    metavar="NAME",
    help="Only this one, as the command prints it; without it, all it has now",
)
ARG_END = Arg(("--end",), action="store_true", help="End the snoozes now")  # type: ignore[no-untyped-call]

ARG_SOME_TABLES = Arg(  # type: ignore[no-untyped-call]
    ("tables",), nargs="*", metavar="TABLE", help="Base paths, names or ids of tables; or filters instead"
)
ARG_MATCH = Arg(("--match",), default="", metavar="TEXT", help="Tables with this in their name, database or path")  # type: ignore[no-untyped-call]
ARG_OWNER = Arg(("--owner",), default="", help="Tables of this owner")  # type: ignore[no-untyped-call]
ARG_LABEL = Arg(("--label",), default="", help="Tables with this label in the tables file")  # type: ignore[no-untyped-call]
ARG_DATABASE = Arg(("--database",), default="", help="Tables of this database")  # type: ignore[no-untyped-call]
ARG_STATE = Arg(("--state",), action="append", choices=STATES, help="Tables in this state; once or more")  # type: ignore[no-untyped-call]
ARG_ALL_TABLES = Arg(("--all",), action="store_true", help="All tables of the registry")  # type: ignore[no-untyped-call]
ARG_BULK_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Print what it would do to each, and do nothing")  # type: ignore[no-untyped-call]
ARG_RUN_SERVICE = Arg(  # type: ignore[no-untyped-call]
    ("--service",), required=True, choices=[service.value for service in Service], help="The service"
)
ARG_PAUSED_SERVICE = Arg(  # type: ignore[no-untyped-call]
    ("--service",),
    default="",
    choices=[service.value for service in Service],
    help="One service of each table; without it the tables",
)
ARG_PAUSE_SPAN = Arg(("--for",), dest="lasts", default="", metavar="SPAN", help="Ends by itself after 2h, 1d")  # type: ignore[no-untyped-call]
CHOICE = (
    *(ARG_SOME_TABLES, ARG_MATCH, ARG_OWNER, ARG_LABEL, ARG_DATABASE, ARG_STATE, ARG_ALL_TABLES),
    *(ARG_REASON, ARG_BULK_DRY_RUN, ARG_OUTPUT),
)
"""Which tables, at most 200, and what all actions on several tables have."""
_EACH = "At most 200 tables, one line for each; filters narrow each other. Exit code 1 when one was refused."

ARG_BUDGET = Arg(  # type: ignore[no-untyped-call]
    ("--budget",),
    action="append",
    metavar="[KIND:NAME=]HOURS",
    help="Core hours a day of all tables, or of queue:NAME, pool:NAME, owner:NAME or label:NAME; once or more",
)
ARG_POLICY = Arg(("--policy",), metavar="PATH", help="Another tables file; without it the settings in force")  # type: ignore[no-untyped-call]
ARG_SINCE = Arg(("--since",), default="7d", metavar="SPAN", help="How far back to replay: 12h, 7d")  # type: ignore[no-untyped-call]
ARG_PLOT = Arg(("--plot",), metavar="PATH", help="Write the backlog over time there, as SVG")  # type: ignore[no-untyped-call]


def get_cli_commands() -> list[CLICommand]:
    """Return the commands (provider entry `cli`)."""
    return [
        GroupCommand(
            name="lake",
            help="Table services of a Hudi lake",
            subcommands=[
                ActionCommand(
                    name="init",
                    help="Check this installation, and print what completes it: \\[lake], a tables file, writers",
                    func=lazy_load_command("airflow_lake_provider.cli.init.init"),
                    args=(
                        ARG_TABLES,
                        ARG_DISCOVER,
                        ARG_DEPTH,
                        ARG_LOCK,
                        ARG_ENGINE,
                        ARG_HUDI_DEFAULTS,
                        ARG_WRITE,
                        ARG_OUTPUT,
                    ),
                    epilog="Writes nothing without --write. The tables file only observes. Exit code 1 when a check "
                    "fails.",
                ),
                ActionCommand(
                    name="timeline-server",
                    help="Serve the lake's timelines from a process of its own (RFC-50)",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.timeline_server"),
                    args=(ARG_HOST, ARG_PORT),
                    epilog="Point readers to it with \\[lake] timeline_server_url.",
                ),
                ActionCommand(
                    name="dag-bundles",
                    help="Print the setting that adds the shipped DAGs to Airflow's DAG bundles",
                    func=lazy_load_command("airflow_lake_provider.cli.init.dag_bundles"),
                    args=(),
                ),
                _report("overview", lazy_load_command("airflow_lake_provider.cli.lake_reports.overview")),
                _report("backlog", lazy_load_command("airflow_lake_provider.cli.lake_reports.backlog")),
                _report("bill", lazy_load_command("airflow_lake_provider.cli.lake_reports.bill")),
                _report("history", lazy_load_command("airflow_lake_provider.cli.table_reports.history")),
                ActionCommand(
                    name="simulate",
                    help="Replay the recorded decisions under other budgets or policies: cost, backlog, waits",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.simulate"),
                    args=(ARG_BUDGET, ARG_POLICY, ARG_SINCE, ARG_PLOT, ARG_OUTPUT),
                    epilog="Changes nothing. What observed tables would have run counts where the policy manages them.",
                ),
                _report("tables", lazy_load_command("airflow_lake_provider.cli.lake_reports.tables")),
                ActionCommand(
                    name="forget",
                    help="Remove a table from the registry, with its sinks and what they hold back",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.forget"),
                    args=(ARG_TABLE, ARG_OUTPUT),
                    epilog="Touches no file of the table. The next notice registers a table again that is still there.",
                ),
                ActionCommand(
                    name="snooze",
                    help="Silence the problems that a table has now, until a time; they stay on its page, marked",
                    func=lazy_load_command("airflow_lake_provider.cli.snooze.snooze"),
                    args=(ARG_TABLE, ARG_SNOOZE_SPAN, ARG_PROBLEM, ARG_REASON, ARG_END, ARG_OUTPUT),
                    epilog="A silenced problem counts for no state and notifies no one. Another problem, or the same "
                    "one in a worse state, is not silenced. Without --for and --end it prints what is silenced.",
                ),
                _report("explain", lazy_load_command("airflow_lake_provider.cli.table_reports.explain")),
                _report("runs", lazy_load_command("airflow_lake_provider.cli.table_reports.runs")),
                ActionCommand(
                    name="run",
                    help="Start a run of a service of a table, with the table's settings in the tables file",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.run"),
                    args=(ARG_TABLE, ARG_SERVICE, ARG_OUTPUT, ARG_RUN_DRY_RUN),
                    epilog="A run of the service that is active already is not started twice: its id is printed. "
                    "A pending plan is executed before a new one is made.",
                ),
                ActionCommand(
                    name="tables-file",
                    help="Check a tables file, together with the Variable over it, or print its JSON schema",
                    func=lazy_load_command("airflow_lake_provider.cli.init.tables_file"),
                    args=(ARG_CHECK, ARG_SCHEMA, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="indexes",
                    help="Show which indexes of a table are ready, which are being built, and what is in the way",
                    func=lazy_load_command("airflow_lake_provider.cli.doctor.indexes"),
                    args=(ARG_TABLE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="conflicts",
                    help="Show the active writers and services of a table with their file groups, and their clashes",
                    func=lazy_load_command("airflow_lake_provider.cli.doctor.conflicts"),
                    args=(ARG_TABLE, ARG_OUTPUT),
                    epilog="Changes nothing. Exit code 1 when one has to give way, or when that is unknown.",
                ),
                ActionCommand(
                    name="replication",
                    help="Show how far each sink of replication is behind, and what it holds back",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.replication"),
                    args=(ARG_REPLICATION, ARG_OUTPUT, ARG_SEND_AGAIN),
                    epilog=(
                        "Changes nothing without --repair; verify brings the sink up to date first, by a run of "
                        "lake_replication, and waits for it. Exit code 1 when a sink has a problem, needs a snapshot, "
                        "or lacks or has rows that its table does not."
                    ),
                ),
                GroupCommand(
                    name="bulk",
                    help="Run a service of several tables, pause, resume or snooze them",
                    subcommands=[
                        ActionCommand(
                            name="run",
                            help="Start a run of a service of each table, due or not",
                            func=lazy_load_command("airflow_lake_provider.cli.bulk.run"),
                            args=(*CHOICE, ARG_RUN_SERVICE),
                            epilog=f"Not of a table that is observed, paused or blocked. {_EACH}",
                        ),
                        ActionCommand(
                            name="pause",
                            help="Pause tables, or a service of each, in the Variable over the tables file",
                            func=lazy_load_command("airflow_lake_provider.cli.bulk.pause"),
                            args=(*CHOICE, ARG_PAUSED_SERVICE, ARG_PAUSE_SPAN),
                            epilog=_EACH,
                        ),
                        ActionCommand(
                            name="resume",
                            help="End pauses of the Variable",
                            func=lazy_load_command("airflow_lake_provider.cli.bulk.resume"),
                            args=(*CHOICE, ARG_PAUSED_SERVICE),
                            epilog=_EACH,
                        ),
                        ActionCommand(
                            name="snooze",
                            help="Silence the problems that each table has now, until a time, or end that",
                            func=lazy_load_command("airflow_lake_provider.cli.bulk.snooze"),
                            args=(*CHOICE, ARG_SNOOZE_SPAN, ARG_END),
                            epilog=_EACH,
                        ),
                    ],
                ),
                GroupCommand(
                    name="hold",
                    help="Hold the files that a long reader of a table needs, or show and end such holds",
                    subcommands=[
                        ActionCommand(
                            name="add",
                            help="Hold a table's files for so long; it prints the hold when its reader may begin",
                            func=lazy_load_command("airflow_lake_provider.cli.holds.add"),
                            args=(ARG_TABLE, ARG_LASTS, ARG_REASON, ARG_AT, ARG_OUTPUT),
                        ),
                        ActionCommand(
                            name="list",
                            help="List the readers' holds that have not ended",
                            func=lazy_load_command("airflow_lake_provider.cli.holds.show"),
                            args=(ARG_HELD_TABLE, ARG_OUTPUT),
                        ),
                        ActionCommand(
                            name="release",
                            help="End a hold: cleaning and archiving wait for its reader no more",
                            func=lazy_load_command("airflow_lake_provider.cli.holds.release"),
                            args=(ARG_HOLD_ID, ARG_OUTPUT),
                        ),
                    ],
                ),
                ActionCommand(
                    name="check-writer",
                    help="Show what a table requires of its writers, whether they meet it, and which setting to change",
                    func=lazy_load_command("airflow_lake_provider.cli.doctor.check_writer"),
                    args=(ARG_CHECKED_TABLE, ARG_OUTPUT, ARG_ALL),
                    epilog="Changes nothing. Exit code 1 when a requirement is broken.",
                ),
                ActionCommand(
                    name="check-restore",
                    help="Show what a restore of a table to a savepoint takes back, and what forbids it",
                    func=lazy_load_command("airflow_lake_provider.cli.restore.check"),
                    args=(ARG_TABLE, ARG_SAVEPOINT, ARG_OUTPUT),
                    epilog="Changes nothing; the DAG lake_restore restores. Exit code 1 when something forbids it.",
                ),
                ActionCommand(
                    name="doctor",
                    help="Show what is stuck on a table's timeline, what it holds up, and how to repair it",
                    func=lazy_load_command("airflow_lake_provider.cli.doctor.doctor"),
                    args=(ARG_TABLE, ARG_OUTPUT, ARG_REPAIR, ARG_INSTANT, ARG_DRY_RUN, ARG_HISTORY),
                    epilog="Changes nothing without --repair. Exit code 1 when something is stuck.",
                ),
            ],
        )
    ]

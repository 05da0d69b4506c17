"""What `airflow lake` offers. Read by each `airflow` command, so it imports nothing heavy."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

ARG_HOST = Arg(("--host",), default="127.0.0.1", help="Address to listen on")  # type: ignore[no-untyped-call]
ARG_PORT = Arg(("--port",), type=int, default=8090, help="Port to listen on; 0 takes a free one")  # type: ignore[no-untyped-call]
ARG_TABLE = Arg(  # type: ignore[no-untyped-call]
    ("table",), help="Base path, or the name or id of a table of the registry"
)
ARG_OUTPUT = Arg(  # type: ignore[no-untyped-call]
    ("-o", "--output"), choices=("text", "json"), default="text", help="How to print"
)


def get_cli_commands() -> list[CLICommand]:
    """Return the commands (provider entry `cli`)."""
    return [
        GroupCommand(
            name="lake",
            help="Table services of a Hudi lake",
            subcommands=[
                ActionCommand(
                    name="timeline-server",
                    help="Serve the lake's timelines from a process of its own (RFC-50)",
                    func=lazy_load_command("airflow_lake_provider.cli.timeline_server.timeline_server"),
                    args=(ARG_HOST, ARG_PORT),
                    epilog="Point readers to it with [lake] timeline_server_url.",
                ),
                ActionCommand(
                    name="tables",
                    help="List the tables of the registry",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.tables"),
                    args=(ARG_OUTPUT,),
                ),
                ActionCommand(
                    name="explain",
                    help="Say of each service of a table whether it is due, and why",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.explain"),
                    args=(ARG_TABLE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="doctor",
                    help="Say what is stuck on a table's timeline, what it holds up, and how to repair it",
                    func=lazy_load_command("airflow_lake_provider.cli.tables.doctor"),
                    args=(ARG_TABLE, ARG_OUTPUT),
                    epilog="Changes nothing. Exit code 1 when something is stuck.",
                ),
            ],
        )
    ]

"""What `airflow lake` offers. Read by each `airflow` command, so it imports nothing heavy."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

ARG_HOST = Arg(("--host",), default="127.0.0.1", help="Address to listen on")  # type: ignore[no-untyped-call]
ARG_PORT = Arg(("--port",), type=int, default=8090, help="Port to listen on; 0 takes a free one")  # type: ignore[no-untyped-call]


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
                )
            ],
        )
    ]

"""`airflow lake tables-file`: check a tables file before it is used, and print its JSON schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import run_command
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.tables import read_variable
from airflow_lake_provider.tables_file import build_config, parse_tables, read_tables_file
from airflow_lake_provider.tables_schema import SCHEMA_FILE, schema_text

if TYPE_CHECKING:
    from argparse import Namespace


def tables_file(args: Namespace) -> None:
    """Print the schema, or check the file together with the Variable that is laid over it; exit code 1 if wrong."""
    if args.schema:
        print(schema_text(), end="")
        return
    run_command(args, _check)


def _check(args: Namespace) -> None:
    settings = load_settings()
    path = args.check or settings.tables_file
    name = settings.tables_variable
    file = parse_tables(read_tables_file(path), path)
    text = "" if name.lower() == "off" else read_variable(name)
    tables = build_config(file, parse_tables(text, f"Variable {name}"))
    print(f"{path or 'no tables file: the defaults'} is right: {len(tables.entries)} entries")
    if text:
        print(f"Variable {name} over it is right: {len(tables.overrides)} entries")
    for discovery in tables.discoveries:
        print(f"tables are searched for below {discovery.root}, {discovery.depth} levels down")
    print(f"schema for editors: {SCHEMA_FILE}")

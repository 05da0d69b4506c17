"""What the commands share: the table that is meant, rows as text or JSON, errors in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError, TableUnknownError
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.table_id import normalise_base_path

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

MOST_ROWS = 10_000


def run_command(args: Namespace, command: Callable[[Namespace], None]) -> None:
    """Run a command; an error of ours ends it with its name and its sentence."""
    try:
        command(args)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def find_table(table: str) -> str:
    """Return the base path of a table given by path, registry id, or name. Raises TableUnknownError.

    Its name, which selects its policy, is what its hoodie.properties say.
    """
    if "/" in table:
        return normalise_base_path(table)
    rows = [row for row in open_registry().list_tables(MOST_ROWS) if table in {row["table_id"], row["table_name"]}]
    if len(rows) != 1:
        found = ", ".join(row["base_path"] for row in rows) or "none"
        raise TableUnknownError(f"{table!r} names {len(rows)} tables of the registry ({found}); give a base path")
    return str(rows[0]["base_path"])


def print_rows(args: Namespace, rows: Sequence[dict[str, Any]], to_text: Callable[[dict[str, Any]], str]) -> None:
    """Print rows as `--output` says."""
    if args.output == "json":
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(to_text(row))

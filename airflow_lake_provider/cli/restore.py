"""`airflow lake check-restore`: what a restore of a table to a savepoint takes back, and what forbids it.

Nothing is changed: the DAG `lake_restore` restores.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import print_rows, run_command
from airflow_lake_provider.cli.tables import open_table
from airflow_lake_provider.doctor.report_lines import describe_line, is_refused
from airflow_lake_provider.doctor.restore_check import check_restore, sum_up
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.holds import ReaderHolds, holder_of
from airflow_lake_provider.manager.db.leases import find_leases
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.replication.restored import find_ahead

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.doctor.restore_check import RestoreFacts
    from airflow_lake_provider.manager.db.registry import Registry


def check(args: Namespace) -> None:
    """Print what forbids a restore, what it takes back, and what to run it with; exit code 1 when it is refused."""
    run_command(args, _check)


def _check(args: Namespace) -> None:
    table = open_table(args.table)
    facts = load_restore_facts(table.storage, table.policy, args.savepoint, int(time.time() * 1000))
    lines = check_restore(_with_registry(facts, open_registry(), table_id_of(table.base_path)))
    if args.output == "text":
        print(f"restore of table {table.name} at {table.base_path} to savepoint {args.savepoint}:")
    print_rows(args, lines, describe_line)
    if args.output == "text":
        print(sum_up(lines))
    if is_refused(lines):
        raise SystemExit(1)


def _with_registry(facts: RestoreFacts, registry: Registry, table_id: str) -> RestoreFacts:
    """Return the facts with what the manager knows of the table: its sinks, its readers' holds, its runs."""
    with registry.transaction() as session:
        leases = find_leases(session, table_id, registry.now_ms())
    sinks = ((row.sink, row.checkpoint) for row in Sinks(registry).list_sinks(table_id))
    return replace(
        facts,
        streams=tuple(find_ahead(sinks, facts.taken_times)),
        holds=tuple(holder_of(row.reader, row.reason) for row in ReaderHolds(registry).list_holds(table_id)),
        runs=tuple(f"{lease.service} {lease.run_id}" for lease in leases),
    )

"""`airflow lake check-restore`: what a restore of a table to a savepoint takes back, and what forbids it.

Nothing is changed: the restore itself is Hudi's (`CALL rollback_to_savepoint`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import print_rows, run_command, size
from airflow_lake_provider.cli.tables import open_table
from airflow_lake_provider.doctor.restore_check import LineKind, check_restore, find_taken_back, is_refused
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.errors import CheckpointDamagedError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.holds import ReaderHolds, holder_of
from airflow_lake_provider.manager.db.leases import find_leases
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import from_text

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from airflow_lake_provider.doctor.restore_check import RestoreFacts, RestoreLine
    from airflow_lake_provider.hudi.instant import Instant
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
    print_rows(args, lines, _text)
    if args.output == "text":
        print(_summary(lines))
    if is_refused(lines):
        raise SystemExit(1)


def _with_registry(facts: RestoreFacts, registry: Registry, table_id: str) -> RestoreFacts:
    """Return the facts with what the manager knows of the table: its sinks, its readers' holds, its runs."""
    evidence = facts.evidence
    taken = find_taken_back(evidence.timeline, evidence.properties.table_type, facts.savepoint)
    with registry.transaction() as session:
        leases = find_leases(session, table_id, registry.now_ms())
    return replace(
        facts,
        streams=tuple(_find_streams(registry, table_id, taken)),
        holds=tuple(holder_of(row.reader, row.reason) for row in ReaderHolds(registry).list_holds(table_id)),
        runs=tuple(f"{lease.service} {lease.run_id}" for lease in leases),
    )


def _find_streams(registry: Registry, table_id: str, taken: Sequence[Instant]) -> Iterator[str]:
    """Yield the sinks that have one of these writes, and those of which that is not known."""
    writes = [CommitRef(one.requested_time, one.completed_time) for one in taken if one.completed_time is not None]
    for row in Sinks(registry).list_sinks(table_id):
        if not row.checkpoint:
            continue
        try:
            checkpoint = from_text(row.checkpoint)
        except CheckpointDamagedError:
            yield row.sink
            continue
        begun = checkpoint.commit if checkpoint.is_within_commit else None
        if any(checkpoint.has(write) or write == begun for write in writes):
            yield row.sink


def _text(line: RestoreLine) -> str:
    parts = [f"{line.rows:,} rows"] if line.rows is not None else []
    parts += [f"{size(line.bytes)} written"] if line.bytes is not None else []
    figures = f", {', '.join(parts)}" if parts else ""
    text = f"{line.kind:<10} {line.subject}: {line.what}{figures}"
    return f"{text}\n{'':<10} do: {line.remedy}" if line.remedy else text


def _summary(lines: Sequence[RestoreLine]) -> str:
    taken = [line for line in lines if line.kind is LineKind.TAKEN_BACK]
    known = [line.rows for line in taken if line.rows is not None]
    lost = f"takes back {len(taken)} writes and plans, {sum(known):,} changed rows in {len(known)} of them"
    if is_refused(lines):
        return f"refused; it {lost}" if taken else "refused"
    return f"nothing forbids it; it {lost}"

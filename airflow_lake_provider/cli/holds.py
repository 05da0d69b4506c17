"""`airflow lake hold add|list|release`: holds of readers, by Airflow's database.

A command holds without a process that renews: until the time that it names, or until `release`.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import open_reports, print_document, print_plainly, print_rows, warn
from airflow_lake_provider.cli.table_reports import describe_hold as hold_line
from airflow_lake_provider.cli.tables import find_table
from airflow_lake_provider.config.access import EVERYONE
from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.holds import ReaderHolds
from airflow_lake_provider.manager.scheduling.whatif import parse_span_ms
from airflow_lake_provider.manager.supervision.reader_holds import HoldKeeper, WantedHold, describe_hold
from airflow_lake_provider.plugins.lake_plugin import open_registry

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_lake_provider.manager.read_model import ReportedHold

POLL_S = 2.0


@print_plainly
def add(args: Namespace) -> None:
    """Hold a table's files for so long, and print the hold when its reader may begin."""
    reports = open_reports()
    keeper = HoldKeeper(reports.registry, reports.tables.load, reports.views)
    base_path = find_table(args.table)
    lasts_s = parse_span_ms(args.lasts, "--for") / 1000
    wanted = WantedHold(getpass.getuser(), args.reason, args.at, lasts_s, lasts_s)
    held = keeper.add(table_id_of(base_path), wanted)
    try:
        while held.waits_for:
            warn(f"waits for {', '.join(held.waits_for)}, which began before the hold")
            time.sleep(POLL_S)
            held = keeper.renew(held.row.table_id, held.row.hold_id)
    except KeyboardInterrupt:
        keeper.holds.release(held.row.table_id, held.row.hold_id)
        raise
    _print(args, [HeldTable(base_path, describe_hold(held.row, reports.registry.now_ms()))])


@print_plainly
def show(args: Namespace) -> None:
    """Print the holds that have not ended."""
    registry = open_registry()
    only = find_table(args.table) if args.table else ""
    now_ms = registry.now_ms()
    found = ReaderHolds(registry).list_all(EVERYONE)
    rows = [HeldTable(one.base_path, describe_hold(one.hold, now_ms)) for one in found if only in ("", one.base_path)]
    _print(args, rows)
    if not rows and args.output == "text":
        print("no reader holds files; airflow lake hold add, or hudi_hold in a reader's program, does")


@print_plainly
def release(args: Namespace) -> None:
    """End a hold by its id."""
    registry = open_registry()
    found = next((one for one in ReaderHolds(registry).list_all(EVERYONE) if one.hold.hold_id == args.hold_id), None)
    if found is None:
        raise MalformedRequestError(f"no hold {args.hold_id}; airflow lake hold list prints those that have not ended")
    ReaderHolds(registry).release(found.hold.table_id, found.hold.hold_id)
    row = ReleasedHold(args.hold_id, found.base_path, found.hold.reader)
    print_rows(args, [row], lambda row: f"released: cleaning of {row.base_path} waits for {row.reader} no more")


@dataclass(frozen=True, slots=True)
class ReleasedHold:
    """A hold that has ended."""

    hold_id: str
    base_path: str
    reader: str


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A hold with the base path of its table."""

    base_path: str
    hold: ReportedHold


def _print(args: Namespace, rows: Sequence[HeldTable]) -> None:
    if args.output != "text":
        flat = [{"base_path": row.base_path, **asdict(row.hold)} for row in rows]
        print_document(args, flat, flat)
        return
    for row in rows:
        print(f"{row.hold.hold_id}  {row.base_path}  {hold_line(row.hold)}")

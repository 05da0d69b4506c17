"""`python -m airflow_lake_provider.hudi PATH`: show a table and its timeline, without Airflow and without a JVM."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.commit_metadata import find_damaged_files
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.storage.table_storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage

EXIT_PROBLEMS = 1
EXIT_NO_TABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 when files are damaged or unknown, 2 when the table cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        storage = open_storage(options.path)
        properties = load_table_properties(storage)
        timeline = load_timeline(storage, properties)
        problems = [*timeline.problems]
        if not options.no_check:
            problems += find_damaged_files(storage, properties, timeline)
    except LakeError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_TABLE
    if options.json:
        for instant in timeline.instants:
            print(json.dumps(instant.to_dict()))
    else:
        _show(storage, properties, timeline)
    for problem in problems:
        print(f"{problem.file_name}: {problem.reason}", file=sys.stderr)
    return EXIT_PROBLEMS if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_lake_provider.hudi", description="Show a Hudi table and its active timeline."
    )
    parser.add_argument("path", help="base path of the table; a bare path is local, else scheme://...")
    parser.add_argument("--json", action="store_true", help="one object per instant and line, oldest first")
    parser.add_argument("--no-check", action="store_true", help="do not read the instants' files to find damaged ones")
    return parser


def _show(storage: Storage, properties: TableProperties, timeline: Timeline) -> None:
    name = f"{properties.database}.{properties.name}" if properties.database else properties.name
    print(f"table      {name if name.isprintable() else ascii(name)}")
    print(f"base path  {storage.base_path}")
    print(f"type       {properties.table_type}")
    print(f"version    {properties.version}, timeline layout {properties.layout.value} ({properties.timeline_path})")
    print(f"time zone  {properties.time_zone}")
    print(f"indexes    {', '.join(properties.metadata_partitions) or 'none'}")
    print(f"instants   {len(timeline.instants)}, of them pending {len(timeline.pending())}")
    print()
    print(f"{'requested':<18} {'action':<14} {'state':<10} completed")
    for instant in timeline.instants:
        completed = instant.completed_time if instant.is_completed else "-"
        print(f"{instant.requested_time:<18} {instant.action.value:<14} {instant.state.value:<10} {completed}")


if __name__ == "__main__":
    sys.exit(main())

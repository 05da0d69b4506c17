"""The table of the streams benchmark: written once by Hudi, with a stream's first checkpoint; and released in parts.

`python -m benchmarks.streams_tables FOLDER COMMITS TYPE` writes it; with spark_jobs/ on the path.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from pathlib import Path

FIRST_CHECKPOINT = "checkpoint.json"
ROWS, CHANGED_ROWS = 2_000, 100


def main(folder: Path, commits: int, table_type: str) -> None:
    from airflow_lake_provider.replication.change import ChangeMode
    from airflow_lake_provider.replication.checkpoint import to_text
    from airflow_lake_provider.replication.pump import Pump
    from airflow_lake_provider.replication.sink import NoopSink, SinkSettings
    from airflow_lake_provider.replication.transactions import Order
    from lake_jobs.replication.source import HudiSource
    from local_stack import hudi_bundle, lake_writer

    conf = {"spark.jars": str(hudi_bundle.JAR), "spark.sql.session.timeZone": "UTC"}
    spark = lake_writer.open_session(conf)
    table = lake_writer.WrittenTable(
        "orders", str(folder / "table"), table_type, commits=commits + 1, keys=ROWS, rows=CHANGED_ROWS,
        hudi_options={"hoodie.metadata.enable": "false"},
    )  # fmt: skip
    for commit in range(table.commits):
        options = lake_writer.write_options(table, commit, None, {})
        lake_writer.write_commit(spark, table, commit, options)
        if commit == 0:
            source = HudiSource(spark, table.base_path, ChangeMode.CHANGES)
            settings = SinkSettings("first", "orders")
            checkpoint = Pump(source, NoopSink(settings), Order("first")).run().checkpoint
            assert checkpoint is not None
            (folder / FIRST_CHECKPOINT).write_text(to_text(checkpoint), encoding="utf-8")
    spark.stop()


class MadeTable:
    """A written table, of which copies get one commit after another: data first, the completed instant last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._timeline = path / ".hoodie" / "timeline"
        found: defaultdict[str, list[Path]] = defaultdict(list)
        for file in path.rglob("*"):
            if file.is_file() and not file.name.endswith(".crc"):
                found[self._instant_of(file)].append(file)
        self._files = {instant: sorted(files, key=self._order) for instant, files in found.items()}
        self.instants = sorted(instant for instant in found if instant)

    def copy(self, target: Path) -> None:
        """Make a copy with the first commit alone."""
        for instant in ("", self.instants[0]):
            self._copy(instant, target)

    def release(self, target: Path, number: int) -> None:
        """Let a copy have a later commit, by its number from 1 on."""
        self._copy(self.instants[number], target)

    def _copy(self, instant: str, target: Path) -> None:
        for file in self._files[instant]:
            copy = target / file.relative_to(self.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            part = copy.with_name(f".part.{file.name}")
            shutil.copyfile(file, part)
            part.rename(copy)

    def _instant_of(self, file: Path) -> str:
        if file.parent == self._timeline:
            return file.name.split("_")[0].split(".")[0]
        if ".log." in file.name:
            return file.name.partition(".log.")[0].rpartition("_")[2]
        return file.stem.rpartition("_")[2] if file.suffix == ".parquet" else ""

    def _order(self, file: Path) -> tuple[bool, bool]:
        return file.parent == self._timeline, "_" in file.name


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

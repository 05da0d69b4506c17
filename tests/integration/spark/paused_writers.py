"""Writers in threads that stop while they read their source, until the test lets them go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Table
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120.0
STREAMING_OFF = {"hoodie.metadata.streaming.write.enabled": "false"}
"""What docs/indexing.md recommends to writers of a table that gets indexes."""


@dataclass(slots=True)
class PausedWriter:
    """A write that is in flight: its instant is requested, and nothing is written yet."""

    gate: Path
    instant: str
    outcome: Future[None] = field(default_factory=Future)

    def finish(self) -> None:
        """Let it go on, and wait until it has committed; raises what Hudi raises."""
        self.gate.touch()
        self.outcome.result(timeout=PATIENCE_S)


def start_paused_writer(
    spark: SparkSession, table: Table, folder: Path, first_id: int, rows: int = 20, **options: str
) -> PausedWriter:
    """Begin to insert new orders; return as soon as the write is on the timeline."""
    gate = folder / f"gate-{first_id}"
    before = writes(table)
    writer = PausedWriter(gate, "")
    path, patience_s = str(gate), PATIENCE_S

    def wait(key: int) -> int:
        deadline = time.monotonic() + patience_s
        while not Path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return key

    paused = F.udf(wait, LongType()).asNondeterministic()
    orders = new_orders(spark, table, first_id, rows).withColumn("customer", paused(F.col("customer")))
    settings = lake_writer.write_options(table.written, 1, None, {**options})

    def write() -> None:
        try:
            orders.write.format("hudi").options(**settings).mode("append").save(str(table.path))
            writer.outcome.set_result(None)
        except Exception as error:  # noqa: BLE001 - handed to the test
            writer.outcome.set_exception(error)

    threading.Thread(target=write, name=f"paused-writer-{first_id}", daemon=True).start()
    wait_until(lambda: bool(writes(table) - before) or writer.outcome.done(), "the write's instant")
    if writer.outcome.done():
        writer.outcome.result()
    (writer.instant,) = writes(table) - before
    return writer


def insert(spark: SparkSession, table: Table, first_id: int, rows: int = 20, **options: str) -> None:
    """Insert new orders in one commit."""
    settings = lake_writer.write_options(table.written, 1, None, {**options})
    new_orders(spark, table, first_id, rows).write.format("hudi").options(**settings).mode("append").save(
        str(table.path)
    )


def new_orders(spark: SparkSession, table: Table, first_id: int, rows: int) -> DataFrame:
    orders = lake_writer.orders_of_commit(spark, table.written, 0).where(F.col("id") < rows)
    return orders.withColumn("id", F.col("id") + first_id)


def writes(table: Table) -> set[str]:
    return {name.split(".")[0] for name in table.files() if name.endswith("commit.requested")}


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.05)

"""A plan that a table's writer planted, and that names files of another table, is not executed.

The judge is the folder of the other table: its files' names and bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from conftest import MakeTable, Table, run

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of an Avro file."""
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        (record,) = reader
        schema = reader.writer_schema
    assert isinstance(record, dict)
    assert schema is not None
    change(record)
    with path.open("wb") as out:
        fastavro.writer(out, schema, [record])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def plan_of(table: Table, action: str) -> Path:
    (plan,) = table.timeline.glob(f"*.{action}.requested")
    return plan


def test_planted_compaction_reads_nothing_of_another_table(spark: SparkSession, make_table: MakeTable) -> None:
    bank, shop = (make_table(name, type="MOR") for name in ("bank", "shop"))
    scheduled = run(spark, shop.request(Mode.SCHEDULE))
    assert scheduled.outcome is Outcome.SCHEDULED, scheduled.message

    def aim(record: dict[str, Any]) -> None:
        for operation in record["operations"]:
            operation["partitionPath"] = f"../{bank.path.name}/{operation['partitionPath']}"

    edit(plan_of(shop, "compaction"), aim)
    of_bank = files_below(bank.path)
    result = run(spark, shop.request(Mode.EXECUTE))
    assert files_below(bank.path) == of_bank
    assert result.outcome is Outcome.FAILED, result.message
    assert f"names ../{bank.path.name}/" in result.message


def test_planted_marker_has_a_rollback_delete_nothing_of_another_table(
    spark: SparkSession, make_table: MakeTable
) -> None:
    bank, shop = (make_table(name, type="COW") for name in ("bank", "shop"))
    victim = next(path for path in sorted(bank.path.rglob("*.parquet")) if ".hoodie" not in path.parts)
    write = "20200101000000000" if not shop.files() else f"{int(max(shop.completed())) + 1}"
    for state in ("commit.requested", "inflight"):
        (shop.timeline / f"{write}.{state}").touch()
    beat = shop.path / ".hoodie" / ".heartbeat" / write
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (time.time() - 600,) * 2)
    markers = shop.path / ".hoodie" / ".temp" / write
    markers.mkdir(parents=True)
    (markers / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    (markers / "MARKERS0").write_text(f"../bank/{victim.relative_to(bank.path)}.marker.CREATE\n")
    of_bank = files_below(bank.path)
    result = run(spark, shop.request(Mode.EXECUTE, service=Service.ROLLBACK))
    assert files_below(bank.path) == of_bank, result.message
    assert result.outcome is Outcome.FAILED, result.message
    assert "does not belong to base-path" in result.message, "Hudi itself refuses it"

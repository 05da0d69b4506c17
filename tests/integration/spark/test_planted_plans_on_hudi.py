"""A plan that a table's writer planted, and that names files of another table, is not executed.

The judge is the folder of the other table: its files' names and bytes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from conftest import MakeTable, Table, run
from test_replication_on_hudi import Lake

from airflow_lake_provider.errors import DamagedFileError, SourceRefusedError
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.replication.change import ChangeMode
from lake_jobs.replication import reader_choice
from lake_jobs.replication.source import HudiSource
from tests.support.patience import patient

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


def test_planted_commit_sends_no_row_of_another_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Lake(spark, tmp_path / "bank", "COW", **{"hoodie.table.cdc.enabled": "false"})
    shop = Lake(spark, tmp_path / "shop", "COW", **{"hoodie.table.cdc.enabled": "false"})
    bank.write(bank.rows(range(3), 1))
    shop.write(shop.rows(range(10, 12), 1))
    # The bank's own commit, whose partitions lead to its files from the shop's folder.
    (commit,) = (path for path in bank.timeline.iterdir() if path.suffix == ".commit" and "_" in path.name)
    planted = shop.timeline / commit.name
    planted.write_bytes(commit.read_bytes())
    (shop.timeline / commit.name.split("_")[0]).with_suffix(".commit.requested").touch()
    (shop.timeline / commit.name.split("_")[0]).with_suffix(".inflight").touch()
    way = os.path.relpath(bank.path, shop.path)

    def aim(record: dict[str, Any]) -> None:
        for partition, stats in list(record["partitionToWriteStats"].items()):
            del record["partitionToWriteStats"][partition]
            record["partitionToWriteStats"][f"{way}/{partition}"] = stats
            for stat in stats:
                stat["partitionPath"], stat["path"] = f"{way}/{partition}", f"{way}/{stat['path']}"

    edit(planted, aim)
    sent: list[int] = []

    def read_all() -> None:
        source = shop.source()
        for one in source.read_timeline().completed:
            sent.extend(json.loads(change.key)["id"] for change in source.read(one))

    for small_rows in (reader_choice.SMALL_ROWS, -1):
        monkeypatch.setattr(reader_choice, "SMALL_ROWS", small_rows)
        with pytest.raises(DamagedFileError, match="is not in its table"):
            read_all()
    assert {*sent} <= {10, 11}


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


def test_pipe_in_the_metadata_table_ends_a_service_and_a_replication_at_once(
    spark: SparkSession, make_table: MakeTable
) -> None:
    shop = make_table("shop", type="COW")
    properties = shop.path / ".hoodie" / "metadata" / ".hoodie" / "hoodie.properties"
    properties.unlink()
    os.mkfifo(properties)
    began_s = time.monotonic()
    result = run(spark, shop.request(Mode.SCHEDULE, service=Service.CLEAN))
    assert result.outcome is Outcome.FAILED
    assert f"{properties} is a pipe, a socket or a device" in result.message
    with pytest.raises(SourceRefusedError, match=r"is a pipe, .*: remove it"):
        HudiSource(spark, str(shop.path), ChangeMode.CHANGES)
    assert time.monotonic() - began_s < patient(60)

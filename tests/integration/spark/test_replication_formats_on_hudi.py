"""Rows of real tables in Avro, which fastavro alone reads, and Protobuf, by the schema that Hudi's own commit names."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql import functions as F
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.replication.change import ChangeMode, Op, canonical, load_json
from airflow_lake_provider.replication.formats.avro import AvroFormat
from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat
from tests.support.schema_subject import Subject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRICE = decimal.Decimal("1234567890123456789012345678.0123456789")


def wide(rows: DataFrame, mode: ChangeMode) -> DataFrame:
    """Add what JSON has no type for, and nulls in every other row.

    Hudi 1.2's change data loses decimals, and entries of a map whose value is null: these are for mode latest.
    """
    name = F.lit('Zoë 漢字 🚀 "q"\n')
    none = F.lit(None).cast("string") if mode is ChangeMode.LATEST else F.lit("")
    notes = F.map_from_arrays(F.array(F.lit("k"), F.lit("none")), F.array(name, none))
    rows = rows.withColumn("name", F.when(F.col("id") % 2 == 0, name)).withColumn("notes", notes)
    rows = rows.withColumn("lines", F.array(F.struct(F.lit(1).alias("n"), name.alias("sku"))))
    rows = rows.withColumn("weight", (F.col("id") / 7).cast("float"))
    rows = rows.withColumn("day", F.when(F.col("id") % 2 == 0, F.col("day")))
    return rows.withColumn("price", F.lit(PRICE).cast("decimal(38,10)")) if mode is ChangeMode.LATEST else rows


def as_written(value: Any) -> Any:
    """Return a collected row as Avro gives it: aware times, bytes, no Row."""
    if hasattr(value, "asDict"):
        return {name: as_written(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {name: as_written(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_written(part) for part in value]
    if isinstance(value, bytearray):
        return bytes(value)
    # Spark collects in the process's own zone.
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


@pytest.mark.parametrize("mode", list(ChangeMode))
def test_rows_of_a_real_table_come_back_from_avro_and_protobuf(
    spark: SparkSession, tmp_path: Path, mode: ChangeMode
) -> None:
    lake = Lake(spark, tmp_path)
    lake.write(wide(lake.rows([1, 2, 3], ts=1), mode))
    lake.write(wide(lake.rows([2, 4], ts=2), mode))
    lake.write(lake.rows([3], ts=3).select("id", "part", "ts"), "delete")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source, form = lake.source(mode), AvroFormat(mode)
    protobuf = ProtobufFormat(mode, Subject(), Subject())
    replica: dict[int, Any] = {}
    for commit in sorted(source.read_timeline().completed, key=lambda one: one.order):
        for change in source.read(commit):
            message = form.message_of(change, commit, source.schema_of(commit))
            typed = protobuf.message_of(change, commit, source.schema_of(commit))
            # What both readers of a topic make of it is the text that Spark made of the row.
            for reader, content in ((form.reader, message), (protobuf.reader, typed)):
                row = None if content is None else reader.after(content)
                assert canonical(row or {}) == canonical(load_json(change.after or "{}"))
            record = None if message is None else next(iter(fastavro.reader(io.BytesIO(message))))
            if mode is ChangeMode.CHANGES:
                assert record["op"] == change.op.value
                assert (record["after"] is None) == (change.op is Op.DELETE)
                key, record = record["key"]["id"], record["after"]
            else:
                key = json.loads(change.key)["id"]
            replica[key] = record
    stored = spark.read.format("hudi").load(lake.path)
    fields = [name for name in stored.columns if not name.startswith("_hoodie_")]
    table = {row.id: as_written(row) for row in stored.select(*fields).collect()}
    assert set(table) == {1, 2, 4}
    assert replica == table | {3: None}
    if mode is ChangeMode.LATEST:
        assert replica[4]["price"] == PRICE

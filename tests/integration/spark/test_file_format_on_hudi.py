"""Files that services rewrite have codec, bloom filter and decimal types of the writers' files, judged by pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import LOCK, MakeTable, Table, run
from pyspark.sql import SparkSession, functions

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from local_stack import lake_writer

ZSTD = {"hoodie.parquet.compression.codec": "zstd", "hoodie.bloom.index.filter.type": "SIMPLE"}
BLOOM_TYPE = b"hoodie_bloom_filter_type_code"


def base_files(table: Table) -> set[Path]:
    return {path for path in table.path.rglob("*.parquet") if ".hoodie" not in path.parts}


def formats(files: set[Path]) -> set[tuple[str, bytes | None]]:
    found = set()
    for file in files:
        metadata = pyarrow.parquet.ParquetFile(file).metadata
        found.add((metadata.row_group(0).column(0).compression, (metadata.metadata or {}).get(BLOOM_TYPE)))
    return found


def test_compaction_and_clustering_keep_the_writers_codec_and_bloom_filter(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(**ZSTD)
    written = base_files(table)
    assert formats(written) == {("ZSTD", None)}
    for service in (Service.COMPACTION, Service.CLUSTERING):
        done = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert done.outcome is Outcome.COMPLETED, done.message
        rewritten = base_files(table) - written
        assert rewritten
        assert formats(rewritten) == formats(written)
        written |= rewritten

    chosen = LOCK | {"hoodie.parquet.compression.codec": "snappy"}
    lake_writer.write_commit(spark, table.written, 3, lake_writer.write_options(table.written, 3, None, {}))
    written = base_files(table)
    done = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, options=chosen))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert formats(base_files(table) - written) == {("SNAPPY", None)}


@pytest.mark.soak
def test_clustering_keeps_the_decimals_of_a_bulk_insert(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(lake_writer.WrittenTable("prices", str(tmp_path / "prices"), "COW"))
    options = {
        **lake_writer.write_options(table.written, 0, None, {}),
        "hoodie.datasource.write.operation": "bulk_insert",
    }
    for ids in ((0, 40), (40, 80)):
        orders = lake_writer.orders_of_commit(spark, table.written, 0).where(f"id >= {ids[0]} and id < {ids[1]}")
        priced = orders.withColumn("price", functions.expr("cast(amount as decimal(10, 2))"))
        priced.write.format("hudi").options(**options).mode("append").save(str(table.path))
    written = base_files(table)
    done = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert price_types(base_files(table) - written) == price_types(written)
    assert price_types(written) == {"FIXED_LEN_BYTE_ARRAY"}


def price_types(files: set[Path]) -> set[str]:
    schemas = [pyarrow.parquet.ParquetFile(file).schema for file in files]
    return {schema.column(schema.names.index("price")).physical_type for schema in schemas}

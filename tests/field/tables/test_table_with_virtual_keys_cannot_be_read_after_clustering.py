"""A table with virtual keys was unreadable after clustering: its files lay in the root folder.

Report: https://github.com/apache/hudi/pull/3315
Report: https://github.com/apache/hudi/pull/10272
Verdict: right
"""

from __future__ import annotations

import pyarrow.parquet
import pytest
from conftest import MakeTable, require_rows, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service

VIRTUAL = {"hoodie.populate.meta.fields": "false"}
COMPOSITE = {
    **VIRTUAL,
    "hoodie.datasource.write.recordkey.field": "id,customer",
    "hoodie.datasource.write.partitionpath.field": "city,day",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
}
HIVE_STYLE = {**VIRTUAL, "hoodie.datasource.write.hive_style_partitioning": "true"}
UNPARTITIONED = {
    **VIRTUAL,
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
}


@pytest.mark.parametrize(
    ("type", "version", "options"),
    [
        pytest.param("COW", 9, VIRTUAL, marks=pytest.mark.soak, id="copy-on-write"),
        pytest.param("MOR", 9, COMPOSITE, id="composite"),
        pytest.param("MOR", 6, VIRTUAL, marks=pytest.mark.soak, id="version-6"),
        pytest.param("COW", 6, COMPOSITE, marks=pytest.mark.soak, id="version-6-composite"),
        pytest.param("MOR", 9, HIVE_STYLE, marks=pytest.mark.soak, id="hive-style"),
        pytest.param("COW", 9, UNPARTITIONED, marks=pytest.mark.soak, id="unpartitioned"),
    ],
)
def test_clustered_files_lie_in_their_partitions(
    spark: SparkSession, make_table: MakeTable, type: str, version: int, options: dict[str, str]
) -> None:
    table = make_table(type=type, version=version, **options)
    before = {path for path in table.path.rglob("*.parquet") if ".hoodie" not in path.parts}
    done = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING))
    assert done.outcome is Outcome.COMPLETED, done.message
    require_rows(spark, table, 3)
    clustered = {path for path in table.path.rglob("*.parquet") if ".hoodie" not in path.parts} - before
    # By another reader: each file has the rows of its own folder.
    assert {path.parent for path in clustered} <= {path.parent for path in before}
    for path in clustered:
        cities = set(pyarrow.parquet.ParquetFile(path).read(["city"])["city"].to_pylist())
        folders = path.relative_to(table.path).parts[:-1]
        assert not folders or cities == {folders[0].removeprefix("city=")}
    for commit in (3, 4):
        write(spark, table.written, commit)
        require_rows(spark, table, commit + 1)

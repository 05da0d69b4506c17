"""Partitions that a sync missed, or that were dropped in the catalog alone, never came back.

Report: https://github.com/apache/hudi/issues/6277
Report: https://github.com/apache/hudi/issues/3890
Report: https://github.com/apache/hudi/issues/11721
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable

from airflow_lake_provider.job_contract import Outcome
from local_stack import lake_writer
from tests.support.catalog import DATABASE, Registered, metastore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from local_stack.hive import LocalMetastore

__all__ = ["metastore"]


def sync_as_writers_do(registered: Registered) -> None:
    """Run Hudi's tool with its defaults."""
    jvm = registered.spark._jvm
    settings = {
        "hoodie.datasource.meta.sync.base.path": str(registered.table.path),
        "hoodie.datasource.hive_sync.mode": "hms",
        "hoodie.datasource.hive_sync.database": DATABASE,
        "hoodie.datasource.hive_sync.table": registered.name,
        "hoodie.datasource.hive_sync.partition_fields": "city",
    }
    properties = jvm.java.util.Properties()
    for key, value in settings.items():
        properties.setProperty(key, value)
    conf = jvm.org.apache.hadoop.conf.Configuration(registered.spark._jsc.hadoopConfiguration())
    conf.set("hive.metastore.uris", registered.metastore.address)
    jvm.org.apache.hudi.hive.HiveSyncTool(properties, conf).syncHoodieTable()


@pytest.mark.soak
def test_partition_that_is_missing_in_the_catalog_comes_back(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    registered = Registered(spark, metastore, make_table(type="COW"))
    registered.sync()
    values = spark._jvm.java.util.ArrayList()
    values.add("Cork")
    delete_data = False
    registered.ask(lambda client: client.dropPartition(DATABASE, registered.name, values, delete_data))
    missing = [city for city in lake_writer.CITIES if city != "Cork"]
    orders = lake_writer.orders_of_commit(spark, registered.table.written, 3).where("city = 'Bilbao'")
    settings = lake_writer.write_options(registered.table.written, 3, None, {})
    orders.write.format("hudi").options(**settings).mode("append").save(str(registered.table.path))
    sync_as_writers_do(registered)
    assert registered.partitions() == missing, "Hudi's own sync follows the commits alone"
    result = registered.sync()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert registered.partitions() == sorted(lake_writer.CITIES)

"""A table keeps its own settings over what Hudi writes into its properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import MakeTable, run, write

from airflow_lake_provider.config.own_settings import apply_own
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.storage.table_storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_hudi_keeps_the_keys_when_it_rewrites_the_properties(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    jvm = spark._jvm
    wanted = jvm.java.util.Properties()
    wanted.setProperty("lake.clean.retained_commits", "7")
    wanted.setProperty("lake.clustering.sort_columns", "city,amount")
    # What the CLI's `table update-configs` calls.
    hadoop = spark._jsc.hadoopConfiguration()
    hudi = jvm.org.apache.hudi
    storage = hudi.storage.hadoop.HoodieHadoopStorage(
        str(table.path), hudi.hadoop.fs.HadoopFSUtils.getStorageConf(hadoop)
    )
    folder = hudi.storage.StoragePath(f"{table.path}/.hoodie")
    hudi.common.table.HoodieTableConfig.update(storage, folder, wanted)
    write(spark, table.written, 3)
    # A build of an index rewrites the file.
    policy = TablePolicy(indexing=IndexingPolicy(indexes=("record_index",)))
    options = dict(service_options(Service.INDEXING, policy))
    built = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=options))
    assert built.outcome is Outcome.COMPLETED, built.message
    properties = load_table_properties(open_storage(str(table.path)))
    assert "record_index" in properties.metadata_partitions
    tables = parse_tables_file(
        "defaults: {table_may_set: [clean.retained_commits 3..15, clustering.sort_columns]}\n", "tables.yaml"
    )
    own = apply_own(tables.policy_for(str(table.path), "orders"), properties.raw)
    assert (own.policy.clean.retained_commits, own.policy.clustering.sort_columns) == (7, ("city", "amount"))
    assert own.problems == ()

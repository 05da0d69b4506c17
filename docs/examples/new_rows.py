"""Copies exactly the rows of new commits: one Spark job for each range of commits of a run's events."""

from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, dag, task

from airflow_lake_provider.hooks.commit_ranges import find_ranges

ORDERS = Asset("file:///lake/orders")


@dag(schedule=[ORDERS], catchup=False)
def new_rows():
    @task
    def find(triggering_asset_events=None):
        ranges = find_ranges(triggering_asset_events.get(ORDERS, ()))
        return [[found.base_path, found.after, found.until, "/lake/copies/orders"] for found in ranges]

    # A run without commits, such as one after a service, skips it.
    SparkSubmitOperator.partial(
        task_id="copy",
        application=str(Path(__file__).with_name("rows_between.py")),
        jars="/opt/hudi/hudi-spark3.5-bundle_2.12-1.2.0.jar",
        conf={"spark.serializer": "org.apache.spark.serializer.KryoSerializer"},
        retries=3,
    ).expand(application_args=find())


new_rows()

"""Finds the classes of a table's owner that Hudi would load for a service, and that this job does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from lake_jobs.driver.failure import GIVE_JAR
from lake_jobs.hudi.owner_class_rules import name_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def find_missing_class(
    spark: SparkSession, state: LoadedTable, settings: Mapping[str, str], *, handles_rows: bool
) -> str:
    """Return which class is not on this job's class path, and what to do; empty when none is missing.

    Without it Hudi fails after it has left a plan, and in every later try.
    """
    properties = dict(state.meta_client.getTableConfig().getProps())
    for name, place in name_classes(settings, properties, handles_rows=handles_rows):
        if not _is_there(spark, name, state.meta_client):
            return f"the class {name} ({place}) is not on the class path of this job: {GIVE_JAR}"
    return ""


def _is_there(spark: SparkSession, name: str, neighbour: Any) -> bool:
    java = spark._jvm.java.lang
    initialize = False
    loaders = (neighbour.getClass().getClassLoader(), java.Thread.currentThread().getContextClassLoader())
    for loader in loaders:
        try:
            java.Class.forName(name, initialize, loader)
        except Py4JJavaError:
            continue
        return True
    return False

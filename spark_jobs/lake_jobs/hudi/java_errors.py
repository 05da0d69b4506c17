"""What Java throws, as it arrives in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import py4j.java_gateway
import py4j.protocol
from py4j.java_gateway import is_instance_of
from pyspark.errors.exceptions import captured

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession


def keep_java_errors() -> None:
    """Have each exception of Java arrive as Py4JJavaError, from now on, in this process.

    PySpark turns some into classes of its own (`pyspark.errors.exceptions.captured`), by the Java class: what Hudi
    throws as IllegalArgumentException, UnsupportedOperationException or NumberFormatException would pass all handlers
    of what failed in Hudi, so that a plan would stay pending that its failure should withdraw. PySpark turns that on
    again with each session that it makes, and it makes some by itself, for a function in Python.
    """
    captured.capture_sql_exception = lambda f: f
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value


def is_refused_question(spark: SparkSession, error: Py4JJavaError) -> bool:
    """Return whether Spark refused a query before it read a row, by its names or types."""
    gateway = spark.sparkContext._gateway
    return bool(is_instance_of(gateway, error.java_exception, "org.apache.spark.sql.AnalysisException"))

"""What the jobs need of Spark and py4j exists in Spark 4, without Hudi: `make spark4`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from py4j.java_gateway import JavaClass, JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

import lake_jobs  # noqa: E402
from lake_jobs.driver.application import jvm_pid  # noqa: E402
from lake_jobs.driver.failure import causes_of, describe  # noqa: E402
from lake_jobs.driver.java_names import prepare_java_names  # noqa: E402
from lake_jobs.hudi.files import open_path  # noqa: E402

MODULES = [name for _, name, _ in pkgutil.walk_packages(lake_jobs.__path__, "lake_jobs.")]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    prepare_java_names()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "1g").getOrCreate()
    yield session
    session.stop()


def test_this_is_spark_4() -> None:
    assert int(pyspark.__version__.partition(".")[0]) >= 4


@pytest.mark.parametrize("name", ["run_services", "replicate", *MODULES])
def test_module_can_be_imported(name: str) -> None:
    importlib.import_module(name)


def test_names_of_java_are_found_once_and_every_static_method(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert isinstance(jvm.java.util.ArrayList, JavaClass)
    assert isinstance(jvm.org.apache.hudi, JavaPackage)
    assert jvm.java.util is jvm.java.util
    # It has a `toString` that is static, and one that is not.
    assert jvm.java.lang.Integer.toString(7) == "7"


def test_drivers_process_and_java_errors_are_described(spark: SparkSession) -> None:
    assert jvm_pid(spark) > 0
    with pytest.raises(Py4JJavaError) as caught:
        spark._jvm.java.util.ArrayDeque().pop()
    assert "NoSuchElementException" in describe(causes_of(caught.value.java_exception))


def test_files_are_opened_by_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    system, path = open_path(spark, str(tmp_path / "a"))
    assert system.exists(path)
    assert system.getFileStatus(path).getLen() == 1

"""Static methods of Java are found whatever else has their name: which of two methods a JVM names first is chance."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import MakeTable
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lake_jobs.hudi.table import read_table_state


def test_static_method_is_found_next_to_another_of_its_name(spark: SparkSession, make_table: MakeTable) -> None:
    lang: Any = spark._jvm.java.lang
    called = lang.Integer
    assert called.toString(255, 16) == "ff"
    assert called.hashCode(7) == 7
    assert lang.Character.toString(97) == "a"
    assert lang.Long.toString(255, 16) == "ff"

    state = read_table_state(spark, make_table().written.base_path)
    again = spark._jvm.org.apache.hudi.common.table.HoodieTableMetaClient.reload(state.meta_client)
    assert again.getBasePath().toString() == state.meta_client.getBasePath().toString()


def test_what_is_not_there_fails_when_it_is_called(spark: SparkSession) -> None:
    lang: Any = spark._jvm.java.lang
    with pytest.raises(Py4JError, match=r"Method no_such_method\(\[\]\) does not exist"):
        lang.Integer.no_such_method()
    with pytest.raises(Py4JError, match="NO_SUCH_FIELD does not exist in the JVM"):
        _ = lang.Integer.NO_SUCH_FIELD
    assert isinstance(lang.Integer.MAX_VALUE, int)
    assert isinstance(lang.Thread.State, JavaClass)

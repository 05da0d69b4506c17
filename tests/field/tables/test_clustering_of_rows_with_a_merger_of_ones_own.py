"""Clustering with a custom record merger failed with "No valid spark merger implementation set".

Report: https://github.com/apache/hudi/issues/18980
Report: https://github.com/apache/hudi/pull/19007
Report: https://github.com/apache/hudi/issues/18161
Verdict: refused
Way out: leave clustering to the writers, or off; compaction runs with the class in `hudi_options` and its jar.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LOCK, run
from kept_rows import CITIES, COMPARE_ALL, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service, ServiceResult

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CUSTOM = "1897ef5f-18bc-4557-939c-9d6a8afd1519"
"""Hudi's name for rules that are not its own (`HoodieRecordMerger.CUSTOM_MERGE_STRATEGY_UUID`)."""
SOURCE = f"""
public class OwnMerger extends org.apache.hudi.DefaultSparkRecordMerger {{
  @Override
  public String getMergingStrategy() {{
    return "{CUSTOM}";
  }}
}}
"""
IMPLEMENTATIONS = "hoodie.write.record.merge.custom.implementation.classes"
OWN = {
    "hoodie.write.record.merge.mode": "CUSTOM",
    "hoodie.write.record.merge.strategy.id": CUSTOM,
    IMPLEMENTATIONS: "OwnMerger",
    "hoodie.parquet.small.file.limit": "0",
}


@pytest.fixture(scope="module")
def merger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the merger, and load it where Hudi is: its classes see no jar that is added later."""
    folder = tmp_path_factory.mktemp("merger")
    source = folder / "OwnMerger.java"
    source.write_text(SOURCE, encoding="utf-8")
    jvm: Any = spark._jvm
    java = jvm.java.lang
    subprocess.run(["javac", "-cp", java.System.getProperty("java.class.path"), str(source)], check=True)
    compiled = source.with_suffix(".class").read_bytes()
    gateway: Any = spark.sparkContext._gateway
    types = gateway.new_array(java.Class, 4)
    arguments = gateway.new_array(java.Object, 4)
    for at, (type, argument) in enumerate(
        (
            (java.Class.forName("java.lang.String"), "OwnMerger"),
            (java.Class.forName("[B"), compiled),
            (java.Integer.TYPE, 0),
            (java.Integer.TYPE, len(compiled)),
        )
    ):
        types[at] = type
        arguments[at] = argument
    define = java.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", types)
    can_access = True
    define.setAccessible(can_access)
    define.invoke(jvm.org.apache.hudi.DefaultSparkRecordMerger().getClass().getClassLoader(), arguments)


def require_rows(kept: KeptTable) -> None:
    """Assert that readers which name the merger see exactly the rows that were kept."""
    read = kept.spark.read.format("hudi").option(IMPLEMENTATIONS, "OwnMerger").load(str(kept.path))
    seen = sorted(map(tuple, read.select(*kept.columns).collect()), key=repr)
    assert seen == sorted(kept.rows.values(), key=repr)


def serve(kept: KeptTable, service: Service, options: dict[str, str]) -> ServiceResult:
    mode = Mode.SCHEDULE_AND_EXECUTE
    return run(kept.spark, kept.table.request(mode, service=service, options=options, service_options=COMPARE_ALL))


@pytest.mark.soak
def test_compaction_merges_by_it_and_clustering_is_refused(spark: SparkSession, tmp_path: Path, merger: None) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=OWN)
    kept.write(first_rows(), "insert")
    kept.write(((i, CITIES[i % 2], 1.0, 1) for i in range(20, 30)), "insert")
    for turn in (2, 3):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    require_rows(kept)
    named = LOCK | {IMPLEMENTATIONS: "OwnMerger"}
    for service, options, words in (
        (Service.COMPACTION, LOCK, f"set their {IMPLEMENTATIONS} in hudi_options"),
        (Service.CLUSTERING, named, "does not give to a clustering"),
    ):
        refused = serve(kept, service, options)
        assert refused.failure_kind is FailureKind.REFUSED, refused.message
        assert words in refused.message
    kept.write((i, CITIES[i % 2], 4.0, 4) for i in range(6))
    done = serve(kept, Service.COMPACTION, named)
    assert done.outcome is Outcome.COMPLETED, done.message
    require_rows(kept)
    kept.write((i, CITIES[i % 2], 5.0, 5) for i in range(6))
    require_rows(kept)

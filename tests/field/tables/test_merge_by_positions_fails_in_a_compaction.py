"""A compaction that merges by record positions failed on partial updates with a ClassCastException.

Report: https://github.com/apache/hudi/issues/13970
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BY_POSITIONS = {"hoodie.merge.use.record.positions": "true", "hoodie.write.record.positions": "true"}
PROPERTIES = (
    "type='mor', primaryKey='id', preCombineField='ts', hoodie.table.services.enabled='false', "
    "hoodie.write.record.positions='true'"
)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"])
def test_values_stay(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    name = f"by_positions_{mode}".lower()
    kept = KeptTable(spark, tmp_path / "t", columns=("id", "city", "amount", "ts", "note"))
    for key, value in BY_POSITIONS.items():
        spark.conf.set(key, value)
    try:
        spark.sql(
            f"create table {name} (id long, city string, amount double, ts long, note string) using hudi partitioned "
            f"by (city) location '{kept.path}' tblproperties ({PROPERTIES}, hoodie.record.merge.mode='{mode}')"
        )
        values = ", ".join(f"({i}, {i}.0, 10, 'n{i}', '{CITIES[i % 2]}')" for i in range(10))
        spark.sql(f"insert into {name} (id, amount, ts, note, city) values {values}")
        kept.rows = {i: (i, CITIES[i % 2], float(i), 10, f"n{i}") for i in range(10)}
        spark.sql(f"update {name} set amount = 5.5 where id < 4")
        spark.sql(f"delete from {name} where id in (8, 9)")
        city = f"element_at(array('{CITIES[0]}', '{CITIES[1]}'), cast(id % 2 + 1 as int))"
        spark.sql(
            f"merge into {name} t using (select id, {city} city, 11L ts, 'x' note from range(2, 6)) s on t.id = s.id "
            "and t.city = s.city when matched then update set note = s.note, ts = s.ts"
        )
        kept.forget((8, 9))
        for i in range(6):
            is_noted = i in range(2, 6)
            kept.rows[i] = (i, CITIES[i % 2], 5.5 if i < 4 else float(i), 10 + is_noted, "x" if is_noted else f"n{i}")
        kept.require_rows()
        for service in (Service.COMPACTION, Service.CLUSTERING):
            assert kept.serve(service, **BY_POSITIONS).outcome is Outcome.COMPLETED
            kept.require_rows()
    finally:
        for key in BY_POSITIONS:
            spark.conf.unset(key)
        spark.sql(f"drop table if exists {name}")

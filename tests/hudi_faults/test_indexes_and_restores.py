"""Faults of Hudi in indexes and restores, as stock Hudi shows them; one that fails here is fixed (`make next-hudi`).

The row of docs/limitations.md for each: `tools/hudi_faults.toml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/unit/tools/test_hudi_faults.py")

NAN = float("nan")
LONG = "z" * 5000
STATISTICS = "hoodie.metadata.index.column.stats.enable"
WITH_STATISTICS = {"hoodie.metadata.enable": "true", STATISTICS: "true"}
WITH_RECORD_INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
}


def found(kept: KeptTable, condition: str, *, skips: bool) -> list[object]:
    options = {"hoodie.enable.data.skipping": str(skips).lower(), "hoodie.metadata.enable": "true"}
    rows = kept.spark.read.format("hudi").options(**options).load(str(kept.path)).where(condition)
    return sorted(row["id"] for row in rows.select("id").collect())


def with_client(kept: KeptTable) -> Any:
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | dict(kept.options)
    return open_client(kept.spark, str(kept.path), settings | {"hoodie.table.services.enabled": "true"}, {})


@pytest.mark.parametrize("odd", ["nan", "long-text"])
def test_column_statistics_hide_rows(spark: SparkSession, tmp_path: Path, odd: str) -> None:
    columns = ("id", "city", "amount", "note", "ts")
    schema = "id long, city string, amount double, note string, ts long"
    kept = KeptTable(spark, tmp_path / "t", "COW", options=WITH_STATISTICS, schema=schema, columns=columns)
    kept.write(((i, CITIES[0], float(i), f"note {i}", 0) for i in range(8)), "bulk_insert")
    amount, note = (NAN, "x") if odd == "nan" else (50.0, LONG)
    kept.write([(20, CITIES[0], 40.0, "y", 0), (21, CITIES[0], amount, note, 0)], "bulk_insert")
    condition = "amount = 40.0" if odd == "nan" else "note = 'y'"
    assert found(kept, condition, skips=False) == [20]
    assert found(kept, condition, skips=True) == []


def test_a_search_by_the_record_index_finds_one_of_two_rows_with_one_key(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", "COW", options=WITH_RECORD_INDEX)
    kept.write(first_rows(), "bulk_insert")
    kept.write([(3, CITIES[1], 9.0, 9)], "bulk_insert")
    assert found(kept, "id = 3", skips=False) == [3, 3]
    assert found(kept, "id = 3", skips=True) == [3]


def test_a_restore_takes_back_a_write_that_completed_before_its_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", "COW", options={"hoodie.metadata.enable": "false"})
    kept.write(first_rows())
    kept.write([(100, CITIES[0], 1.0, 1)], "bulk_insert")
    kept.write([(101, CITIES[0], 1.0, 1)], "bulk_insert")
    (_, first), (_, last) = kept.table.spans("commit")[1:]
    requested = kept.table.spans("commit")[1][0]
    saved = kept.table.spans("commit")[2][0]
    # As a slow writer's: it began before the other and completed after it, still before the savepoint.
    slow = kept.table.timeline / f"{requested}_{first}.commit"
    slow.rename(slow.with_name(f"{requested}_{int(last) + 1}.commit"))
    assert {100, 101} <= {row[0] for row in kept.seen()}
    with with_client(kept) as client:
        client.savepoint(saved, "test", "")
    kept.write([(102, CITIES[0], 1.0, 1)], "bulk_insert")
    with with_client(kept) as client:
        client.restoreToSavepoint(saved)
    assert [row[0] for row in kept.seen() if row[0] in {100, 101, 102}] == [101]

"""Faults of Hudi in rows and files, as stock Hudi shows them; one that fails here is fixed (`make next-hudi`).

The row of docs/limitations.md for each: `tools/hudi_faults.toml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kept_rows import CITIES, KeptTable, first_rows
from py4j.protocol import Py4JJavaError

from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/unit/tools/test_hudi_faults.py")

LISTED = {"hoodie.metadata.enable": "false"}
EAGER = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.table.services.enabled": "true",
}


def with_client(kept: KeptTable) -> Any:
    version = {"hoodie.write.table.version": str(kept.version), "hoodie.write.auto.upgrade": "false"}
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | EAGER | version | dict(kept.options)
    return open_client(kept.spark, str(kept.path), settings, {})


def update(kept: KeptTable, turns: range, ids: range = range(6)) -> None:
    for turn in turns:
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in ids)


def expected(kept: KeptTable) -> list[tuple[object, ...]]:
    return sorted(kept.rows.values(), key=repr)


def test_rows_of_a_table_in_the_folder_of_another_one_appear(spark: SparkSession, tmp_path: Path) -> None:
    outer = KeptTable(spark, tmp_path / "t", "COW", options=LISTED)
    outer.write(first_rows())
    inner = KeptTable(spark, outer.path / "old" / "orders", "COW", options=LISTED)
    inner.write((i, CITIES[i % 2], 1.0, 1) for i in range(100, 110))
    update(outer, range(1, 7))
    assert outer.seen(metadata=False) == expected(outer)
    with with_client(outer) as client:
        client.archive()
    assert {row[0] for row in outer.seen(metadata=False)} - set(outer.rows) == set(inner.rows)


def test_files_that_come_back_after_their_rollback_show_their_rows_after_archiving(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = KeptTable(spark, tmp_path / "t", "COW", options=LISTED)
    kept.write(first_rows())
    known, done = set(kept.path.glob("*/*.parquet")), kept.table.completed()
    rows = dict(kept.rows)
    kept.write((i, CITIES[i % 2], 77.0, 77) for i in (100, 101))
    kept.rows = rows
    written = {file: file.read_bytes() for file in set(kept.path.glob("*/*.parquet")) - known}
    (dead,) = kept.table.completed() - done
    next(kept.table.timeline.glob(f"{dead}_*.commit")).unlink()
    with with_client(kept) as client:
        assert client.rollback(dead)
    for file, content in written.items():
        file.write_bytes(content)
    kept.write((i, f"{CITIES[i % 2]} 2", 1.0, 1) for i in range(200, 204))
    for turn in range(2, 7):
        kept.write((i, f"{CITIES[i % 2]} 2", float(turn), turn) for i in range(200, 204))
    assert kept.seen(metadata=False) == expected(kept)
    with with_client(kept) as client:
        client.archive()
    assert {row[0] for row in kept.seen(metadata=False)} - set(kept.rows) == {100, 101}


def test_a_null_ordering_value_fails_readers(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t")
    kept.write(first_rows())
    update(kept, range(1, 2))
    kept.write([(0, CITIES[0], 2.0, None)])
    kept.write([(0, CITIES[0], 3.0, 3)])
    with pytest.raises(Py4JJavaError):
        kept.seen()


def test_readers_fail_where_a_type_in_a_struct_has_become_wider(spark: SparkSession, tmp_path: Path) -> None:
    columns = ("id", "city", "amount", "ts", "note")
    begin = "id long, city string, amount double, ts long, note"
    kept = KeptTable(spark, tmp_path / "t", "COW", columns=columns, schema=f"{begin} struct<a:int>")
    kept.write((i, CITIES[i % 2], 1.0, 0, (i,)) for i in range(12))
    kept.schema = f"{begin} struct<a:double>"
    kept.write(((i, CITIES[i % 2], 1.0, 2, (1.5,)) for i in range(100, 103)), "insert")
    with pytest.raises(Py4JJavaError, match="Nested types with type changes"):
        kept.seen()


def test_a_deleted_row_comes_back_with_a_smaller_ordering_value(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t")
    kept.write(first_rows())
    update(kept, range(5, 6))
    late = [(0, CITIES[0], 1.0, 1)]
    kept.append(spark.createDataFrame([(0, CITIES[0], 6.0, 6)], kept.schema), "delete")
    kept.append(spark.createDataFrame(late, kept.schema))
    assert [row for row in kept.seen() if row[0] == 0] == late


@pytest.mark.parametrize("payload", ["OverwriteNonDefaultsWithLatestAvroPayload", "PartialUpdateAvroPayload"])
def test_a_partial_row_after_a_deletion_takes_values_from_before_it(
    spark: SparkSession, tmp_path: Path, payload: str
) -> None:
    options = {"hoodie.datasource.write.payload.class": f"org.apache.hudi.common.model.{payload}"}
    kept = KeptTable(spark, tmp_path / "t", options=options)
    kept.write(first_rows(2))
    kept.append(spark.createDataFrame([(1, CITIES[1], 0.0, 2)], kept.schema), "delete")
    kept.write([(1, CITIES[1], None, 3)])
    assert kept.seen() == [(0, CITIES[0], 0.0, 0), (1, CITIES[1], 1.0, 3)]


@pytest.mark.parametrize("mode", ["EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"])
def test_merge_into_meets_a_deleted_row(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    name = f"met_{mode}".lower()
    kept = KeptTable(spark, tmp_path / "t", columns=("id", "amount", "ts", "note"))
    spark.sql(
        f"create table {name} (id long, amount double, ts long, note string) using hudi location '{kept.path}' "
        f"tblproperties (type='mor', primaryKey='id', preCombineField='ts', hoodie.record.merge.mode='{mode}', "
        "hoodie.table.services.enabled='false')"
    )
    spark.sql(f"insert into {name} values (1, 1.0, 10, 'a'), (2, 2.0, 10, 'b')")
    spark.sql(f"delete from {name} where id = 1")
    assert kept.seen() == [(2, 2.0, 10, "b")]
    spark.sql(
        f"merge into {name} t using (select * from values (1L, 5D, 20L), (2L, 6D, 20L) as v(id, amount, ts)) s "
        "on t.id = s.id when matched then update set amount = s.amount, ts = s.ts"
    )
    if mode == "EVENT_TIME_ORDERING":
        assert kept.seen() == [(1, 5.0, 20, "a"), (2, 6.0, 20, "b")]
    else:
        with pytest.raises(Py4JJavaError, match="NullPointerException"):
            kept.seen()
    spark.sql(f"drop table {name}")

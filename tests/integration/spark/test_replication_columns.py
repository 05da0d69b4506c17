"""Columns that must not leave a table, or not as they are: in every sink's place, read back without the provider."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.pump import Order
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = {
    "column.exclude.list": "blob, days, inner",
    "column.mask.hash.SHA-256": "name",
    "column.mask.hash.salt": "pepper",
    "column.mask.with.4.chars": "moment",
}
LEFT = ["day", "id", "moment", "name", "part", "ratio", "ts"]


def hidden(name: str | None) -> str | None:
    return name and hashlib.sha256(f"pepper{name}".encode()).hexdigest()


def of_files(folder: Path) -> list[dict[str, Any]]:
    state: dict[str, dict[str, Any] | None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines()[:-1]:
            body = json.loads(line)
            assert body["before"] is None or sorted(body["before"]) == LEFT
            state[json.dumps(body["key"])] = body["after"]
    return [row for row in state.values() if row is not None]


def of_parquet(folder: Path) -> list[dict[str, Any]]:
    state: dict[str, dict[str, Any] | None] = {}
    for path in sorted(folder.glob("*.parquet")):
        for body in pyarrow.parquet.read_table(path).to_pylist():
            state[json.dumps(body["key"])] = body["after"]
    return [row for row in state.values() if row is not None]


def of_database(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("select * from mirror")]


def of_lake(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    rows = spark.read.format("hudi").load(path)
    names = [name for name in rows.columns if not name.startswith("_hoodie_")]
    return [row.asDict() for row in rows.select(*names).collect()]


def run(
    lake: Lake, kind: str, rules: dict[str, str] = RULES, *, verify: bool = False, **options: str
) -> ReplicationResult:
    name = "-".join((kind, *options.get("format", "").split()))
    request = ReplicationRequest(
        lake.path,
        "events",
        kind,
        Order(f"events.{name}"),
        str(lake.folder / "result.json"),
        options={**rules, **options},
        is_verification=verify,
    )
    return replicate(lake.spark, request)


def test_columns_that_an_entry_hides_are_hidden_in_every_sink_and_verify_follows(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path)
    database, other = tmp_path / "mirror.db", str(tmp_path / "other" / "events")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"create table mirror ({', '.join(LEFT)}, primary key (id, part))")
    sinks = [
        ("file", {"path": str(tmp_path / "json")}),
        ("file", {"path": str(tmp_path / "parquet"), "format": "parquet"}),
        ("database", {"url": f"sqlite:///{database}", "table": "mirror"}),
        ("hudi", {"path": other, **ONE_TASK}),
    ]
    lake.write(lake.rows(range(4), ts=1))
    for kind, options in sinks:
        assert run(lake, kind, **options).message == ""
    lake.write(lake.rows([2, 5], ts=2))
    lake.write(lake.rows([3], ts=3), "delete")
    for kind, options in sinks:
        result = run(lake, kind, verify=options.get("format") != "parquet", **options)
        assert result.message == ""
        assert result.verified.startswith("the sink has the table's 4 rows" if "format" not in options else "")
    table = spark.read.format("hudi").load(lake.path).select("id", "name", "ts", "part").collect()
    expected = sorted((row["id"], hidden(row["name"]), row["ts"], row["part"], "****") for row in table)
    assert len(expected) == 4
    found = {
        "json": of_files(tmp_path / "json"),
        "parquet": of_parquet(tmp_path / "parquet"),
        "database": of_database(database),
        "hudi": of_lake(spark, other),
    }
    for where, rows in found.items():
        seen = sorted((row["id"], row["name"], row["ts"], row["part"], row["moment"]) for row in rows)
        assert seen == expected, where
        assert {name for row in rows for name in row} - {"_hoodie_is_deleted"} == set(LEFT), where
    # A column of the key has no rule, and what a rule names must be there.
    for rules, said in (
        ({"column.exclude.list": "part"}, "a column of the key"),
        ({"column.exclude.list": "nmae"}, "has no column 'nmae'"),
    ):
        refused = run(lake, "noop", rules)
        assert refused.failure_kind is FailureKind.REFUSED
        assert said in refused.message

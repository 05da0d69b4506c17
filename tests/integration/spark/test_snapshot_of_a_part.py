"""Rows of a part of a table reach a running stream once more: those that a request chooses, and no others.

The judge spoils the sinks' places behind their backs, and reads them without the provider.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(lake: Lake, kind: str, rows: str = "", **options: str) -> ReplicationResult:
    mode = ChangeMode.LATEST if kind == "database" else ChangeMode.CHANGES
    request = ReplicationRequest(
        lake.path, "events", kind, Order(f"events.{kind}"), str(lake.folder / "result.json"), mode,
        options=options, rows=rows,
    )  # fmt: skip
    return replicate(lake.spark, request)


def test_chosen_rows_come_once_more_between_the_changes(spark: SparkSession, tmp_path: Path) -> None:
    lake, database = Lake(spark, tmp_path, "MOR", **ONE_TASK), tmp_path / "mirror.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table mirror (id integer, part text, ts integer, primary key (id, part))")
    mirror = {"url": f"sqlite:///{database}", "table": "mirror", "columns": "id, part, ts"}
    files = {"path": str(tmp_path / "files")}
    lake.write(lake.rows(range(8), ts=1))
    for kind, options in (("database", mirror), ("file", files)):
        assert run(lake, kind, **options).message == ""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("delete from mirror where id in (2, 4, 5)")
    # A commit that the sinks lack comes first, and the rows are of the time after it.
    lake.write(lake.rows([2], ts=2))
    part = "part = 'p0' and id >= 2 and id < 6"
    for kind, options in (("database", mirror), ("file", files)):
        result = run(lake, kind, rows=part, max_transaction_rows="1", **options)
        assert (result.message, result.snapshot_reason, result.rows) == ("", "", 3)
    with closing(sqlite3.connect(database)) as connection:
        found = sorted(connection.execute("select id, ts from mirror"))
    assert found == [(0, 1), (1, 1), (2, 2), (3, 1), (4, 1), (6, 1), (7, 1)]
    delivered = lake.delivered()
    sent = [(checkpoint.generation, record) for checkpoint, records in delivered[-2:] for record in records]
    assert [(generation, record["op"], record["key"]["id"], record["after"]["ts"]) for generation, record in sent] == [
        (1, "r", 2, 2), (1, "r", 4, 1),
    ]  # fmt: skip
    # The stream goes on from where it was.
    lake.write(lake.rows([4], ts=3))
    after = run(lake, "file", **files)
    assert (after.commits, from_text(after.checkpoint).generation) == (1, 1)
    assert lake.replica()[4]["ts"] == 3
    for rows, kind, said in (
        ("day = '2026-13-01'", "file", "write a date"),
        ("id = 1", "noop", "keeps no position"),
    ):
        refused = run(lake, kind, rows=rows, **(files if kind == "file" else {}))
        assert refused.failure_kind is FailureKind.REFUSED
        assert said in refused.message

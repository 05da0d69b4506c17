"""Columns that must not leave a table, or not as they are: in every sink's place, read back without the provider."""

from __future__ import annotations

import datetime
import hashlib
import json
import random
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
from pyspark.sql import functions as F
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.options import TakenOptions
from airflow_lake_provider.sink_options.run import take_columns
from lake_jobs.replication.change_columns import row_json
from lake_jobs.replication.column_rules import ColumnRules, rules_of
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


def row_by_row(text: str, rules: ColumnRules, salt: str) -> str:
    """Return a row's JSON as the documentation says of the rules, from its text; what is kept keeps each character."""
    decode, kept, at = json.JSONDecoder().raw_decode, [], 1
    while text[at] != "}":
        name, end = decode(text, at)
        _, at = decode(text, end + 1)
        part = text[end + 1 : at]
        if part != "null" and name in rules.masked:
            part = f'"{"*" * rules.masked[name]}"'
        elif part != "null" and name in rules.hashed:
            value = json.loads(part) if part.startswith('"') else part
            part = f'"{hashlib.sha256(f"{salt}{value}".encode()).hexdigest()}"'
        if rules.has(name):
            kept.append(f"{json.dumps(name, ensure_ascii=False)}:{part}")
        at += text[at] == ","
    return "{" + ",".join(kept) + "}"


TYPES = {
    "id": "bigint", "text": "string", "price": "decimal(38,5)", "ratio": "double", "small": "float", "yes": "boolean",
    "day": "date", "moment": "timestamp", "local": "timestamp_ntz", "blob": "binary", "tags": "map<string,string>",
    "inner": "struct<x: int, at: date, name: string>", "days": "array<date>", "odd `na.me": "string",
}  # fmt: skip
CHARACTERS = "aZ0 \"\\/{}[]:,\n\t\x00\x7fä€𝄞*'`"


def random_rows(draw: random.Random, number: int) -> list[tuple[Any, ...]]:
    def text() -> str:
        return "".join(draw.choices(CHARACTERS, k=draw.randint(0, 12)))

    def day() -> datetime.date:
        return datetime.date(1900, 1, 1) + datetime.timedelta(days=draw.randrange(80_000))

    def moment() -> datetime.datetime:
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=draw.randrange(2**51))  # noqa: DTZ001

    def some(value: Any) -> Any:
        return None if draw.random() < 0.2 else value

    def row(at: int) -> tuple[Any, ...]:
        number = draw.choice([float("nan"), float("inf"), 1e300, -0.0, draw.random(), draw.uniform(-1e9, 1e9)])
        price = Decimal(draw.randrange(-(10**37), 10**37)).scaleb(-5)
        return (
            at, some(text()), some(price), some(number), some(draw.uniform(-9, 9)), some(draw.random() < 0.5),
            some(day()), some(moment()), some(moment()), some(draw.randbytes(draw.randint(0, 9))),
            some({text(): some(text()) for _ in range(draw.randint(0, 3))}),
            some((some(1), some(day()), some(text()))), some([some(day()) for _ in range(draw.randint(0, 3))]),
            some(text()),
        )  # fmt: skip

    return [row(at) for at in range(number)]


def test_rules_hide_by_column_what_they_hide_row_by_row_and_no_plan_shows_the_salt(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    draw, salt = random.Random(17), 'pep"per, ä'
    schema = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in TYPES.items())
    rows = spark.createDataFrame(random_rows(draw, 200), schema)
    printed = [row[0] for row in rows.select(row_json(rows.schema)).collect()]
    struct = rows.select(F.when(F.col("id") % 7 != 0, F.struct("*")).alias("row"))
    for _ in range(6):
        names = draw.sample(list(TYPES)[1:], len(TYPES) - 1)
        hashed, masked, left = names[:4], names[4:6], names[6:9]
        listed = "column.exclude.list" if draw.random() < 0.5 else "column.include.list"
        options = {
            listed: ",".join(left if listed == "column.exclude.list" else names[:9]),
            "column.mask.hash.SHA-256": ",".join(hashed),
            "column.mask.hash.salt": salt,
            "column.mask.with.3.chars": ",".join(masked),
        }
        rules = rules_of(take_columns(TakenOptions(options, "the sink")), "orders").for_key(("id",), list(TYPES))
        expected = [row_by_row(text, rules, salt) for text in printed]
        shown = rows.select(rules.image(rows.schema))
        assert [row[0] for row in shown.collect()] == expected
        of_struct = struct.select(rules.image(rows.schema, "row").alias("image")).collect()
        assert [row[0] for row in of_struct] == [text if at % 7 else None for at, text in enumerate(expected)]
        assert "pep" not in shown._jdf.queryExecution().toString()
        assert "pep" not in shown._jdf.queryExecution().executedPlan().treeString()


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

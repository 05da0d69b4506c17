"""What the database sink copies into PostgreSQL is what it writes value by value, and what it cannot copy it writes so.

Random changes go through two sinks, of which one never copies; the judge is the server's own text of both tables.
"""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

import airflow_lake_provider.replication.sinks.database as database
from airflow_lake_provider.errors import RecordRefusedError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from airflow_lake_provider.replication.sinks.database_copy import CopiedStep
from local_stack.postgres import LocalPostgres
from tests.support.plain_sql import run_sql

COLUMNS: dict[str, tuple[str, Any, list[Any]]] = {
    "name": (
        "text",
        "string",
        ["", "a", "q\"u'o", "line\nbreak\r\n", "\\.", "\\N", "tab\t,", "é\u2028😀", "NULL", " "],
    ),
    "short": ("varchar(9)", "string", ["", "x", "123456789"]),
    "n": ("integer", "int", [0, -1, 2**31 - 1, -(2**31)]),
    "big": ("bigint", "long", [0, 2**63 - 1, -(2**63)]),
    "wide": ("numeric", "long", [2**63 - 1]),
    "ok": ("boolean", "boolean", [True, False]),
    # Not -0.0, whose sign only a copy keeps.
    "ratio": ("double precision", "double", [0.1, 1e300, 5e-324, 3]),
    "single": ("real", "float", [0.1, 3.5]),
    "price": (
        "numeric(38,10)",
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
        ["1.25", "1234567890123456789012345678.0123456789", "-0.0000000001"],
    ),
    "day": ("date", {"type": "int", "logicalType": "date"}, ["2026-02-28", "0001-01-01", "9999-12-31"]),
    "at": (
        "timestamptz",
        {"type": "long", "logicalType": "timestamp-micros"},
        ["2026-03-01T10:00:00.123456Z", "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999999Z"],
    ),
    "bare": ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}, ["2026-03-01T10:00:00.123456Z"]),
    "local": ("timestamptz", {"type": "long", "logicalType": "local-timestamp-micros"}, ["1999-12-31T23:59:59.5"]),
    'odd "na:me%s': ("text", "string", ["x"]),
}
KEYS = {"id": ("bigint", "long"), "part": ("text", "string")}


def schema_of(fields: dict[str, Any]) -> str:
    listed = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "r", "fields": listed})


SCHEMA = schema_of(
    {name: kind for name, (_, kind) in KEYS.items()} | {name: kind for name, (_, kind, _) in COLUMNS.items()}
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Twins:
    """Two tables with a sink each; the first copies."""

    def __init__(self, server: LocalPostgres, constraint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.sent, self.copied = server.url, 0, 0
        columns = ", ".join(
            f"{quoted(name)} {kind}"
            for name, kind in {n: k for n, (k, *_) in (KEYS | COLUMNS).items()}.items()  # type: ignore[operator]
        )
        self.names = [f"t{uuid.uuid4().hex[:12]}{which}" for which in "ab"]
        for name in self.names:
            self.sql(f"create table {name} ({columns}{constraint})".replace(":", r"\:"))
        self.sinks = [self.sink(name) for name in self.names]
        assert isinstance(self.sinks[1], database.DatabaseSink)
        self.sinks[1]._copies = None
        copy = database.DatabaseSink._copy

        def counted(sink: Any, connection: Any, table: Any, step: CopiedStep) -> bool:
            took = copy(sink, connection, table, step)
            self.copied += took
            return took

        monkeypatch.setattr(database.DatabaseSink, "_copy", counted)

    def sink(self, name: str, **options: str) -> Sink:
        settings = {"url": self.url, "table": name, **options}
        found = create_sink("database", SinkSettings(f"{name}.s", "t", ChangeMode.LATEST, settings))
        found.open()
        return found

    def send(self, blocks: list[list[Change]], *, begins: bool = False) -> None:
        self.sent += 1
        for sink, name in zip(self.sinks, self.names, strict=True):
            for number, block in enumerate(blocks):
                sink.write(Batch(commit_ref(self.sent), block, 1, begins and number == 0, SCHEMA))
            sink.commit(checkpoint(f"{name}.s", self.sent))

    def same_rows(self) -> list[tuple[Any, ...]]:
        rows = [sorted(self.sql(f"select {name}::text from {name}")) for name in self.names]
        assert rows[0] == rows[1]
        return rows[0]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.url, statement)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def draw_block(chance: random.Random, keys: list[dict[str, Any]]) -> list[Change]:
    found = []
    for _ in range(chance.randrange(1, 12)):
        key = chance.choice(keys)
        op = chance.choice([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.READ])
        row = key | {name: chance.choice([None, *values]) for name, (_, _, values) in COLUMNS.items()}
        # Decimals are numbers in JSON, with all their digits.
        text = json.dumps(row).replace(json.dumps(row["price"]), str(row["price"] or "null"))
        found.append(Change(op, json.dumps(key), None, None if op is Op.DELETE else text))
    return found


@pytest.mark.parametrize(
    ("constraint", "has_nulls"),
    [(", primary key (id, part)", False), ("", False), (", unique (id, part)", True), ("", True)],
)
@pytest.mark.parametrize("seed", range(2))
def test_copied_rows_are_the_rows_that_are_written_one_by_one(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch, constraint: str, has_nulls: bool, seed: int
) -> None:
    chance = random.Random(seed)
    twins = Twins(postgres, constraint, monkeypatch)
    keys = [{"id": number, "part": part} for number in range(6) for part in ("a", "", *([None] if has_nulls else []))]
    for number in range(8):
        twins.send([draw_block(chance, keys) for _ in range(3)], begins=number in (0, 5))
        twins.same_rows()
    assert twins.same_rows()
    assert twins.copied > (1 if has_nulls else 5)
    twins.close()


@pytest.mark.parametrize(
    ("column", "bad"), [("n", 2**31), ("short", "ten signs.."), ("name", "b\0c"), ("day", "+10000-01-01")]
)
def test_record_that_the_server_refuses_is_the_only_one_that_is_left_out(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch, column: str, bad: Any
) -> None:
    twins = Twins(postgres, ", primary key (id, part)", monkeypatch)
    rows = [{"id": number, "part": "a", column: COLUMNS[column][2][0]} for number in range(20)]
    rows[13][column] = bad
    block = [Change(Op.READ, json.dumps({"id": row["id"], "part": "a"}), None, json.dumps(row)) for row in rows]
    with pytest.raises(RecordRefusedError, match="13"):
        twins.send([block])
    twins.close()
    for sink in (twins.sink(twins.names[0], on_record_error="dead_letter"),):
        sink.write(Batch(commit_ref(9), block, 1, schema=SCHEMA))
        sink.commit(checkpoint(f"{twins.names[0]}.s", 9))
        sink.close()
    found = {row[0] for row in twins.sql(f"select id from {twins.names[0]}")}
    assert found == {*range(20)} - {13}
    (letter,) = twins.sql(f"select change_json from lake_dead_letter where stream = '{twins.names[0]}.s'")
    assert json.loads(letter[0])["after"] == rows[13]


def test_rows_of_a_snapshot_that_are_there_all_the_same_are_merged(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Twins(postgres, ", primary key (id, part)", monkeypatch)
    block = [Change(Op.READ, '{"id":1,"part":"a"}', None, f'{{"id":1,"part":"a","n":{n}}}') for n in (1, 2)]
    twins.send([block[:1], block[1:], block[1:]], begins=True)
    assert len(twins.same_rows()) == 1
    assert twins.copied == 3
    twins.close()


def test_login_without_a_right_to_temporary_tables_writes_row_by_row(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Twins(postgres, ", primary key (id, part)", monkeypatch)
    twins.close()
    role = f"r{uuid.uuid4().hex[:12]}"
    twins.sql(f"create role {role} login password 'x'")
    twins.sql("revoke temporary on database airflow from public")
    try:
        for table in (twins.names[0], "lake_checkpoint", "lake_target"):
            twins.sql(f"grant all on {table} to {role}")
        twins.url = postgres.url.replace("airflow@", f"{role}:x@")
        sink = twins.sink(twins.names[0])
        for number in (1, 2):
            row = f'{{"id":1,"part":"a","n":{number}}}'
            sink.write(
                Batch(commit_ref(number), [Change(Op.UPDATE, '{"id":1,"part":"a"}', None, row)], 1, schema=SCHEMA)
            )
            sink.commit(checkpoint(f"{twins.names[0]}.s", number))
        sink.close()
    finally:
        twins.url = postgres.url
        twins.sql("grant temporary on database airflow to public")
    assert twins.copied == 0
    assert twins.sql(f"select id, n from {twins.names[0]}") == [(1, 2)]

"""Tables of PostgreSQL that the database sink makes and widens, with the server's own catalogue as the judge."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError, RecordRefusedError, SinkRefusedError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op
from airflow_lake_provider.replication.checkpoint import SnapshotProgress
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.postgres import LocalPostgres
from tests.support.killed_mirrors import MirrorStory
from tests.support.postgres_target import INT, LONG, MICROS, NESTED, TEXT, Target, quoted, schema_of


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def test_table_is_made_with_the_types_of_the_schema_and_the_key(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    fields = {
        "price": decimal(20, 4), "id": LONG, "part": TEXT, "n": INT, "at": MICROS, "ok": "boolean", "st": NESTED,
        "day": {"type": "int", "logicalType": "date"}, "ratio": "double", "blob": "bytes",
        "bare": {"type": "long", "logicalType": "local-timestamp-micros"},
    }  # fmt: skip
    row = {"id": 1, "part": "a", "n": 7, "at": "2026-01-01T00:00:00Z", "st": {"a": 1}, "blob": "AAE="}
    target.send(fields, row, {**row, "part": None}, key=("id", "part"))
    assert target.kinds() == {
        "id": "bigint", "part": "text", "price": "numeric(20,4)", "n": "integer", "at": "timestamp with time zone",
        "ok": "boolean", "st": "json", "day": "date", "ratio": "double precision", "blob": "bytea",
        "bare": "timestamp without time zone",
    }  # fmt: skip
    target.send(fields, {**row, "n": 8}, {**row, "part": None, "n": 9}, key=("id", "part"))
    assert sorted(target.sql(f"select part, n from {target.name}"), key=str) == [("a", 8), (None, 9)]
    ((definition,),) = target.sql(
        f"select pg_get_constraintdef(oid) from pg_constraint where conrelid = '{target.name}'::regclass"
    )
    assert definition == "UNIQUE (id, part)"


def test_names_are_quoted_whatever_they_are(postgres: LocalPostgres) -> None:
    name = f'Odd "t:%s {uuid.uuid4().hex[:8]}'
    target = Target(postgres, name, create="true")
    fields = {"Id": LONG, 'a"b:c%s': TEXT, "select": TEXT}
    target.send(fields, {"Id": 1, 'a"b:c%s': "x", "select": "y"}, key=("Id",))
    target.send({**fields, 'la"te:%s': INT}, {"Id": 1, 'a"b:c%s': "z", "select": "y", 'la"te:%s': 5}, key=("Id",))
    assert target.sql(f"select * from {quoted(name)}") == [(1, "z", "y", 5)]
    assert list(target.kinds()) == [*fields, 'la"te:%s']


def test_keys_that_are_no_columns_of_the_rows_get_theirs(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    key = ("st.a", "_hoodie_partition_path")
    row = {"st": {"a": 3}, "st.a": 3, "_hoodie_partition_path": "p"}
    target.send({"st": NESTED}, row, key=key)
    assert target.kinds() == {"st.a": "bigint", "_hoodie_partition_path": "text", "st": "json"}


def test_only_the_wanted_columns_are_made(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true", columns="n")
    target.send({"id": LONG, "n": INT, "secret": TEXT}, {"id": 1, "n": 2, "secret": "x"})
    assert target.kinds() == {"id": "bigint", "n": "integer"}


def test_table_in_a_schema_that_is_missing_is_refused_with_its_name(postgres: LocalPostgres) -> None:
    with pytest.raises(SinkRefusedError, match='schema "nowhere" does not exist'):
        Target(postgres, "nowhere.t", create="true").open()


def test_table_that_was_dropped_is_made_again_and_counts_as_another(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    target.send({"id": LONG}, {"id": 1})
    sink = target.open()
    before = sink.find_target()  # type: ignore[attr-defined]
    sink.close()
    target.sql(f"drop table {target.name}")
    sink = target.open()
    after = sink.find_target()  # type: ignore[attr-defined]
    sink.close()
    assert before.identity != after.identity
    assert after.is_empty


WIDENED = [
    (INT, LONG, 5, 2**40, "bigint"),
    (INT, "double", 5, 0.5, "double precision"),
    (LONG, "double", 5, 0.5, "double precision"),
    (decimal(6, 2), decimal(12, 2), 1.25, 12345678.25, "numeric(12,2)"),
    (decimal(6, 2), decimal(9, 4), 1.25, 1.2345, "numeric(9,4)"),
    (INT, decimal(14, 2), 5, 12345678901.25, "numeric(14,2)"),
]


@pytest.mark.parametrize(("before", "after", "small", "large", "kind"), WIDENED)
def test_columns_are_widened_where_the_entry_allows_it(
    postgres: LocalPostgres, before: Any, after: Any, small: Any, large: Any, kind: str
) -> None:
    target = Target(postgres, create="true")
    target.send({"id": LONG, "v": before}, {"id": 1, "v": small})
    for policy in ("add", "strict"):
        with suppress(RecordRefusedError):  # or the server rounds it
            target.send({"id": LONG, "v": after}, {"id": 2, "v": large}, evolve=policy)
        assert target.kinds()["v"] != kind
    target.send({"id": LONG, "v": after}, {"id": 2, "v": large}, evolve="widen")
    assert target.kinds()["v"] == kind
    assert [float(v) for (v,) in target.sql(f"select v from {target.name} order by id")] == [small, large]
    # A commit of before, in another order: nothing is narrowed.
    target.send({"id": LONG, "v": before}, {"id": 3, "v": small}, evolve="widen")
    assert target.kinds()["v"] == kind


def test_columns_of_the_owner_that_are_wide_enough_stay(postgres: LocalPostgres) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, a numeric, b text, c real, d bigint, e varchar(3))")
    fields = {"id": LONG, "a": LONG, "b": LONG, "c": "float", "d": INT, "e": TEXT}
    target.send(fields, {"id": 1, "a": 1, "b": None, "c": 0.5, "d": 1, "e": "long text"}, evolve="widen")
    kinds = target.kinds()
    assert [kinds[name] for name in "abcde"] == ["numeric", "text", "real", "bigint", "text"]


def test_schema_without_a_form_in_columns_is_no_matter_where_the_table_has_them_all(postgres: LocalPostgres) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, v text)")
    target.send({"id": LONG, "v": ["int", "string"]}, {"id": 1, "v": "x"})
    assert target.sql(f"select * from {target.name}") == [(1, "x")]


def test_strict_names_the_statement_and_changes_nothing(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    target.send({"id": LONG}, {"id": 1})
    with pytest.raises(SinkRefusedError, match=f"evolve is strict: run alter table {target.name} add column n INTEGER"):
        target.send({"id": LONG, "n": INT}, {"id": 1, "n": 2}, evolve="strict")
    assert target.kinds() == {"id": "bigint"}


def test_part_of_a_snapshot_that_is_collected_aside_is_widened_with_the_table(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true", evolve="widen")
    narrow, wide = schema_of({"id": LONG, "v": INT}), schema_of({"id": LONG, "v": LONG, "new": TEXT})
    target.send({"id": LONG, "v": INT}, {"id": 1, "v": 1})
    sink = target.open()
    part = replace(checkpoint(target.stream, 5), generation=2, snapshot=SnapshotProgress("5", after='{"id":1}', rows=1))
    first = Change(Op.READ, '{"id":1}', None, '{"id":1,"v":10}')
    sink.write(Batch(commit_ref(5), [first], 2, True, narrow))
    sink.commit(part)
    sink.write(
        Batch(commit_ref(6), [Change(Op.READ, '{"id":2}', None, f'{{"id":2,"v":{2**40},"new":"x"}}')], 2, False, wide)
    )
    sink.commit(replace(part, sequence=6))
    assert target.sql(f"select id, v from {target.name}") == [(1, 1)]
    sink.commit(replace(part, sequence=7, snapshot=None))
    sink.close()
    assert sorted(target.sql(f"select id, v, new from {target.name}")) == [(1, 10, None), (2, 2**40, "x")]


def test_two_runs_make_and_widen_one_table(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true", evolve="widen")
    first, second = target.open(), target.open()
    with pytest.raises(Exception, match="another run has opened stream"):
        target.write(first, {"id": LONG, "v": INT}, {"id": 1, "v": 1})
    target.write(second, {"id": LONG, "v": LONG}, {"id": 1, "v": 2**40})
    for sink in (first, second):
        sink.close()
    assert target.kinds() == {"id": "bigint", "v": "bigint"}
    assert target.sql(f"select * from {target.name}") == [(1, 2**40)]


def test_other_databases_refuse_to_make_tables(tmp_path: Path) -> None:
    for option in ({"create": "true"}, {"evolve": "widen"}):
        settings = {"url": f"sqlite:///{tmp_path}/x.db", "table": "t", **option}
        with pytest.raises(ConfigError, match="of PostgreSQL alone"):
            create_sink("database", SinkSettings("s", "t", ChangeMode.LATEST, settings))


class MadeStory(MirrorStory):
    """A mirror that runs make, while they are killed."""

    def options(self) -> dict[str, str]:
        return {**super().options(), "create": "true", "evolve": "widen"}

    def verify(self) -> None:
        rows = self.sql(f"select id, value from {self.stream}")
        assert sorted(rows) == sorted(self.table.rows().items())
        assert self.sql(f"select count(*) from pg_constraint where conrelid = '{self.stream}'::regclass") == [(1,)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 12))])
def test_runs_that_make_a_table_are_killed(postgres: LocalPostgres, tmp_path: Path, seed: int) -> None:
    """Around `create table` and `alter table`, two at once."""
    draw = random.Random(seed)
    story = MadeStory(tmp_path, postgres.url, f"m{uuid.uuid4().hex[:12]}")
    story.table.complete(1, 2, {key: key for key in range(5)})
    for statement, when in (("create table", "after"), ("alter table", draw.choice(["before", "after"]))):
        runs = [story.start({"call": statement, "number": 1, "when": when}) for _ in range(draw.choice([1, 2]))]
        for run in runs:
            run.wait(120)
    assert story.run() == 0, story.log()
    story.verify()

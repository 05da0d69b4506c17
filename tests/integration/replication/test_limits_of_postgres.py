"""Tables, names, rows and keys beyond what a real PostgreSQL holds: refused before work, or by each record's policy."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import RecordRefusedError, SinkRefusedError
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, TEXT, Target


def test_more_columns_than_a_table_has_are_refused_before_any_statement(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    fields = {"id": LONG, **{f"c{number}": LONG for number in range(1600)}}
    row = dict.fromkeys(fields, 1)
    with pytest.raises(SinkRefusedError, match=r"1600 columns in a table at most, and this one needs 1601: leave"):
        target.send(fields, row)
    assert target.kinds() == {}
    target.send(fields, row, columns="c0, c1599")
    assert target.kinds() == {"id": "bigint", "c0": "bigint", "c1599": "bigint"}


def test_columns_that_were_dropped_count_as_well(postgres: LocalPostgres) -> None:
    target = Target(postgres)
    columns = ", ".join(f"c{number} int" for number in range(1599))
    target.sql(f"create table {target.name} (id bigint primary key, {columns})")
    target.sql(f"alter table {target.name} drop column c0, drop column c1")
    with pytest.raises(SinkRefusedError, match=r"at most 1600 columns.*make the table again.*run alter table"):
        target.send({"id": LONG, "new": LONG}, {"id": 1, "new": 2})


@pytest.mark.parametrize("create", ["true", "false"])
def test_name_that_would_be_cut_is_refused(postgres: LocalPostgres, create: str) -> None:
    target = Target(postgres, create=create)
    if create == "false":
        target.sql(f"create table {target.name} (id bigint primary key)")
    long = "c" * 63
    fields = {"id": LONG, f"{long}a": TEXT, f"{long}b": TEXT}
    with pytest.raises(SinkRefusedError, match=r"keeps 63 bytes of a name, and column 'c+a' has 64"):
        target.send(fields, dict.fromkeys(fields, 1))
    target.send({"id": LONG, long: TEXT}, {"id": 1, long: "x"})
    assert target.sql(f"select * from {target.name}") == [(1, "x")]


def test_row_that_is_larger_than_a_page_follows_its_policy(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    fields = {"id": LONG, **{f"c{number}": LONG for number in range(1200)}}
    small = {**dict.fromkeys(fields), "id": 1}
    large = {**dict.fromkeys(fields, 2**40), "id": 2}
    with pytest.raises(RecordRefusedError, match=r"record .*id.*2.* does not fit table .*: row is too big"):
        target.send(fields, small, large)
    target.send(fields, small, large, {**small, "id": 3}, on_record_error="dead_letter")
    assert target.sql(f"select id from {target.name} order by id") == [(1,), (3,)]
    ((key, error),) = target.sql(f"select record_key, error from lake_dead_letter where stream = '{target.stream}'")
    assert ("2" in key, "row is too big" in error) == (True, True)


def test_key_that_is_larger_than_an_index_takes_follows_its_policy(postgres: LocalPostgres) -> None:
    target = Target(postgres, create="true")
    fields = {"id": TEXT, "n": LONG}
    long = "".join(f"{number:x}" for number in range(9000))  # an index compresses what repeats
    rows = [{"id": "a", "n": 1}, {"id": long, "n": 2}, {"id": "b", "n": 3}]
    with pytest.raises(RecordRefusedError, match=r"does not fit table .*: index row requires") as raised:
        target.send(fields, *rows)
    assert len(str(raised.value)) < 1000
    target.send(fields, *rows, on_record_error="skip")
    assert target.sql(f"select id, n from {target.name} order by id") == [("a", 1), ("b", 3)]

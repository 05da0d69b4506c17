"""Rows of one transaction swapped a unique value, and the target met a conflict.

Report: https://github.com/pingcap/tiflow/issues/11231
Report: https://github.com/pingcap/docs/pull/17530
Verdict: refused
Way out: run the error's statement, which makes the constraint deferrable
"""

from __future__ import annotations

import re

import pytest

from airflow_lake_provider.errors import RecordRefusedError
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, NESTED, TEXT, Target

NESTED_VALUE = {"st": {"a": 1}}


@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
@pytest.mark.parametrize("mails", [("b", "a"), ("b", "c")], ids=["swap", "chain"])
def test_the_statement_that_is_named_lets_them_through(
    postgres: LocalPostgres, is_nested: bool, mails: tuple[str, str]
) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, mail text unique, st json, own int default 5)")
    fields = {"id": LONG, "mail": TEXT} | ({"st": NESTED} if is_nested else {})
    more = NESTED_VALUE if is_nested else {}
    target.send(fields, *({"id": number, "mail": mail, **more} for number, mail in enumerate("ab")))
    moved = [{"id": number, "mail": mail, **more} for number, mail in enumerate(mails)]
    with pytest.raises(RecordRefusedError, match="rows of one commit may swap such values") as raised:
        target.send(fields, *moved)
    statement = re.search(r"run (alter table .* deferrable initially deferred)", str(raised.value))
    assert statement is not None
    target.sql(statement[1])
    target.send(fields, *moved)
    assert target.sql(f"select id, mail, own from {target.name} order by id") == [(0, mails[0], 5), (1, mails[1], 5)]

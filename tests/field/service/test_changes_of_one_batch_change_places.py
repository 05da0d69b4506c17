"""Updates and deletes of one batch were grouped, so that a row that came back was deleted.

Report: https://github.com/confluentinc/kafka-connect-jdbc/issues/1562
Report: https://github.com/risingwavelabs/risingwave/issues/12026
Report: https://github.com/apache/flink/pull/12803
Verdict: right
"""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.replication.change import Batch, Change, Op
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, Target, schema_of

FIELDS = {"id": LONG, "n": LONG}


def change(op: Op, number: int, n: int = 0) -> Change:
    row = json.dumps({"id": number, "n": n})
    return Change(op, json.dumps({"id": number}), None, None if op is Op.DELETE else row)


@pytest.mark.parametrize("schema", [schema_of(FIELDS), ""], ids=["in blocks", "by value"])
@pytest.mark.parametrize("is_unique", [True, False])
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_the_last_change_of_each_key_counts(postgres: LocalPostgres, schema: str, is_unique: bool, size: int) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint {'primary key' if is_unique else 'not null'}, n bigint)")
    target.send(FIELDS, *({"id": number, "n": 0} for number in range(200)))
    # Each row gets the key of the one after it.
    moves = [(change(Op.DELETE, number), change(Op.INSERT, number + 1, number)) for number in range(10, 199)]
    moved = [each for move in moves for each in move]
    changes = [
        change(Op.UPDATE, 1, 5), change(Op.DELETE, 1), change(Op.INSERT, 1, 6),
        change(Op.DELETE, 2), change(Op.INSERT, 2, 7), change(Op.DELETE, 2),
        change(Op.INSERT, 5000, 8), change(Op.DELETE, 5000),
        *moved,
    ]  # fmt: skip
    sink = target.open()
    for begin in range(0, len(changes), size):
        sink.write(Batch(commit_ref(9), changes[begin : begin + size], 1, schema=schema))
    sink.commit(checkpoint(target.stream, 9))
    sink.close()
    wanted = dict.fromkeys(range(200), 0) | {1: 6, 199: 198}
    for gone in (2, *range(10, 199)):
        del wanted[gone]
    assert dict(target.sql(f"select id, n from {target.name}")) == wanted  # type: ignore[arg-type]

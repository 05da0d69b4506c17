"""An empty text was null in the target, where it also could not be part of a key.

Report: https://github.com/transferwise/pipelinewise-target-postgres/issues/68
Report: https://github.com/osalvador/ReplicaDB/issues/21
Report: https://github.com/redpanda-data/connect/issues/3088
Verdict: right
"""

from __future__ import annotations

import pytest

from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, NESTED, TEXT, Target

ROWS = [("", ""), ("a", None), (r"\N", r"\N"), ('""', '""'), (r"\.", r"\."), (",", "\n"), ("NULL", "null"), (" ", " ")]


@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
def test_empty_texts_and_nulls_are_two_things(postgres: LocalPostgres, is_nested: bool) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint, k text, v text, st json, primary key (id, k))")
    fields = {"id": LONG, "k": TEXT, "v": TEXT} | ({"st": NESTED} if is_nested else {})
    more = {"st": {"a": 1}} if is_nested else {}
    for _ in range(2):  # inserts, then updates
        target.send(fields, *({"id": 1, "k": key, "v": text, **more} for key, text in ROWS), key=("id", "k"))
    assert dict(target.sql(f"select k, v from {target.name}")) == dict(ROWS)  # type: ignore[arg-type]

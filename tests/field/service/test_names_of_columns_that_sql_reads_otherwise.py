"""Column names that are words of SQL, have capitals or special signs broke the sink's statements.

Report: https://github.com/PeerDB-io/peerdb/issues/716
Report: https://github.com/risingwavelabs/risingwave/pull/25846
Report: https://github.com/debezium/debezium-connector-jdbc/pull/39
Verdict: right
"""

from __future__ import annotations

import pytest

from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, NESTED, TEXT, Target

NAMES = (
    "order", "select", "user", "basePrice", "a b", "per%cent", "%s", "%(id)s", "co:lon", ":id", "br(ack)et", 'quo"te',
    "it's", "dot.ted", "ünï", "1st", "back\\slash", "$1", "{brace}", "semi;colon", "--dash",
)  # fmt: skip


@pytest.mark.parametrize("makes", ["", "true"], ids=["added", "made"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
def test_columns_of_any_name(postgres: LocalPostgres, makes: str, is_nested: bool) -> None:
    target = Target(postgres, **({"create": makes} if makes else {}))
    if not makes:
        target.sql(f'create table {target.name} (id bigint, "Key" text, primary key (id, "Key"))')
    fields = {"id": LONG, "Key": TEXT, **dict.fromkeys(NAMES, TEXT)} | ({"st": NESTED} if is_nested else {})
    more = {"st": {"a": 1}} if is_nested else {}
    for end in ("", "!"):
        row = {"id": 1, "Key": "k", **{name: f"{name}{end}" for name in NAMES}, **more}
        target.send(fields, row, key=("id", "Key"))
    ((_, _, *found),) = target.sql(f"select * from {target.name}")
    assert found[: len(NAMES)] == [f"{name}!" for name in NAMES]

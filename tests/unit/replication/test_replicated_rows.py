"""The comparison that the system test makes: what it lets pass, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from local_stack.kafka_consumer import Record
from tests.system.replicated_rows import require_as_in_the_table

COMMITS = ["1", "2", "3"]
VERSIONS = {
    "1": {1: {"id": 1, "v": 10}, 2: {"id": 2, "v": 20}},
    "2": {1: {"id": 1, "v": 11}, 2: {"id": 2, "v": 20}, 3: {"id": 3, "v": 30}},
    "3": {1: {"id": 1, "v": 12}, 3: {"id": 3, "v": 30}},
}


def record(commit: str, op: str, key: int, before: int | None, after: int | None) -> Record:
    def row(value: int | None) -> dict[str, int] | None:
        return None if value is None else {"id": key, "v": value}

    value: dict[str, Any] = {"op": op, "key": {"id": key}, "before": row(before), "after": row(after)}
    return Record(0, {"id": key}, value, {"commit": commit})


SNAPSHOT = [record("1", "r", 1, None, 10), record("1", "r", 2, None, 20)]
SECOND = [record("2", "u", 1, 10, 11), record("2", "i", 3, None, 30)]
THIRD = [record("3", "u", 1, 11, 12), record("3", "d", 2, 20, None)]


def test_each_change_once_in_order_passes() -> None:
    require_as_in_the_table([*SNAPSHOT, *SECOND, *THIRD], COMMITS, VERSIONS)
    require_as_in_the_table([*SNAPSHOT, *reversed(SECOND), *THIRD], COMMITS, VERSIONS)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        pytest.param([*SECOND, THIRD[0]], "not as in the table", id="lost-row"),
        pytest.param(SECOND, "commits without records", id="lost-commit"),
        pytest.param([*SECOND, *THIRD, SECOND[1]], "not as in the table", id="doubled-row"),
        pytest.param([SECOND[0], record("2", "i", 3, None, 31), *THIRD], "not as in the table", id="wrong-value"),
        pytest.param([record("2", "u", 1, 9, 11), SECOND[1], *THIRD], "not as in the table", id="wrong-row-before"),
        pytest.param([*THIRD, *SECOND], "row {'id': 1} went back to commit 2", id="wrong-order"),
    ],
)
def test_what_is_not_as_in_the_table_is_found(records: list[Record], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        require_as_in_the_table([*SNAPSHOT, *records], COMMITS, VERSIONS)

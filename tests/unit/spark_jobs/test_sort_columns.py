"""Which columns a clustering may sort by."""

from __future__ import annotations

import pytest

from lake_jobs.services.sort_columns import find_sort_problem

TYPES = {"id": "bigint", "amount": "double", "tags": "array<string>", "address": "struct<city:string>"}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([], ""),
        (["amount", "id"], ""),
        (["id", "amuont"], "no column amuont: did you mean amount?"),
        (["Amount"], "no column Amount: did you mean amount?"),
        (["zzz"], "no column zzz: it has id, amount, tags, address"),
        (["tags"], "column tags is array<string>, which has no order"),
        (["address"], "column address is struct<city:string>, which has no order"),
    ],
)
def test_what_is_wrong_with_columns_to_sort_by(wanted: list[str], says: str) -> None:
    found = find_sort_problem(wanted, TYPES)
    assert says in found
    assert bool(found) == bool(says)

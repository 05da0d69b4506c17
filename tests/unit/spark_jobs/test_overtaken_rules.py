"""Which write changed what a clustering's plan rewrites."""

from __future__ import annotations

from lake_jobs.verify.overtaken_rules import LaterWrite, find_overtaking

NONE = frozenset[str]()


def test_a_write_elsewhere_changes_nothing() -> None:
    other = LaterWrite("2", "UPSERT", frozenset({"c-0"}), frozenset({"d-0"}))
    assert find_overtaking({"a-0", "b-0"}, [other]) == ""


def test_the_first_write_that_touches_the_plan_is_named() -> None:
    other = LaterWrite("2", "UPSERT", frozenset({"c-0"}), NONE)
    update = LaterWrite("3", "UPSERT", frozenset({"b-0", "c-0"}), NONE)
    overwrite = LaterWrite("4", "INSERT_OVERWRITE", frozenset({"d-0"}), frozenset({"a-0"}))
    planned = {"a-0", "b-0"}
    assert find_overtaking(planned, [other, update, overwrite]) == (
        "UPSERT 3 has written into files of the plan, and its rows would be lost"
    )
    assert find_overtaking(planned, [overwrite, update]) == (
        "INSERT_OVERWRITE 4 has replaced files of the plan, whose rows would come back"
    )

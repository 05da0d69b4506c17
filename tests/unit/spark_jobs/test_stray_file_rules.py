"""What a file of a write that was rolled back keeps on the timeline."""

from __future__ import annotations

import pytest

from lake_jobs.services.stray_file_rules import StrayFile, find_write_before, order_partitions, pattern_of


@pytest.mark.parametrize(
    ("instant", "expected"), [("3", "2"), ("1", ""), ("9", "5")], ids=["between", "before-all", "after-all"]
)
def test_keeps_the_write_before_it(instant: str, expected: str) -> None:
    """A file counts as committed as soon as all active writes are younger than it."""
    assert find_write_before(instant, ["5", "2"]) == expected


def test_searches_what_rollbacks_name_first_and_then_every_other_partition() -> None:
    """A task of the dead writer may have begun in a partition of which the rollback read no marker."""
    assert order_partitions([("7", ("b",)), ("5", ("c", "b"))], ["d", "c", "b", "a"]) == ("c", "b", "d", "a")


def test_pattern_finds_files_of_some_instants_in_any_folder() -> None:
    assert pattern_of("/lake/t", "", ["2026"]) == "/lake/t/*{2026}*"
    assert pattern_of("/lake/t", "city=[a]*{b}?", ["2026", "2027"]) == r"/lake/t/city=\[a\]\*\{b\}\?/*{2026,2027}*"


def test_message_names_file_write_and_remedy() -> None:
    said = StrayFile("a/f.parquet", "2026").explain()
    assert "a/f.parquet is left of the write 2026, which was rolled back" in said
    assert "delete that file, or let `orphans` find it" in said

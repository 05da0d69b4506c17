"""Writes that complete during the build of an index which writers do not update."""

from __future__ import annotations

import pytest

from lake_jobs.indexing.late_writes import (
    LateWrite,
    find_newest_time,
    find_shown,
    find_unrepeatable,
    gather_late_writes,
    has_entries,
    wait_for_younger,
)
from lake_jobs.indexing.rules import WriteChange

SECONDARY = "secondary_index_city"
EXPRESSION = "expr_index_by_day"


def late(time: str, operation: str | None = "UPSERT", deletes: int = 0, updates: int = 9) -> LateWrite:
    """A write that completed at a time; None for a clean."""
    change = None if operation is None else WriteChange(operation, 9, updates, deletes, 1)
    return LateWrite(f"2026112110000{time}000", f"2026112110010{time}000", "commit" if operation else "clean", change)


@pytest.mark.parametrize(
    ("partition", "writes", "batches"),
    [
        pytest.param("record_index", [late("2"), late("1", "INSERT")], ["12"], id="in-the-order-of-their-completion"),
        pytest.param("record_index", [late("1"), late("2", deletes=1), late("3")], ["1", "2", "3"], id="one-deletes"),
        pytest.param(
            "record_index", [late("1"), late("2", "CLUSTER"), late("3")], ["1", "2", "3"], id="one-moves-rows"
        ),
        pytest.param("record_index", [late("1"), late("2", None), late("3")], ["1", "2", "3"], id="one-cleans"),
        pytest.param("column_stats", [late("1"), late("2", deletes=1), late("3")], ["123"], id="an-entry-a-file"),
        pytest.param("column_stats", [late("1"), late("2", None)], ["1", "2"], id="the-entry-of-a-file-goes"),
        pytest.param("partition_stats", [late("1"), late("2")], ["1", "2"], id="an-entry-a-partition"),
        pytest.param(EXPRESSION, [late("1"), late("2", updates=0)], ["1", "2"], id="and-an-entry-a-file"),
        pytest.param(
            SECONDARY,
            [late("1", updates=0), late("2", "INSERT", updates=0), late("3"), late("4", updates=0)],
            ["12", "3", "4"],
            id="one-updates-what-another-one-inserted",
        ),
        pytest.param(
            SECONDARY, [late("1", updates=0), late("2", deletes=1, updates=0)], ["1", "2"], id="one-deletes-it"
        ),
        pytest.param("record_index", [], [], id="nothing"),
    ],
)
def test_late_writes_share_a_delta_commit_where_none_of_their_entries_needs_an_order(
    partition: str, writes: list[LateWrite], batches: list[str]
) -> None:
    gathered = gather_late_writes(partition, writes)
    assert ["".join(write.instant[13] for write in batch) for batch in gathered] == batches


def test_delta_commit_has_entries_of_so_many_late_writes_at_most() -> None:
    writes = [late(f"{number:03}") for number in range(120)]
    assert [len(batch) for batch in gather_late_writes("record_index", writes)] == [50, 50, 20]


def test_writes_that_replace_file_groups_cannot_be_repeated() -> None:
    operations = ("UPSERT", "DELETE", "CLUSTER", "COMPACT", None, "INSERT_OVERWRITE", "DELETE_PARTITION", "BOOTSTRAP")
    found = find_unrepeatable(late("1", operation) for operation in operations)
    assert [write.change.operation for write in found if write.change] == list(operations[-3:])


def test_compactions_and_cleans_have_no_entries_in_the_record_index() -> None:
    kinds = {operation: late("1", operation) for operation in ("UPSERT", "CLUSTER", "COMPACT", "LOG_COMPACT", None)}
    have = {
        name: [kind for kind, write in kinds.items() if has_entries(name, write)]
        for name in ("record_index", "column_stats", SECONDARY, EXPRESSION)
    }
    of_files = {"column_stats": list(kinds), EXPRESSION: ["UPSERT", "CLUSTER", "COMPACT", "LOG_COMPACT"]}
    assert have == {"record_index": ["UPSERT", "CLUSTER"], SECONDARY: ["UPSERT"], **of_files}


@pytest.mark.parametrize(
    ("merges_on_read", "shown"),
    [pytest.param(True, "12356", id="merge-on-read"), pytest.param(False, "1256", id="copy-on-write")],
)
def test_timeline_of_a_late_write_ends_before_it_except_for_compactions(merges_on_read: bool, shown: str) -> None:
    write = late("4")
    before, after = "20261121100103000", "20261121100105000"
    instants = [
        (before, "deltacommit"),
        (before, "commit"),
        (after, "commit"),
        (write.completed, "deltacommit"),
        ("", "compaction"),
        ("", "deltacommit"),
        (after, "deltacommit"),
        (after, "replacecommit"),
    ]
    ranges = find_shown(instants, write, merges_on_read=merges_on_read)
    assert "".join(str(at + 1) for begin, end in ranges for at in range(begin, end)) == shown
    # One call of Java for each range.
    assert len(ranges) == 2


def test_newest_time_of_a_timeline_may_be_a_completed_one() -> None:
    names = ["20261121100100000_20261121100104000.deltacommit", "20261121100103000.deltacommit.inflight", "history"]
    assert (find_newest_time(names), find_newest_time([])) == ("20261121100104000", "")


def test_entries_get_an_instant_younger_than_those_of_a_machine_whose_clock_is_ahead() -> None:
    clock = iter(range(100, 200))
    assert wait_for_younger("103", lambda: str(next(clock)), patience_s=60, pause_s=0) == "104"
    assert next(clock) == 105
    assert wait_for_younger("103", lambda: "103", patience_s=0.01, pause_s=0.001) == ""

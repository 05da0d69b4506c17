"""What was read of a commit, next to what the commit's own statistics say."""

from __future__ import annotations

import pytest

from airflow_lake_provider.replication.change import CommitRef
from lake_jobs.replication.file_slices import GroupStatistics
from lake_jobs.replication.reconciliation import (
    Figures,
    Records,
    count,
    describe_differences,
    find_difference_of_sums,
    find_differences,
    is_explained,
)

BASE = GroupStatistics("p0", "a-0", ("a.parquet",), "20260101000000000", 1, 2, 3, 9, is_log=False)
LOG = GroupStatistics("p0", "b-0", (".b.log.1",), "20260101000000000", 0, 4, 1, 4, is_log=True)
REPLACED = GroupStatistics("p1", "c-0", (), "", 0, 0, 0, 0, is_log=False, is_replaced=True)


def test_changes_are_counted_by_file_group() -> None:
    assert count({(0, "i"): 2, (0, "d"): 1, (4, "u"): 7}) == {0: Figures(2, 0, 1), 4: Figures(0, 7, 0)}


@pytest.mark.parametrize(
    ("group", "found", "may_be_right"),
    [
        pytest.param(BASE, Figures(1, 2, 3), None, id="as-written"),
        # Which of a commit's rows were there before is the reader's word, where the index only guessed.
        pytest.param(BASE, Figures(2, 1, 3), None, id="inserts-for-updates"),
        pytest.param(BASE, Figures(1, 1, 3), False, id="one-update-less"),
        pytest.param(BASE, Figures(1, 2, 2), False, id="one-delete-less"),
        pytest.param(BASE, Figures(1, 3, 3), False, id="one-more"),
        pytest.param(BASE, Figures(), False, id="nothing-read"),
        pytest.param(LOG, Figures(0, 4, 1), None, id="log-as-written"),
        pytest.param(LOG, Figures(0, 3, 1), True, id="a-record-may-have-lost"),
        pytest.param(LOG, Figures(), True, id="all-may-have-lost"),
        pytest.param(LOG, Figures(0, 5, 1), False, id="log-with-one-more"),
        pytest.param(REPLACED, Figures(0, 0, 40), None, id="replaced"),
        pytest.param(REPLACED, Figures(1, 0, 0), False, id="replaced-and-still-there"),
    ],
)
def test_difference_is_found_where_figures_do_not_agree(
    group: GroupStatistics, found: Figures, may_be_right: bool | None
) -> None:
    different = find_differences([group], {0: found})
    assert [each.may_be_right for each in different] == ([] if may_be_right is None else [may_be_right])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(Records(kept=3, lost=1), True, id="one-lost"),
        pytest.param(Records(kept=3, missing=1), False, id="one-is-missing"),
        pytest.param(Records(kept=4), False, id="one-was-kept-and-not-read"),
        pytest.param(Records(kept=3), True, id="two-of-one-key"),
    ],
)
def test_fewer_changes_than_records_are_explained_by_what_became_of_them(records: Records, expected: bool) -> None:
    (different,) = find_differences([LOG], {0: Figures(0, 3, 1)})
    assert is_explained(different, records) is expected


def test_commit_as_a_whole_is_compared_where_rows_name_no_file_group() -> None:
    assert find_difference_of_sums([BASE, BASE], Figures(2, 4, 6)) is None
    assert find_difference_of_sums([BASE, LOG], Figures(1, 5, 3)) is None
    assert find_difference_of_sums([BASE, REPLACED], Figures(1, 2, 43)) is None
    different = find_difference_of_sums([BASE, BASE], Figures(2, 3, 6))
    assert different is not None
    said = describe_differences([different], CommitRef("20260101000000001", "20260101000000002"), "/lake/t")
    assert "commit 20260101000000001 of table /lake/t" in said
    assert "2 file groups: read 2 inserts, 3 updates, 6 deletes; the commit's statistics say 2 inserts, 4 upd" in said


def test_error_names_commit_file_group_and_figures() -> None:
    different = find_differences([BASE, LOG], {1: Figures(0, 9, 0)})
    said = describe_differences(different, CommitRef("20260101000000001", "20260101000000002"), "/lake/t")
    assert "file group a-0 of partition 'p0': read 0 inserts, 0 updates, 0 deletes" in said
    assert "(and 1 more file groups)" in said

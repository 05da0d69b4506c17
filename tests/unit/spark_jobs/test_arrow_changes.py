"""Changes by column say the same of each row as changes row by row; rows of several commits are split."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_lake_provider.replication.change import (
    Change,
    ChangeMode,
    CommitRef,
    Op,
    bytes_of,
    checksum_of,
    records_of,
)
from lake_jobs.replication.arrow_changes import COLUMNS, COMMIT_BITS, ArrowChanges, count_changes, split_by_commit
from lake_jobs.replication.row_transfer import BLOCK_BYTES, BLOCK_ROWS, cut_batches

COMMIT = CommitRef("20260101000000001", "20260101000000002")
ROWS = [
    Change(Op.INSERT, '{"id":1}', None, '{"id":1,"city":"Köln","quote":"\\""}'),
    Change(Op.UPDATE, '{"id":2}', '{"id":2,"city":null}', '{"id":2,"city":"東京"}'),
    Change(Op.DELETE, '{"id":3}', '{"id":3}', None),
    Change(Op.INSERT, '{"id":"a\\u0000b"}', None, '{"id":"a\\u0000b"}'),
]


def batch_of(rows: list[Change], groups: list[int] | None = None) -> pa.RecordBatch:
    columns = [pa.array([getattr(row, name) for row in rows], pa.string()) for name in COLUMNS]
    return pa.record_batch([*columns, pa.array(groups or [0] * len(rows), pa.int32())], [*COLUMNS, "g"])


@pytest.mark.parametrize("mode", ChangeMode)
@pytest.mark.parametrize("part", [slice(None), slice(1, 3), slice(0, 1), slice(2, 2)])
def test_columns_say_the_same_as_rows(mode: ChangeMode, part: slice) -> None:
    columns, rows = ArrowChanges(batch_of(ROWS))[part], ROWS[part]
    assert isinstance(columns, ArrowChanges)
    assert list(columns) == rows
    assert [columns[at] for at in range(len(columns))] == rows
    assert list(records_of(columns, COMMIT, mode)) == list(records_of(rows, COMMIT, mode))
    assert checksum_of(columns, 7) == checksum_of(rows, 7)
    assert bytes_of(columns) == bytes_of(rows)


def test_figures_of_file_groups_are_counted_by_operation() -> None:
    counted = count_changes(batch_of([*ROWS, ROWS[0]], [1, 1, 0, 1, 2]), "g")
    assert counted == {(1, "i"): 2, (1, "u"): 1, (0, "d"): 1, (2, "i"): 1}


def test_rows_of_several_commits_are_split_with_their_own_file_groups() -> None:
    groups = [3, 1 << COMMIT_BITS, 3, 2 << COMMIT_BITS | 5]
    parts = dict(split_by_commit(batch_of(ROWS, groups), "g"))
    assert {at: list(ArrowChanges(part)) for at, part in parts.items()} == {
        0: [ROWS[0], ROWS[2]],
        1: [ROWS[1]],
        2: [ROWS[3]],
    }
    assert {at: part.column("g").to_pylist() for at, part in parts.items()} == {0: [3, 3], 1: [0], 2: [5]}
    assert list(split_by_commit(batch_of([]), "g")) == []


def test_blocks_are_small_in_rows_and_in_bytes_whatever_the_batches_are() -> None:
    many = batch_of([ROWS[0]] * (BLOCK_ROWS + 10))
    assert [block.num_rows for block in cut_batches([batch_of([]), many, many])] == [BLOCK_ROWS, BLOCK_ROWS, 20]
    large = batch_of([Change(Op.INSERT, "{}", None, "x" * (BLOCK_BYTES // 4))] * 10)
    blocks = list(cut_batches([large]))
    assert sum(block.num_rows for block in blocks) == 10
    assert max(block.nbytes for block in blocks) <= BLOCK_BYTES
    assert list(cut_batches([])) == []

"""Changes as Arrow's columns: messages, sizes and checksums are made of whole columns, not row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload
from zlib import crc32

from airflow_lake_provider.replication.change import Change, ChangeColumns, ChangeMode, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_lake_provider.replication.change import CommitRef, Record

OP, KEY, BEFORE, AFTER = COLUMNS = ("op", "key", "before", "after")
COMMIT_BITS = 20
"""The bits of a file group's number below the position of its commit, where several commits are read at once."""
_OPS = {op.value: op for op in Op}


class ArrowChanges(ChangeColumns):
    """Changes in a record batch with the columns `COLUMNS`, all of them texts."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __iter__(self) -> Iterator[Change]:
        op, *texts = (self._column(name).to_pylist() for name in COLUMNS)
        return map(Change, map(_OPS.__getitem__, op), *texts)

    @overload
    def __getitem__(self, at: int) -> Change: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Change]: ...
    def __getitem__(self, at: int | slice) -> Change | Sequence[Change]:
        if isinstance(at, int):
            return next(iter(ArrowChanges(self._batch.slice(at if at >= 0 else len(self) + at, 1))))
        start, stop, step = at.indices(len(self))
        return ArrowChanges(self._batch.slice(start, max(0, stop - start))) if step == 1 else list(self)[at]

    def to_records(self, commit: CommitRef, mode: ChangeMode) -> Iterable[Record]:
        """Return key and message of each change, as `change.message_of` makes them."""
        keys = self._column(KEY)
        after = self._column(AFTER)
        values = after if mode is ChangeMode.LATEST else self._messages(commit)
        return zip(_to_utf8(keys), _to_utf8(values), strict=True)

    def to_checksum(self) -> int:
        """Return the sum of the changes' CRC-32, as `change.checksum_of` adds them up."""
        op, key, before, after = (self._column(name) for name in COLUMNS)
        return sum(map(crc32, _to_utf8(_join(op, "\0", key, "\0", before.fill_null(""), "\0", after.fill_null("")))))

    def to_bytes(self) -> int:
        """Return the size of keys and images in bytes."""
        import pyarrow.compute as pc

        lengths = (pc.sum(pc.binary_length(self._column(name))).as_py() for name in (KEY, BEFORE, AFTER))
        return sum(length or 0 for length in lengths)

    def _messages(self, commit: CommitRef) -> Any:
        op, key, before, after = (self._column(name) for name in COLUMNS)
        times = f'","commit":"{commit.requested_time}","completed":"{commit.completed_time}","key":'
        before, after = before.fill_null("null"), after.fill_null("null")
        return _join('{"op":"', op, times, key, ',"before":', before, ',"after":', after, "}")

    def _column(self, name: str) -> Any:
        return self._batch.column(name)


def count_changes(batch: Any, group: str) -> dict[tuple[int, str], int]:
    """Return how many rows of a record batch there are for each number of a file group and operation."""
    import pyarrow as pa

    counted = pa.table([batch.column(group), batch.column(OP)], [group, OP]).group_by([group, OP])
    found = counted.aggregate([(OP, "count")])
    columns = (found.column(name).to_pylist() for name in (group, OP, f"{OP}_count"))
    return {(number, op): count for number, op, count in zip(*columns, strict=True)}


def split_by_commit(batch: Any, group: str) -> Iterator[tuple[int, Any]]:
    """Return the parts of a record batch by the position of their commit, each with its file groups' own numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    at = batch.schema.get_field_index(group)
    commits = pc.shift_right(batch.column(at), pa.scalar(COMMIT_BITS, pa.int32()))
    numbers = pc.bit_wise_and(batch.column(at), pa.scalar((1 << COMMIT_BITS) - 1, pa.int32()))
    renumbered = pa.record_batch([*batch.columns[:at], numbers, *batch.columns[at + 1 :]], batch.schema.names)
    # One task reads one file group of one commit, so this is one part.
    for commit in pc.unique(commits).to_pylist():
        yield commit, renumbered.filter(pc.equal(commits, commit))


def _join(*parts: Any) -> Any:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")


def _to_utf8(texts: Any) -> list[Any]:
    import pyarrow as pa

    return list(texts.cast(pa.binary()).to_pylist())

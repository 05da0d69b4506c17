"""What every sink must do, as tests: inherit from `SinkContract`, create the sink and read it back.

    class TestMySink(SinkContract):
        def make_sink(self, stream): ...
        def read_back(self, stream): ...

Each test opens a stream of its own. Sinks that keep only the newest version of a row set `keeps_versions = False`.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.change import Batch, Change, CommitRef, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitPart, from_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.replication.sink import Sink

SCHEMA = (
    '{"type":"record","name":"orders","fields":[{"name":"id","type":"long"},{"name":"value","type":["null","int"]}]}'
)


class SinkContract:
    """Exactly once, all of a commit or nothing, in order per key, one writer at a time."""

    keeps_versions: ClassVar[bool] = True

    def make_sink(self, stream: str) -> Sink:
        """Return a new sink object for this stream; the same stream is the same place."""
        raise NotImplementedError

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        """Return id and value of each record that a reader sees now, in order; the value is None for a delete."""
        raise NotImplementedError

    def test_new_stream_has_no_checkpoint(self) -> None:
        """An empty sink reports no checkpoint."""
        stream, sink = self._opened()
        sink.close()
        assert self.read_back(stream) == []

    def test_committed_rows_and_checkpoint_are_there_afterwards(self) -> None:
        """What was committed is read back, and the next run finds the checkpoint."""
        stream, sink = self._opened()
        written = checkpoint(stream, 1)
        sink.write(batch(1, [insert(1, 10), insert(2, 20)]))
        sink.commit(written)
        sink.close()
        assert sorted(self.read_back(stream)) == [(1, 10), (2, 20)]
        again = self.make_sink(stream)
        text = again.open()
        again.close()
        assert text is not None
        assert from_text(text) == written

    def test_rows_without_commit_are_never_seen(self) -> None:
        """A run that dies before its commit leaves nothing."""
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        assert self.read_back(stream) == []
        sink.close()
        sink.close()
        again = self.make_sink(stream)
        assert again.open() is None
        again.write(batch(1, [insert(2, 20)]))
        again.commit(checkpoint(stream, 1))
        again.close()
        assert self.read_back(stream) == [(2, 20)]

    def test_several_batches_of_one_commit_become_visible_together(self) -> None:
        """A reader never sees half a commit."""
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.write(batch(1, [insert(2, 20)]))
        assert self.read_back(stream) == []
        sink.commit(checkpoint(stream, 1))
        sink.close()
        assert sorted(self.read_back(stream)) == [(1, 10), (2, 20)]

    def test_part_of_a_commit_is_kept_and_the_next_run_adds_the_rest(self) -> None:
        """A large commit is several transactions; a run that dies within one leaves those before it."""
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        sink.write(batch(2, [insert(2, 20), insert(3, 30)]))
        in_part = replace(checkpoint(stream, 2), part=CommitPart(_key(3), 2))
        sink.commit(in_part)
        sink.write(batch(2, [insert(4, 40)]))
        sink.close()
        again = self.make_sink(stream)
        text = again.open()
        assert text is not None
        assert from_text(text) == in_part
        assert sorted(self.read_back(stream)) == [(1, 10), (2, 20), (3, 30)]
        again.write(batch(2, [insert(4, 40)]))
        again.commit(checkpoint(stream, 3))
        again.close()
        assert sorted(self.read_back(stream)) == [(1, 10), (2, 20), (3, 30), (4, 40)]

    def test_versions_of_a_key_stay_in_order(self) -> None:
        """Later commits win, and a log has them in their order."""
        stream, sink = self._opened()
        for number, value in enumerate((10, 11, 12), 1):
            sink.write(batch(number, [insert(1, value) if number == 1 else update(1, value)]))
            sink.commit(checkpoint(stream, number))
        sink.write(batch(4, [delete(1, 12), insert(2, 20)]))
        sink.commit(checkpoint(stream, 4))
        sink.close()
        seen = self.read_back(stream)
        if self.keeps_versions:
            assert [value for key, value in seen if key == 1] == [10, 11, 12, None]
        else:
            assert seen == [(2, 20)]

    def test_delete_then_insert_of_one_key_in_one_commit_leaves_the_row(self) -> None:
        """A row that moves to another partition is deleted there and inserted here."""
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        sink.write(batch(2, [delete(1, 10), insert(1, 11)]))
        sink.commit(checkpoint(stream, 2))
        sink.close()
        expected: list[tuple[int, int | None]] = [(1, 10), (1, None), (1, 11)] if self.keeps_versions else [(1, 11)]
        assert self.read_back(stream) == expected

    def test_commit_without_rows_moves_the_checkpoint(self) -> None:
        """A commit may change nothing that the sink stores."""
        stream, sink = self._opened()
        sink.commit(checkpoint(stream, 1))
        sink.close()
        again = self.make_sink(stream)
        text = again.open()
        again.close()
        assert text is not None
        assert from_text(text).sequence == 1

    def test_of_two_runs_one_is_shut_out(self) -> None:
        """Two concurrent runs: each row arrives once, whichever run wins."""
        stream, first = self._opened()
        first.write(batch(1, [insert(1, 10)]))
        second = self.make_sink(stream)
        assert second.open() is None
        second.write(batch(1, [insert(1, 10)]))
        second.commit(checkpoint(stream, 1))
        try:
            first.commit(checkpoint(stream, 1))
        except SinkFencedError:
            pass
        else:
            raise AssertionError("two runs have committed the same checkpoint")
        first.close()
        second.write(batch(2, [update(1, 11)]))
        second.commit(checkpoint(stream, 2))
        second.close()
        assert self.read_back(stream) == ([(1, 10), (1, 11)] if self.keeps_versions else [(1, 11)])

    def test_new_generation_is_marked(self) -> None:
        """A second snapshot: sinks that store rows drop those of the first."""
        stream, sink = self._opened()
        sink.write(batch(1, [read(1, 10), read(2, 20)], begins_snapshot=True))
        sink.commit(checkpoint(stream, 1))
        sink.write(batch(2, [read(2, 21)], generation=2, begins_snapshot=True))
        sink.commit(checkpoint(stream, 2))
        sink.close()
        assert self.read_back(stream) == ([(1, 10), (2, 20), (2, 21)] if self.keeps_versions else [(2, 21)])

    def _opened(self) -> tuple[str, Sink]:
        stream = f"orders-{uuid.uuid4().hex[:12]}.test"
        sink = self.make_sink(stream)
        assert sink.open() is None
        return stream, sink


def commit_ref(number: int) -> CommitRef:
    """Return the nth commit of an invented table."""
    return CommitRef(f"2026010100000{number:04d}", f"2026010100001{number:04d}")


def checkpoint(stream: str, number: int) -> Checkpoint:
    """Return the checkpoint that comes with the nth commit."""
    return Checkpoint(
        stream, number, 1, commit_ref(number), done=tuple(commit_ref(i).requested_time for i in (1, number))
    )


def batch(number: int, changes: Iterable[Change], generation: int = 1, *, begins_snapshot: bool = False) -> Batch:
    """Return changes of the nth commit."""
    return Batch(commit_ref(number), tuple(changes), generation, begins_snapshot, SCHEMA)


def insert(key: int, value: int) -> Change:
    """Return the insert of a row."""
    return Change(Op.INSERT, _key(key), None, _row(key, value))


def update(key: int, value: int) -> Change:
    """Return the update of a row."""
    return Change(Op.UPDATE, _key(key), _row(key, value - 1), _row(key, value))


def delete(key: int, value: int) -> Change:
    """Return the delete of a row that had this value."""
    return Change(Op.DELETE, _key(key), _row(key, value), None)


def read(key: int, value: int) -> Change:
    """Return a row of a snapshot."""
    return Change(Op.READ, _key(key), None, _row(key, value))


def _key(key: int) -> str:
    return f'{{"id":{key}}}'


def _row(key: int, value: int) -> str:
    return f'{{"id":{key},"value":{value}}}'

"""What the sinks of databases must do besides the contract that ships with the package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, from_text
from airflow_lake_provider.replication.sink_contract import (
    SinkContract,
    batch,
    checkpoint,
    delete,
    insert,
    read,
    update,
)

if TYPE_CHECKING:
    from airflow_lake_provider.replication.sink import Sink


class DatabaseSinkContract(SinkContract):
    """What a reader of the table sees while a snapshot is written in parts."""

    keeps_versions = False

    def tables(self, stream: str) -> set[str]:
        raise NotImplementedError

    def filled(self) -> tuple[str, Sink]:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10), insert(2, 20)]))
        sink.commit(checkpoint(stream, 1))
        return stream, sink

    def part(self, stream: str, number: int, generation: int = 2) -> Checkpoint:
        progress = SnapshotProgress("1", ("k", "p"))
        return replace(checkpoint(stream, number), generation=generation, snapshot=progress)

    def test_readers_see_the_rows_before_a_snapshot_until_it_is_whole(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [read(1, 11)], 2, begins_snapshot=True))
        sink.commit(self.part(stream, 2))
        sink.write(batch(2, [read(3, 30)], 2))
        sink.close()
        # The run dies; the next one goes on from the part that is durable.
        again = self.make_sink(stream)
        assert from_text(again.open() or "") == self.part(stream, 2)
        again.write(batch(2, [read(3, 31), read(4, 40)], 2))
        again.write(batch(2, [read(4, 41)], 2))
        again.commit(self.part(stream, 3))
        assert self.read_back(stream) == [(1, 10), (2, 20)]
        again.commit(replace(self.part(stream, 4), snapshot=None))
        assert self.read_back(stream) == [(1, 11), (3, 31), (4, 41)]
        again.write(batch(5, [update(1, 12), delete(3, 31)], 2))
        again.commit(replace(self.part(stream, 5), snapshot=None))
        again.close()
        assert self.read_back(stream) == [(1, 12), (4, 41)]
        assert not {name for name in self.tables(stream) if name.startswith("lake_snapshot")}

    def test_snapshot_that_another_one_or_a_seek_overtakes_leaves_no_rows(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [read(7, 70)], 2, begins_snapshot=True))
        sink.commit(self.part(stream, 2))
        sink.write(batch(3, [read(8, 80)], 3, begins_snapshot=True))
        sink.commit(self.part(stream, 3, generation=3))
        sink.commit(replace(self.part(stream, 4, generation=3), snapshot=None))
        assert self.read_back(stream) == [(8, 80)]
        sink.write(batch(5, [read(9, 90)], 4, begins_snapshot=True))
        sink.commit(self.part(stream, 5, generation=4))
        sink.commit(replace(self.part(stream, 6, generation=5), snapshot=None))
        sink.close()
        assert self.read_back(stream) == [(8, 80)]
        assert not {name for name in self.tables(stream) if name.startswith("lake_snapshot")}

    def test_snapshot_of_an_emptied_table_empties_it(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [], 2, begins_snapshot=True))
        sink.commit(replace(self.part(stream, 2), snapshot=None))
        sink.close()
        assert self.read_back(stream) == []

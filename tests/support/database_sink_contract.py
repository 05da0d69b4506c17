"""What the sinks of databases must do besides the contract that ships with the package."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.replication.change import Op, canonical
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, from_text
from airflow_lake_provider.replication.sink import ReadableSink
from airflow_lake_provider.replication.sink_contract import (
    SCHEMA,
    SinkContract,
    batch,
    checkpoint,
    delete,
    insert,
    read,
    update,
)
from tests.support.wide_changes import WIDE, WIDE_JSON, WIDE_SCHEMA

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
        progress = SnapshotProgress("1", "k")
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

    def test_commits_that_pass_a_snapshot_change_the_rows_that_it_has(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [read(1, 11), read(3, 30), read(4, 40)], 2, begins_snapshot=True))
        sink.commit(self.part(stream, 2))
        sink.write(batch(3, [update(1, 12), delete(3, 30), insert(0, 1)], 2))
        sink.commit(self.part(stream, 3))
        sink.write(batch(4, [delete(4, 40)], 2))
        sink.commit(self.part(stream, 4))
        sink.write(batch(4, [read(7, 70)], 2))
        sink.commit(self.part(stream, 5))
        assert self.read_back(stream) == [(1, 10), (2, 20)]
        sink.commit(replace(self.part(stream, 6), snapshot=None))
        sink.close()
        assert self.read_back(stream) == [(0, 1), (1, 12), (7, 70)]

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

    def select(self, stream: str, columns: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def test_added_columns_of_every_type_reach_the_table(self) -> None:
        stream, sink = self.filled()
        body = json.loads(WIDE_JSON) | {"value": 30}
        row = WIDE_JSON.replace('"id":7', '"id":3,"value":30')
        assert json.loads(row).keys() == body.keys()
        fields = [*json.loads(WIDE_SCHEMA)["fields"], {"name": "value", "type": ["null", "int"]}]
        wider = json.dumps(json.loads(WIDE_SCHEMA) | {"fields": fields})
        added = read(3, 30)._replace(op=Op.INSERT, after=row)
        sink.write(replace(batch(2, [added]), schema=wider))
        sink.commit(checkpoint(stream, 2))
        # A later commit of an earlier schema, and one whose rows lack a value.
        sink.write(batch(3, [insert(4, 40)]))
        sink.commit(checkpoint(stream, 3))
        assert self.read_back(stream) == [(1, 10), (2, 20), (3, 30), (4, 40)]
        (found,) = self.select(stream, "name, price, ok, day, raw, ratio, tax where id = 3")
        name, price, ok, day, raw, ratio, tax = found
        assert (name, Decimal(price), bool(ok), str(day), bytes(raw), ratio, Decimal(tax)) == (
            WIDE["name"], WIDE["price"], False, "2026-02-28", WIDE["raw"], 0.1, Decimal("-0.10")
        )  # fmt: skip
        assert self.select(stream, "name where id = 4") == [(None,)]
        # What `verify` reads is what the table's own row would be there.
        assert isinstance(sink, ReadableSink)
        key, values = sink.as_read(added)
        known = {key: values for key, values in sink.read_rows(("id",), checkpoint(stream, 3)) if values is not None}
        assert values is not None
        assert canonical(known[key]) == canonical(values)
        sink.close()

    def test_column_that_is_added_within_a_snapshot_is_in_its_rows(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [read(1, 11)], 2, begins_snapshot=True))
        sink.commit(self.part(stream, 2))
        city = SCHEMA.removesuffix("]}") + ',{"name":"city","type":["null","string"],"default":null}]}'
        later = read(3, 30)._replace(after='{"id":3,"value":30,"city":"Cork"}')
        sink.write(replace(batch(2, [later], 2), schema=city))
        sink.commit(replace(self.part(stream, 3), snapshot=None))
        sink.close()
        assert self.read_back(stream) == [(1, 11), (3, 30)]
        assert self.select(stream, "city where id = 3") == [("Cork",)]

    def test_snapshot_of_an_emptied_table_empties_it(self) -> None:
        stream, sink = self.filled()
        sink.write(batch(2, [], 2, begins_snapshot=True))
        sink.commit(replace(self.part(stream, 2), snapshot=None))
        sink.close()
        assert self.read_back(stream) == []

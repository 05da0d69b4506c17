"""Rows go through Avro and Parquet and come back as what they were, read by the libraries alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import CheckpointDamagedError, ConfigError, RecordRefusedError, SourceRefusedError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op
from airflow_lake_provider.replication.formats.avro import AvroFormat
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import (
    SCHEMA,
    SinkContract,
    batch,
    checkpoint,
    commit_ref,
    delete,
    insert,
)
from tests.support.wide_changes import EXPECTED, WIDE, WIDE_CHANGES, WIDE_SCHEMA


def read_container(message: bytes) -> Any:
    (record,) = fastavro.reader(io.BytesIO(message))
    return record


def test_rows_come_back_from_avro_with_their_types() -> None:
    form = AvroFormat(ChangeMode.CHANGES)
    records = []
    for change in WIDE_CHANGES:
        message = form.message_of(change, commit_ref(1), WIDE_SCHEMA)
        assert message is not None
        records.append(read_container(message))
    assert [(r["op"], r["key"], r["before"], r["after"]) for r in records] == EXPECTED
    assert {(r["commit"], r["completed"]) for r in records} == {commit_ref(1).order[::-1]}


def test_latest_is_the_row_itself_and_a_tombstone() -> None:
    form = AvroFormat(ChangeMode.LATEST)
    message = form.message_of(WIDE_CHANGES[0], commit_ref(1), WIDE_SCHEMA)
    assert message is not None
    assert read_container(message) == WIDE
    assert form.message_of(WIDE_CHANGES[2], commit_ref(1), WIDE_SCHEMA) is None


def test_schema_is_registered_once_and_again_when_it_changes() -> None:
    registered: list[str] = []

    def register(schema: str) -> int:
        registered.append(schema)
        return 258 + len(registered)

    form = AvroFormat(ChangeMode.LATEST, register)
    wider = SCHEMA.removesuffix("]}") + ',{"name":"city","type":["null","string"],"default":null}]}'
    messages = [form.message_of(insert(1, 10), commit_ref(n), s) for n, s in ((1, SCHEMA), (2, SCHEMA), (3, wider))]
    assert len(registered) == 2
    assert [m[:5] for m in messages if m] == [b"\0\0\0\1\3", b"\0\0\0\1\3", b"\0\0\0\1\4"]
    assert messages[2] is not None
    record = fastavro.schemaless_reader(io.BytesIO(messages[2][5:]), json.loads(registered[1]), None)
    assert record == {"id": 1, "value": 10, "city": None}


@pytest.mark.parametrize(
    ("schema", "row", "error", "said"),
    [
        pytest.param(SCHEMA, '{"id":null,"value":1}', RecordRefusedError, "field id is null", id="null"),
        pytest.param(SCHEMA, '{"id":1,"value":"x"}', RecordRefusedError, "field value: 'x' is not of", id="type"),
        pytest.param(SCHEMA, '{"id":1,"city":"Cork"}', RecordRefusedError, "city has a value and is not", id="unknown"),
        pytest.param(SCHEMA, '{"id":1,"value":99999999999}', RecordRefusedError, 'record {"id":1}', id="too-large"),
        pytest.param("", '{"id":1}', SourceRefusedError, "names no Avro schema", id="no-schema"),
        pytest.param(
            SCHEMA.replace('"int"', '"int","string"'), '{"id":1}', SourceRefusedError, "several types", id="union"
        ),
    ],
)
def test_what_does_not_fit_is_named(schema: str, row: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        AvroFormat(ChangeMode.CHANGES).message_of(Change(Op.INSERT, '{"id":1}', None, row), commit_ref(1), schema)


def test_field_that_came_later_is_left_out_of_an_earlier_commit() -> None:
    change = Change(Op.INSERT, '{"id":1}', None, '{"id":1,"value":2,"city":null}')
    message = AvroFormat(ChangeMode.LATEST).message_of(change, commit_ref(1), SCHEMA)
    assert message is not None
    assert read_container(message) == {"id": 1, "value": 2}


def parquet_sink(path: Path, mode: ChangeMode = ChangeMode.CHANGES) -> Sink:
    return create_sink("file", SinkSettings(path.name, "orders", mode, {"path": str(path), "format": "parquet"}))


def read_parquet(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("[0-9]*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


class TestParquetFileSink(SinkContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, stream: str) -> Sink:
        return parquet_sink(self.folder / stream)

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        return [(row["key"]["id"], (row["after"] or {}).get("value")) for row in read_parquet(self.folder / stream)]

    def test_damaged_file_is_named(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        (path,) = (self.folder / stream).glob("*.parquet")
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(CheckpointDamagedError, match=r"000000000001\.parquet"):
            sink.open()

    def test_files_of_another_format_are_not_overlooked(self) -> None:
        stream, sink = self._opened()
        sink.commit(checkpoint(stream, 1))
        options = {"path": str(self.folder / stream)}
        with pytest.raises(ConfigError, match=r"000000000001\.parquet exists already"):
            create_sink("file", SinkSettings(stream, "orders", options=options)).open()


def test_rows_come_back_from_parquet_with_their_types(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path / "wide")
    sink.open()
    sink.write(Batch(commit_ref(1), WIDE_CHANGES[:2], 1, schema=WIDE_SCHEMA))
    sink.write(Batch(commit_ref(1), WIDE_CHANGES[2:], 1, schema=WIDE_SCHEMA))
    sink.commit(checkpoint("wide", 1))
    rows = read_parquet(tmp_path / "wide")
    for row in rows:
        for image in (row["before"], row["after"]):
            if image is not None and image["notes"] is not None:
                image["notes"] = dict(image["notes"])
    assert [(row["op"], row["key"], row["before"], row["after"]) for row in rows] == EXPECTED


def test_latest_in_parquet_says_what_is_deleted(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path / "latest", ChangeMode.LATEST)
    sink.open()
    sink.write(batch(1, [insert(1, 10), delete(1, 10)]))
    sink.commit(checkpoint("latest", 1))
    assert read_parquet(tmp_path / "latest") == [
        {"key": {"id": 1}, "deleted": False, "row": {"id": 1, "value": 10}},
        {"key": {"id": 1}, "deleted": True, "row": None},
    ]

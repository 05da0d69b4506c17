"""The sinks that need no server, by the contract that ships with the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    RecordRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.sink import NoopSink, Sink, SinkSettings, create_sink, sink_names
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, delete, insert, update
from tests.support.database_sink_contract import DatabaseSinkContract
from tests.support.file_sink_contract import FileSinkContract


class TestFileSink(SinkContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, stream: str) -> Sink:
        return create_sink("file", SinkSettings(stream, "orders", options={"path": f"{self.folder}/{stream}"}))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        records = []
        for path in sorted((self.folder / stream).glob("[0-9]*.jsonl")):
            *lines, last = path.read_text().splitlines()
            assert "checkpoint" in json.loads(last)
            records += [json.loads(line) for line in lines]
        return [(body["key"]["id"], (body["after"] or {}).get("value")) for body in records]

    def test_damaged_file_is_named(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        (path,) = (self.folder / stream).glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(CheckpointDamagedError, match=r"000000000001\.jsonl"):
            sink.open()


class TestManyFilesOnALocalDisk(FileSinkContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.url = str(tmp_path)


class TestFileSinkOnAStoreWithoutLinks(SinkContract):
    """Any store but a local disk: the file of a number is created exclusively."""

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.store = str(tmp_path), fsspec.filesystem("memory")
        yield
        self.store.rm(self.folder, recursive=True)

    def make_sink(self, stream: str) -> Sink:
        options = {"path": f"memory:/{self.folder}/{stream}"}
        return create_sink("file", SinkSettings(stream, "orders", options=options))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        records = []
        for path in sorted(self.store.glob(f"{self.folder}/{stream}/[0-9]*.jsonl")):
            records += [json.loads(line) for line in self.store.cat_file(path).decode().splitlines()[:-1]]
        return [(body["key"]["id"], (body["after"] or {}).get("value")) for body in records]


class TestDatabaseSinkOnSqlite(DatabaseSinkContract):
    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def url(self, stream: str) -> str:
        return f"sqlite:///{self.folder}/{stream}.db"

    def make_sink(self, stream: str) -> Sink:
        engine = sa.create_engine(self.url(stream))
        with engine.begin() as connection:
            connection.execute(sa.text("create table if not exists orders (id integer primary key, value integer)"))
        engine.dispose()
        return create_sink(
            "database", SinkSettings(stream, "orders", options={"url": self.url(stream), "table": "orders"})
        )

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        engine = sa.create_engine(self.url(stream))
        with engine.connect() as connection:
            found = [(row.id, row.value) for row in connection.execute(sa.text("select * from orders order by id"))]
        engine.dispose()
        return found

    def tables(self, stream: str) -> set[str]:
        engine = sa.create_engine(self.url(stream))
        names = sa.inspect(engine).get_table_names()
        engine.dispose()
        return set(names)

    def select(self, stream: str, columns: str) -> list[tuple[Any, ...]]:
        engine, (names, _, where) = sa.create_engine(self.url(stream)), columns.partition(" where ")
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(sa.text(f"select {names} from orders where {where}"))]
        engine.dispose()
        return found

    def test_missing_column_is_named(self) -> None:
        _, sink = self._opened()
        change = insert(1, 10)
        wider = type(change)(change.op, change.key, None, '{"id":1,"value":10,"city":"Cork"}')
        with pytest.raises(SinkRefusedError, match="no column 'city'"):
            sink.write(batch(1, [wider]))
        sink.close()

    def test_table_of_another_stream_is_refused_and_keeps_its_rows(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        sink.close()
        options = {"url": self.url(stream), "table": "main.orders"}
        second = create_sink("database", SinkSettings("customers.mirror", "customers", options=options))
        for _ in range(2):
            with pytest.raises(SinkRefusedError, match=f"stream {stream}'s, and a snapshot of stream customers.mirror"):
                second.open()
        with pytest.raises(SinkUnavailableError, match="not open"):
            second.write(batch(1, [insert(2, 20)], begins_snapshot=True))
        second.close()
        assert self.read_back(stream) == [(1, 10)]

    def test_checkpoint_that_was_written_before_tables_had_owners_is_found(self) -> None:
        stream, sink = self._opened()
        sink.commit(checkpoint(stream, 1))
        sink.close()
        engine = sa.create_engine(self.url(stream))
        with engine.begin() as connection:
            connection.execute(sa.text("drop table lake_target"))
        engine.dispose()
        again = self.make_sink(stream)
        assert '"sequence":1' in (again.open() or "")
        again.close()

    def test_missing_table_is_named_and_may_come(self) -> None:
        options = {"url": f"sqlite:///{self.folder}/empty.db", "table": "orders"}
        sink = create_sink("database", SinkSettings("s", "orders", options=options))
        with pytest.raises(SinkUnavailableError, match="has no table orders"):
            sink.open()
        sink.close()

    @pytest.mark.parametrize("is_unique", [True, False])
    def test_columns_that_no_change_names_survive_an_update_where_the_key_is_unique(self, is_unique: bool) -> None:
        stream, engine = "orders.test", sa.create_engine(self.url("orders.test"))
        key = "id integer primary key" if is_unique else "id integer"
        with engine.begin() as connection:
            connection.execute(sa.text(f"create table orders ({key}, value integer, note text default 'new')"))
        sink = self.make_sink(stream)
        sink.open()
        sink.write(batch(1, [insert(1, 10), insert(2, 20)]))
        sink.commit(checkpoint(stream, 1))
        with engine.begin() as connection:
            connection.execute(sa.text("update orders set note = 'by hand'"))
        sink.write(batch(2, [update(1, 11), insert(3, 30), delete(2, 20)]))
        sink.commit(checkpoint(stream, 2))
        sink.close()
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(sa.text("select * from orders order by id"))]
        engine.dispose()
        assert found == [(1, 11, "by hand" if is_unique else "new"), (3, 30, "new")]


LONG = "1234567890123456789012345678.0123456789"


def mirror(folder: Path, columns: str, *rows: str) -> list[tuple[str, ...]]:
    """Write rows (JSON objects) to a table of SQLite with these columns; return each row as SQLite prints it."""
    engine = sa.create_engine(f"sqlite:///{folder}/mirror.db")
    with engine.begin() as connection:
        connection.execute(sa.text(f"create table orders (id integer primary key, {columns})"))
    sink = create_sink(
        "database", SinkSettings("orders.mirror", "orders", options={"url": str(engine.url), "table": "orders"})
    )
    sink.open()
    try:
        for number, row in enumerate(rows):
            sink.write(batch(1, [insert(number, 1)._replace(after=f'{{"id":{number},{row[1:]}')]))
        sink.commit(checkpoint("orders.mirror", 1))
    finally:
        sink.close()
    names = [column.split()[0] for column in columns.split(", ")]
    with engine.connect() as connection:
        texts = ", ".join(f"cast({name} as text)" for name in names)
        found = [tuple(row) for row in connection.execute(sa.text(f"select {texts} from orders order by id"))]
    engine.dispose()
    return found


@pytest.mark.parametrize("number", [LONG, "0.10", "-1234567890123456.7891", "12"])
def test_decimal_in_a_column_of_text_has_all_its_digits(tmp_path: Path, number: str) -> None:
    found = mirror(tmp_path, "price text, lines text", f'{{"price":{number},"lines":[{{"price":{number},"sku":"é"}}]}}')
    assert found == [(number, f'[{{"price":{number},"sku":"\\u00e9"}}]')]


def test_numbers_of_json_integer_and_floating_columns(tmp_path: Path) -> None:
    row = f'{{"body":{{"price":{LONG},"parts":[0.5,null,true]}},"n":12345678901234567.00,"ratio":0.1}}'
    assert mirror(tmp_path, "body json, n bigint, ratio double", row) == [
        (f'{{"price":{LONG},"parts":[0.5,null,true]}}', "12345678901234567", "0.1")
    ]


@pytest.mark.parametrize("number", ["1234.50", "5.6843418860808015E-14", "0.1"])
def test_number_that_sqlite_keeps_goes_into_its_numeric_column(tmp_path: Path, number: str) -> None:
    ((text,),) = mirror(tmp_path, "price numeric(38,10)", f'{{"price":{number}}}')
    assert float(text) == pytest.approx(float(number), rel=1e-14)  # SQLite prints 15 digits


@pytest.mark.parametrize("number", [LONG, "1234567890123456.7891"])
def test_number_that_sqlite_would_round_is_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(RecordRefusedError, match=rf'record {{"id":0}} .*price would store .* for {number}.*text'):
        mirror(tmp_path, "price numeric(38,10)", f'{{"price":{number}}}')


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        pytest.param("file", {}, "needs the setting 'path'", id="file-without-path"),
        pytest.param("file", {"path": "/x", "color": "red"}, "knows no setting 'color'", id="file-unknown"),
        pytest.param("kafka", {"topic": "t"}, "bootstrap_servers", id="kafka-without-broker"),
        pytest.param("kafka", {"topic": "t", "bootstrap_servers": "b", "colour": "r"}, "colour", id="kafka-unknown"),
        pytest.param(
            "kafka", {"topic": "t", "bootstrap_servers": "b", "kafka.acks": "1"}, "exactly-once", id="kafka-lossy"
        ),
        pytest.param(
            "kafka",
            {"topic": "t", "bootstrap_servers": "b", "format": "xml"},
            "'xml', allowed: json, avro",
            id="format",
        ),
        pytest.param(
            "kafka",
            {"topic": "t", "bootstrap_servers": "b", "schema_registry": "http://r"},
            "format: avro",
            id="registry",
        ),
        pytest.param(
            "kafka",
            {"topic": "t", "bootstrap_servers": "b", "format": "avro", "schema_registry": "r:80"},
            "begins with http",
            id="registry-address",
        ),
        pytest.param(
            "kafka",
            {"topic": "t", "bootstrap_servers": "b", "format": "avro", "control_records": "true"},
            "control_records is for format: json",
            id="control-records",
        ),
        pytest.param("file", {"path": "/x", "format": "avro"}, "'avro', allowed: json, parquet", id="file-format"),
        pytest.param("database", {"table": "t"}, "needs the setting 'url'", id="database-without-url"),
        pytest.param("pigeon", {}, "there is no sink 'pigeon'; known: database, file, hudi, kafka, noop", id="unknown"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_opened(
    kind: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        create_sink(kind, SinkSettings("s", "orders", options=options))


def test_every_sink_of_this_package_can_be_imported() -> None:
    assert set(sink_names()) == {"kafka", "file", "database", "hudi", "noop"}
    sink = create_sink("noop", SinkSettings("s", "orders"))
    assert sink.open() is None
    sink.write(batch(1, [insert(1, 10)]))
    sink.commit(checkpoint("s", 1))
    sink.close()


class PigeonSink(NoopSink):
    """What another package brings along."""


def install(folder: Path, package: str, *lines: str) -> None:
    """Lay down what an installed package leaves of its entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("\n".join(["[lake.sinks]", *lines]), encoding="utf-8")


def test_sink_of_another_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "pigeons", f"pigeon = {__name__}:PigeonSink")
    monkeypatch.syspath_prepend(str(tmp_path))
    sink = create_sink("pigeon", SinkSettings("s", "orders"))
    assert type(sink).__name__ == "PigeonSink"
    assert sink.open() is None
    assert "pigeon" in sink_names()
    with pytest.raises(ConfigError, match="known: database, file, hudi, kafka, noop, pigeon"):
        create_sink("dove", SinkSettings("s", "orders"))


@pytest.mark.parametrize("name", ["kafka", "pigeon"])
def test_two_sinks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(tmp_path, "one", f"pigeon = {__name__}:PigeonSink")
    install(tmp_path, "two", f"{name} = other:Sink")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"two sinks are named '{name}': .*other:Sink"):
        create_sink("noop", SinkSettings("s", "orders"))

"""The sinks that need no server, by the contract that ships with the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import CheckpointDamagedError, ConfigError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.sink import Sink, SinkSettings
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, insert
from airflow_lake_provider.replication.sink_registry import create_sink, sink_names
from airflow_lake_provider.replication.sinks.noop import NoopSink


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


class TestDatabaseSinkOnSqlite(SinkContract):
    keeps_versions = False

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


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        pytest.param("file", {}, "needs path", id="file-without-path"),
        pytest.param("file", {"path": "/x", "color": "red"}, "not color", id="file-unknown"),
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
        pytest.param("file", {"path": "/x", "format": "avro"}, "'avro', allowed: json, parquet", id="file-format"),
        pytest.param("database", {"table": "t"}, "needs url", id="database-without-url"),
        pytest.param("pigeon", {}, "there is no sink 'pigeon'; known: database, file, kafka, noop", id="unknown"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_opened(
    kind: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        create_sink(kind, SinkSettings("s", "orders", options=options))


def test_every_sink_of_this_package_can_be_imported() -> None:
    assert set(sink_names()) == {"kafka", "file", "database", "noop"}
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
    with pytest.raises(ConfigError, match="known: database, file, kafka, noop, pigeon"):
        create_sink("dove", SinkSettings("s", "orders"))


@pytest.mark.parametrize("name", ["kafka", "pigeon"])
def test_two_sinks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(tmp_path, "one", f"pigeon = {__name__}:PigeonSink")
    install(tmp_path, "two", f"{name} = other:Sink")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"two sinks are named '{name}': .*other:Sink"):
        create_sink("noop", SinkSettings("s", "orders"))

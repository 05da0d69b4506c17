"""The file sink of replication on an S3-compatible store, in the Python that runs it: all that a sink must do."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import SinkFencedError, SinkUnavailableError
from airflow_lake_provider.replication.sink import Sink, SinkSettings
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, insert
from airflow_lake_provider.replication.sink_registry import create_sink
from local_stack.object_store import LocalObjectStore

BUCKET = "changes"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalObjectStore]:
    store = LocalObjectStore(tmp_path_factory.mktemp("object-store"))
    store.start()
    store.make_bucket(BUCKET)
    yield store
    store.stop()


@pytest.fixture(autouse=True)
def _keys(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in production: what is secret stands in the job's environment and not in a table's settings.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.storage_options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.storage_options["secret_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", store.storage_options["region"])


class TestJsonLinesOnS3(SinkContract):
    form = "json"

    def make_sink(self, stream: str) -> Sink:
        options = {"path": f"s3://{BUCKET}/{self.form}/{stream}", "format": self.form}
        return create_sink("file", SinkSettings(stream, "orders", options=options))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        rows = [row for content in self.files(stream) for row in self.rows(content)]
        return [(row["key"]["id"], (row["after"] or {}).get("value")) for row in rows if "key" in row]

    def rows(self, content: bytes) -> list[dict[str, Any]]:
        return [json.loads(line) for line in content.splitlines()]

    def files(self, stream: str) -> list[bytes]:
        fs, folder = fsspec.core.url_to_fs(f"s3://{BUCKET}/{self.form}/{stream}")
        return [fs.cat_file(path) for path in sorted(fs.find(folder, refresh=True))]

    def test_run_that_was_shut_out_has_changed_nothing(self) -> None:
        stream, first = self._opened()
        first.write(batch(1, [insert(1, 10)]))
        second = self.make_sink(stream)
        assert second.open() is None
        second.write(batch(1, [insert(1, 11)]))
        second.commit(checkpoint(stream, 1))
        with pytest.raises(SinkFencedError, match="another run has written number 1"):
            first.commit(checkpoint(stream, 1))
        assert len(self.files(stream)) == 1
        assert self.read_back(stream) == [(1, 11)]


class TestParquetOnS3(TestJsonLinesOnS3):
    form = "parquet"

    def rows(self, content: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
        return rows


def test_file_of_several_parts_is_shut_out_too() -> None:
    """Beyond 50 MB s3fs uploads in parts, and another request gives the file its name."""
    rows = [insert(number, number) for number in range(400_000)]
    first, second = TestJsonLinesOnS3().make_sink("large"), TestJsonLinesOnS3().make_sink("large")
    for sink in (first, second):
        assert sink.open() is None
        sink.write(batch(1, rows))
    first.commit(checkpoint("large", 1))
    with pytest.raises(SinkFencedError):
        second.commit(checkpoint("large", 1))


def test_missing_bucket_is_named_and_not_made() -> None:
    sink = create_sink("file", SinkSettings("x", "orders", options={"path": "s3://no-such-bucket/x"}))
    with pytest.raises(SinkUnavailableError, match="no-such-bucket"):
        sink.open()

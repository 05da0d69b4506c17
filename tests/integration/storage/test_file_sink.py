"""The file sink of replication on a real HDFS: all that a sink must do, and what a reader sees of a file meanwhile."""

from __future__ import annotations

import io
import json
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.sink import Sink, SinkSettings
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, insert
from airflow_lake_provider.replication.sink_registry import create_sink
from tests.integration.storage.lakes import HdfsLake


class TestJsonLinesOnHdfs(SinkContract):
    form = "json"

    @pytest.fixture(autouse=True)
    def _lake(self, hdfs_lake: HdfsLake) -> None:
        self.url = hdfs_lake.cluster.url

    def make_sink(self, stream: str) -> Sink:
        options = {"path": f"{self.url}/{self.form}/{stream}", "format": self.form}
        return create_sink("file", SinkSettings(stream, "orders", options=options))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        rows = [row for content in self.files(stream) for row in self.rows(content)]
        return [(row["key"]["id"], (row["after"] or {}).get("value")) for row in rows if "key" in row]

    def rows(self, content: bytes) -> list[dict[str, Any]]:
        return [json.loads(line) for line in content.splitlines()]

    def files(self, stream: str) -> list[bytes]:
        fs, folder = fsspec.core.url_to_fs(f"{self.url}/{self.form}/{stream}")
        return [fs.cat_file(path) for path in sorted(fs.ls(folder, detail=False))]

    def test_nothing_is_left_of_a_run_that_was_shut_out(self) -> None:
        stream, first = self._opened()
        first.write(batch(1, [insert(1, 10)]))
        second = self.make_sink(stream)
        assert second.open() is None
        second.commit(checkpoint(stream, 1))
        with pytest.raises(SinkFencedError, match="another run has written number 1"):
            first.commit(checkpoint(stream, 1))
        assert len(self.files(stream)) == 1


class TestParquetOnHdfs(TestJsonLinesOnHdfs):
    form = "parquet"

    def rows(self, content: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
        return rows

"""What a file sink must do on a store, besides what every sink must do; tests of each store inherit from it."""

from __future__ import annotations

import io
import json
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, insert


class FileSinkContract(SinkContract):
    """`url` is the store's folder of all streams, `form` the format."""

    url: str
    form = "json"

    def make_sink(self, stream: str) -> Sink:
        options = {"path": f"{self.url}/{self.form}/{stream}", "format": self.form}
        return create_sink("file", SinkSettings(stream, "orders", options=options))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        rows = [row for content in self.files(stream) for row in self.rows(content)]
        return [(row["key"]["id"], (row["after"] or {}).get("value")) for row in rows if "key" in row]

    def rows(self, content: bytes) -> list[dict[str, Any]]:
        if self.form == "json":
            return [json.loads(line) for line in content.splitlines()]
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
        return rows

    def files(self, stream: str) -> list[bytes]:
        """Return the content of everything that lies there."""
        fs, folder = fsspec.core.url_to_fs(f"{self.url}/{self.form}/{stream}", skip_instance_cache=True)
        return [fs.cat_file(path) for path in sorted(fs.find(folder))]

    def test_nothing_is_left_of_a_run_that_was_shut_out(self) -> None:
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

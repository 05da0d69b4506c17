"""What a file sink must do on a store, besides what every sink must do; tests of each store inherit from it."""

from __future__ import annotations

import io
import json
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.sink import ReadableSink, Sink, SinkSettings, create_sink
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

    def paths(self, stream: str) -> list[str]:
        fs, folder = fsspec.core.url_to_fs(f"{self.url}/{self.form}/{stream}", skip_instance_cache=True)
        return [path.removeprefix(f"{folder.rstrip('/')}/") for path in sorted(fs.find(folder))]

    def test_thousands_of_files_lie_in_folders_and_the_newest_is_found(self) -> None:
        stream, sink = self._opened()
        numbers = (998, 999, 1000, 1999, 2000)
        for number in numbers:
            sink.write(batch(number, [insert(number, number)]))
            sink.commit(checkpoint(stream, number))
            sink.close()
            sink = self.make_sink(stream)
            assert f'"sequence":{number}' in str(sink.open())
        end = {"json": "jsonl", "parquet": "parquet"}[self.form]
        folders = ("", "", "000000001/", "000000001/", "000000002/")
        assert sorted(self.paths(stream)) == sorted(
            f"{folder}{number:012d}.{end}" for folder, number in zip(folders, numbers, strict=True)
        )
        assert sorted(self.read_back(stream)) == [(number, number) for number in numbers]
        if self.form == "json":
            assert isinstance(sink, ReadableSink)
            found = [row["id"] for _, row in sink.read_rows(("id",), checkpoint(stream, 2000)) if row is not None]
            assert found == list(numbers)
        sink.close()

    def test_nothing_is_left_of_a_run_that_was_shut_out(self) -> None:
        stream, first = self._opened()
        first.write(batch(1, [insert(1, 10)]))
        second = self.make_sink(stream)
        assert second.open() is None
        second.write(batch(1, [insert(1, 11)]))
        second.commit(checkpoint(stream, 1))
        with pytest.raises(SinkFencedError, match=r"another run has (written number 1|opened)"):
            first.commit(checkpoint(stream, 1))
        assert len(self.files(stream)) == 1
        assert self.read_back(stream) == [(1, 11)]

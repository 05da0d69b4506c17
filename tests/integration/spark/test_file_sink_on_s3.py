"""The file sink of replication on an S3-compatible store, in the Python that runs it: all that a sink must do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_lake_provider.errors import SinkFencedError, SinkUnavailableError
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert
from local_stack.object_store import LocalObjectStore
from tests.support.file_sink_contract import FileSinkContract

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


class TestJsonLinesOnS3(FileSinkContract):
    url = f"s3://{BUCKET}"


@pytest.mark.soak  # the same on HDFS: tests/integration/storage/test_file_sink.py
class TestParquetOnS3(TestJsonLinesOnS3):
    form = "parquet"


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

"""An S3 store that lies: a listing without an end, a slow drip, an expired token, an object without measure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest

from airflow_lake_provider.errors import DamagedFileError, StorageError
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.support.patience import patient

AGAIN = b"""<?xml version="1.0"?><ListBucketResult><Name>endless</Name><Prefix>t/</Prefix><KeyCount>1</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>
<Contents><Key>t/a</Key><Size>1</Size><LastModified>2026-11-21T12:00:00.000Z</LastModified></Contents>
</ListBucketResult>"""
SHORT = b"""<?xml version="1.0"?><ListBucketResult><Name>short</Name><Prefix>t/</Prefix><KeyCount>3</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>
<Contents><Key>t/a</Key><Size>1</Size><LastModified>2026-11-21T13:00:00.12Z</LastModified></Contents>
<Contents><Key>t/b</Key><Size>1</Size><LastModified>2026-11-21T13:00:00.120Z</LastModified></Contents>
<Contents><Key>t/f/</Key><Size>0</Size><LastModified>2026-11-21T13:00:00.120Z</LastModified></Contents>
<CommonPrefixes><Prefix>t/f/</Prefix></CommonPrefixes></ListBucketResult>"""
HEAD_TIME_MS = 1_795_262_400_000


class Liar(BaseHTTPRequestHandler):
    """What a bucket does is its name."""

    protocol_version = "HTTP/1.1"
    stopped = threading.Event()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        bucket = urlparse(self.path).path.strip("/").partition("/")[0]
        if bucket == "endless" and not self.stopped.is_set():
            time.sleep(0.02)
            self.answer(200, AGAIN)
        elif bucket == "short":
            self.answer(200, SHORT)
        elif bucket == "expired":
            self.answer(400, b"<Error><Code>ExpiredToken</Code></Error>")
        elif bucket == "boundless" and self.command == "HEAD":
            self.answer(200, b"", length=1 << 50)
        elif bucket == "drip" and not self.stopped.is_set():
            self.answer(200, b"x", length=100_000)
            self.stopped.wait(20)
        else:
            self.close_connection = True

    def answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[str]:
    Liar.stopped.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    Liar.stopped.set()
    server.shutdown()
    server.server_close()


def storage_of(server: str, bucket: str, timeout_s: float) -> Storage:
    options = {"endpoint_override": server, "scheme": "http", "access_key": "a", "secret_key": "b", "region": "r",
               "timeout_s": timeout_s, "max_attempts": 1}  # fmt: skip
    return open_storage(f"s3://{bucket}/t", options)


def test_listing_without_an_end_gives_its_reader_back(server: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(StorageError, match="s3://endless did not answer within 1 s"):
        storage_of(server, "endless", 1).list_entries("")
    assert time.monotonic() - began_s < patient(10)


def test_answer_that_drips_gives_its_reader_back(server: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(StorageError):
        storage_of(server, "drip", 1).read_bytes("f")
    assert time.monotonic() - began_s < patient(10)


def test_expired_credentials_are_named(server: str) -> None:
    with pytest.raises(StorageError, match="credentials, or they have expired"):
        storage_of(server, "expired", 20).stat("f")


def test_object_without_measure_is_not_allocated(server: str) -> None:
    with pytest.raises((StorageError, DamagedFileError)):
        storage_of(server, "boundless", 20).read_bytes("f", 1000)


def test_time_that_cannot_be_read_is_the_objects_own_and_a_marked_folder_is_listed_once(server: str) -> None:
    """A heartbeat without a time would be that of a dead writer; gofakes3 leaves out zeros at a time's end."""
    listed = storage_of(server, "short", 10).list_entries("")
    times = {entry.name: entry.modified_ms for entry in listed if not entry.is_folder}
    assert times == {"a": HEAD_TIME_MS, "b": HEAD_TIME_MS + 3_600_120}
    assert [entry.name for entry in listed if entry.is_folder] == ["f"]

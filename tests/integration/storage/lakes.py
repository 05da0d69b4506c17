"""Stores to put tables on, written and checked with other clients than the tested ones where that is possible."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest
from hdfs_native import Client, WriteOptions

from airflow_lake_provider.storage.table_storage import Storage, open_storage
from local_stack.hdfs import LocalHdfs
from local_stack.object_store import LocalObjectStore
from local_stack.other_stores import Azurite, FakeGcs, GoFakeS3

BUCKET = "lake"
MOTO = pytest.param("moto", id="s3")
GOFAKES3 = pytest.param("gofakes3", marks=pytest.mark.soak)
CLOUDS = [pytest.param(name, marks=pytest.mark.soak) for name in ("gcs", "azure")]
# Whose objects they are; the server wants to know before one is overwritten, and checks no signature.
CREDENTIAL = "local/20260101/us-east-1/s3/aws4_request"
OWNER = {
    "Authorization": f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, SignedHeaders=host, Signature=0",
    "Connection": "close",
}


class Lake(Protocol):
    """One store, as a test sees it; paths are absolute, below its root."""

    kind: str
    forbids: str
    """A character that no name there has."""

    def open(self, path: str) -> Storage: ...

    def put(self, path: str, content: bytes) -> None: ...

    def put_many(self, files: Mapping[str, bytes]) -> None: ...


def upload(lake: Lake, source: Path, path: str) -> None:
    """Upload what makes a table's timeline: neither data nor the metadata table, a table of its own."""
    lake.put_many({f"{path}/{file.relative_to(source)}": file.read_bytes() for file in timeline_files(source)})


def timeline_files(source: Path) -> list[Path]:
    meta = source / ".hoodie"
    return [file for file in sorted(meta.rglob("*")) if file.is_file() and meta / "metadata" not in file.parents]


@dataclass
class HdfsLake:
    """Writes through RPC, and reads through WebHDFS, the NameNode's other interface."""

    cluster: LocalHdfs
    kind: str = "hdfs"
    forbids: str = ""
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.cluster.url)

    def open(self, path: str) -> Storage:
        return open_storage(f"{self.cluster.url}{path}")

    def put(self, path: str, content: bytes) -> None:
        with self.client.create(path, WriteOptions(overwrite=True)) as stream:
            if content:
                stream.write(content)

    def put_many(self, files: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(self.put, files.keys(), files.values()))

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.client.set_times(path, modified_ms, modified_ms)

    def modified_ms(self, folder: str) -> dict[str, int]:
        url = f"{self.cluster.http_url}/webhdfs/v1{urllib.parse.quote(folder)}?op=LISTSTATUS"
        with urllib.request.urlopen(url, timeout=10) as response:
            listed: list[dict[str, Any]] = json.load(response)["FileStatuses"]["FileStatus"]
        return {status["pathSuffix"]: int(status["modificationTime"]) for status in listed}


@dataclass
class S3Lake:
    """Writes with plain HTTP requests."""

    server: LocalObjectStore | GoFakeS3
    kind: str = "s3"
    forbids: str = ""
    schemes: tuple[str, ...] = ("s3", "s3a")

    def __post_init__(self) -> None:
        self._per_thread = threading.local()

    def open(self, path: str, scheme: str = "s3a") -> Storage:
        return open_storage(f"{scheme}://{BUCKET}{path}", self.server.storage_options)

    def put(self, path: str, content: bytes) -> None:
        connection = getattr(self._per_thread, "connection", None)
        if connection is None:
            connection = self._per_thread.connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.request("PUT", f"/{BUCKET}{urllib.parse.quote(path)}", body=content, headers=OWNER)
        response = connection.getresponse()
        response.read()
        assert response.status == http.HTTPStatus.OK

    def put_many(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            self.put(path, content)


@dataclass
class GcsLake:
    """Writes with plain HTTP requests."""

    server: FakeGcs
    kind: str = "gcs"
    forbids: str = ""

    def open(self, path: str) -> Storage:
        return open_storage(f"gs://{BUCKET}{path}", self.server.storage_options)

    def put(self, path: str, content: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "media", "name": path.removeprefix("/")})
        url = f"{self.server.endpoint}/upload/storage/v1/b/{BUCKET}/o?{query}"
        with urllib.request.urlopen(urllib.request.Request(url, data=content, method="POST"), timeout=10) as answer:
            answer.read()

    def put_many(self, files: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.put, files.keys(), files.values()))


@dataclass
class AzureLake:
    """Writes with Azure's own client."""

    server: Azurite
    kind: str = "azure"
    forbids: str = "\\"
    container: Any = field(init=False)

    def __post_init__(self) -> None:
        service = import_module("azure.storage.blob").BlobServiceClient
        account = service.from_connection_string(self.server.storage_options["connection_string"])
        self.container = account.create_container(BUCKET)

    def open(self, path: str) -> Storage:
        return open_storage(f"abfs://{BUCKET}{path}", self.server.storage_options)

    def put(self, path: str, content: bytes, **metadata: str) -> None:
        self.container.upload_blob(path.removeprefix("/"), content, overwrite=True, metadata=metadata)

    def put_many(self, files: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.put, files.keys(), files.values()))

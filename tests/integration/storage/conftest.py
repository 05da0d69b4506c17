"""A real HDFS and an S3-compatible server, started once for all tests here; in `make soak` other stores as well."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import hdfs
from local_stack.hdfs import LocalHdfs
from local_stack.maven import JarsMissingError
from local_stack.object_store import LocalObjectStore, ServerMissingError
from local_stack.other_stores import CLIENTS, Azurite, FakeGcs, GoFakeS3
from tests.integration.storage.lakes import (
    BUCKET,
    CLOUDS,
    GOFAKES3,
    MOTO,
    AzureLake,
    GcsLake,
    HdfsLake,
    Lake,
    S3Lake,
)


def start_hdfs(folder: Path) -> LocalHdfs:
    if not hdfs.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("HDFS needs Maven and Java 17")
    cluster = LocalHdfs(folder)
    try:
        cluster.start()
    except JarsMissingError as error:
        pytest.fail(str(error))
    return cluster


@pytest.fixture(scope="session")
def hdfs_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsLake]:
    cluster = start_hdfs(tmp_path_factory.mktemp("hdfs"))
    yield HdfsLake(cluster)
    cluster.stop()


@pytest.fixture(scope="module")
def breakable_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHdfs]:
    """A cluster that a test may kill, and has to start again."""
    cluster = start_hdfs(tmp_path_factory.mktemp("breakable-hdfs"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def moto_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Lake]:
    server = LocalObjectStore(tmp_path_factory.mktemp("object-store"))
    try:
        server.start()
    except ServerMissingError as error:
        pytest.skip(str(error))
    server.make_bucket(BUCKET)
    yield S3Lake(server)
    server.stop()


def start_other(server: GoFakeS3 | FakeGcs | Azurite) -> None:
    try:
        server.start()
    except ServerMissingError as error:
        pytest.skip(str(error))
    sys.path.append(str(CLIENTS))


@pytest.fixture(scope="session")
def gofakes3_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Lake]:
    server = GoFakeS3(tmp_path_factory.mktemp("gofakes3"))
    start_other(server)
    server.make_bucket(BUCKET)
    yield S3Lake(server)
    server.stop()


@pytest.fixture(scope="session")
def gcs_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsLake]:
    # Of a folder's kind gcsfs asks by gRPC, which the server does not speak.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    server = FakeGcs(tmp_path_factory.mktemp("gcs"))
    start_other(server)
    server.make_bucket(BUCKET)
    yield GcsLake(server)
    server.stop()


@pytest.fixture(scope="session")
def azure_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureLake]:
    server = Azurite(tmp_path_factory.mktemp("azure"))
    start_other(server)
    lake = AzureLake(server)
    yield lake
    lake.container.close()
    server.stop()


@pytest.fixture(params=[MOTO, GOFAKES3])
def s3_lake(request: pytest.FixtureRequest) -> S3Lake:
    found: S3Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


@pytest.fixture(params=[MOTO, GOFAKES3, *CLOUDS])
def object_lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


@pytest.fixture(params=["hdfs", MOTO, GOFAKES3, *CLOUDS])
def lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield int(server.getsockname()[1])

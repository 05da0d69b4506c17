"""A real HDFS and an S3-compatible server, started once for all tests here."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import hdfs
from local_stack.hdfs import LocalHdfs
from local_stack.maven import JarsMissingError
from local_stack.object_store import LocalObjectStore, ServerMissingError
from tests.integration.storage.lakes import BUCKET, HdfsLake, Lake, S3Lake


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
def s3_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Lake]:
    server = LocalObjectStore(tmp_path_factory.mktemp("object-store"))
    try:
        server.start()
    except ServerMissingError as error:
        pytest.skip(str(error))
    server.make_bucket(BUCKET)
    yield S3Lake(server)
    server.stop()


@pytest.fixture(params=["hdfs", "s3"])
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

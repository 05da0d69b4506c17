"""Which store a base path lies on, and what its options may be; no server is asked."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_lake_provider.errors import StorageError, TableNotFoundError
from airflow_lake_provider.storage.hdfs import QUICK_FAILOVER, HdfsOptions, HdfsStore, explain_kerberos
from airflow_lake_provider.storage.s3 import S3Store, parse_options
from airflow_lake_provider.storage.store import FileEntry, FsspecStore, LocalStore, without_markers
from airflow_lake_provider.storage.table_storage import Storage, open_storage

KEYS = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}


@pytest.mark.parametrize(
    ("base_path", "options", "store", "root", "knows_times"),
    [
        ("/lake/t", {}, LocalStore, "/lake/t", True),
        ("/", {}, LocalStore, "/", True),
        ("file:///lake/t/", {}, LocalStore, "/lake/t", True),
        ("hdfs://nn:8020/lake//t/", {}, HdfsStore, "/lake/t", True),
        ("hdfs:///lake/t", {}, HdfsStore, "/lake/t", True),
        ("viewfs://cluster/lake/t", {}, HdfsStore, "/lake/t", True),
        ("s3://bucket/lake//t/", KEYS, S3Store, "bucket/lake/t", False),
        ("s3a://bucket/lake/t", KEYS, S3Store, "bucket/lake/t", False),
        ("memory://lake//t/", {}, FsspecStore, "/lake/t", False),
    ],
)
def test_scheme_decides(base_path: str, options: dict[str, Any], store: type, root: str, knows_times: bool) -> None:
    storage = open_storage(base_path, options)
    assert type(storage.store) is store
    assert storage.root == root
    assert storage.has_folder_times is knows_times
    assert storage.is_local is (store is LocalStore)


def test_tables_share_a_client_while_scheme_authority_and_options_are_the_same() -> None:
    def store_of(base_path: str, **options: object) -> object:
        return open_storage(base_path, options).store

    first = store_of("hdfs://nn:8020/a")
    assert store_of("hdfs://nn:8020/b") is first
    assert store_of("HDFS://nn:8020/b") is first
    assert store_of("hdfs://other:8020/a") is not first
    assert store_of("hdfs://nn:8020/a", timeout_s=5) is not first
    assert store_of("s3a://bucket/a", **KEYS) is store_of("s3://bucket/b", **KEYS)
    assert store_of("s3://bucket/a", **KEYS) is not store_of("s3://bucket/a", **{**KEYS, "access_key": "other"})


def test_threads_that_open_at_the_same_time_share_a_client() -> None:
    stores: list[object] = []
    barrier = threading.Barrier(16)

    def open_one() -> None:
        barrier.wait()
        stores.append(open_storage("hdfs://at-once:8020/t").store)

    threads = [threading.Thread(target=open_one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, stores))) == 1


@pytest.mark.parametrize(
    ("base_path", "options", "says"),
    [
        ("hdfs://nn/t", {"user": "me"}, "unknown storage option 'user' of HDFS"),
        ("hdfs://nn/t", {"timeout_s": "soon"}, "timeout_s must be a number of seconds above 0, not 'soon'"),
        ("hdfs://nn/t", {"timeout_s": -1}, "not -1"),
        ("s3://bucket/t", {"acces_key": "a"}, "unknown storage option 'acces_key' of S3; known are access_key"),
        ("s3://bucket/t", {"anonymous": "maybe"}, "anonymous must be true or false, not 'maybe'"),
        ("s3://bucket/t", {"request_timeout": "x"}, "request_timeout must be a number above 0"),
        ("s3://bucket/t", {"access_key": "only"}, r"no S3 file system with options \['access_key'\]"),
        ("s3://bucket/t", {"region": 5}, "no S3 file system"),
        ("nosuch://x/t", {}, "no storage for 'nosuch://x/t'"),
        # By the library of `abfs`, which is not installed here.
        ("wasbs://lake@account.blob.core.windows.net/t", {}, "adlfs"),
    ],
)
def test_options_that_do_not_fit_are_named(base_path: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(StorageError, match=says):
        open_storage(base_path, options)


def test_secret_values_are_not_in_the_message() -> None:
    with pytest.raises(StorageError) as raised:
        open_storage("s3://bucket/t", {"secret_key": "hidden"})
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("base_path", "module", "library"),
    [
        ("hdfs://missing/t", "hdfs", r"airflow-lake-provider\[hdfs\]"),
        ("s3://missing/t", "s3", "pip install pyarrow"),
    ],
)
def test_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, base_path: str, module: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, f"airflow_lake_provider.storage.{module}", None)
    with pytest.raises(StorageError, match=library):
        open_storage(base_path)


def test_hdfs_options_are_hadoops_settings_as_texts() -> None:
    options = HdfsOptions.parse(
        {
            "dfs.ha.namenodes.lake": "a,b",
            "dfs.client.failover.random.order.lake": True,
            "dfs.client.failover.max.attempts": 9,
            "kerberos_principal": "me@REALM",
            "timeout_s": "7.5",
        }
    )
    assert options.timeout_s == 7.5
    assert options.client_arguments == {"kerberos_principal": "me@REALM"}
    assert options.settings == {
        **QUICK_FAILOVER,
        "dfs.ha.namenodes.lake": "a,b",
        "dfs.client.failover.random.order.lake": "true",
        "dfs.client.failover.max.attempts": "9",
    }


def test_s3_options_may_be_texts() -> None:
    arguments = parse_options({"anonymous": "True", "request_timeout": "2", "max_attempts": "5"})
    assert arguments == {"connect_timeout": 5.0, "request_timeout": 2.0, "anonymous": True, "max_attempts": 5}


@pytest.fixture
def memory() -> Storage:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/lake/t/a": b"12", "/lake/t/t": b"", "/lake/t/folder/x": b""})
    return open_storage("memory://lake/t")


def test_other_schemes_go_through_fsspec(memory: Storage) -> None:
    assert sorted(memory.list_names("")) == ["a", "folder", "t"]
    assert {entry.name: entry.is_folder for entry in memory.list_entries("")} == {
        "a": False,
        "t": False,
        "folder": True,
    }
    assert memory.read_bytes("a") == b"12"
    found = memory.stat("a")
    assert found is not None
    assert (found.size_bytes, found.modified_ms > 0) == (2, True)
    assert memory.stat("nothing") is None
    with pytest.raises(FileNotFoundError):
        memory.list_names("nothing")


def test_local_listing_of_a_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    storage = open_storage(f"file://{tmp_path}")
    for ask in (storage.list_names, storage.list_entries):
        with pytest.raises(FileNotFoundError):
            ask("file")


@pytest.mark.parametrize("base_path", ["a\0b", "hdfs://nn/\0", "s3://b/\ud800", ""])
def test_what_is_no_path_is_no_table(base_path: str) -> None:
    with pytest.raises(TableNotFoundError):
        open_storage(base_path)


GSSAPI = 'GSSAPIError(GssMajorCodes { raw: "0x00070000" }, 2529638943, "No credentials were supplied: %s")'


@pytest.mark.parametrize(
    ("arguments", "reason", "says", "may_end"),
    [
        pytest.param(
            {"kerberos_principal": "lake@REALM", "kerberos_keytab": "/etc/lake.keytab"},
            "Decrypt integrity check failed",
            "of lake@REALM with keytab /etc/lake.keytab: Decrypt integrity check failed; the principal's keys have",
            False,
            id="old-keytab",
        ),
        pytest.param({}, "No Kerberos credentials available (default cache: FILE:/tmp/x)", "set `principal`", False,
                     id="none"),
        pytest.param(
            {"kerberos_principal": "lake@REALM", "kerberos_cache": "FILE:/tmp/cache"},
            "Ticket expired",
            "with ticket cache FILE:/tmp/cache: Ticket expired; no process has renewed it",
            True,
            id="expired",
        ),
        pytest.param({}, "Cannot contact any KDC for realm 'REALM'", "the KDC does not answer", True, id="no-kdc"),
        pytest.param({}, "Clock skew too great", "default ticket cache: Clock skew too great", True, id="unknown"),
    ],
)  # fmt: skip
def test_ticket_that_cannot_be_had_is_explained(
    arguments: dict[str, str], reason: str, says: str, may_end: bool
) -> None:
    error = explain_kerberos("hdfs://nn:8020", arguments, GSSAPI % reason)
    assert says in str(error)
    assert error.retriable is may_end


def test_file_is_no_empty_folder_of_a_file_system_of_fsspec() -> None:
    storage = open_storage("memory://files")
    storage.create("t/file", b"")
    assert storage.list_names("t") == ["file"]
    with pytest.raises(FileNotFoundError):
        storage.list_names("t/file")


def test_forked_process_opens_a_file_system_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of fsspec's clients are not in the child."""
    opened: list[object] = []
    store = FsspecStore(lambda: opened.append(object()) or opened[-1])
    assert (store.fs, store.fs) == (opened[0], opened[0])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert store.fs is opened[1]


def test_folder_goes_before_its_markers() -> None:
    """In whatever order a store lists them."""
    folder, marker = FileEntry("f", 0, 0, is_folder=True), FileEntry("f", 0, 1)
    assert without_markers([folder, marker]) == without_markers([marker, folder]) == [folder]
    assert without_markers([FileEntry("f_$folder$", 0, 1)]) == []

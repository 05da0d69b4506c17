"""Stores that are not there, or are there and say nothing: a retriable error in bounded time, never a hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hdfs_native import Client

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.storage.bounded_calls import PAUSE_S
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from local_stack.hdfs import LocalHdfs
from local_stack.object_store import LocalObjectStore
from local_stack.processes import pause, resume
from tests.integration.storage.lakes import BUCKET

BOUND_S = 30.0
S3_KEYS = {"access_key": "a", "secret_key": "b", "region": "us-east-1", "scheme": "http"}


def seconds_until_it_fails(ask: Callable[[], object]) -> float:
    began_s = time.monotonic()
    with pytest.raises(StorageError) as raised:
        ask()
    assert raised.value.retriable
    assert str(raised.value)
    return time.monotonic() - began_s


ASKS: dict[str, Callable[[Storage], object]] = {
    "stat": lambda storage: storage.stat("x"),
    "list": lambda storage: storage.list_names("x"),
    "read": lambda storage: storage.read_bytes("x"),
}


def seconds_until_all_fail(storages: dict[str, Storage]) -> dict[str, float]:
    """Every way to ask, on every store, all at once."""
    with ThreadPoolExecutor(len(storages) * len(ASKS)) as pool:
        waiting = {
            f"{name} {how}": pool.submit(seconds_until_it_fails, partial(ask, storage))
            for name, storage in storages.items()
            for how, ask in ASKS.items()
        }
    return {name: future.result() for name, future in waiting.items()}


def test_no_server_listens() -> None:
    took = seconds_until_all_fail(
        {
            "hdfs": open_storage("hdfs://127.0.0.1:1/table"),
            "unknown host": open_storage("hdfs://no-such-host.invalid:8020/table"),
            "unknown nameservice": open_storage("hdfs://no-such-nameservice/table"),
            "s3": open_storage("s3://bucket/table", {**S3_KEYS, "endpoint_override": "127.0.0.1:1"}),
        }
    )
    assert max(took.values()) < BOUND_S, took


def test_a_server_listens_and_never_answers(silent_port: int) -> None:
    took = seconds_until_all_fail(
        {
            "hdfs": open_storage(f"hdfs://127.0.0.1:{silent_port}/table"),
            "s3": open_storage("s3://bucket/table", {**S3_KEYS, "endpoint_override": f"127.0.0.1:{silent_port}"}),
        }
    )
    assert max(took.values()) < BOUND_S, took


def test_callers_of_a_silent_namenode_are_refused_at_once_and_cost_no_threads(silent_port: int) -> None:
    url = f"hdfs://127.0.0.1:{silent_port}"
    assert seconds_until_it_fails(lambda: open_storage(f"{url}/t0", {"timeout_s": 1}).stat("x")) < 5
    threads = len(os.listdir("/proc/self/task"))
    began_s = time.monotonic()
    for number in range(1000):
        with pytest.raises(StorageError, match="did not answer"):
            open_storage(f"{url}/t{number}", {"timeout_s": 1}).stat("x")
        if time.monotonic() - began_s > PAUSE_S - 1:
            pytest.fail(f"only {number} tables were refused in {PAUSE_S - 1} s")
    assert len(os.listdir("/proc/self/task")) <= threads + 2


def test_namenode_that_was_killed_is_an_error_and_found_again_on_the_same_port(breakable_hdfs: LocalHdfs) -> None:
    with Client(breakable_hdfs.url).create("/killed/x") as stream:
        stream.write(b"kept")
    storage = open_storage(f"{breakable_hdfs.url}/killed")
    assert storage.list_names("") == ["x"]
    breakable_hdfs.kill()
    for ask in (lambda: storage.list_names(""), lambda: storage.stat("x"), lambda: storage.read_bytes("x")):
        assert seconds_until_it_fails(ask) < BOUND_S
    breakable_hdfs.start()
    assert storage.list_names("") == ["x"]
    assert storage.read_bytes("x") == b"kept"


def test_namenode_that_stands_still_is_an_error_and_found_again_when_it_goes_on(breakable_hdfs: LocalHdfs) -> None:
    with Client(breakable_hdfs.url).create("/frozen/x") as stream:
        stream.write(b"kept")
    storage = open_storage(f"{breakable_hdfs.url}/frozen", {"timeout_s": 2})
    assert storage.list_names("") == ["x"]
    assert breakable_hdfs.server is not None
    namenode = breakable_hdfs.server.process.pid
    pause(namenode)
    try:
        assert 1.5 < seconds_until_it_fails(lambda: storage.list_names("")) < 5
        assert seconds_until_it_fails(lambda: storage.list_names("")) < 1
    finally:
        resume(namenode)
    time.sleep(PAUSE_S + 0.5)
    assert storage.list_names("") == ["x"]


def test_object_store_that_was_killed_is_an_error_and_found_again(tmp_path: Path) -> None:
    server = LocalObjectStore(tmp_path)
    server.start()
    try:
        server.make_bucket(BUCKET)
        storage = open_storage(f"s3a://{BUCKET}/table", server.storage_options)
        assert storage.stat("x") is None
        server.kill()
        assert seconds_until_it_fails(lambda: storage.stat("x")) < BOUND_S
        server.start()
        server.make_bucket(BUCKET)
        assert storage.stat("x") is None
    finally:
        server.stop()

"""Tables on an HDFS with two NameNodes while the active one dies: reads go on, and a lock that is held stays held."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator

import pytest
from hdfs_native import Client, WriteOptions

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.store import StoreConnection, options_of
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from local_stack import hadoop
from local_stack.hdfs_daemons import SERVICE, HdfsDaemons
from local_stack.processes import PATIENCE
from tests.integration.storage.lakes import timeline_files
from tests.support.fixture_tables import unpack

pytestmark = pytest.mark.soak(covered_by="tests/integration/storage/test_outages.py")

LOCK = "/lake/orders/.hoodie/lock"
TABLE = f"hdfs://{SERVICE}/lake/orders"
TAKEOVER_S = 60.0


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsDaemons]:
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("HDFS needs Maven and Java 17")
    cluster = HdfsDaemons(tmp_path_factory.mktemp("hdfs"), name_nodes=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def expected(hdfs: HdfsDaemons, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Upload a real table's timeline; return the requested times that Hudi's own reader found in it."""
    fixture = unpack("mor_v9", tmp_path_factory.mktemp("fixture"))
    client = client_of(hdfs)
    for file in timeline_files(fixture.path):
        target = f"/lake/orders/{file.relative_to(fixture.path)}"
        with client.create(target, WriteOptions(overwrite=True, create_parent=True)) as stream:
            if file.stat().st_size:
                stream.write(file.read_bytes())
    return {str(instant["requested_time"]) for instant in fixture.expected}


def client_of(hdfs: HdfsDaemons) -> Client:
    return Client(hdfs.url, {}, config_dir=str(hdfs.conf))


def open_table(hdfs: HdfsDaemons) -> Storage:
    """Open the table as the provider does, with the extra of a connection."""
    connection = StoreConnection("lake_hdfs", "hdfs", extra={"config_dir": str(hdfs.conf)})
    return open_storage(f"{hdfs.url}/lake/orders", options_of(connection))


def instants_in(storage: Storage) -> set[str]:
    return {instant.requested_time for instant in load_timeline(storage, load_table_properties(storage)).instants}


def instants_seen(views: TableViewCache) -> set[str]:
    return {instant.requested_time for instant in views.refresh(TABLE).timeline.instants}


def test_refreshes_during_a_failover_are_right_or_retriable_errors_and_the_lock_stays_held(
    hdfs: HdfsDaemons, expected: set[str]
) -> None:
    storage, client = open_table(hdfs), client_of(hdfs)
    views = TableViewCache(SharedTimelines(open_table=lambda _: open_table(hdfs)))
    assert instants_seen(views) == expected
    client.create(LOCK, WriteOptions(overwrite=False)).close()
    wrong: list[object] = []
    refused, done = [], threading.Event()

    def refresh() -> None:
        while not done.is_set():
            try:
                # The whole timeline, and the manager's own refresh, which reads only what has changed.
                wrong.extend(found for found in (instants_in(storage), instants_seen(views)) if found != expected)
            except StorageError as error:
                refused.append(error)
            time.sleep(0.1)

    reader = threading.Thread(target=refresh)
    reader.start()
    time.sleep(1)
    killed = hdfs.kill_active()
    deadline = time.monotonic() + TAKEOVER_S * PATIENCE
    while hdfs.find_active() is None:
        assert time.monotonic() < deadline, hdfs.daemons.servers()[0].log_tail()
        time.sleep(0.2)
    assert hdfs.find_active() != killed
    assert instants_in(open_table(hdfs)) == expected
    time.sleep(2)
    count = len(refused)
    time.sleep(2)
    done.set()
    reader.join()
    assert wrong == []
    assert all(error.retriable for error in refused)
    assert len(refused) == count, "refreshes fail although a NameNode is active"

    # The lock that a writer took before is still its own, and only one may take it after.
    with pytest.raises((FileExistsError, RuntimeError, OSError)):
        client_of(hdfs).create(LOCK, WriteOptions(overwrite=False))
    client_of(hdfs).delete(LOCK)
    client_of(hdfs).create(LOCK, WriteOptions(overwrite=False)).close()

    # What a writer adds by the other NameNode is seen.
    added = "29990101000000000"
    client_of(hdfs).create(f"/lake/orders/.hoodie/timeline/{added}.deltacommit.requested", WriteOptions()).close()
    assert instants_seen(views) == instants_in(storage) == {*expected, added}

    # The one that died comes back as the standby, and takes over in its turn.
    hdfs.start_name_node(killed)
    other = hdfs.find_active()
    assert other is not None
    deadline = time.monotonic() + TAKEOVER_S * PATIENCE
    while not hdfs.is_standby(killed):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    hdfs.kill_active()
    deadline = time.monotonic() + TAKEOVER_S * PATIENCE
    while hdfs.find_active() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert instants_in(open_table(hdfs)) == instants_seen(views) == {*expected, added}
    hdfs.start_name_node(other)

"""Tables on an HDFS that takes no client without a Kerberos ticket: read by the keytab of an Airflow connection."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client, WriteOptions

from airflow_lake_provider.errors import StorageError, StorageOptionError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.storage.store import StoreConnection, options_of
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from local_stack import hadoop
from local_stack.clusters import SecureHdfs
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.kerberos import LocalKerberos, with_another_key
from tests.integration.storage.lakes import timeline_files
from tests.support.fixture_tables import unpack

TICKET_S = 8
"""Of the tests' own tickets; those of the daemons live for a day."""


@dataclass
class Realm:
    """A realm with an HDFS in it."""

    kerberos: LocalKerberos
    hdfs: HdfsDaemons

    def open(self, **extra: Any) -> Storage:
        """Open the table as the provider does, with the extra of a connection."""
        settings = {key: value for key, value in self.kerberos.client_settings().items() if not key.startswith("yarn")}
        connection = StoreConnection("hdfs_lake", "hdfs", extra={**settings, **extra})
        return open_storage(f"{self.hdfs.url}/lake/orders", options_of(connection))

    def with_keytab(self, keytab: Path | None = None) -> Storage:
        return self.open(principal=self.kerberos.client, keytab=str(keytab or self.kerberos.keytab))


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kerberos needs Maven and Java 17")
    cluster = SecureHdfs(tmp_path_factory.mktemp("realm"))
    config = cluster.realm.folder / "short.conf"
    with pytest.MonkeyPatch.context() as patch:
        # MIT's library reads these at each use.
        patch.setenv("KRB5_CONFIG", str(config))
        patch.setenv("KRB5CCNAME", f"FILE:{cluster.realm.folder}/no-such-cache")
        try:
            cluster.start()
            text = cluster.realm.config.read_text("utf-8")
            config.write_text(re.sub(r"ticket_lifetime = \d+s", f"ticket_lifetime = {TICKET_S}s", text), "utf-8")
            yield Realm(cluster.realm, cluster.hdfs)
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def expected(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Upload a real table's timeline; return the requested times that Hudi's own reader found in it."""
    fixture = unpack("mor_v9", tmp_path_factory.mktemp("fixture"))
    client = Client(
        realm.hdfs.url,
        realm.kerberos.client_settings(),
        kerberos_principal=realm.kerberos.client,
        kerberos_keytab=str(realm.kerberos.keytab),
    )
    for file in timeline_files(fixture.path):
        target = f"/lake/orders/{file.relative_to(fixture.path)}"
        with client.create(target, WriteOptions(overwrite=True, create_parent=True)) as stream:
            if file.stat().st_size:
                stream.write(file.read_bytes())
    return {str(instant["requested_time"]) for instant in fixture.expected}


@dataclass(frozen=True)
class OldTicket:
    """A cache whose ticket ends soon, and when, by the monotonic clock."""

    cache: str
    ends_at: float

    def wait(self) -> None:
        time.sleep(max(0.0, self.ends_at + 2 - time.monotonic()))


@pytest.fixture(scope="module")
def old_ticket(realm: Realm, expected: set[str]) -> OldTicket:
    """One for all tests: it ends while the first one waits for the end of its own."""
    cache = f"FILE:{realm.kerberos.folder}/old-cache"
    renew_cache(realm, cache)
    return OldTicket(cache, time.monotonic() + TICKET_S)


def instants_in(storage: Storage) -> set[str]:
    return {instant.requested_time for instant in load_timeline(storage, load_table_properties(storage)).instants}


def test_timeline_is_read_by_the_connections_keytab_beyond_the_tickets_lifetime(
    realm: Realm, expected: set[str], old_ticket: OldTicket
) -> None:
    storage = realm.with_keytab()
    assert instants_in(storage) == expected
    time.sleep(TICKET_S + 2)
    assert instants_in(storage) == expected
    # A connection of its own, as after a restart of the NameNode.
    assert instants_in(realm.with_keytab()) == expected


@pytest.mark.usefixtures("expected")
def test_what_is_wrong_with_the_credentials_is_named_and_not_retried(realm: Realm, tmp_path: Path) -> None:
    wrong = with_another_key(realm.kerberos.keytab, tmp_path / "old.keytab")
    no_such = tmp_path / "none.keytab"
    cases = {
        "Decrypt integrity check failed; the principal's keys have changed": realm.with_keytab(wrong),
        f"keytab {no_such}: .*it cannot be read": realm.with_keytab(no_such),
        "set `principal` and `keytab` in the connection": realm.open(),
    }
    for says, storage in cases.items():
        with pytest.raises(StorageOptionError, match=says) as raised:
            instants_in(storage)
        assert not raised.value.retriable


def test_expired_ticket_is_named_and_counts_again_when_it_was_renewed(realm: Realm, old_ticket: OldTicket) -> None:
    cache = old_ticket.cache
    old_ticket.wait()
    with pytest.raises(StorageError, match="Ticket expired; no process has renewed it") as raised:
        instants_in(realm.open(principal=realm.kerberos.client, ticket_cache=cache))
    assert raised.value.retriable
    renew_cache(realm, cache)
    assert instants_in(realm.open(principal=realm.kerberos.client, ticket_cache=cache))


def renew_cache(realm: Realm, cache: str) -> None:
    """Fetch a new ticket into a cache, as `airflow kerberos` does."""
    Client(
        realm.hdfs.url,
        realm.kerberos.client_settings(),
        kerberos_principal=realm.kerberos.client,
        kerberos_keytab=str(realm.kerberos.keytab),
        kerberos_cache=cache,
    ).get_file_info("/")

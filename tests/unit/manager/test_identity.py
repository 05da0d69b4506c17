"""A table's name, which selects its policy, is what its hoodie.properties say: no notice changes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source, TableLease
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.storage.table_storage import StorageCalls, open_storage
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import CALLBACK_TOKEN, SERVICE_TOKEN, FakeClock, FakeRunGateway, serve, table_of

KEY = {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN}
BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
TOKEN = f"&extra_params=token={CALLBACK_TOKEN}"

TABLES = """
defaults:
  hudi_options: {hoodie.write.lock.provider: org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider}
tables:
  - name: orders
    clean: {retained_commits: 500}
    archive: {min_commits: 600, max_commits: 700}
    replication: [{sink: kafka, topic: orders, bootstrap_servers: 'b:9092'}]
    heartbeat_timeout_s: 111
  - name: scratch_*
    clean: {retained_commits: 1}
    ttl: {retained_days: 1}
    doctor: {repairs: [orphaned_lock]}
    heartbeat_timeout_s: 222
"""


@pytest.fixture
def source(tmp_path: Path) -> TablesSource:
    path = tmp_path / "tables.yaml"
    path.write_text(TABLES, encoding="utf-8")
    return TablesSource(str(path))


@pytest.fixture
def manager(
    services: ManagerServices, timeline_server: TimelineServer, gateway: FakeRunGateway, source: TablesSource
) -> ManagerServices:
    """A manager that goes by the tables file above."""
    loop = ManagerLoop(
        services.settings,
        services.registry,
        TimelineServerGateway(timeline_server),
        services.views,
        gateway,
        source.load,
    )
    return replace(services, loop=loop, tables=source)


@pytest.fixture
def client(manager: ManagerServices) -> httpx.Client:
    return TestClient(serve(lambda: manager), raise_server_exceptions=False)


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    """A table called `orders`, in a folder called otherwise, with thirty commits."""
    made = HandMadeTable.create(lake / "scratch_v2", "COPY_ON_WRITE")
    for second in range(1, 31):
        made.commit(second)
    return made


def call_back(
    client: httpx.Client,
    table: HandMadeTable,
    name: str = "orders",
    instant: str = "20261121120001000",
    **headers: str,
) -> str:
    body = {"commitTime": instant, "tableName": name, "basePath": str(table.path)}
    response = client.post("/callback", json=body, headers=KEY | {k.replace("_", "-"): v for k, v in headers.items()})
    assert response.status_code == 200
    return str(response.json()["table_id"])


def shown(client: httpx.Client, table: HandMadeTable) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/tables/{table_id_of(str(table.path))}", headers=BEARER).json()
    return answer


def service_get(table: HandMadeTable, more: str = "") -> str:
    return f"/service/clean?basepath={table.path}&table_name=scratch_x&db_name=evil&username=mallory{more}"


def hint(client: httpx.Client, table: HandMadeTable) -> httpx.Response:
    body = {"hints": [{"base_path": str(table.path), "table_name": table.path.name, "instants": []}]}
    return client.post("/hints", json=body, headers=BEARER)


def discover(client: httpx.Client, table: HandMadeTable) -> httpx.Response:
    body = {"tables": [{"base_path": str(table.path), "table_name": "scratch_x"}]}
    return client.post("/discovery/tables", json=body, headers=BEARER)


@pytest.mark.parametrize(
    "notify",
    [
        pytest.param(lambda client, table: client.get(service_get(table, TOKEN)), id="service-manager-with-token"),
        pytest.param(hint, id="run-by-hand-or-reindex-without-a-name"),
        pytest.param(discover, id="discovery"),
        pytest.param(lambda client, table: call_back(client, table, "scratch_x"), id="writer-with-another-name"),
    ],
)
def test_registered_table_keeps_its_name_its_policy_and_its_hold_whatever_announces_it(
    client: httpx.Client,
    manager: ManagerServices,
    gateway: FakeRunGateway,
    table: HandMadeTable,
    notify: Callable[[httpx.Client, HandMadeTable], Any],
) -> None:
    table_id = call_back(client, table)
    manager.loop.drain()
    assert client.post("/sinks/claim", json={"run_id": "run-1"}, headers=BEARER).json()["sinks"]
    held = {"instant": "0", "holder": "kafka", "released": []}
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).json() == held
    notify(client, table)
    assert shown(client, table)["table_name"] == "orders"
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).json() == held
    manager.loop.drain()
    row = shown(client, table)
    assert (row["table_name"], row["database"], row["owner"], row["problem"]) == ("orders", "", "", "")
    assert [run.run_id for run in gateway.runs] == [], "500 commits are retained"
    (sink,) = client.get(f"/tables/{table_id}/sinks", headers=BEARER).json()["sinks"]
    assert (sink["hold"], sink["problem"]) == ("0", "")


def test_service_manager_request_without_a_token_is_401_and_changes_nothing(
    client: httpx.Client, manager: ManagerServices, registry: Registry, table: HandMadeTable
) -> None:
    table_id = call_back(client, table)
    manager.loop.drain()
    before = registry.get(table_id)
    for more in ("", "&extra_params=", "&extra_params=token=wrong-token", "&extra_params=token="):
        response = client.get(service_get(table, more))
        assert response.status_code == 401
        assert "extra_params" in response.json()["detail"]
    assert registry.get(table_id) == before


def test_service_manager_request_without_a_token_where_it_is_allowed_only_wakes_a_registered_table(
    manager: ManagerServices, settings: LakeSettings, registry: Registry, table: HandMadeTable, lake: Path
) -> None:
    off = settings.replace(service_manager_needs_token=False)
    client = TestClient(create_app(lambda: replace(manager, settings=off)), raise_server_exceptions=False)
    answer = client.get(service_get(table))
    assert answer.status_code == 202
    assert answer.json() == {"table_id": table_id_of(str(table.path)), "accepted": False}
    assert registry.list_tables() == []
    assert manager.timeline_server.timelines.calls == StorageCalls(), "no storage was read"

    call_back(client, table, X_Lake_Owner="shop")
    manager.loop.drain()
    before = shown(client, table)
    same = client.get(service_get(table, "&instant=20991121120001000"))
    assert (same.status_code, same.json()) == (202, answer.json()), "the answer shows no table's existence"
    after = shown(client, table)
    changed = {key for key in before if before[key] != after[key]}
    assert changed <= {"dirty", "notices", "last_notice_ms", "last_notice_source"}
    assert after["dirty"]
    assert manager.loop.drain() == 1


@pytest.mark.parametrize("token", [TOKEN, ""], ids=["with-token", "without"])
def test_only_the_callback_of_a_commit_shows_that_writers_announce_their_commits(
    manager: ManagerServices, settings: LakeSettings, table: HandMadeTable, token: str
) -> None:
    off = settings.replace(service_manager_needs_token=False)
    client = TestClient(create_app(lambda: replace(manager, settings=off)), raise_server_exceptions=False)
    manager.registry.mark_dirty(Notice(str(table.path), "orders", Source.CONFIG))
    memory = manager.timeline_server.timelines.memory
    feed = RegistryFeed(manager.registry, manager.tables.load)
    for _ in range(2):
        assert client.get(service_get(table, token)).status_code == 202
        manager.loop.drain()
        assert not memory.get(str(table.path)).is_announced
    assert [fed.is_by_writer for fed in feed.poll()] == [False]
    call_back(client, table)
    manager.loop.drain()
    assert memory.get(str(table.path)).is_announced
    assert [fed.is_by_writer for fed in feed.poll()] == [True]


def test_name_that_was_announced_before_the_first_evaluation_decides_nothing(
    client: httpx.Client, manager: ManagerServices, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    table_id = call_back(client, table, "scratch_x")
    assert shown(client, table)["table_name"] == "scratch_x", "for people"
    # Neither begins a stream nor releases a hold by that name: asked for the safepoint, the properties are read.
    assert client.post("/sinks/claim", json={"run_id": "run-1"}, headers=BEARER).json()["sinks"] == []
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).json()["holder"] == "kafka"
    manager.loop.drain()
    assert gateway.runs == [], "500 commits are retained"
    assert shown(client, table)["table_name"] == "orders"
    assert [
        due["table_name"]
        for due in client.post("/sinks/claim", json={"run_id": "run-1"}, headers=BEARER).json()["sinks"]
    ] == ["orders"]


def test_first_evaluation_decides_by_the_properties_name_whatever_was_announced(
    client: httpx.Client, manager: ManagerServices, gateway: FakeRunGateway, table: HandMadeTable, lake: Path
) -> None:
    scratch = HandMadeTable.create(lake / "orders", "COPY_ON_WRITE", name="scratch_1")
    for second in range(1, 31):
        scratch.commit(second)
    call_back(client, table, "scratch_x")
    cleaned = call_back(client, scratch, "orders")
    assert manager.loop.drain() == 2
    assert {table_of(run) for run in gateway.runs} == {cleaned}
    assert {conf["table_name"] for conf in gateway.confs} == {"scratch_1"}


def test_stream_begins_by_the_properties_name_though_another_one_was_announced(
    client: httpx.Client, manager: ManagerServices, lake: Path
) -> None:
    scratch = HandMadeTable.create(lake / "orders", "COPY_ON_WRITE", name="scratch_1")
    scratch.commit(1)
    table_id = call_back(client, scratch, "orders")
    assert client.post("/sinks/claim", json={"run_id": "run-1"}, headers=BEARER).json()["sinks"] == []
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).json()["instant"] is None
    assert client.get(f"/tables/{table_id}/sinks", headers=BEARER).json()["sinks"] == []


def test_safepoint_of_a_table_that_was_never_read_and_cannot_be_is_an_error(client: httpx.Client, lake: Path) -> None:
    """A clean must not go on without an answer."""
    table_id = call_back(client, HandMadeTable(lake / "gone"))
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).status_code == 404


def test_next_evaluation_after_a_rename_selects_the_policy_by_the_new_name(
    client: httpx.Client, manager: ManagerServices, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    table_id = call_back(client, table)
    manager.loop.drain()
    client.post("/sinks/claim", json={"run_id": "run-1"}, headers=BEARER)
    table.write_properties("scratch_new", table_type="COPY_ON_WRITE")
    clock.advance(7 * 3600)
    call_back(client, table, instant=table.commit(31))
    manager.loop.drain()
    row = shown(client, table)
    assert row["table_name"] == "scratch_new"
    clean = next(found for found in row["decisions"] if found["service"] == "clean")
    assert "sink kafka holds everything" in clean["reason"], "renaming a table releases no hold at once"
    assert client.get(f"/tables/{table_id}/safepoint", headers=BEARER).json()["holder"] == "kafka"
    (sink,) = client.get(f"/tables/{table_id}/sinks", headers=BEARER).json()["sinks"]
    assert sink["problem"].startswith("no longer configured")


def test_doctor_does_not_repair_by_a_name_that_was_only_announced(
    client: httpx.Client, manager: ManagerServices, source: TablesSource, table: HandMadeTable, lake: Path
) -> None:
    scratch = HandMadeTable.create(lake / "other", name="scratch_1")
    scratch.commit(1)
    locks = [made.path / ".hoodie" / "lock" for made in (table, scratch)]
    for lock in locks:
        lock.write_bytes(b"")
        os.utime(lock, (1_000_000_000, 1_000_000_000))
    call_back(client, table, "scratch_x")
    call_back(client, scratch, "orders")
    assert RepairRound(manager.registry, source.load, open_storage).run() == 1
    assert [lock.exists() for lock in locks] == [True, False]


def test_database_of_the_properties_counts_and_the_callbacks_only_without_one(
    client: httpx.Client, manager: ManagerServices, table: HandMadeTable, clock: FakeClock
) -> None:
    call_back(client, table, X_Lake_Database="shop", X_Lake_Owner="ann")
    manager.loop.drain()
    assert (shown(client, table)["database"], shown(client, table)["owner"]) == ("shop", "ann")
    call_back(client, table, X_Lake_Database="store", X_Lake_Owner="bob")
    manager.loop.drain()
    assert (shown(client, table)["database"], shown(client, table)["owner"]) == ("store", "bob")
    table.write_properties("orders", "sales", "COPY_ON_WRITE")
    clock.advance(7 * 3600)
    for second in (31, 32):
        call_back(client, table, instant=table.commit(second), X_Lake_Database="store")
        manager.loop.drain()
        assert shown(client, table)["database"] == "sales"
        call_back(client, table, X_Lake_Database="store")
        assert shown(client, table)["database"] == "sales"


def test_table_from_before_an_upgrade_is_evaluated_without_any_notice(
    client: httpx.Client, manager: ManagerServices, registry: Registry, table: HandMadeTable
) -> None:
    table_id = call_back(client, table)
    manager.loop.drain()
    with registry.transaction() as session:
        session.execute(update(lake_table).values(identified_ms=None, table_name="scratch_x"))
    assert manager.loop.drain() == 1
    assert manager.loop.drain() == 0
    assert registry.get(table_id).table_name == "orders"


def test_table_that_cannot_be_read_is_not_evaluated_in_a_busy_loop(
    client: httpx.Client, manager: ManagerServices, lake: Path
) -> None:
    call_back(client, HandMadeTable(lake / "gone"))
    assert manager.loop.drain() == 1
    assert manager.loop.drain() == 0


def test_heartbeat_follows_the_name_that_an_evaluation_found_out(
    client: httpx.Client, manager: ManagerServices, table: HandMadeTable
) -> None:
    feed = RegistryFeed(manager.registry, manager.tables.load)
    feed.poll()
    call_back(client, table, "scratch_x")
    (fed,) = feed.poll()
    assert (fed.fixed_pause_s, fed.mark) == (222, 1)
    manager.loop.drain()
    (fed,) = feed.poll()
    assert (fed.fixed_pause_s, fed.mark) == (111, 0)
    assert feed.poll() == []


def test_two_spellings_of_a_path_are_one_table_with_the_first_spelling(
    registry: Registry, make_loop: Callable[[], ManagerLoop], timeline_server: TimelineServer
) -> None:
    hinted: list[str] = []
    timeline_server.hint = lambda feed: hinted.append(feed.base_path)  # type: ignore[method-assign]
    loop = make_loop()
    for path in ("s3a://lake/orders", "s3://lake/orders", "s3n://LAKE/orders"):
        loop.notify(Notice(normalise_base_path(path), "orders", Source.COMMIT_CALLBACK))
    (row,) = registry.list_tables()
    assert (row.base_path, row.notices) == ("s3a://lake/orders", 3)
    assert hinted == ["s3a://lake/orders"] * 3


# --- One table by two local paths, one of them with a link


@pytest.mark.parametrize("link_first", [True, False])
def test_table_that_is_registered_by_two_paths_is_served_by_the_first_one(
    make_loop: Callable[[], ManagerLoop], registry: Registry, gateway: FakeRunGateway, clock: FakeClock, lake: Path,
    link_first: bool,
) -> None:  # fmt: skip
    table = HandMadeTable.create(lake / "disk" / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    # The link is a folder above the table, as where a disk is mounted elsewhere.
    (lake / "link").symlink_to(lake / "disk")
    paths = [str(lake / "link" / "orders"), str(table.path)]
    first, second_path = paths if link_first else reversed(paths)
    loop = make_loop()
    loop.notify(Notice(first, "orders", Source.COMMIT_CALLBACK))
    loop.drain()
    clock.advance(1)
    assert [table_of(run) for run in gateway.runs] == [table_id_of(first)]
    gateway.runs.clear()
    loop.notify(Notice(second_path, "orders", Source.COMMIT_CALLBACK))
    loop.drain()
    # The other path's notice is one for the table; its run has another id, if there is one.
    assert {table_of(run) for run in gateway.runs} == {table_id_of(first)}
    decisions = registry.get(table_id_of(second_path)).decisions
    assert f"the same table as {first}, by a link, and served there" in decisions
    assert "by a link" not in registry.get(table_id_of(first)).decisions
    # When the first path is forgotten, the other one is the table's.
    gateway.runs.clear()
    registry.forget(table_id_of(first))
    loop.notify(Notice(second_path, "orders", Source.COMMIT_CALLBACK))
    loop.drain()
    assert {table_of(run) for run in gateway.runs} == {table_id_of(second_path)}


def test_link_that_leads_elsewhere_later_is_a_table_of_its_own(
    make_loop: Callable[[], ManagerLoop], registry: Registry, gateway: FakeRunGateway, lake: Path
) -> None:
    tables = [HandMadeTable.create(lake / name) for name in ("a", "b")]
    for table in tables:
        for second in (1, 2, 3):
            table.commit(second)
    link = lake / "link"
    link.symlink_to(lake / "a")
    loop = make_loop()
    for path in (str(lake / "a"), str(link)):
        loop.notify(Notice(path, "orders", Source.COMMIT_CALLBACK))
        loop.drain()
    assert {table_of(run) for run in gateway.runs} == {table_id_of(str(lake / "a"))}
    link.unlink()
    link.symlink_to(lake / "b")
    loop.notify(Notice(str(link), "orders", Source.COMMIT_CALLBACK))
    loop.drain()
    assert table_id_of(str(link)) in {table_of(run) for run in gateway.runs}


def test_two_paths_that_are_evaluated_at_once_are_not_both_served(registry: Registry, lake: Path) -> None:
    """Each records where it leads before it asks; so at least one sees the other."""
    registry.mark_dirty(Notice(str(lake / "a"), "a", Source.HINT))
    registry.mark_dirty(Notice(str(lake / "b"), "b", Source.HINT))
    one, two = registry.acquire(2, 60)

    def other_path(lease: TableLease) -> str | None:
        registry.keep_real_id(lease, "real-1")
        with registry.transaction() as session:
            row = registry.find_other_path(session, lease, "real-1")
        return None if row is None else row.table_id

    assert [other_path(lease) for lease in (one, two)][1:] == [one.table_id]
    assert other_path(one) is None
    # A path at which no table is any more serves none.
    with registry.transaction() as session:
        mine = lake_table.c.table_id == one.table_id
        session.execute(update(lake_table).where(mine).values(missing_since_ms=1))
    assert other_path(two) is None


def test_unknown_tables_come_in_the_order_of_the_question(registry: Registry) -> None:
    """So that a process registers the tables of its file in the file's order, whatever Python's hash seed is."""
    registry.mark_dirty(Notice("/lake/known", "known", Source.CONFIG))
    names = [f"/lake/{number}" for number in range(20)]
    ids = [table_id_of(path) for path in names]
    assert registry.list_unknown([*ids[:10], table_id_of("/lake/known"), *ids[10:]]) == tuple(ids)

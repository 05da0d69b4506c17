"""The timeline server's endpoints, on its own app and on tables on local disk."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.timeline_server import routes
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.server import ServerOptions, TableFeed, TimelineServer
from airflow_lake_provider.timeline_server.wire import TimelineAnswer, snapshot_to_dict
from tests.support.fixture_tables import unpack
from tests.support.tables import HandMadeTable
from tests.unit.timeline_server.hudi_archiver import HandMadeArchive

TOKEN = "timeline-secret"
BASE = "/v1/hoodie/timeline"


@pytest.fixture
def server(tmp_path: Path) -> TimelineServer:
    options = ServerOptions(allowed_roots=(str(tmp_path),), service_tokens=(TOKEN,))
    return TimelineServer(SharedTimelines(), options)


@pytest.fixture
def client(server: TimelineServer) -> Iterator[TestClient]:
    with TestClient(create_timeline_app(lambda: server)) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders; $(x) ü")


def view(client: TestClient, table: HandMadeTable, **query: Any) -> Any:
    return client.get(f"{BASE}/view", params={"base_path": str(table.path), **query})


def poll(client: TestClient, *tables: HandMadeTable, cursor: str = "", wait_s: float = 0.0, version: str = "") -> Any:
    named = [{"base_path": str(table.path), "version": version, "poll_interval_s": 0.2} for table in tables]
    answer = client.post(f"{BASE}/changes", json={"cursor": cursor, "tables": named, "wait_s": wait_s})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "view"),
        ("POST", "changes"),
        ("GET", "archive"),
        ("GET", "latest"),
        ("GET", "health"),
        ("GET", "metrics"),
    ],
)
def test_every_route_wants_the_token(client: TestClient, method: str, path: str) -> None:
    wrong = {"Authorization": "Bearer wrong-secret"}
    assert client.request(method, f"{BASE}/{path}", headers=wrong).status_code == 401
    del client.headers["Authorization"]
    answer = client.request(method, f"{BASE}/{path}")
    assert answer.status_code == 401
    assert answer.json()["error"] == "UnauthorisedError"


@pytest.mark.parametrize("base_path", ["/etc", "/etc/../etc/passwd", "relative", "s3://bucket/x", "/x\x00y", ""])
def test_view_of_a_path_outside_the_roots_is_refused(client: TestClient, base_path: str) -> None:
    answer = client.get(f"{BASE}/view", params={"base_path": base_path})
    assert answer.status_code in {403, 422}
    body = {"tables": [{"base_path": base_path or " "}]}
    assert client.post(f"{BASE}/changes", json=body).status_code in {403, 422}


def test_watcher_of_what_no_writer_announces_says_how_often_it_would_poll(
    client: TestClient, table: HandMadeTable, server: TimelineServer
) -> None:
    path = str(table.path)
    named = {"base_path": path, "poll_interval_s": 60.0, "unannounced_interval_s": 7.0}
    assert client.post(f"{BASE}/changes", json={"tables": [named]}).status_code == 200
    server.timelines.hint(path, [table.commit(1)], is_by_writer=True)
    server.timelines.refresh_if_due(path, is_hinted=True)
    assert 6_000 <= server.timelines.pause_ms(path) <= 7_000


def test_view_has_all_states_its_age_and_an_etag(client: TestClient, table: HandMadeTable) -> None:
    instant, plan = table.commit(1), table.plan(2)
    answer = view(client, table)
    body = answer.json()
    states = {(i["requested_time"], i["action"], i["state"]) for i in body["instants"]}
    assert states == {(instant, "deltacommit", "COMPLETED"), (plan, "compaction", "REQUESTED")}
    assert answer.headers["ETag"] == f'"{body["version"]}"'
    assert 0 <= body["stale_ms"] < 60_000
    assert body["properties"]["hoodie.table.name"] == "orders"
    assert body["is_announced"] is False


def test_view_with_the_current_version_is_not_sent_again(client: TestClient, table: HandMadeTable) -> None:
    table.commit(1)
    etag = view(client, table).headers["ETag"]
    for spelled in (etag, f"W/{etag}", f'"other", {etag}'):
        answer = client.get(f"{BASE}/view", params={"base_path": str(table.path)}, headers={"If-None-Match": spelled})
        assert (answer.status_code, answer.content) == (304, b"")
        assert int(answer.headers["Lake-As-Of-Ms"]) > 0
    table.commit(2)
    params = {"base_path": str(table.path), "max_age_s": 0}
    assert client.get(f"{BASE}/view", params=params, headers={"If-None-Match": etag}).status_code == 200


def test_view_of_a_long_timeline_is_compressed(client: TestClient, table: HandMadeTable) -> None:
    for second in range(40):
        table.commit(second)
    answer = client.get(f"{BASE}/view", params={"base_path": str(table.path)}, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) < len(answer.content) / 4


def test_view_of_a_missing_table_names_error_and_path(client: TestClient, tmp_path: Path) -> None:
    answer = client.get(f"{BASE}/view", params={"base_path": str(tmp_path / "nothing")})
    assert answer.status_code == 404
    assert answer.json()["error"] == "TableNotFoundError"
    assert "nothing" in answer.json()["detail"]


def test_poll_of_a_table_that_is_not_known_yet_reports_it_when_it_is_loaded(
    client: TestClient, table: HandMadeTable
) -> None:
    table.commit(1)
    first = poll(client, table, wait_s=20)
    assert [entry["base_path"] for entry in first["changed"]] == [str(table.path)]
    assert first["changed"][0]["version"] == view(client, table).json()["version"]
    named = poll(client, table)
    assert len(named["changed"][0]["timeline"]["instants"]) == 1


def test_poll_waits_for_a_change_and_ends_with_it(client: TestClient, table: HandMadeTable) -> None:
    version = view(client, table).json()["version"]
    cursor = poll(client, table, version=version)["cursor"]
    timer = threading.Timer(
        0.3,
        lambda: client.get(f"{BASE}/view", params={"base_path": str(table.path), "max_age_s": 0}),
    )
    table.commit(1)
    timer.start()
    answer = poll(client, cursor=cursor, wait_s=20)
    timer.join()
    assert [entry["base_path"] for entry in answer["changed"]] == [str(table.path)]
    assert answer["resync"] is False
    assert poll(client, cursor=answer["cursor"])["changed"] == []


def test_poll_sees_the_change_of_a_watched_table_without_any_hint(client: TestClient, table: HandMadeTable) -> None:
    version = view(client, table).json()["version"]
    cursor = poll(client, table, version=version)["cursor"]
    table.commit(1)
    answer = poll(client, cursor=cursor, wait_s=20)
    assert [entry["base_path"] for entry in answer["changed"]] == [str(table.path)]


def test_burst_of_changes_comes_in_several_answers_each_change_once(
    client: TestClient, server: TimelineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_CHANGES", 3)
    cursor = poll(client)["cursor"]
    burst = [f"/lake/t{number % 7}" for number in range(10)]
    for path in burst:
        server.timelines.log.add(path)
    answers = []
    while (answer := poll(client, cursor=cursor))["changed"]:
        assert answer["resync"] is False
        answers.append([entry["base_path"] for entry in answer["changed"]])
        cursor = answer["cursor"]
    assert answers == [burst[:3], burst[3:6], burst[6:9], burst[9:]]


@pytest.mark.parametrize("cursor", ["0123456789ab.7", "nonsense", "9.9.9", "-1", "ü.1"])
def test_poll_with_a_cursor_of_another_server_is_asked_to_compare(client: TestClient, cursor: str) -> None:
    answer = poll(client, cursor=cursor, wait_s=20)
    assert answer["resync"] is True
    assert answer["changed"] == []


def test_poll_of_a_broken_table_names_its_error_and_reports_the_others(
    client: TestClient, table: HandMadeTable, tmp_path: Path
) -> None:
    broken = HandMadeTable.create(tmp_path / "broken")
    (broken.path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=x\nhoodie.table.version=5\n")
    table.commit(1)
    seen: dict[str, str] = {}
    cursor = ""
    for _ in range(5):
        answer = poll(client, *(() if cursor else (table, broken)), cursor=cursor, wait_s=5)
        cursor = answer["cursor"]
        seen |= {entry["base_path"]: entry["error"] for entry in answer["changed"]}
        if len(seen) == 2:
            break
    assert seen == {str(table.path): "", str(broken.path): "UnsupportedTableError"}


def test_poll_with_too_many_tables_or_too_long_a_wait_is_refused(client: TestClient) -> None:
    many = [{"base_path": f"/t/{n}"} for n in range(1001)]
    assert client.post(f"{BASE}/changes", json={"tables": many}).status_code == 422
    assert client.post(f"{BASE}/changes", json={"wait_s": 3600}).status_code == 422


def test_archive_of_a_real_table_is_served(client: TestClient, tmp_path: Path) -> None:
    table = unpack("archived_v9", tmp_path)
    body = client.get(f"{BASE}/archive", params={"base_path": str(table.path)}).json()
    assert len(body["instants"]) > 10
    middle = body["instants"][5]["requested_time"]
    later = client.get(f"{BASE}/archive", params={"base_path": str(table.path), "after": middle}).json()
    assert later["instants"] == body["instants"][6:]


def test_health_and_metrics_show_what_the_server_knows(client: TestClient, table: HandMadeTable) -> None:
    view(client, table)
    health = client.get(f"{BASE}/health").json()
    assert (health["status"], health["tables"], health["kept"], health["unreadable"]) == ("healthy", 1, 1, 0)
    text = client.get(f"{BASE}/metrics").text
    assert "lake_timeline_kept 1.0" in text
    assert 'lake_storage_calls_total{kind="list"} 1.0' in text


def test_openapi_describes_the_view(client: TestClient) -> None:
    document = client.get("/v1/hoodie/openapi.json").json()
    assert "TimelineAnswer" in document["components"]["schemas"]
    assert f"{BASE}/changes" in document["paths"]


class Feed:
    """What a registry would say."""

    def __init__(self, *rounds: list[TableFeed]) -> None:
        self.rounds = list(rounds)
        self.polls = 0

    def poll(self) -> list[TableFeed]:
        self.polls += 1
        return self.rounds.pop(0) if self.rounds else []


def test_feed_registers_tables_and_its_marks_are_followed(table: HandMadeTable, tmp_path: Path) -> None:
    path = str(table.path)
    options = ServerOptions(allowed_roots=(str(tmp_path),), service_tokens=(TOKEN,), feed_interval_s=0.05)
    feed = Feed(
        [TableFeed(path)], [TableFeed(str(tmp_path / "missing"), mark=1)], [TableFeed(path, 3, is_by_writer=True)]
    )
    server = TimelineServer(SharedTimelines(), options, feed)
    table.commit(1)
    with TestClient(create_timeline_app(lambda: server)) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        for _ in range(200):
            cached = server.timelines.memory.find(path)
            if cached is not None and cached.covered_mark == 3:
                break
            threading.Event().wait(0.05)
        assert cached.is_registered
        assert cached.is_announced
        assert client.get(f"{BASE}/health").json()["unreadable"] == 1


def test_server_saves_what_it_knows_and_the_next_one_starts_with_a_stat(table: HandMadeTable, tmp_path: Path) -> None:
    table.commit(1)
    snapshot_path = tmp_path / "state" / "timelines"
    options = ServerOptions((str(tmp_path),), (TOKEN,), snapshot_path=snapshot_path)
    first = TimelineServer(SharedTimelines(now_ms=lambda: 2_000_000_000_000), options)
    with TestClient(create_timeline_app(lambda: first), headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        version = view(client, table).json()["version"]
    second = TimelineServer(SharedTimelines(now_ms=lambda: 2_000_000_000_001), options)
    with TestClient(create_timeline_app(lambda: second), headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        for _ in range(100):
            if second.timelines.memory.kept:
                break
            threading.Event().wait(0.05)
        assert view(client, table).json()["version"] == version
    calls = second.timelines.calls
    assert (calls.lists, calls.opens) == (0, 0)


def test_archive_after_a_cursor_is_never_older_than_the_timeline_that_the_caller_has(
    client: TestClient, table: HandMadeTable
) -> None:
    """The caller may have its timeline from another server, which has seen an archival that this one has not."""

    def archived(version: str) -> list[str]:
        query = {"base_path": str(table.path), "completed_after": first, "version": version}
        return [i["requested_time"] for i in client.get(f"{BASE}/archive", params=query).json()["instants"]]

    first = table.commit(1)[:-3] + "500"
    table.commit(2)
    table.commit(3)
    shown = view(client, table).json()["version"]
    assert archived(shown) == []
    second, third = (file for file in sorted((table.path / ".hoodie" / "timeline").iterdir()) if file.name > first)
    names = [file.name.removesuffix(".deltacommit").split("_") for file in (second, third)]
    HandMadeArchive(table.path / ".hoodie" / "timeline" / "history").add([(*name, "deltacommit") for name in names[:1]])
    second.unlink()
    assert archived(shown) == [], "the timeline of this version still has it"
    assert archived("0" * 32) == [names[0][0]]


def test_large_timelines_are_unpacked_and_encoded_outside_the_event_loop_and_unchanged(
    client: TestClient, server: TimelineServer, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = table.path / ".hoodie" / "timeline"
    for number in range(1234):
        (timeline / f"2026112112{number:07}.deltacommit.inflight").touch()
    (timeline / "ü.unknown").touch()
    loops: list[str] = []

    def record(name: str) -> None:
        def noticed(*given: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return really(*given)
            loops.append(name)
            return really(*given)

        module, _, attribute = name.rpartition(".")
        really = getattr(importlib.import_module(module), attribute)
        monkeypatch.setattr(name, noticed)

    for name in ("cached_table.unpack", "routes.snapshot_to_dict", "wire._dumps"):
        record(f"airflow_lake_provider.timeline_server.{name}")
    first = view(client, table)
    server.timelines.memory._hot.clear()
    again = view(client, table)
    server.timelines.memory._hot.clear()
    (polled,) = poll(client, table)["changed"]
    assert set(loops) <= {"airflow_lake_provider.timeline_server.wire._dumps"}, "of the poll's cursor alone"
    assert len(loops) <= 2
    shown = server.timelines.snapshot(str(table.path))
    ages = {"as_of_ms", "stale_ms", "next_evaluation_ms"}
    expected = {key: value for key, value in snapshot_to_dict(shown).items() if key not in ages}
    for answer in (first.json(), again.json(), polled["timeline"]):
        assert {key: value for key, value in answer.items() if key in expected} == expected
        assert ages < set(answer)
    assert TimelineAnswer.model_validate(first.json()).version == shown.version == polled["version"]
    assert len(shown.timeline.instants) == 1234


def test_unchanged_view_is_answered_from_its_version_alone(
    client: TestClient, server: TimelineServer, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(1)
    tag = view(client, table).headers["ETag"]
    server.timelines.memory._hot.clear()
    unpacked: list[object] = []
    monkeypatch.setattr(
        "airflow_lake_provider.timeline_server.cached_table.unpack", lambda *given: unpacked.append(given)
    )
    answer = client.get(f"{BASE}/view", params={"base_path": str(table.path)}, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.headers["ETag"], unpacked) == (304, tag, [])

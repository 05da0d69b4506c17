"""The three implementations of TableTimelineView, and the manager that hands out the right one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import (
    ConfigError,
    TableNotFoundError,
    TimelineServerUnavailableError,
    UnsupportedTableError,
)
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action
from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.client import TimelineClient, TimelineEndpoint
from airflow_lake_provider.timeline_server.snapshot import NOW
from airflow_lake_provider.timeline_server.views import (
    RETRY_SERVER_AFTER_S,
    FileSystemTimelineView,
    MemoryTimelineView,
    RemoteTimelineView,
    TableTimelineView,
    TimelineViewManager,
)
from tests.integration.timeline_server.conftest import ServerProcess
from tests.support.fixture_tables import NAMES, unpack
from tests.support.patience import patient
from tests.support.tables import HandMadeTable
from tests.unit.timeline_server.hudi_archiver import HandMadeArchive

pytestmark = pytest.mark.integration

MakeView = Callable[[str], TableTimelineView]
MakeManager = Callable[..., TimelineViewManager]


@pytest.fixture(params=["memory", "file system", "remote"])
def make_view(request: pytest.FixtureRequest) -> Iterator[MakeView]:
    if request.param == "memory":
        timelines = SharedTimelines()
        yield lambda path: MemoryTimelineView(path, timelines)
    elif request.param == "file system":
        yield FileSystemTimelineView
    else:
        client = TimelineClient(request.getfixturevalue("server").endpoint)
        yield lambda path: RemoteTimelineView(path, client)
        client.close()


@pytest.fixture
def make_manager() -> Iterator[MakeManager]:
    made: list[TimelineViewManager] = []

    def make(*arguments: Any, **named: Any) -> TimelineViewManager:
        made.append(TimelineViewManager(*arguments, **named))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


def test_every_view_answers_every_question(make_view: MakeView, table: HandMadeTable) -> None:
    first, plan, second = table.commit(1), table.plan(2), table.commit(3)
    view = make_view(str(table.path))
    assert [instant.requested_time for instant in view.timeline().instants] == [first, plan, second]
    assert view.latest_write_without_holes().requested_time == first
    version = view.snapshot().version
    third = table.commit(4)
    shown = view.snapshot(NOW)
    assert [instant.requested_time for instant in shown.timeline.instants] == [first, plan, second, third]
    assert shown.version != version


@pytest.mark.parametrize("name", NAMES)
def test_every_view_of_a_real_table_is_the_same_snapshot(make_view: MakeView, lake: Path, name: str) -> None:
    table = unpack(name, lake)
    shown = make_view(str(table.path)).snapshot()
    other = FileSystemTimelineView(str(table.path)).snapshot()
    assert (shown.version, shown.timeline, shown.properties) == (other.version, other.timeline, other.properties)
    expected = {(i["requested_time"], i["action"], i["state"]) for i in table.expected}
    assert {(i.requested_time, i.action.value, i.state.value) for i in shown.timeline.instants} == expected


@pytest.mark.parametrize("name", NAMES)
def test_latest_instants_of_a_real_table_are_those_that_hudi_names(
    server: ServerProcess, lake: Path, name: str
) -> None:
    table = unpack(name, lake)
    client = TimelineClient(server.endpoint)
    try:
        latest = client.get_latest(str(table.path))
        plans = client.get_latest(str(table.path), NOW, [Action.COMPACTION, Action.CLUSTERING])
    finally:
        client.close()
    completed = [i for i in table.expected if i["state"] == "COMPLETED"]
    pending = sorted(i["requested_time"] for i in table.expected if i["state"] != "COMPLETED")
    of_plans = [i["requested_time"] for i in table.expected if i["action"] in {"compaction", "clustering"}]
    times = [None if i is None else i.requested_time for i in (latest.pending, latest.write_without_holes)]
    assert latest.completed.completed_time == max(i["completed_time"] for i in completed)
    assert times == [pending[-1] if pending else None, table.latest_write_without_holes]
    assert plans.completed is None, "completed ones have the actions of commits"
    assert (plans.pending.requested_time if plans.pending else None) == max(of_plans, default=None)
    assert plans.version == latest.version == FileSystemTimelineView(str(table.path)).snapshot().version


def test_latest_instants_are_as_fresh_as_requested(server: ServerProcess, table: HandMadeTable) -> None:
    client, path = TimelineClient(server.endpoint), str(table.path)
    try:
        first = table.commit(1)
        assert client.get_latest(path).completed.requested_time == first
        plan = table.plan(2)
        latest = client.get_latest(path, NOW)
        assert (latest.pending.requested_time, latest.write_without_holes.requested_time) == (plan, first)
        with pytest.raises(TableNotFoundError):
            client.get_latest(f"{path}-nothing")
        with pytest.raises(TimelineServerUnavailableError, match="422"):
            client.get_latest(path, actions=[SimpleNamespace(value="commits")])
    finally:
        client.close()


@pytest.mark.parametrize("name", ["archived_v9", "archived_v6"])
def test_every_view_reads_the_archive(make_view: MakeView, lake: Path, name: str) -> None:
    table = unpack(name, lake)
    archive = make_view(str(table.path)).archived()
    assert len(archive.instants) > 10
    middle = archive.instants[4].requested_time
    assert make_view(str(table.path)).archived(after=middle).instants == archive.instants[5:]


def test_every_view_finds_what_was_archived_between_two_questions(make_view: MakeView, table: HandMadeTable) -> None:
    first, second = table.commit(1), table.commit(2)
    table.commit(3)
    view, cursor = make_view(str(table.path)), first[:-3] + "500"

    def archived() -> list[str]:
        query = ArchiveQuery(view.snapshot(NOW), cursor, COMPLETED_WRITE_ACTIONS)
        return [instant.requested_time for instant in view.archived_after(query).instants]

    assert archived() == []
    timeline = table.path / ".hoodie" / "timeline"
    HandMadeArchive(timeline / "history").add([(second, second[:-3] + "500", "deltacommit")])
    (timeline / f"{second}_{second[:-3]}500.deltacommit").unlink()
    assert archived() == [second]


def test_every_view_raises_the_tables_own_error(make_view: MakeView, lake: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nothing"):
        make_view(str(lake / "nothing")).snapshot()
    old = HandMadeTable.create(lake / "old")
    (old.path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=x\nhoodie.table.version=4\n")
    with pytest.raises(UnsupportedTableError, match="version"):
        make_view(str(old.path)).snapshot()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_manager_reads_the_file_system_while_the_server_is_dead_and_then_the_server_again(
    make_manager: MakeManager, server: ServerProcess, table: HandMadeTable
) -> None:
    clock = Clock()
    views = make_manager(TimelineServerMode.AUTO, server.endpoint, now_s=clock)
    view = views.get_view(str(table.path))
    table.commit(1)
    assert len(view.timeline().instants) == 1
    assert views.uses_server
    server.kill()
    table.commit(2)
    began_s = time.monotonic()
    assert len(view.snapshot(NOW).timeline.instants) == 2
    assert time.monotonic() - began_s < patient(10)
    assert not views.uses_server
    server.start()
    assert len(view.snapshot(NOW).timeline.instants) == 2
    assert "lake_timeline_loads_total" in server.calls()
    assert server.calls()["lake_timeline_loads_total"] == 0
    clock.now_s += RETRY_SERVER_AFTER_S
    table.commit(3)
    assert len(view.snapshot(NOW).timeline.instants) == 3
    assert server.calls()["lake_timeline_loads_total"] == 1
    assert views.uses_server


def test_manager_that_requires_the_server_never_reads_the_file_system(
    make_manager: MakeManager, server: ServerProcess, table: HandMadeTable
) -> None:
    def never(base_path: str) -> None:
        raise AssertionError(base_path)

    views = make_manager(TimelineServerMode.REQUIRED, server.endpoint, never)
    assert views.get_view(str(table.path)).timeline().instants == ()
    server.kill()
    with pytest.raises(TimelineServerUnavailableError, match="did not answer"):
        views.get_view(str(table.path)).timeline()
    with pytest.raises(ConfigError, match="required"):
        make_manager(TimelineServerMode.REQUIRED)


def test_manager_that_is_off_asks_no_server(
    make_manager: MakeManager, server: ServerProcess, table: HandMadeTable
) -> None:
    views = make_manager(TimelineServerMode.OFF, server.endpoint)
    assert isinstance(views.get_view(str(table.path)), FileSystemTimelineView)


@pytest.mark.parametrize("problem", ["wrong token", "outside the roots", "not a timeline server"])
def test_manager_whose_server_refuses_reads_the_file_system(
    make_manager: MakeManager, server: ServerProcess, table: HandMadeTable, tmp_path: Path, problem: str
) -> None:
    endpoint, path = server.endpoint, str(table.path)
    if problem == "wrong token":
        endpoint = TimelineEndpoint(endpoint.url, "wrong")
    elif problem == "outside the roots":
        path = str(HandMadeTable.create(tmp_path / "elsewhere").path)
    else:
        endpoint = TimelineEndpoint(endpoint.url + "/somewhere/else", endpoint.token)
    assert make_manager(TimelineServerMode.AUTO, endpoint).get_view(path).timeline().instants == ()


def test_remote_view_of_an_unchanged_table_is_not_sent_again(server: ServerProcess, table: HandMadeTable) -> None:
    table.commit(1)
    client = TimelineClient(server.endpoint)
    view = RemoteTimelineView(str(table.path), client)
    first = view.snapshot()
    time.sleep(0.01)
    again = view.snapshot(NOW)
    client.close()
    assert again.timeline is first.timeline
    assert again.as_of_ms > first.as_of_ms

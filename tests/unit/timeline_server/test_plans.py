"""Pending plans under the version of a timeline: each read once, however many ask, and never by a refresh."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hudi.pending import PlanMemory
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, NOW, PlannedSnapshot
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView, MemoryTimelineView, TableTimelineView
from airflow_lake_provider.timeline_server.wire import TimelineAnswer, planned_from_dict
from tests.support.old_table_plans import CLUSTERING, OVERWRITE, old_table
from tests.support.tables import HandMadeTable

TOKEN = "timeline-secret"
COMPACTION, INDEXING = "20261121120100000", "20261121120200000"
GROUPS = (("city=Oslo", "a-0"), ("", "b-0"))


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    operations = [{"partitionPath": partition, "fileId": file_id} for partition, file_id in GROUPS]
    write(table, f"{COMPACTION}.compaction.requested", {"operations": operations})
    infos = [{"metadataPartitionPath": name, "indexUptoInstant": "7"} for name in ("record_index", "column_stats")]
    write(table, f"{INDEXING}.indexing.requested", {"indexPartitionInfos": infos})
    return table


def write(table: HandMadeTable, name: str, content: object = None) -> Path:
    file = table.path / ".hoodie" / "timeline" / name
    file.write_text("" if content is None else json.dumps(content), encoding="utf-8")
    return file


class ServedView:
    """The route's answer, as a client reads it."""

    def __init__(self, client: TestClient, base_path: str) -> None:
        self._client, self._query = client, {"base_path": base_path, "plans": "true", "max_age_s": 0}

    def plans(self, _freshness: object) -> PlannedSnapshot:
        answer = self._client.get("/v1/hoodie/timeline/view", params=self._query)
        assert answer.status_code == 200, answer.text
        TimelineAnswer.model_validate(answer.json())
        found = planned_from_dict(answer.json())
        assert answer.headers["ETag"] == f'"{found.snapshot.version}"'
        return found


@pytest.fixture(params=["file-system", "memory", "server"])
def view(
    request: pytest.FixtureRequest, table: HandMadeTable, tmp_path: Path
) -> Iterator[TableTimelineView | ServedView]:
    path = str(table.path)
    if request.param == "file-system":
        yield FileSystemTimelineView(path)
    elif request.param == "memory":
        yield MemoryTimelineView(path, SharedTimelines())
    else:
        server = TimelineServer(SharedTimelines(), ServerOptions((str(tmp_path),), (TOKEN,)))
        with TestClient(create_timeline_app(lambda: server), headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            yield ServedView(client, path)


def test_plans_are_those_of_the_timeline_in_the_same_answer(
    view: TableTimelineView | ServedView, table: HandMadeTable
) -> None:
    found = view.plans(NOW)
    compaction, indexing = found.plans
    assert [plan.instant for plan in found.plans] == list(found.snapshot.timeline.pending())
    assert (compaction.instant.action, compaction.file_groups, compaction.indexes) == (Action.COMPACTION, GROUPS, ())
    assert (indexing.indexes, indexing.up_to, indexing.file_groups) == (("record_index", "column_stats"), "7", ())
    write(table, f"{COMPACTION}.compaction.inflight")
    later = view.plans(NOW)
    assert later.snapshot.version != found.snapshot.version
    assert [plan.instant.state for plan in later.plans] == [State.INFLIGHT, State.REQUESTED]
    assert later.plans[0].file_groups == GROUPS
    write(table, f"{COMPACTION}_20261121120300000.commit")
    assert [plan.instant.requested_time for plan in view.plans(NOW).plans] == [INDEXING]


def test_plan_is_read_once_and_by_no_refresh(table: HandMadeTable) -> None:
    timelines = SharedTimelines()
    path = str(table.path)
    timelines.snapshot(path, NOW)
    loaded = timelines.calls.opens
    assert loaded == 1, "the properties"
    for _ in range(3):
        assert len(MemoryTimelineView(path, timelines).plans(ANY_AGE).plans) == 2
    assert timelines.calls.opens - loaded == 2
    write(table, f"{COMPACTION}.compaction.inflight")
    table.commit(2)
    assert len(MemoryTimelineView(path, timelines).plans(NOW).plans) == 2
    assert timelines.calls.opens - loaded == 2, "a plan that is begun is the one that was requested"


def test_plan_that_ended_meanwhile_is_left_out_and_one_that_is_damaged_is_named(table: HandMadeTable) -> None:
    timelines = SharedTimelines()
    view = MemoryTimelineView(str(table.path), timelines)
    view.snapshot(NOW)
    folder = table.path / ".hoodie" / "timeline"
    (folder / f"{COMPACTION}.compaction.requested").unlink()
    damaged = write(table, f"{INDEXING}.indexing.requested", {"indexPartitionInfos": []})
    found = view.plans(ANY_AGE)
    assert found.plans == ()
    assert [problem.file_name for problem in found.problems] == [damaged.name]
    assert [instant.requested_time for instant in found.snapshot.timeline.pending()] == [INDEXING]
    write(table, damaged.name, {"indexPartitionInfos": [{"metadataPartitionPath": "files"}]})
    assert [plan.indexes for plan in view.plans(ANY_AGE).plans] == [("files",)], "what is damaged is read again"


def test_clustering_whose_file_is_empty_yet_is_a_problem(table: HandMadeTable) -> None:
    clustering = write(table, "20261121120400000.clustering.requested")
    found = FileSystemTimelineView(str(table.path)).plans(NOW)
    assert [problem.file_name for problem in found.problems] == [clustering.name]


def test_clustering_of_layout_1_is_one_and_an_overwrite_plans_nothing(tmp_path: Path) -> None:
    folder = old_table(tmp_path, t20260101000000001=CLUSTERING, t20260101000000002=OVERWRITE)
    (plan,) = FileSystemTimelineView(str(folder)).plans(NOW).plans
    assert (plan.instant.action, plan.file_groups) == (Action.CLUSTERING, (("p", "a"), ("p", "b")))


@pytest.mark.parametrize(("most", "opens"), [(4, 0), (3, 2)], ids=["fits", "too-large-to-keep"])
def test_memory_of_plans_is_bounded_in_file_groups(table: HandMadeTable, most: int, opens: int) -> None:
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    memory = PlanMemory(most)
    read: Callable[[], object] = lambda: memory.read(storage, properties, timeline)  # noqa: E731
    first = read()
    before = storage.calls.opens
    assert read() == first
    assert storage.calls.opens - before == opens


def test_answer_of_an_older_server_has_no_plans(table: HandMadeTable, tmp_path: Path) -> None:
    server = TimelineServer(SharedTimelines(), ServerOptions((str(tmp_path),), (TOKEN,)))
    with TestClient(create_timeline_app(lambda: server), headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        body = client.get("/v1/hoodie/timeline/view", params={"base_path": str(table.path)}).json()
    with pytest.raises(TimelineServerUnavailableError, match="no plans"):
        planned_from_dict(body)

"""Work for standing applications: which gets an item, what becomes of it when its application ends, which may begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder, LeaseLostError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest, Standing, to_json
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.operations import record_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.work import GATHER_MS, UNASKED_MS, WorkQueue, start_again_ms
from airflow_lake_provider.manager.db.work_item import (
    LEAVE_MS,
    IllegalMoveError,
    Question,
    WorkEvent,
    WorkItem,
    WorkState,
    move,
)
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock

KEY = "warm-0123456789abcdef"
LEASE_S, PATIENCE_S = 60.0, 600.0


@dataclass
class FakeAirflow:
    """Keeps the runs of the DAG that starts applications."""

    active: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)

    def has_application_run(self, session: Session, app_key: str) -> bool:
        return any(run_id.startswith(f"{app_key}.") for run_id in self.active)

    def create_application_run(self, session: Session, run_id: str, conf: dict[str, Any]) -> None:
        self.active.append(run_id)
        self.created.append(conf)


@dataclass
class Stage:
    registry: Registry
    clock: FakeClock
    airflow: FakeAirflow = field(default_factory=FakeAirflow)

    def __post_init__(self) -> None:
        self.executors = Executors(self.registry, LEASE_S)
        self.queue = WorkQueue(self.registry, PATIENCE_S, self.airflow)

    def item(self, name: str, table: str = "", run: str = "run", try_number: int = 1) -> WorkItem:
        conf = {"queue": "big", "spark_conn_id": "spark_default", "spark_conf": {}}
        return WorkItem(f"lake-{name}", KEY, conf, table or name, "compaction", run, try_number, f"request of {name}")

    def begin(self, run: str = "app", try_number: int = 1) -> str:
        """Start an application: it holds the key's lease."""
        return self.executors.acquire(KEY, Standing.APPLICATION, run, try_number).token

    def end(self, token: str) -> None:
        self.executors.release(KEY, Standing.APPLICATION, token)

    def state(self, name: str) -> WorkState:
        (answer,) = self.queue.ask([Question(f"lake-{name}")])
        return answer.state


@pytest.fixture
def stage(registry: Registry, clock: FakeClock) -> Stage:
    return Stage(registry, clock)


def test_each_move_that_is_not_in_the_table_is_refused() -> None:
    allowed = {
        ("waiting", "claim"): "running",
        ("waiting", "cancel"): "cancelled",
        ("waiting", "give_up"): "alone",
        ("running", "end"): "ended",
        ("running", "cancel"): "running",
        ("running", "die"): "waiting",
    }
    for state, event in product(WorkState, WorkEvent):
        wanted = allowed.get((state.value, event.value))
        if wanted is None:
            with pytest.raises(IllegalMoveError):
                move(state, event)
        else:
            assert move(state, event, deaths=1) == wanted


@pytest.mark.parametrize(
    ("deaths", "is_cancelled", "after"),
    [
        pytest.param(1, False, "waiting", id="first-application-died"),
        pytest.param(2, False, "alone", id="second-application-died"),
        pytest.param(1, True, "cancelled", id="was-to-end-anyway"),
    ],
)
def test_item_whose_application_died(deaths: int, is_cancelled: bool, after: str) -> None:
    assert move(WorkState.RUNNING, WorkEvent.DIE, deaths=deaths, is_cancelled=is_cancelled) == after


def test_work_starts_one_application_of_its_kind_and_no_second_one(stage: Stage) -> None:
    for name in ("a", "b"):
        assert stage.queue.submit(stage.item(name)) is WorkState.WAITING
    assert stage.airflow.created == [{"key": KEY, "queue": "big"}]
    assert stage.queue.conf_of(KEY)["spark_conn_id"] == "spark_default"
    stage.clock.advance(300)
    stage.state("a")
    assert len(stage.airflow.created) == 1, "its run is active"


def test_application_that_never_pulls_is_started_again_with_growing_pauses(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    stage.airflow.active.clear()
    stage.state("a")
    assert len(stage.airflow.created) == 1
    stage.clock.advance(31)
    stage.state("a")
    assert len(stage.airflow.created) == 2
    stage.airflow.active.clear()
    stage.clock.advance(31)
    stage.state("a")
    assert len(stage.airflow.created) == 2
    pauses = [start_again_ms(0, failures) / 1000 for failures in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0
    assert pauses[-1] == 900


def of(stage: Stage, service: str, table: str = "orders") -> WorkItem:
    """Return an item of a run that the manager created."""
    item = stage.item(f"{service}-{table}", table, run=f"{table}.{service}.1")
    return replace(item, service=service)


def record(stage: Stage, *services: str, table: str = "orders") -> None:
    with stage.registry.transaction() as session:
        for service in services:
            record_run(session, table, f"{table}.{service}.1", service, stage.registry.now_ms())


def test_services_of_a_table_run_in_their_order_in_one_place(stage: Stage) -> None:
    services = ["rollback", "compaction", "clean", "archive", "savepoint"]
    for service in reversed(services):
        stage.queue.submit(of(stage, service))
    stage.queue.submit(of(stage, "clean", "users"))
    token = stage.begin()
    assert list(stage.queue.pull(KEY, token, 9, {}).requests) == ["lake-rollback-orders", "lake-clean-users"]
    for service, following in zip(services, [*services[1:], ""], strict=True):
        assert stage.state(f"{service}-orders") is WorkState.RUNNING
        got = stage.queue.finish(KEY, token, f"lake-{service}-orders", "{}", takes_next=True)
        assert list(got) == ([f"lake-{following}-orders"] if following else [])
        assert stage.queue.pull(KEY, token, 9, {}).requests == {}, "never two of one table at once"
    again = stage.queue.finish(KEY, token, "lake-archive-orders", "{}", takes_next=True)
    assert again == {}, "an end that is reported twice begins nothing"


def test_end_gives_nothing_to_an_application_that_takes_nothing(stage: Stage) -> None:
    for service in ("compaction", "clean"):
        stage.queue.submit(of(stage, service))
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    assert stage.queue.finish(KEY, token, "lake-compaction-orders", "{}") == {}
    assert stage.state("clean-orders") is WorkState.WAITING


def test_service_waits_a_moment_for_the_item_of_an_earlier_one(stage: Stage) -> None:
    record(stage, "compaction", "clean", "archive")
    stage.queue.submit(of(stage, "archive"))
    stage.queue.submit(of(stage, "clean"))
    token = stage.begin()
    assert stage.queue.pull(KEY, token, 9, {}).requests == {}, "the task of the compaction has begun no sooner"
    stage.queue.submit(of(stage, "compaction"))
    assert list(stage.queue.pull(KEY, token, 9, {}).requests) == ["lake-compaction-orders"]


def test_service_waits_no_longer_than_that(stage: Stage) -> None:
    record(stage, "compaction", "clean")
    stage.queue.submit(of(stage, "clean"))
    token = stage.begin()
    stage.clock.advance(GATHER_MS / 1000 - 1)
    assert stage.queue.pull(KEY, token, 9, {}).requests == {}
    stage.clock.advance(2)
    assert list(stage.queue.pull(KEY, token, 9, {}).requests) == ["lake-clean-orders"]


def test_table_of_an_item_that_runs_alone_is_left_to_it(stage: Stage) -> None:
    lease = stage.executors.acquire("orders", Service.COMPACTION, "orders.compaction.1", 1).token
    stage.queue.submit(of(stage, "compaction"))
    for number in (1, 2):
        token = stage.begin("app", number)
        stage.queue.pull(KEY, token, 1, {})
        stage.end(token)
        stage.state("compaction-orders")
    assert stage.state("compaction-orders") is WorkState.ALONE
    stage.queue.submit(of(stage, "clean"))
    token = stage.begin("app", 3)
    assert stage.queue.pull(KEY, token, 9, {}).requests == {}
    stage.executors.release("orders", Service.COMPACTION, lease)
    assert list(stage.queue.pull(KEY, token, 9, {}).requests) == ["lake-clean-orders"]


def test_item_whose_answer_was_lost_is_given_again(stage: Stage) -> None:
    for service, table in (("compaction", "orders"), ("clean", "orders"), ("clean", "users")):
        stage.queue.submit(of(stage, service, table))
    token = stage.begin()
    stage.queue.pull(KEY, token, 9, {}, known=[])
    lost = stage.queue.pull(KEY, token, 9, {}, known=["lake-clean-users"])
    assert list(lost.requests) == ["lake-compaction-orders"]
    assert stage.queue.pull(KEY, token, 9, {}).requests == {}, "an older application does not say what it runs"
    stage.queue.finish(KEY, token, "lake-compaction-orders", "{}", takes_next=True)
    known = ["lake-clean-users"]
    assert list(stage.queue.pull(KEY, token, 0, {}, known=known).requests) == ["lake-clean-orders"]


def test_application_gets_one_item_of_a_table_and_no_more_than_it_has_room_for(stage: Stage) -> None:
    for name, table in (("a", "orders"), ("b", "orders"), ("c", "users"), ("d", "clicks")):
        stage.queue.submit(stage.item(name, table, run=f"run-{name}") if name != "b" else _of_clean(stage, table))
    token = stage.begin()
    assert set(stage.queue.pull(KEY, token, 2, {}).requests) == {"lake-a", "lake-c"}
    assert set(stage.queue.pull(KEY, token, 2, {}).requests) == {"lake-d"}
    stage.queue.finish(KEY, token, "lake-a", "{}")
    assert set(stage.queue.pull(KEY, token, 2, {}).requests) == {"lake-b"}, "the table is free now"


def _of_clean(stage: Stage, table: str) -> WorkItem:
    item = stage.item("b", table, run="run-b")
    return WorkItem(item.item_id, KEY, item.conf, table, "clean", item.run_id, 1, item.request)


def test_only_the_holder_of_the_lease_gets_work_and_reports_its_end(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    with pytest.raises(LeaseLostError):
        stage.queue.pull(KEY, "", 1, {})
    first = stage.begin()
    assert stage.queue.pull(KEY, first, 1, {}).requests == {"lake-a": "request of a"}
    stage.clock.advance(LEASE_S + 1)
    second = stage.begin("other")
    for call in (
        lambda: stage.queue.pull(KEY, first, 1, {}),
        lambda: stage.queue.finish(KEY, first, "lake-a", "{}"),
    ):
        with pytest.raises(LeaseLostError):
            call()
    assert stage.state("a") is WorkState.WAITING, "the next application gets it"
    assert set(stage.queue.pull(KEY, second, 1, {}).requests) == {"lake-a"}
    for _ in range(2):
        stage.queue.finish(KEY, second, "lake-a", "the result", ["the last line"])
    (answer,) = stage.queue.ask([Question("lake-a", seen=1)])
    assert (answer.state, answer.result, answer.lines) == (WorkState.ENDED, "the result", ("the last line",))


def test_item_that_two_applications_did_not_survive_runs_alone_also_in_later_tries(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    for number in (1, 2):
        token = stage.begin("app", number)
        assert stage.queue.pull(KEY, token, 1, {}).requests
        stage.end(token)
        assert stage.state("a") is (WorkState.WAITING if number == 1 else WorkState.ALONE)
    assert stage.queue.submit(stage.item("a2", "a", try_number=2)) is WorkState.ALONE
    assert stage.queue.submit(stage.item("a3", "a", run="another")) is WorkState.WAITING


def test_item_that_had_not_begun_survives_any_number_of_applications(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    for number in range(1, 5):
        stage.end(stage.begin("app", number))
        assert stage.state("a") is WorkState.WAITING


def test_work_runs_alone_when_no_application_comes(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    stage.clock.advance(PATIENCE_S - 1)
    assert stage.state("a") is WorkState.WAITING
    stage.clock.advance(2)
    assert stage.state("a") is WorkState.ALONE


def test_work_waits_longer_for_an_application_that_is_there(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    token = stage.begin()
    for _ in range(30):
        stage.clock.advance(LEASE_S / 2)
        stage.executors.renew(KEY, Standing.APPLICATION, token)
        assert stage.state("a") is WorkState.WAITING


def test_cancelled_item_blocks_the_service_until_its_application_has_ended_it(stage: Stage) -> None:
    stage.queue.submit(stage.item("a", "orders"))
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    with pytest.raises(ExecutorBusyError, match="still runs compaction"):
        stage.executors.acquire("orders", Service.COMPACTION, "run", 2)
    with pytest.raises(ExecutorBusyError):
        stage.queue.submit(stage.item("b", "orders", try_number=2))
    assert stage.queue.pull(KEY, token, 0, {}).cancel == {"lake-a": "run run, try 2, takes over"}
    stage.executors.acquire("orders", Service.CLEAN, "run", 2)
    stage.queue.finish(KEY, token, "lake-a", "{}")
    stage.executors.acquire("orders", Service.COMPACTION, "run", 2)
    assert stage.queue.submit(stage.item("b", "orders", try_number=2)) is WorkState.WAITING


def test_run_that_does_not_get_the_lease_cancels_nothing(stage: Stage) -> None:
    stage.executors.acquire("orders", Service.COMPACTION, "run", 1)
    stage.queue.submit(stage.item("a", "orders"))
    with pytest.raises(ExecutorBusyError, match="run run executes compaction"):
        stage.executors.acquire("orders", Service.COMPACTION, "by hand", 1)
    assert stage.state("a") is WorkState.WAITING
    stage.executors.acquire("orders", Service.COMPACTION, "run", 2, ended=LeaseHolder("run", 1))
    assert stage.state("a") is WorkState.CANCELLED


def test_lease_of_a_try_whose_item_has_ended_is_free_soon(stage: Stage) -> None:
    """A task that was marked before its trigger began: nothing releases its lease, whose end is far off."""
    for service in (Service.COMPACTION, Service.CLEAN):
        stage.executors.acquire("orders", service, "marked", 1)
    stage.queue.submit(stage.item("a", "orders", "marked"))
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    stage.clock.advance(LEAVE_MS / 1000)
    with pytest.raises(ExecutorBusyError, match="run marked executes compaction"):
        stage.executors.acquire("orders", Service.COMPACTION, "later", 1)
    stage.queue.finish(KEY, token, "lake-a", "{}")
    stage.clock.advance(LEAVE_MS / 1000 - 1)
    with pytest.raises(ExecutorBusyError, match="run marked executes compaction"):
        stage.executors.acquire("orders", Service.COMPACTION, "later", 1)
    stage.clock.advance(1)
    assert stage.executors.acquire("orders", Service.COMPACTION, "later", 1).run_id == "later"
    with pytest.raises(ExecutorBusyError, match="run marked executes clean"):
        stage.executors.acquire("orders", Service.CLEAN, "later", 1)


def test_item_that_waits_is_cancelled_at_once_for_the_next_try(stage: Stage) -> None:
    stage.queue.submit(stage.item("a", "orders"))
    stage.executors.acquire("orders", Service.COMPACTION, "run", 2)
    assert stage.state("a") is WorkState.CANCELLED
    assert stage.queue.pull(KEY, stage.begin(), 5, {}).requests == {}


def test_item_of_a_dead_application_does_not_block_the_next_try(stage: Stage) -> None:
    stage.queue.submit(stage.item("a", "orders"))
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    stage.end(token)
    stage.executors.acquire("orders", Service.COMPACTION, "run", 2)
    assert stage.state("a") is WorkState.CANCELLED


def test_request_that_is_sent_twice_adds_one_item(stage: Stage) -> None:
    assert stage.queue.submit(stage.item("a")) is WorkState.WAITING
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    assert stage.queue.submit(stage.item("a")) is WorkState.RUNNING
    stage.queue.finish(KEY, token, "lake-a", "{}")
    # The same try after it waited for infrastructure.
    assert stage.queue.submit(stage.item("a")) is WorkState.WAITING


def test_item_ends_at_its_time_out_counted_from_its_begin(stage: Stage) -> None:
    item = stage.item("a")
    stage.queue.submit(WorkItem(**{name: getattr(item, name) for name in item.__slots__} | {"timeout_s": 30.0}))
    stage.clock.advance(100)
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    stage.clock.advance(29)
    assert stage.queue.pull(KEY, token, 0, {}).cancel == {}
    stage.clock.advance(2)
    assert "time-out of 30 s" in stage.queue.pull(KEY, token, 0, {}).cancel["lake-a"]


def test_item_that_its_task_forgot_is_cancelled(stage: Stage) -> None:
    for name in ("a", "b"):
        stage.queue.submit(stage.item(name))
    token = stage.begin()
    for _ in range(UNASKED_MS // 30_000 + 1):
        stage.clock.advance(30)
        stage.executors.renew(KEY, Standing.APPLICATION, token)
        stage.queue.ask([Question("lake-b")])
    assert set(stage.queue.pull(KEY, token, 5, {}).requests) == {"lake-b"}


def test_lines_of_an_item_reach_its_task_once(stage: Stage) -> None:
    stage.queue.submit(stage.item("a"))
    token = stage.begin()
    stage.queue.pull(KEY, token, 1, {})
    stage.queue.pull(KEY, token, 0, {"lake-a": ["one", "two"], "lake-unknown": ["x"]})
    (first,) = stage.queue.ask([Question("lake-a")])
    stage.queue.pull(KEY, token, 0, {"lake-a": ["three"]})
    (second,) = stage.queue.ask([Question("lake-a", first.line_count)])
    assert (first.lines, second.lines) == (("one", "two"), ("three",))


# --- The routes


HEADERS = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


def body_of(path: str, base_path: str = "") -> dict[str, Any]:
    services = (ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE),)
    request = JobRequest("run/1", base_path or path, "orders", services, "/results/1")
    return {
        "item_id": "lake-a", "app_key": KEY, "service": "compaction", "run_id": "run", "try_number": 1,
        "conf": {"queue": ""}, "request": to_json(request),
    }  # fmt: skip


def test_work_goes_over_http_from_task_to_application_and_back(services: ManagerServices, lake: Any) -> None:
    client = TestClient(create_app(lambda: services))
    path = str(lake / "orders")
    table_id = table_id_of(path)
    mine = {"run_id": "run", "try_number": 1}
    lease = client.post(f"/tables/{table_id}/executors/compaction", json=mine, headers=HEADERS).json()["token"]
    answer = client.post(f"/tables/{table_id}/work", json=body_of(path), headers=HEADERS)
    assert answer.json() == {"state": "waiting"}
    application = client.post(f"/tables/{KEY}/executors/application", json=mine, headers=HEADERS).json()["token"]
    pull = {"key": KEY, "lease": application, "free": 3}
    pulled = client.post("/work/pull", json=pull, headers=HEADERS).json()
    assert pulled == {"requests": {"lake-a": body_of(path)["request"]}, "cancel": {}}
    question = {"item_id": "lake-a", "table_id": table_id, "service": "compaction", "lease": lease}
    asked = client.post("/work/ask", json={"items": [question]}, headers=HEADERS).json()["items"]
    assert [item["state"] for item in asked] == ["running"]
    end = {"key": KEY, "lease": application, "item_id": "lake-a", "result": "{}", "takes_next": True}
    assert client.post("/work/finish", json=end, headers=HEADERS).json() == {"requests": {}}
    asked = client.post("/work/ask", json={"items": [question]}, headers=HEADERS).json()["items"]
    assert [(item["state"], item["result"]) for item in asked] == [("ended", "{}")]
    assert client.post("/work/pull", json=pull | {"lease": "other"}, headers=HEADERS).status_code == 409


def test_task_whose_lease_has_passed_on_loses_its_item(services: ManagerServices, lake: Any, clock: FakeClock) -> None:
    client = TestClient(create_app(lambda: services))
    path = str(lake / "orders")
    table_id = table_id_of(path)
    client.post(f"/tables/{table_id}/work", json=body_of(path), headers=HEADERS)
    question = {"item_id": "lake-a", "table_id": table_id, "service": "compaction", "lease": "of another"}
    asked = client.post("/work/ask", json={"items": [question]}, headers=HEADERS).json()["items"]
    assert asked[0]["state"] == "cancelled"
    assert "has passed to another executor" in asked[0]["message"]


@pytest.mark.parametrize("base_path", ["elsewhere", "/etc/orders"])
def test_request_for_another_table_is_refused(services: ManagerServices, lake: Any, base_path: str) -> None:
    client = TestClient(create_app(lambda: services))
    path = str(lake / "orders")
    other = base_path if base_path.startswith("/") else str(lake / base_path)
    answer = client.post(f"/tables/{table_id_of(path)}/work", json=body_of(path, other), headers=HEADERS)
    assert answer.status_code == 422
    assert "another table" in answer.json()["detail"]

"""Replication's routes, with tables and sinks from a tables file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.health.sink_events import SinkEvent, SinkEventKind
from airflow_lake_provider.manager.health.table_problems import TableProblem
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.notifications import NoNotifier
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, serve

TTL_S = 3600


@pytest.fixture
def base_path(lake: Path) -> str:
    return str(lake / "orders")


@pytest.fixture
def client(services: ManagerServices, base_path: str, tmp_path: Path) -> httpx.Client:
    tables = tmp_path / "tables.yaml"
    sink = f"{{sink: kafka, topic: orders, bootstrap_servers: 'b:9092', ttl_s: {TTL_S}}}"
    lock = "{hoodie.write.lock.provider: org.example.Lock}"
    tables.write_text(f"tables:\n  - base_path: {base_path}\n    replication: [{sink}]\n    hudi_options: {lock}\n")
    services.registry.register(Notice(base_path, "orders", Source.CONFIG))
    with services.registry.transaction() as session:
        session.execute(
            update(lake_table).values(changed_time="20260102", identified_ms=1)
        )  # what an evaluation leaves
    app = serve(lambda: replace(services, tables=TablesSource(str(tables))))
    return TestClient(app, headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})


def test_configured_sink_is_due_holds_everything_and_moves_with_its_checkpoint(
    client: httpx.Client, base_path: str, clock: FakeClock
) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    (due,) = client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"]
    assert (due["base_path"], due["sink"], due["mode"]) == (base_path, "kafka", "changes")
    lock = {"source.hoodie.write.lock.provider": "org.example.Lock"}
    assert due["options"] == {"topic": "orders", "bootstrap_servers": "b:9092", **lock}
    assert client.get(f"{table}/safepoint").json() == {"instant": "0", "holder": "kafka", "released": []}

    begin = {"ttl_s": 1, "run_id": "run-1"}
    known = {"needs_snapshot": False, "request": "", "generation": 0}
    assert client.post(f"{table}/sinks/kafka/begin", json=begin).json() == known
    assert client.post("/sinks/claim", json={"run_id": "run-2"}).json()["sinks"] == []
    checkpoint = Checkpoint("s", 1, 4, CommitRef("20260101", "20260102"), hold="20260101")
    progress = {"run_id": "run-1", "checkpoint": to_text(checkpoint), "ended": True}
    assert client.post(f"{table}/sinks/kafka/progress", json=progress).status_code == 204
    assert client.get(f"{table}/safepoint").json()["instant"] == "20260101"
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    assert (sink["name"], sink["hold"], sink["checkpoint"]["sequence"]) == ("kafka", "20260101", 1)

    clock.advance(TTL_S + 1)
    assert client.get(f"{table}/safepoint").json() == {"instant": None, "holder": "", "released": ["kafka"]}
    answer = client.post(f"{table}/sinks/kafka/begin", json=begin).json()
    assert answer["needs_snapshot"]
    assert answer["generation"] == 4
    assert answer["request"].startswith("released.")


def test_quiet_sink_with_heartbeats_is_due_when_its_last_run_is_that_old(
    client: httpx.Client, base_path: str, tmp_path: Path, clock: FakeClock
) -> None:
    tables = tmp_path / "tables.yaml"
    tables.write_text(tables.read_text().replace("topic: orders", "topic: orders, heartbeat_s: 60"))
    table = f"/tables/{table_id_of(base_path)}"
    checkpoint = to_text(Checkpoint("s", 1, 1, CommitRef("20260101", "20260102"), hold="20260101"))
    end = {"run_id": "run-1", "checkpoint": checkpoint, "ended": True, "completed_time": "20260102"}

    def claim() -> int:
        return len(client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"])

    for _ in range(2):
        assert claim() == 1
        assert client.post(f"{table}/sinks/kafka/progress", json=end).is_success
        clock.advance(59)
        assert claim() == 0
        clock.advance(1)
    # A failed run is retried after its pause, and the heartbeat does not come before.
    assert claim() == 1
    assert client.post(f"{table}/sinks/kafka/progress", json=end | {"problem": "no broker"}).is_success
    assert claim() == 0


def test_configured_sink_is_listed_before_any_dag_asked_what_is_due(client: httpx.Client, base_path: str) -> None:
    (sink,) = client.get(f"/tables/{table_id_of(base_path)}/sinks").json()["sinks"]
    assert (sink["name"], sink["hold"], sink["checkpoint_text"]) == ("kafka", "0", "")


def test_sink_that_is_up_to_date_is_never_released_while_its_table_is_quiet(
    client: httpx.Client, base_path: str, clock: FakeClock
) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    assert client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"]
    assert client.post(f"{table}/sinks/kafka/begin", json={"ttl_s": TTL_S, "run_id": "run-1"}).is_success
    checkpoint = to_text(Checkpoint("s", 1, 1, CommitRef("20260101", "20260102"), hold="20260101"))
    progress = {"run_id": "run-1", "checkpoint": checkpoint, "ended": True, "completed_time": "20260102"}
    assert client.post(f"{table}/sinks/kafka/progress", json=progress).is_success
    held = {"instant": "20260101", "holder": "kafka", "released": []}
    for _ in range(48):
        clock.advance(TTL_S / 2)
        assert client.post("/sinks/claim", json={"run_id": "run-2"}).json()["sinks"] == []
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    assert sink["hold_ends_ms"] == int((clock.now.timestamp() + TTL_S) * 1000)
    assert client.get(f"{table}/safepoint").json() == held
    clock.advance(10 * TTL_S)  # the scheduler is away
    assert client.get(f"{table}/safepoint").json() == held


def test_due_sink_is_given_to_one_run_and_the_second_does_not_begin(
    client: httpx.Client, base_path: str, clock: FakeClock
) -> None:
    table = f"/tables/{table_id_of(base_path)}"

    def claimed(run_id: str) -> list[str]:
        return [sink["name"] for sink in client.post("/sinks/claim", json={"run_id": run_id}).json()["sinks"]]

    assert claimed("run-1") == ["kafka"]
    assert claimed("run-2") == []
    assert claimed("run-1") == ["kafka"], "the answer may have been lost"
    refused = client.post(f"{table}/sinks/kafka/begin", json={"ttl_s": 1, "run_id": "run-2"})
    assert (refused.status_code, refused.json()["error"]) == (409, "SinkBusyError")
    assert client.post(f"{table}/sinks/kafka/begin", json={"ttl_s": 1, "run_id": "run-1"}).is_success
    assert client.get(f"{table}/sinks").json()["sinks"][0]["running"]
    clock.advance(91)  # nothing was heard of it
    assert not client.get(f"{table}/sinks").json()["sinks"][0]["running"]
    assert claimed("run-2") == ["kafka"]
    assert client.post(f"{table}/sinks/kafka/progress", json={"run_id": "run-1", "ended": True}).status_code == 409


def test_sink_that_has_lacked_a_change_for_the_longest_comes_first_whatever_its_tables_id_is(
    services: ManagerServices, tmp_path: Path, clock: FakeClock
) -> None:
    names = ("a", "b", "c", "d")
    entries = [f"  - {{base_path: /lake/{name}, replication: [{{sink: noop}}]}}" for name in names]
    (tmp_path / "tables.yaml").write_text("\n".join(["tables:", *entries]))
    ids = {table_id_of(f"/lake/{name}"): name for name in names}
    for name in names:
        services.registry.register(Notice(f"/lake/{name}", name, Source.CONFIG))
    app = serve(lambda: replace(services, tables=TablesSource(str(tmp_path / "tables.yaml"))))
    client = TestClient(app, headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})

    def change(name: str) -> None:
        with services.registry.transaction() as session:
            mine = lake_table.c.base_path == f"/lake/{name}"
            session.execute(
                update(lake_table).where(mine).values(changed_time=f"{clock.now:%Y%m%d%H%M%S}", identified_ms=1)
            )

    def claim(run_id: str, limit: int) -> list[str]:
        answer = client.post("/sinks/claim", params={"limit": limit}, json={"run_id": run_id}).json()
        return [ids[sink["table_id"]] for sink in answer["sinks"]]

    def end(name: str, run_id: str, problem: str = "") -> None:
        progress = {"run_id": run_id, "ended": True, "completed_time": f"{clock.now:%Y%m%d%H%M%S}", "problem": problem}
        answer = client.post(f"/tables/{table_id_of(f'/lake/{name}')}/sinks/noop/progress", json=progress)
        assert answer.is_success

    served = []
    # Each minute every table gets a commit, and there is a place for one run.
    change("d")
    assert claim("r0", 0 + 1) == ["d"]
    end("d", "r0")
    for minute in range(1, 9):
        clock.advance(60)
        for name in names if minute > 1 else ("c",):
            change(name)
        (one,) = claim(f"r{minute}", 1)
        served.append(one)
        end(one, f"r{minute}", "the broker is away" if minute == 2 else "")
    assert served[0] == "c"
    assert set(served[1:5]) == set(names), served
    assert set(served[4:8]) == set(names), served


GRACE_S = LakeSettings().sink_grace_s


@pytest.fixture
def without_sinks(tmp_path: Path, base_path: str) -> Callable[[], str]:
    """Take the sinks out of the tables file; return what brings them back."""

    def write() -> str:
        before = (tmp_path / "tables.yaml").read_text()
        (tmp_path / "tables.yaml").write_text(f"tables:\n  - base_path: {base_path}\n")
        return before

    return write


def test_sink_that_is_configured_no_more_holds_for_the_grace_and_loses_nothing_when_it_is_back(
    client: httpx.Client,
    base_path: str,
    clock: FakeClock,
    tmp_path: Path,
    without_sinks: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    client.post("/sinks/claim", json={"run_id": "run-1"})
    checkpoint = to_text(Checkpoint("s", 1, 1, CommitRef("20260101", "20260101"), hold="20260101"))
    progress = {"run_id": "run-1", "checkpoint": checkpoint, "ended": True, "completed_time": "20260101"}
    assert client.post(f"{table}/sinks/kafka/progress", json=progress).is_success
    held = {"instant": "20260101", "holder": "kafka", "released": []}

    before = without_sinks()
    assert client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"] == []
    assert client.get(f"{table}/safepoint").json() == held
    ends = datetime.fromtimestamp(clock.now.timestamp() + GRACE_S, UTC)
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    assert sink["hold_ends_ms"] == int(ends.timestamp() * 1000)
    assert f"no longer configured: its hold is released at {ends:%Y-%m-%d %H:%M:%S} UTC" in sink["problem"]
    assert caplog.text.count("no longer configured") == 1

    # Its own time to live, an hour, is over many times; it stands still meanwhile.
    clock.advance(GRACE_S - 1)
    assert client.get(f"{table}/safepoint").json() == held
    (tmp_path / "tables.yaml").write_text(before)
    assert [due["name"] for due in client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"]] == ["kafka"]
    assert client.get(f"{table}/safepoint").json() == held
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    assert (sink["checkpoint_text"], sink["needs_snapshot"], sink["problem"]) == (checkpoint, False, "")


def test_sink_that_is_configured_no_more_is_forgotten_after_the_grace(
    client: httpx.Client,
    base_path: str,
    clock: FakeClock,
    without_sinks: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    client.post("/sinks/claim", json={"run_id": "run-1"})
    without_sinks()
    assert client.get(f"{table}/safepoint").json()["instant"] == "0"
    clock.advance(GRACE_S - 1)
    assert client.get(f"{table}/safepoint").json()["instant"] == "0"
    clock.advance(1)
    assert client.get(f"{table}/safepoint").json()["instant"] is None
    assert client.get(f"{table}/sinks").json()["sinks"] == []
    assert "is no longer configured: its hold is released" in caplog.text


def test_sink_that_is_configured_no_more_can_be_forgotten_at_once(
    client: httpx.Client, base_path: str, without_sinks: Callable[[], str]
) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    client.post("/sinks/claim", json={"run_id": "run-1"})
    without_sinks()
    assert client.get(f"{table}/safepoint").json()["instant"] == "0"
    assert client.delete(f"{table}/sinks/kafka").status_code == 204
    assert client.get(f"{table}/safepoint").json()["instant"] is None


class KeptNotices(NoNotifier):
    def __init__(self) -> None:
        self.problems: list[TableProblem] = []
        self.ended: list[tuple[str, str]] = []
        self.events: list[SinkEvent] = []

    def sink(self, event: SinkEvent, on_notified: Callable[[], None]) -> None:
        self.events.append(event)
        on_notified()

    def take(self) -> list[tuple[SinkEventKind, str]]:
        found, self.events = self.events, []
        return [(event.kind, event.reason) for event in found]

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        self.problems.append(problem)
        on_notified()

    def resolved(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        self.ended.append((problem.sink, problem.reason))
        on_notified()


def test_people_are_notified_once_of_a_sink_that_is_configured_no_more(
    client: httpx.Client, services: ManagerServices, base_path: str, clock: FakeClock, without_sinks: Callable[[], str]
) -> None:
    notifier = KeptNotices()
    sweep = DeadlineSweep(services.registry, services.instance_gateway, notifier=notifier)
    client.post("/sinks/claim", json={"run_id": "run-1"})
    sweep.sweep()
    assert notifier.problems == []
    without_sinks()
    client.post("/sinks/claim", json={"run_id": "run-1"})
    for _ in range(3):
        sweep.sweep()
        clock.advance(60)
    (problem,) = notifier.problems
    assert (problem.base_path, problem.service, problem.sink) == (base_path, "replication", "kafka")
    assert problem.reason.startswith("sink kafka is no longer configured: its hold is released at 2026-11-24 12:00")


class Watch:
    """One sink, of which runs report, and the sweep, each minute."""

    def __init__(self, client: httpx.Client, services: ManagerServices, base_path: str, clock: FakeClock) -> None:
        self.client, self.table, self.clock = client, f"/tables/{table_id_of(base_path)}", clock
        self.notifier = KeptNotices()
        # Two servers.
        self.sweeps = [
            DeadlineSweep(services.registry, services.instance_gateway, notifier=self.notifier) for _ in range(2)
        ]

    def run(self, checkpoint: Checkpoint | None = None, **progress: str) -> None:
        """A run that has ended."""
        begin = {"ttl_s": TTL_S, "run_id": "run-1"}
        assert self.client.post(f"{self.table}/sinks/kafka/begin", json=begin).is_success
        text = "" if checkpoint is None else to_text(checkpoint)
        body = {"run_id": "run-1", "checkpoint": text, "ended": True, **progress}
        assert self.client.post(f"{self.table}/sinks/kafka/progress", json=body).is_success

    def after(self, minutes: int, steps: int = 3) -> list[tuple[SinkEventKind, str]]:
        """Return the event of so many minutes."""
        for _ in range(steps):
            self.clock.advance(60 * minutes / steps)
            for sweep in self.sweeps:
                sweep.sweep()
        return self.notifier.take()


@pytest.fixture
def watch(client: httpx.Client, services: ManagerServices, base_path: str, clock: FakeClock) -> Watch:
    assert client.post("/sinks/claim", json={"run_id": "run-1"}).is_success
    return Watch(client, services, base_path, clock)


UP_TO_DATE = Checkpoint("s", 1, 1, CommitRef("20260101", "20260102"), hold="20260101")

BEHIND = replace(UP_TO_DATE, commit=CommitRef("20260100", "20260101"))


def test_people_hear_once_that_runs_of_a_sink_fail_and_again_when_they_fail_later(watch: Watch) -> None:
    for _ in range(2):
        for _ in range(2):
            watch.run(problem="the broker is away")
            assert watch.after(2) == []
        for _ in range(3):
            watch.run(problem="the broker is away")
        assert watch.after(3) == [(SinkEventKind.FAILING, "3 runs have failed: the broker is away")]
        assert watch.notifier.ended == []
        watch.run(UP_TO_DATE, completed_time="20260102")
        assert watch.after(1) == []
        assert watch.notifier.ended == [("kafka", "3 runs have failed: the broker is away")]
        watch.notifier.ended.clear()


def test_people_hear_that_a_hold_ended_and_that_a_new_snapshot_began(watch: Watch) -> None:
    watch.run(BEHIND, completed_time="20260101")
    found = watch.after(TTL_S // 60 + 1, 12)
    assert [kind for kind, _ in found] == [SinkEventKind.STANDS_STILL]
    assert watch.client.get(f"{watch.table}/safepoint").json()["released"] == ["kafka"]
    ((kind, reason),) = watch.after(3)
    assert (kind, "time to live has ended" in reason) == (SinkEventKind.RELEASED, True)
    again = replace(UP_TO_DATE, sequence=2, generation=2)
    watch.run(again, completed_time="20260102", snapshot_reason="the manager requested one")
    watch.run(replace(again, sequence=3), completed_time="20260102")
    assert watch.after(3) == [(SinkEventKind.SNAPSHOT, "generation 2 of its rows: the manager requested one")]
    assert watch.after(60 * 48, 12) == []


def test_people_hear_each_day_that_a_sink_stands_still_with_what_is_known_of_it(watch: Watch) -> None:
    """It lacks a change, and no DAG asks what is due."""
    watch.run(BEHIND, completed_time="20260101")
    assert watch.after(14) == []
    ((kind, reason),) = watch.after(9)
    assert kind is SinkEventKind.STANDS_STILL
    assert "minutes; no run has taken it: are lake_replication" in reason
    found = watch.after(60 * 48, 12)
    assert [kind for kind, _ in found if kind is SinkEventKind.STANDS_STILL] == [SinkEventKind.STANDS_STILL] * 2
    watch.client.post(f"{watch.table}/sinks/kafka/pause", json={"paused": True})
    assert watch.after(60 * 48, 12) == []


def test_sink_that_is_up_to_date_does_not_stand_still_when_its_table_changes(
    watch: Watch, services: ManagerServices
) -> None:
    watch.run(UP_TO_DATE, completed_time="20260102")
    assert watch.after(60 * 48, 12) == []
    with services.registry.transaction() as session:
        session.execute(update(lake_table).values(changed_time="20260103"))
    assert watch.after(14) == []
    assert [kind for kind, _ in watch.after(9)] == [SinkEventKind.STANDS_STILL]


def test_pause_and_forget(client: httpx.Client, base_path: str) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    assert len(client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"]) == 1
    assert client.post(f"{table}/sinks/kafka/pause", json={"paused": True}).status_code == 204
    assert client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"] == []
    assert client.delete(f"{table}/sinks/kafka").status_code == 204
    assert len(client.post("/sinks/claim", json={"run_id": "run-1"}).json()["sinks"]) == 1


def test_hold_beyond_its_cap_ends_unless_it_has_moved(client: httpx.Client, base_path: str) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    body = {"hold": "20200101000000000", "reason": "it holds 10 bytes, max_held_bytes is 1"}
    assert client.post(f"{table}/sinks/kafka/release", json=body).status_code == 204
    assert not client.get(f"{table}/sinks").json()["sinks"][0]["needs_snapshot"], "the hold is another one"
    body["hold"] = sink["hold"]
    assert client.post(f"{table}/sinks/kafka/release", json=body).status_code == 204
    (sink,) = client.get(f"{table}/sinks").json()["sinks"]
    assert sink["needs_snapshot"]
    assert body["reason"] in sink["problem"]
    assert client.get(f"{table}/safepoint").json()["instant"] is None
    assert client.post(f"{table}/sinks/other/release", json=body).status_code == 404


def test_unknown_table_holds_nothing_and_unknown_sink_is_reported(client: httpx.Client) -> None:
    assert client.get("/tables/nobody/safepoint").json()["instant"] is None
    answer = client.post("/tables/nobody/sinks/kafka/progress", json={"run_id": "run-1", "ended": True})
    assert answer.status_code == 404
    assert "has no sink 'kafka'" in answer.json()["detail"]


def test_token_is_needed(client: httpx.Client) -> None:
    client.headers.pop("Authorization")
    assert client.post("/sinks/claim", json={"run_id": "run-1"}).status_code == 401


def test_what_is_no_checkpoint_is_refused_and_changes_nothing(client: httpx.Client, base_path: str) -> None:
    table = f"/tables/{table_id_of(base_path)}"
    client.post("/sinks/claim", json={"run_id": "run-1"})
    before = client.get(f"{table}/sinks").json()
    answer = client.post(f"{table}/sinks/kafka/progress", json={"run_id": "run-1", "checkpoint": "0", "ended": True})
    assert (answer.status_code, answer.json()["error"]) == (422, "CheckpointDamagedError")
    assert client.get(f"{table}/sinks").json() == before


def test_time_to_live_longer_than_ten_years_is_refused(client: httpx.Client, base_path: str) -> None:
    answer = client.post(
        f"/tables/{table_id_of(base_path)}/sinks/kafka/begin", json={"ttl_s": 1e300, "run_id": "run-1"}
    )
    assert answer.status_code == 422


@pytest.fixture
def fleet(services: ManagerServices, tmp_path: Path) -> httpx.Client:
    """Four tables with a sink each, all due; `d` has Spark settings of its own, and only `b` has a snapshot already."""
    own = ", spark_conf: {spark.executor.memory: 8g}"
    entries = [
        f"  - {{base_path: /lake/{name}, replication: [{{sink: noop}}]{own if name == 'd' else ''}}}" for name in "abcd"
    ]
    (tmp_path / "tables.yaml").write_text("\n".join(["tables:", *entries]))
    for name in "abcd":
        services.registry.register(Notice(f"/lake/{name}", name, Source.CONFIG))
    with services.registry.transaction() as session:
        session.execute(update(lake_table).values(changed_time="20260102", identified_ms=1))
    app = serve(lambda: replace(services, tables=TablesSource(str(tmp_path / "tables.yaml"))))
    client = TestClient(app, headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    checkpoint = Checkpoint("b.noop", 3, 7, CommitRef("20260101", "20260101"))
    of_b = f"/tables/{table_id_of('/lake/b')}/sinks/noop"
    client.post("/sinks/claim", json={"run_id": "r0"})
    for name in "acd":
        end = {"run_id": "r0", "ended": True, "problem": ""}
        client.post(f"/tables/{table_id_of(f'/lake/{name}')}/sinks/noop/progress", json=end)
    client.post(f"{of_b}/progress", json={"run_id": "r0", "ended": True, "checkpoint": to_text(checkpoint)})
    return client


def claim_standing(client: httpx.Client, run_id: str = "standing", **what: object) -> dict[str, dict[str, object]]:
    answer = client.post("/sinks/claim", json={"run_id": run_id, "standing": what}).json()
    return {sink["base_path"].rpartition("/")[2]: sink for sink in answer["sinks"]}


def test_driver_of_many_streams_takes_few_snapshots_and_no_table_with_spark_settings(fleet: httpx.Client) -> None:
    taken = claim_standing(fleet, snapshots=1)
    assert sorted(taken) == ["a", "b"]
    assert [taken[name]["begins_with_snapshot"] for name in "ab"] == [True, False]
    assert taken["b"]["begun"] == {"needs_snapshot": False, "request": "", "generation": 7}
    assert taken["b"]["changed_time"] == "20260102"
    rest = fleet.post("/sinks/claim", json={"run_id": "minute", "is_split": True}).json()["sinks"]
    assert [sink["base_path"] for sink in rest] == ["/lake/d"]


def test_driver_of_many_streams_gets_no_stream_that_it_runs_already(fleet: httpx.Client) -> None:
    running = [f"{table_id_of(f'/lake/{name}')}.noop" for name in claim_standing(fleet, snapshots=9)]
    assert len(running) == 3
    assert claim_standing(fleet, running=running, snapshots=9) == {}
    # An answer that was lost on its way comes again.
    assert len(claim_standing(fleet, running=running[:1], snapshots=9)) == 2
    assert claim_standing(fleet, "another", snapshots=9) == {}

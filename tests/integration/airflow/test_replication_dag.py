"""The DAG `lake_replication` against the manager over HTTP; only Spark's job is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI, Request
from sqlalchemy import update

from airflow_lake_provider.errors import SinkUnknownError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import JobRequest, to_json
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from local_stack.processes import free_port, wait_until
from tests.support.fixture_tables import unpack
from tests.support.task_context import task_instance

if TYPE_CHECKING:
    from airflow_lake_provider.execution.job import JobRun
    from airflow_lake_provider.manager.db.sinks import Sinks

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
FIND = task_instance(dag_id="lake_replication", task_id="find_work")
REPLICATE = task_instance(dag_id="lake_replication", task_id="replicate", map_index=0)


@dataclass
class Replication:
    """One table with a configured sink, the manager's rows of it, and what Spark was asked for."""

    table: str
    sinks: Sinks
    asked: list[ReplicationRequest]
    tables: Path
    confs: list[dict[str, str]]

    @property
    def table_id(self) -> str:
        return table_id_of(self.table)

    def dag(self) -> Any:
        from airflow.dag_processing.dagbag import DagBag

        # A DAG of its own each, as each try has a process of its own.
        return DagBag(dag_folder=str(ROOT / "dags" / "lake_replication.py")).dags["lake_replication"]

    def by_form(self, **conf: Any) -> str:
        """Run the DAG by hand as its form does; return the run's id."""
        run = self.dag().test(run_conf={"base_path": self.table, "sink": "noop", **conf})
        assert run.state == "success"
        return str(run.run_id)


@pytest.fixture
def replication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replication]:
    import uvicorn

    from airflow_lake_provider.config.tables_source import TablesSource
    from airflow_lake_provider.execution.engines.job_files import write_text
    from airflow_lake_provider.http import MOUNT_PATH
    from airflow_lake_provider.manager.api.app import create_app
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.manager.db.schema import lake_table
    from airflow_lake_provider.manager.db.sinks import Sinks
    from airflow_lake_provider.operators.replication import HudiReplicationOperator
    from airflow_lake_provider.plugins.lake_plugin import open_registry, open_services

    table, registry = str(unpack("cow_v9", tmp_path).path), open_registry()
    tables = tmp_path / "tables.yaml"
    tables.write_text(f"tables:\n  - {{base_path: '{table}', replication: [{{sink: noop}}]}}\n")
    registry.register(Notice(table, "orders", Source.CONFIG))
    with registry.transaction() as session:
        moved = update(lake_table).where(lake_table.c.table_id == table_id_of(table))
        session.execute(moved.values(changed_time="20260101000000000", identified_ms=1))

    app, port = FastAPI(), free_port()

    @app.middleware("http")
    async def close(request: Request, call_next: Any) -> Any:
        # A task's process closes the hook's connection by ending; here it would be left open.
        response = await call_next(request)
        response.headers["Connection"] = "close"
        return response

    app.mount(MOUNT_PATH, create_app(lambda: replace(open_services(), tables=TablesSource(str(tables)))))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, 60, "the manager", [])
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", f"http://127.0.0.1:{port}")

    asked: list[ReplicationRequest] = []
    confs: list[dict[str, str]] = []

    def submit(_: HudiReplicationOperator, run: JobRun, __: object) -> JobRequest:
        request = run.job.replication
        assert request is not None
        asked.append(request)
        confs.append(dict(run.job.conf))
        commit = CommitRef("20260101000000000", "20260101000000001")
        text = to_text(Checkpoint(request.order.stream, len(asked), 1, commit, hold=commit.requested_time))
        write_text(request.result_path, to_json(ReplicationResult(request.order.stream, True, text)))
        return run.job.request

    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    yield Replication(table, Sinks(registry), asked, tables, confs)
    server.should_exit = True
    thread.join()
    Sinks(registry).configure(table_id_of(table), {})


def test_each_action_of_the_form_does_what_it_says(replication: Replication) -> None:
    sinks, table_id = replication.sinks, replication.table_id
    replication.by_form(action="replicate", name="copy", mode="latest")
    assert sinks.get(table_id, "copy").hold == "20260101000000000"
    again = replication.by_form(action="snapshot", name="copy")
    since = replication.by_form(action="seek", name="copy", seek_until="20251231000000000")
    plain, snapshot, seek = (request.order for request in replication.asked)
    replication.by_form(action="verify", name="copy")
    assert [request.is_verification for request in replication.asked] == [False, False, False, True]
    verified = replication.asked.pop().order
    assert (verified.request, verified.snapshot, verified.seek_until) == ("", False, "")
    assert {plain.stream, snapshot.stream, seek.stream} == {f"{table_id}.copy"}
    assert (plain.request, plain.snapshot, plain.seek_until) == ("", False, "")
    assert (snapshot.request, snapshot.snapshot) == (f"lake_replication/replicate[0]/{again}", True)
    wanted = f"lake_replication/replicate[0]/{since}"
    assert (seek.request, seek.snapshot, seek.seek_until) == (wanted, False, "20251231000000000")

    replication.by_form(action="pause", name="copy")
    assert sinks.get(table_id, "copy").paused
    replication.by_form(action="resume", name="copy")
    assert not sinks.get(table_id, "copy").paused
    replication.by_form(action="forget", name="copy")
    with pytest.raises(SinkUnknownError):
        sinks.get(table_id, "copy")
    assert len(replication.asked) == 3, "the last three start no job"


def test_run_by_hand_takes_the_entry_of_the_tables_file_and_the_form_over_it(replication: Replication) -> None:
    entry = "sink: kafka, name: mirror, mode: latest, key: [id], topic: orders, bootstrap_servers: 'b:9092', buckets: 2"
    replication.tables.write_text(
        f"tables:\n  - base_path: '{replication.table}'\n    spark_conf: {{spark.driver.memory: 2g}}\n"
        f"    hudi_options: {{hoodie.write.lock.provider: '{LOCK}'}}\n"
        f"    replication: [{{{entry}, dead_letter_topic: dead, ttl_s: 50, max_hold_s: 70}}]\n"
    )
    replication.by_form(action="replicate", name="mirror", sink=None)
    replication.by_form(action="verify", name="mirror", sink="kafka", mode="changes", options={"buckets": "4"})
    replication.by_form(action="replicate", name="copy", sink="noop")
    first, second, new = replication.asked
    lock = {"source.hoodie.write.lock.provider": LOCK}
    options = {"topic": "orders", "bootstrap_servers": "b:9092", "buckets": "2", "dead_letter_topic": "dead", **lock}
    assert (first.kind, first.mode.value, first.key, dict(first.options)) == ("kafka", "latest", ("id",), options)
    assert (second.mode.value, dict(second.options)) == ("changes", options | {"buckets": "4"})
    assert (new.kind, new.mode.value, new.key, dict(new.options)) == ("noop", "changes", (), lock)
    assert [conf["spark.driver.memory"] for conf in replication.confs] == ["2g"] * 3
    assert replication.sinks.get(replication.table_id, "mirror").ttl_s == 50


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"sink": None}, "names no sink"),
        ({"sink": None, "name": "mirro"}, r"has no sink 'mirro' .* a known one: mirror \(sink noop\)"),
        ({}, r"has no sink 'noop' .* the one that is meant, of: mirror \(sink noop\)"),
        ({"name": "mirror", "sink": "kafka"}, "name 'mirror' is a sink 'noop' in the tables file"),
    ],
)
def test_run_by_hand_that_means_no_sink_says_which_there_are(
    replication: Replication, form: dict[str, Any], said: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    entry = "replication: [{sink: noop, name: mirror}]"
    replication.tables.write_text(f"tables:\n  - {{base_path: '{replication.table}', {entry}}}\n")
    wanted = {"action": "replicate", "base_path": replication.table, "sink": "noop", **form}
    with pytest.raises(AirflowFailException, match=said):
        replication.dag().get_task("find_work").python_callable(wanted, "run", FIND)
    assert replication.asked == []


def test_run_that_finds_nothing_due_leaves_no_skipped_task(replication: Replication) -> None:
    # Another run has the only sink.
    assert len(replication.dag().get_task("find_work").python_callable({"action": "due"}, "other", FIND)) == 1
    run = replication.dag().test()
    tasks = {(task.task_id, task.map_index): task.state for task in run.get_task_instances()}
    assert (run.state, tasks) == ("success", {("find_work", -1): "success", ("replicate", 0): "success"})
    assert replication.asked == []


def test_second_run_of_a_sink_starts_no_job(replication: Replication) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowSkipException

    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    find_work = replication.dag().get_task("find_work").python_callable
    (work,) = find_work({"action": "due"}, "scheduled-1", FIND)
    assert [one["base_path"] for one in find_work({"action": "due"}, "scheduled-2", FIND)] == [""]
    late = HudiReplicationOperator(task_id="late", **work)
    by_hand = HudiReplicationOperator(task_id="by-hand", base_path=replication.table, sink="noop")
    context: Any = {"run_id": "scheduled-2", "ti": REPLICATE}
    with pytest.raises(AirflowSkipException, match=r"run lake_replication/\*/scheduled-1 has sink noop"):
        late.execute(context)
    with pytest.raises(AirflowException, match=r"run lake_replication/\*/scheduled-1 has sink noop") as refused:
        by_hand.execute(context)
    assert not isinstance(refused.value, AirflowSkipException), "a person waits for it: it is tried again"
    assert replication.asked == []
    assert replication.sinks.get(replication.table_id, "noop").problem == ""

    late.execute({**context, "run_id": "scheduled-1"})
    assert len(replication.asked) == 1
    by_hand.execute(context)
    assert len(replication.asked) == 2


def test_connection_that_is_not_there_is_reported_of_the_sink(replication: Replication) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    task = HudiReplicationOperator(
        task_id="t", base_path=replication.table, sink="noop", options={"conn_id": "nowhere"}
    )
    context: Any = {"run_id": "run-1", "ti": task_instance()}
    with pytest.raises(AirflowFailException, match="there is no connection 'nowhere'"):
        task.execute(context)
    row = replication.sinks.get(replication.table_id, "noop")
    assert "nowhere" in row.problem
    assert row.running_until_ms == 0

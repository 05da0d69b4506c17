"""Runs of the service DAG in a real Airflow: their settings, their instances, their deadlines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

pytestmark = pytest.mark.integration


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.lake_plugin import _open_session

    session = _open_session()
    yield session
    session.rollback()
    session.close()


@pytest.fixture
def pool(session: Session) -> str:
    from airflow.models.pool import Pool

    name = f"heavy-{uuid.uuid4().hex[:8]}"
    session.add(Pool(pool=name, slots=1, description="", include_deferred=False))
    session.commit()
    return name


def conf_of(**settings: Any) -> dict[str, Any]:
    return {"base_path": "/lake/orders", "service": "compaction", "instants": ["20261121120001000"]} | settings


def create(session: Session, conf: dict[str, Any]) -> str:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor

    run_id = f"orders-{uuid.uuid4().hex[:16]}.compaction.20261121120001000"
    AirflowRunDoor().create_run(session, run_id, conf, note="why")
    session.commit()
    return run_id


def task_of(session: Session, run_id: str) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    session.expire_all()
    return session.scalars(select(TaskInstance).where(TaskInstance.run_id == run_id)).one()


def test_run_gets_pool_queue_and_retries_of_its_conf(session: Session, pool: str) -> None:
    chosen = task_of(session, create(session, conf_of(pool=pool, queue="spark", retries=1)))
    assert (chosen.pool, chosen.queue, chosen.max_tries) == (pool, "spark", 1)
    plain = task_of(session, create(session, conf_of()))
    assert (plain.pool, plain.queue, plain.max_tries) == ("default_pool", "default", 4)


def test_run_of_a_missing_pool_is_refused_with_what_to_do(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import PoolMissingError

    with pytest.raises(PoolMissingError, match="pool 'nowhere' does not exist: create it"):
        create(session, conf_of(pool="nowhere"))


def test_active_runs_are_told_with_pool_and_queue(session: Session, pool: str) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor

    run_id = create(session, conf_of(pool=pool, queue="spark"))
    (found,) = AirflowRunDoor().find_active_runs(session, run_id)
    assert (found.pool, found.queue, found.active) == (pool, "spark", True)


@pytest.mark.parametrize(
    ("settings", "option"),
    [({"timeout_s": 0}, "timeout_s"), ({"retries": 1.5}, "retries"), ({"spark_conf": "x"}, "spark_conf")],
)
def test_wrong_settings_of_a_run_by_hand_are_refused_by_name(
    session: Session, settings: dict[str, Any], option: str
) -> None:
    with pytest.raises(ValueError, match=option):
        create(session, conf_of(**settings))


def test_instance_door_tells_runs_with_their_tasks_and_ends_them(session: Session) -> None:
    from airflow.utils.state import TaskInstanceState

    from airflow_lake_provider.manager.instances import InstanceState, Plans, instance_of_run
    from airflow_lake_provider.manager.scheduling import RunState
    from airflow_lake_provider.plugins.dag_runs import AirflowInstanceDoor

    door, run_id = AirflowInstanceDoor(), create(session, conf_of(deadline_s=60))
    (run,) = door.list_runs(session, run_id, 5)
    assert (run.state, run.service, run.plans) == (RunState.QUEUED, "compaction", ("20261121120001000",))
    assert instance_of_run(run, Plans()).state is InstanceState.SCHEDULED
    task = task_of(session, run_id)
    task.state, task.try_number, task.hostname = TaskInstanceState.RUNNING, 2, "worker-1"
    session.commit()
    (run,) = door.list_runs(session, run_id, 5)
    assert instance_of_run(run, Plans()).reason == "try 2 of 5 runs on worker-1"
    assert door.end_run(session, run_id, "ended: too late")
    session.commit()
    assert task_of(session, run_id).state == TaskInstanceState.FAILED
    (run,) = door.list_runs(session, run_id, 5)
    assert (run.state, run.note) == (RunState.FAILED, "ended: too late")
    assert not door.end_run(session, run_id, "again")
    assert door.list_runs(session, run_id, 0) == []


def test_sweep_ends_a_run_past_its_deadline_in_airflow(session: Session) -> None:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    from airflow_lake_provider.manager.monitoring import DeadlineSweep
    from airflow_lake_provider.plugins.dag_runs import AirflowInstanceDoor
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    run_id = create(session, conf_of(deadline_s=0.001))
    assert DeadlineSweep(open_registry(), AirflowInstanceDoor()).sweep().ended >= 1
    session.expire_all()
    run = session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
    assert run.state == "failed"
    assert "not done 0 s after it was created (deadline_s)" in (run.note or "")


def test_database_clock_is_the_databases(session: Session) -> None:
    import time

    from airflow_lake_provider.plugins.lake_plugin import open_registry

    registry = open_registry()
    with registry.transaction() as transaction:
        assert abs(registry.clock.read_ms(transaction) - time.time() * 1000) < 60_000


@pytest.fixture
def variable() -> Iterator[str]:
    from airflow.models.variable import Variable

    name = f"lake_tables_{uuid.uuid4().hex[:8]}"
    yield name
    Variable.delete(name)


def test_overrides_come_from_the_variable_and_a_backend_that_fails_is_no_empty_one(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.variable import Variable
    from airflow.secrets.metastore import MetastoreBackend

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.errors import ConfigError
    from airflow_lake_provider.plugins.tables import open_tables, read_variable

    assert read_variable(variable) == ""
    Variable.set(variable, '{"defaults": {"pool": "heavy"}}')
    assert open_tables(LakeSettings(tables_variable=variable)).load().defaults.pool == "heavy"
    assert open_tables(LakeSettings(tables_variable="off")).load().defaults.pool == ""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the database is away")

    monkeypatch.setattr(MetastoreBackend, "get_variable", fail)
    with pytest.raises(ConfigError, match="cannot be read from MetastoreBackend: ConnectionError"):
        read_variable(variable)


def test_tables_that_start_at_once_share_the_places_of_a_queue() -> None:
    import threading

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_file import Limits, TablesConfig
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.registry import Claim, Notice, Source
    from airflow_lake_provider.manager.scheduling import Starts, StartVerdict
    from airflow_lake_provider.planner.rules import Decision, Verdict
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    registry, queue = open_registry(), f"q-{uuid.uuid4().hex[:8]}"
    claims: list[Claim] = []
    for name in "abcdef":
        registry.mark_dirty(Notice(f"/lake/{queue}/{name}", name, Source.CONFIG))
        claims += [claim for claim in registry.claim(100, 60) if claim.base_path.startswith(f"/lake/{queue}/")]
    tables = TablesConfig(limits=Limits(queues={queue: 2}))
    due = Decision(Service.CLEAN, Verdict.DUE, "due", key_instant="20261121120001000")
    verdicts: list[StartVerdict] = []

    def start(claim: Claim) -> None:
        starts = Starts(registry, AirflowRunDoor(), lambda: tables)
        verdicts.append(starts.start(claim, TablePolicy(queue=queue), due).verdict)

    threads = [threading.Thread(target=start, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(verdicts) == [StartVerdict.START] * 2 + [StartVerdict.WAITING] * 4

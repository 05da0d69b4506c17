"""Runs of the service DAG in a real Airflow: their settings, their instances, their deadlines."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.run_ids import parse_run_id, run_id_of
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.metadata_database import open_session

    session = open_session()
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
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    run_id = run_id_of(f"orders-{uuid.uuid4().hex[:16]}", Service.COMPACTION, "20261121120001000")
    AirflowRunGateway().create_run(session, run_id, conf, note="why")
    session.commit()
    return run_id


def table_of(run_id: str) -> str:
    found = parse_run_id(run_id)
    assert found is not None
    return found.table_id


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


def test_active_runs_are_listed_with_pool_and_queue(session: Session, pool: str) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    run_id = create(session, conf_of(pool=pool, queue="spark"))
    (found,) = AirflowRunGateway().find_active_runs(session, table_of(run_id))
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


def test_instance_gateway_lists_runs_with_their_tasks_and_ends_them(session: Session) -> None:
    from airflow.utils.state import TaskInstanceState

    from airflow_lake_provider.manager.runs.airflow_runs import RunState
    from airflow_lake_provider.manager.supervision.instances import InstanceState, Plans, instance_of_run
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    gateway, run_id = AirflowInstanceGateway(), create(session, conf_of(deadline_s=60))
    (run,) = gateway.list_runs(session, table_of(run_id), 5)
    assert (run.state, run.service, run.plans) == (RunState.QUEUED, "compaction", ("20261121120001000",))
    assert instance_of_run(run, Plans()).state is InstanceState.SCHEDULED
    task = task_of(session, run_id)
    task.state, task.try_number, task.hostname = TaskInstanceState.RUNNING, 2, "worker-1"
    session.commit()
    (run,) = gateway.list_runs(session, table_of(run_id), 5)
    assert instance_of_run(run, Plans()).reason == "try 2 of 5 runs on worker-1"
    assert gateway.end_run(session, run_id, "ended: too late")
    session.commit()
    assert task_of(session, run_id).state == TaskInstanceState.FAILED
    (run,) = gateway.list_runs(session, table_of(run_id), 5)
    assert (run.state, run.note) == (RunState.FAILED, "ended: too late")
    assert not gateway.end_run(session, run_id, "again")
    assert gateway.list_runs(session, table_of(run_id), 0) == []


def test_run_of_a_vanished_executor_is_ended_as_successful_in_airflow(session: Session, tmp_path: Path) -> None:
    """The task's row stays `running` until Airflow's heartbeat time-out; the manager does not wait for it."""
    from datetime import UTC, datetime, timedelta

    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import update

    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.schema import lake_executor
    from airflow_lake_provider.manager.runs.airflow_runs import RunState
    from airflow_lake_provider.manager.supervision.vanished import SILENT_MS, VanishedExecutors
    from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS
    from airflow_lake_provider.planner.rules import Decision, Verdict
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    table = HandMadeTable.create(tmp_path / f"orders-{uuid.uuid4().hex[:8]}")
    base_path = str(table.path)
    plan, table_id = table.plan(5), table_id_of(base_path)
    run_id = run_id_of(table_id, Service.COMPACTION, plan)
    conf = conf_of(base_path=base_path, instants=[plan], mode="schedule_and_execute")
    AirflowRunGateway().create_run(session, run_id, conf, note="why")
    session.commit()
    registry, gateway = open_registry(), AirflowInstanceGateway()
    executors = Executors(registry, 900)
    executors.acquire(table_id, Service.COMPACTION, run_id, 1)
    last_runs = NO_LAST_RUNS.started(Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant=plan), run_id)
    vanished = VanishedExecutors(registry, executors, gateway, TableViewCache())
    assert vanished.end_done_runs(table_id, base_path, last_runs) == ()
    # A minute and a half pass; the server was up all the time.
    vanished._since_ms = 0
    session.execute(
        update(lake_executor)
        .where(lake_executor.c.table_id == table_id)
        .values(lease_until_ms=lake_executor.c.lease_until_ms - 90_000)
    )
    task = task_of(session, run_id)
    task.state, task.try_number = TaskInstanceState.RUNNING, 1
    task.last_heartbeat_at = datetime.now(UTC) - timedelta(seconds=90)
    session.commit()
    assert vanished.end_done_runs(table_id, base_path, last_runs) == ()
    stamp, body = f"{plan[:-3]}900", '{"operationType": "COMPACT", "partitionToWriteStats": {}}'
    (table.path / ".hoodie" / "timeline" / f"{plan}_{stamp}.commit").write_text(body, encoding="utf-8")
    assert vanished.end_done_runs(table_id, base_path, last_runs) == (run_id,)
    assert task_of(session, run_id).state == TaskInstanceState.SUCCESS
    (run,) = gateway.list_runs(session, table_of(run_id), 5)
    assert run.state is RunState.SUCCESS
    assert f"{plan} completed" in run.note
    assert f"more than {SILENT_MS // 1000} s" in run.note
    assert not gateway.complete_run(session, run_id, "again")
    (found,) = AirflowRunGateway().find_runs_by_id(session, [run_id])
    assert (found.state, found.active) == (RunState.SUCCESS, False)


def next_run(session: Session, run_ids: list[str], slots: int = 1) -> list[str]:
    """Return the runs that Airflow's own scheduler gives the free slots, in its order."""
    from airflow.executors.local_executor import LocalExecutor
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import update

    for run_id in run_ids:
        session.execute(update(DagRun).where(DagRun.run_id == run_id).values(state=DagRunState.RUNNING))
        task_of(session, run_id).state = TaskInstanceState.SCHEDULED
        session.commit()
    runner = SchedulerJobRunner(Job(), executors=[LocalExecutor(parallelism=slots)], num_runs=1)
    queued = runner._executable_task_instances_to_queued(max_tis=slots, session=session)
    session.commit()
    return [task.run_id for task in queued if task.run_id in run_ids]


def test_urgent_run_overtakes_mass_work_where_slots_are_short_and_old_runs_overtake_it(
    session: Session, pool: str
) -> None:
    """One slot in the pool: Airflow's scheduler takes the run that was created last, because it is urgent."""
    from airflow_lake_provider.planner.rules import Urgency
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    mass = [create(session, conf_of(pool=pool, priority_weight=int(Urgency.MASS))) for _ in range(3)]
    urgent = create(session, conf_of(pool=pool, priority_weight=int(Urgency.UNBLOCKS)))
    by_hand = create(session, conf_of(pool=pool))
    weights = [task_of(session, run_id).priority_weight for run_id in (mass[0], urgent, by_hand)]
    assert weights == [Urgency.MASS, Urgency.UNBLOCKS, 1]
    assert next_run(session, [*mass, urgent, by_hand]) == [urgent]
    end(session, urgent)
    later = create(session, conf_of(pool=pool, priority_weight=int(Urgency.UNBLOCKS)))
    assert AirflowInstanceGateway().raise_priority(session, [mass[2]], Urgency.AGED) == 1
    assert AirflowInstanceGateway().raise_priority(session, [mass[2], urgent], Urgency.AGED) == 0
    assert next_run(session, [*mass, later]) == [mass[2]]
    for run_id in (*mass, later, by_hand):
        end(session, run_id)


def end(session: Session, run_id: str) -> None:
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    assert AirflowInstanceGateway().end_run(session, run_id, "the test is over")
    session.commit()


def test_run_between_two_tries_holds_no_place_of_its_pool(session: Session, pool: str) -> None:
    from airflow.utils.state import TaskInstanceState

    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    run_id = create(session, conf_of(pool=pool))
    for state, waits in (
        (TaskInstanceState.RUNNING, False),
        (TaskInstanceState.UP_FOR_RETRY, True),
        (TaskInstanceState.UP_FOR_RESCHEDULE, True),
        (TaskInstanceState.SCHEDULED, False),
    ):
        task_of(session, run_id).state = state
        session.commit()
        (found,) = AirflowRunGateway().find_active_runs(session, table_of(run_id))
        assert (found.pool, found.is_between_tries) == (pool, waits), state
    end(session, run_id)


def test_sweep_ends_a_run_past_its_deadline_in_airflow(session: Session) -> None:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    run_id = create(session, conf_of(deadline_s=0.001))
    time.sleep(0.01)  # on a fast machine the sweep would come within the deadline
    assert DeadlineSweep(open_registry(), AirflowInstanceGateway()).sweep().ended >= 1
    session.expire_all()
    run = session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
    assert run.state == "failed"
    assert "not done 0 s after it was created (deadline_s)" in (run.note or "")


def test_scheduler_that_read_an_ended_run_as_running_takes_it_for_failed_too(session: Session) -> None:
    """On SQLite the scheduler locks no rows, so a run can be ended between its reading of the run and of its tasks."""
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    from airflow_lake_provider.plugins.metadata_database import open_session
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    run_id = create(session, conf_of())
    session.expunge_all()
    with open_session() as scheduler:
        run = scheduler.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
        run.state = DagRunState.RUNNING
        scheduler.commit()
        assert run.state == DagRunState.RUNNING  # read again; the scheduler holds it from now on
        assert AirflowInstanceGateway().end_run(session, run_id, "ended: too late")
        session.commit()
        run.dag = DBDagBag().get_dag_for_run(run, session=scheduler)
        run.update_state(session=scheduler, execute_callbacks=False)
        scheduler.commit()
    assert task_of(session, run_id).state == TaskInstanceState.FAILED
    assert session.scalars(select(DagRun.state).where(DagRun.run_id == run_id)).one() == DagRunState.FAILED


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
    from airflow_lake_provider.plugins.lake_plugin import open_tables, read_variable

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
    from airflow_lake_provider.config.tables_config import Limits, TablesConfig
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.rows import Notice, Source, TableLease
    from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
    from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
    from airflow_lake_provider.planner.rules import Decision, Verdict
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    registry, queue = open_registry(), f"q-{uuid.uuid4().hex[:8]}"
    leases: list[TableLease] = []
    for name in "abcdef":
        registry.mark_dirty(Notice(f"/lake/{queue}/{name}", name, Source.CONFIG))
        leases += [lease for lease in registry.acquire(100, 60) if lease.base_path.startswith(f"/lake/{queue}/")]
    tables = TablesConfig(limits=Limits(queues={queue: 2}))
    due = Decision(Service.CLEAN, Verdict.DUE, "due", key_instant="20261121120001000")
    verdicts: list[StartVerdict] = []

    def start(lease: TableLease) -> None:
        starts = RunScheduler(registry, AirflowRunGateway(), lambda: tables)
        verdicts.append(starts.start(lease, TablePolicy(queue=queue), due).verdict)

    threads = [threading.Thread(target=start, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(verdicts) == [StartVerdict.START] * 2 + [StartVerdict.WAITING] * 4


def test_tight_budget_gives_its_places_by_rank_as_runs_end(session: Session) -> None:
    """Airflow's own runs hold the places; one that ends makes room for what ranks first, not for what asks first."""
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import Budget, Budgets, TablesConfig
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.rows import Notice, Source, TableLease
    from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
    from airflow_lake_provider.manager.scheduling.scheduling import StartDecision, StartVerdict
    from airflow_lake_provider.planner.rules import Decision, Verdict
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    registry, queue = open_registry(), f"q-{uuid.uuid4().hex[:8]}"
    leases: dict[str, TableLease] = {}
    for name in ("first", "second", "poor", "rich", "costly"):
        registry.mark_dirty(Notice(f"/lake/{queue}/{name}", name, Source.CONFIG))
        found = registry.acquire(100, 300)
        leases |= {lease.table_name: lease for lease in found if lease.base_path.startswith(f"/lake/{queue}/")}
    tables = TablesConfig(budgets=Budgets(queues={queue: Budget(slots=2, core_hours_per_day=0.5)}))
    scheduler = RunScheduler(registry, AirflowRunGateway(), lambda: tables)

    def start(name: str, log_bytes: int) -> StartDecision:
        evidence = {"log_bytes": log_bytes, "log_files": 10, "merged_groups": 1, "merged_base_bytes": 0}
        due = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121120001000", evidence=evidence)
        return scheduler.start(leases[name], TablePolicy(queue=queue), due)

    small, much, too_much = 1 << 20, 1 << 32, 1 << 40
    running = [start(name, small) for name in ("first", "second")]
    assert [found.verdict for found in running] == [StartVerdict.START] * 2
    for name, size in (("poor", small), ("rich", much), ("costly", too_much)):
        waiting = start(name, size)
        assert waiting.verdict is StartVerdict.WAITING, name
    AirflowInstanceGateway().end_run(session, running[0].run_id, "it has ended")
    session.commit()
    assert start("poor", small).verdict is StartVerdict.WAITING, "one that ranks before it wants the place"
    assert start("rich", much).verdict is StartVerdict.START
    assert start("poor", small).verdict is StartVerdict.WAITING
    AirflowInstanceGateway().end_run(session, running[1].run_id, "it has ended")
    session.commit()
    assert start("costly", too_much).verdict is StartVerdict.WAITING, "it costs more than a whole day's budget"
    assert start("poor", small).verdict is StartVerdict.START
    active = AirflowRunGateway().find_active_runs(session)
    assert sum(run.queue == queue for run in active) == 2


# --- Which failed runs say nothing about their plan, and which runs hold a slot


def end_try(session: Session, run_id: str, *, has_verdict: bool) -> None:
    """End a try as the execution API does after a failure, or as the scheduler does after a kill."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    task = task_of(session, run_id)
    task.state, task.try_number, task.retry_reason = TaskInstanceState.RUNNING, task.try_number + 1, None
    session.flush()
    if task.try_number > task.max_tries:
        task.state = TaskInstanceState.FAILED
        run = session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
        run.state = "failed"
    else:
        task.retry_reason = "failed (other), again later" if has_verdict else None
        task.prepare_db_for_next_try(session=session)
        task.state = TaskInstanceState.UP_FOR_RETRY
    session.merge(task)
    assert isinstance(task, TaskInstance)
    session.commit()


@pytest.mark.parametrize(
    ("verdicts", "is_void"),
    [
        pytest.param([False] * 5, True, id="all-were-killed"),
        pytest.param([True, False, False, False, False], True, id="most-were-killed"),
        pytest.param([True, True, False, False, False], False, id="half-of-the-recorded-ones-failed"),
        pytest.param([True] * 5, False, id="all-failed"),
    ],
)
def test_run_whose_workers_were_killed_is_void(session: Session, verdicts: list[bool], *, is_void: bool) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    run_id = create(session, conf_of())
    for has_verdict in verdicts:
        end_try(session, run_id, has_verdict=has_verdict)
    assert task_of(session, run_id).try_number == 5
    (found,) = AirflowRunGateway().find_runs_by_id(session, [run_id])
    assert (found.state, found.is_void) == ("failed", is_void)


def test_run_that_ended_before_its_last_try_is_not_void(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    run_id = create(session, conf_of())
    end_try(session, run_id, has_verdict=False)
    AirflowInstanceGateway().end_run(session, run_id, "by its deadline")
    session.commit()
    (found,) = AirflowRunGateway().find_runs_by_id(session, [run_id])
    assert (found.state, found.is_void) == ("failed", False)


def test_runs_between_two_tries_hold_no_slot_of_max_active_services(session: Session) -> None:
    """By Airflow's own scheduler: 16 runs wait for their next try, and the seventeenth begins."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import func, select, update

    def set_state(run_ids: set[str], state: TaskInstanceState) -> None:
        session.execute(update(TaskInstance).where(TaskInstance.run_id.in_(run_ids)).values(state=state))
        session.commit()

    session.execute(update(DagRun).where(DagRun.state.in_(("queued", "running"))).values(state="failed"))
    session.execute(update(TaskInstance).values(state=TaskInstanceState.FAILED))
    run_ids = {create(session, conf_of()) for _ in range(17)}
    scheduler = SchedulerJobRunner(Job())

    def start_runs() -> set[str]:
        """Start what the DAG's own limit allows, and return the runs whose task gets a slot."""
        queued = select(func.count()).where(DagRun.run_id.in_(run_ids), DagRun.state == "queued")
        ends_s = time.monotonic() + 5  # it starts some at a time
        while session.scalar(queued) and time.monotonic() < ends_s:
            scheduler._start_queued_dagruns(session)
            session.commit()
        begun = select(DagRun.run_id).where(DagRun.run_id.in_(run_ids), DagRun.state == "running")
        waiting = select(TaskInstance.run_id).where(TaskInstance.run_id.in_(begun), TaskInstance.state.is_(None))
        set_state(set(session.scalars(waiting)), TaskInstanceState.SCHEDULED)
        found = {task.run_id for task in scheduler._executable_task_instances_to_queued(max_tis=64, session=session)}
        set_state(found, TaskInstanceState.RUNNING)
        return found

    at_work = start_runs()
    assert len(at_work) == 16
    assert start_runs() == set()
    set_state(at_work, TaskInstanceState.UP_FOR_RETRY)
    assert start_runs() == run_ids - at_work

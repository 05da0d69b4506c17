"""The manager's door to Airflow: find and create DAG runs in the metadata database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.core_api.datamodels.dag_run import DagRunMutableStates
from airflow.api_fastapi.core_api.services.public.dag_run import patch_dag_run_state
from airflow.exceptions import DagNotFound
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.manager.instances import RunFacts, TaskTry
from airflow_lake_provider.manager.scheduling import SERVICE_DAG_ID, WATCH_DAG_ID, DagState, Net, RunState, ServiceRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

MOST_ENDED_RUNS = 50


class AirflowRunDoor:
    """Implements `manager.scheduling.RunDoor` on Airflow's tables."""

    def find_runs(self, session: Session, run_id_prefix: str) -> Sequence[ServiceRun]:
        """Return every active run whose id begins so, and the newest ended ones."""
        ended = _query(run_id_prefix, RunState.SUCCESS, RunState.FAILED).limit(MOST_ENDED_RUNS)
        return [*self.find_active_runs(session, run_id_prefix), *_fetch(session, ended)]

    def find_active_runs(self, session: Session, run_id_prefix: str) -> Sequence[ServiceRun]:
        """Return every active run whose id begins so, with its pool and queue."""
        query = _query(run_id_prefix, RunState.QUEUED, RunState.RUNNING).add_columns(DagRun.conf)
        return [
            ServiceRun(run_id, RunState(state), pool=_text(conf, "pool"), queue=_text(conf, "queue"))
            for run_id, state, _, conf in session.execute(query).all()
        ]

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        """Return those of the runs that exist; each is one step in the unique key of Airflow's table."""
        query = select(DagRun.run_id, DagRun.state, DagRun.end_date)
        return _fetch(session, query.where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id.in_(run_ids)))

    def find_net(self, session: Session) -> Net:
        """Return whether the DAGs that the manager lives by are paused, and when `lake_watch` last succeeded."""
        dag_ids = (SERVICE_DAG_ID, WATCH_DAG_ID)
        dags = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale)
        )
        states = {dag_id: DagState.PAUSED if is_paused else DagState.ACTIVE for dag_id, is_paused in dags.all()}
        newest = (
            select(DagRun.end_date)
            .where(DagRun.dag_id == WATCH_DAG_ID, DagRun.state == RunState.SUCCESS, DagRun.end_date.is_not(None))
            .order_by(DagRun.id.desc())
            .limit(1)
        )
        swept = session.scalar(newest)
        return Net(states, None if swept is None else int(swept.timestamp() * 1000))

    def create_run(self, session: Session, run_id: str, conf: dict[str, Any], note: str) -> None:
        """Create a queued run of the service DAG in the caller's transaction."""
        _require_pool(session, _text(conf, "pool"))
        try:
            trigger_dag(
                SERVICE_DAG_ID,
                triggered_by=DagRunTriggeredByType.REST_API,
                run_id=run_id,
                conf=conf,
                note=note[:1000],
                session=session,
            )
        except DagNotFound as error:
            raise ServiceDagMissingError(
                f"DAG {SERVICE_DAG_ID} is not in Airflow's database yet; make the shipped DAGs a DAG bundle"
            ) from error


def _require_pool(session: Session, name: str) -> None:
    # A task in a pool that does not exist is never scheduled; only the scheduler's log says so.
    if name and session.execute(select(Pool.id).where(Pool.pool == name)).first() is None:
        raise PoolMissingError(
            f"pool {name!r} does not exist: create it (airflow pools set), or change the table's pool"
        )


def _query(run_id_prefix: str, *states: RunState) -> Select[Any]:
    return (
        select(DagRun.run_id, DagRun.state, DagRun.end_date)
        .where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id.startswith(run_id_prefix, autoescape=True))
        .where(DagRun.state.in_(states))
        .order_by(DagRun.id.desc())
    )


def _fetch(session: Session, query: Select[Any]) -> list[ServiceRun]:
    return [
        ServiceRun(run_id, RunState(state), int(end_date.timestamp() * 1000) if end_date else None)
        for run_id, state, end_date in session.execute(query).all()
    ]


def _text(conf: Any, key: str) -> str:
    return str(conf.get(key) or "") if isinstance(conf, dict) else ""


class ServiceDagMissingError(StorageError):
    """The DAG that runs services has not been parsed yet; it will be tried again."""


class PoolMissingError(StorageError):
    """The table's pool is not there; it will be tried again."""


# --- The manager's second door to Airflow: runs with their tasks, and ending a run

ACTIVE = (RunState.QUEUED, RunState.RUNNING)
TASK_ID = "run_service"
MOST_NOTE_CHARACTERS = 1000


class AirflowInstanceDoor:
    """Implements `manager.monitoring.InstanceDoor` on Airflow's tables."""

    def __init__(self) -> None:
        self._dags = DBDagBag()

    def list_runs(self, session: Session, run_id_prefix: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run whose id begins so, oldest first, then the newest ended ones."""
        of_table = select(DagRun).where(
            DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id.startswith(run_id_prefix, autoescape=True)
        )
        active = session.scalars(of_table.where(DagRun.state.in_(ACTIVE)).order_by(DagRun.id)).all()
        ended = of_table.where(DagRun.state.not_in(ACTIVE)).order_by(DagRun.id.desc()).limit(most_ended)
        runs = [*active, *(session.scalars(ended).all() if most_ended else ())]
        tasks = self._tasks(session, [run.run_id for run in runs])
        return [_facts(run, tasks.get(run.run_id, TaskTry())) for run in runs]

    def end_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as failed; its worker hears of it by its next heartbeat and ends the job."""
        run = session.scalar(
            select(DagRun).where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id == run_id).with_for_update()
        )
        if run is None or run.state not in ACTIVE:
            return False
        patch_dag_run_state(
            dag=self._dag_of(run, session), dag_run=run, state=DagRunMutableStates.FAILED, session=session
        )
        run.note = reason[:MOST_NOTE_CHARACTERS]
        return True

    def _dag_of(self, run: DagRun, session: Session) -> SerializedDAG:
        dag = self._dags.get_dag_for_run(run, session) or self._dags.get_latest_version_of_dag(
            SERVICE_DAG_ID, session=session
        )
        if dag is None:
            raise ServiceDagMissingError(f"DAG {SERVICE_DAG_ID} is not in Airflow's database; run {run.run_id} stays")
        return dag

    @staticmethod
    def _tasks(session: Session, run_ids: list[str]) -> dict[str, TaskTry]:
        if not run_ids:
            return {}
        query = select(TaskInstance).where(
            TaskInstance.dag_id == SERVICE_DAG_ID, TaskInstance.task_id == TASK_ID, TaskInstance.run_id.in_(run_ids)
        )
        return {task.run_id: _try(task) for task in session.scalars(query)}


def _facts(run: DagRun, task: TaskTry) -> RunFacts:
    # A run that somebody cleared is queued anew: its time counts from then.
    created = run.queued_at or run.run_after
    return RunFacts(
        run_id=run.run_id,
        state=RunState(run.state),
        created_ms=_ms(created) or 0,
        ended_ms=_ms(run.end_date),
        params=run.conf or {},
        task=task,
        note=run.note or "",
    )


def _try(task: TaskInstance) -> TaskTry:
    return TaskTry(
        state=task.state,
        try_number=task.try_number,
        max_tries=task.max_tries,
        host=task.hostname or "",
        started_ms=_ms(task.start_date),
        # When exactly the next try comes is the task's own affair; it cannot be before this one ended.
        next_try_ms=_ms(task.end_date),
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)

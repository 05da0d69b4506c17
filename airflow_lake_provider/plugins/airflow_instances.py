"""The manager's second door to Airflow: runs with their tasks, and ending a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.core_api.datamodels.dag_run import DagRunMutableStates
from airflow.api_fastapi.core_api.services.public.dag_run import patch_dag_run_state
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select

from airflow_lake_provider.manager.instances import RunFacts, TaskTry
from airflow_lake_provider.manager.runs import SERVICE_DAG_ID, RunState
from airflow_lake_provider.plugins.airflow_runs import ServiceDagMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy.orm import Session

ACTIVE = (RunState.QUEUED, RunState.RUNNING)
TASK_ID = "run_service"
MOST_NOTE_CHARACTERS = 1000


class AirflowInstanceDoor:
    """Implements `manager.deadlines.InstanceDoor` on Airflow's tables."""

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

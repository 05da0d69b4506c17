"""The manager's door to Airflow: find and create DAG runs in the metadata database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.manager.net import DagState, Net
from airflow_lake_provider.manager.runs import SERVICE_DAG_ID, WATCH_DAG_ID, RunState, ServiceRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Select
    from sqlalchemy.orm import Session

MOST_ENDED_RUNS = 50


class AirflowRunDoor:
    """Implements `manager.runs.RunDoor` on Airflow's tables."""

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

"""The manager's gateway to Airflow: find and create DAG runs in the metadata database."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
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
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import joinedload

from airflow_lake_provider.errors import LakeError, StorageError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.db.operations import (
    MOST_PASSED,
    RecordedRun,
    RunHour,
    RunPage,
    RunReport,
    parse_quote,
    record_run,
)
from airflow_lake_provider.manager.db.schema import lake_run, lake_search, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.instances import RunFacts, TaskTry
from airflow_lake_provider.manager.scheduling import (
    INDEX_DAG_ID,
    REPLICATION_DAG_ID,
    SERVICE_DAG_ID,
    WARM_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    Net,
    RunState,
    ServiceRun,
    is_manager_run,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.db.operations import RunSearch


class AirflowRunGateway:
    """Implements `manager.scheduling.RunGateway` on Airflow's tables."""

    def find_active_runs(self, session: Session, run_id_prefix: str) -> Sequence[ServiceRun]:
        """Return every active run whose id begins with the prefix, with its pool and queue."""
        query = _query(run_id_prefix, RunState.QUEUED, RunState.RUNNING).add_columns(DagRun.conf, TaskInstance.state)
        mine = and_(
            TaskInstance.dag_id == DagRun.dag_id,
            TaskInstance.run_id == DagRun.run_id,
            TaskInstance.task_id == TASK_ID,
        )
        return [
            ServiceRun(
                run_id,
                RunState(state),
                pool=_text(conf, "pool"),
                queue=_text(conf, "queue"),
                is_between_tries=task_state in BETWEEN_TRIES,
            )
            for run_id, state, _, conf, task_state in session.execute(query.outerjoin(TaskInstance, mine)).all()
        ]

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        """Return those of the runs that exist; each is one step in the unique key of Airflow's table."""
        query = select(DagRun.run_id, DagRun.state, DagRun.end_date)
        runs = _fetch(session, query.where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id.in_(run_ids)))
        void = _find_void(session, [run.run_id for run in runs if run.state is RunState.FAILED])
        return [replace(run, is_void=run.run_id in void) for run in runs]

    def find_net(self, session: Session) -> Net:
        """Return whether the DAGs that the manager depends on are paused, and when `lake_watch` last succeeded."""
        dag_ids = (SERVICE_DAG_ID, WATCH_DAG_ID)
        dags = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale)
        )
        states = {dag_id: DagState.PAUSED if is_paused else DagState.ACTIVE for dag_id, is_paused in dags.all()}
        # In the order of an index of Airflow's: by id, the search would pass all services' runs since the last sweep.
        newest = (
            select(DagRun.end_date)
            .where(DagRun.dag_id == WATCH_DAG_ID, DagRun.logical_date.is_not(None))
            .where(DagRun.state == RunState.SUCCESS, DagRun.end_date.is_not(None))
            .order_by(DagRun.logical_date.desc())
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
        _record(session, run_id)

    def start_replication(self, session: Session, run_id: str, conf: dict[str, Any]) -> None:
        """Create a queued run of the replication DAG. Raises ServiceDagMissingError, also while the DAG is paused."""
        dag = session.execute(select(DagModel).where(DagModel.dag_id == REPLICATION_DAG_ID)).scalar_one_or_none()
        if dag is None or dag.is_stale or dag.is_paused:
            state = "is not in Airflow's database yet" if dag is None or dag.is_stale else "is paused"
            raise ServiceDagMissingError(
                f"DAG {REPLICATION_DAG_ID} {state}, so the run would wait: `airflow dags unpause {REPLICATION_DAG_ID}`"
            )
        trigger_dag(
            REPLICATION_DAG_ID,
            triggered_by=DagRunTriggeredByType.REST_API,
            run_id=run_id,
            conf=conf,
            session=session,
        )

    def find_replication(self, session: Session, run_id: str) -> RunState | None:
        """Return the state of a run of the replication DAG; None when it is gone."""
        query = select(DagRun.state).where(DagRun.dag_id == REPLICATION_DAG_ID, DagRun.run_id == run_id)
        state = session.scalar(query)
        return None if state is None else RunState(state)


class AirflowApplicationGateway:
    """Implements `manager.db.work.ApplicationGateway` on Airflow's tables."""

    def has_application_run(self, session: Session, app_key: str) -> bool:
        """Whether a run of the warm DAG for this key is active; active runs of the DAG are few."""
        active = select(DagRun.run_id).where(DagRun.dag_id == WARM_DAG_ID, DagRun.state.in_(ACTIVE))
        return any(run_id.startswith(f"{app_key}.") for run_id in session.scalars(active))

    def create_application_run(self, session: Session, run_id: str, conf: dict[str, Any]) -> None:
        """Create a queued run of the warm DAG in the caller's transaction. Raises ServiceDagMissingError."""
        try:
            trigger_dag(
                WARM_DAG_ID,
                triggered_by=DagRunTriggeredByType.REST_API,
                run_id=run_id,
                conf=conf,
                note="work waits, and no standing application pulls it",
                session=session,
            )
        except DagNotFound as error:
            raise ServiceDagMissingError(
                f"DAG {WARM_DAG_ID} is not in Airflow's database yet; make the shipped DAGs a DAG bundle"
            ) from error


def _require_pool(session: Session, name: str) -> None:
    # Airflow never schedules a task in a pool that does not exist; only the scheduler's log shows it.
    if name and session.execute(select(Pool.id).where(Pool.pool == name)).first() is None:
        raise PoolMissingError(
            f"pool {name!r} does not exist: create it (airflow pools set), or change the table's pool"
        )


def _query(run_id_prefix: str, *states: RunState) -> Select[Any]:
    columns = select(DagRun.run_id, DagRun.state, DagRun.end_date)
    return _of_table(columns, run_id_prefix).where(DagRun.state.in_(states)).order_by(DagRun.id.desc())


# --- The runs of one table. Airflow's table has no index for a prefix of run ids (except in collation C), so a search
# there would read the history of all tables; `lake_run` has each table's newest ones.


def _of_table(query: Select[Any], run_id_prefix: str) -> Select[Any]:
    """Restrict a query of DagRun to the service DAG's runs with the prefix; an empty one is every table's."""
    query = query.where(DagRun.dag_id == SERVICE_DAG_ID)
    if not run_id_prefix:
        return query
    recorded = select(lake_run.c.run_id).where(lake_run.c.table_id == _table_id(run_id_prefix))
    query = query.where(DagRun.run_id.in_(recorded))
    if run_id_prefix == f"{_table_id(run_id_prefix)}.":
        return query  # with the runs by hand, which have ids of Airflow's
    return query.where(DagRun.run_id.startswith(run_id_prefix, autoescape=True))


def _record(session: Session, run_id: str) -> None:
    table_id, service = _table_id(run_id), run_id.split(".")[1]
    record_run(session, table_id, run_id, service, int(time.time() * 1000))


def _table_id(run_id_prefix: str) -> str:
    # Table ids contain no dot.
    return run_id_prefix.partition(".")[0]


def _fetch(session: Session, query: Select[Any]) -> list[ServiceRun]:
    return [
        ServiceRun(run_id, RunState(state), int(end_date.timestamp() * 1000) if end_date else None)
        for run_id, state, end_date in session.execute(query).all()
    ]


def _find_void(session: Session, run_ids: Sequence[str]) -> frozenset[str]:
    """Return the failed runs that used up their tries, most of them without a verdict.

    The retry policy of the service's task gives each failed try that is not the last one a reason; a try whose worker
    was killed or vanished has none.
    """
    if not run_ids:
        return frozenset()
    tries = select(TaskInstance.run_id, TaskInstance.try_number, TaskInstance.max_tries).where(
        TaskInstance.dag_id == SERVICE_DAG_ID, TaskInstance.task_id == TASK_ID, TaskInstance.run_id.in_(run_ids)
    )
    earlier = (
        select(TaskInstanceHistory.run_id, func.count(TaskInstanceHistory.retry_reason).label("verdicts"))
        .where(
            TaskInstanceHistory.dag_id == SERVICE_DAG_ID,
            TaskInstanceHistory.task_id == TASK_ID,
            TaskInstanceHistory.run_id.in_(run_ids),
        )
        .group_by(TaskInstanceHistory.run_id)
    )
    verdicts = {row.run_id: row.verdicts for row in session.execute(earlier)}
    return frozenset(
        run_id
        for run_id, try_number, max_tries in session.execute(tries).all()
        # A run that ends before its last try was refused, or ended by a person or its deadline.
        if try_number > max_tries > 0 and 2 * verdicts.get(run_id, 0) < try_number - 1
    )


def _text(conf: Any, key: str) -> str:
    return str(conf.get(key) or "") if isinstance(conf, dict) else ""


class ServiceDagMissingError(StorageError):
    """The DAG that runs services has not been parsed yet; the manager retries."""


class PoolMissingError(StorageError):
    """The table's pool does not exist; the manager retries."""


# --- The manager's second gateway to Airflow: runs with their tasks, and ending a run

ACTIVE = (RunState.QUEUED, RunState.RUNNING)
TASK_ID = "run_service"
BETWEEN_TRIES = frozenset({"up_for_retry", "up_for_reschedule"})
RECORDED_DAG_IDS = (SERVICE_DAG_ID, INDEX_DAG_ID)
"""The DAGs whose runs acquire an executor's lease, and so are recorded."""
HOUR_MS = 3_600_000
MOST_NOT_BEGUN = 50
IDS_PER_QUERY = 200
MOST_NOTE_CHARACTERS = 1000


class AirflowInstanceGateway:
    """Implements `manager.monitoring.InstanceGateway` on Airflow's tables."""

    def __init__(self) -> None:
        self._dags = DBDagBag()

    def list_runs(self, session: Session, run_id_prefix: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run whose id begins with the prefix, oldest first, then the newest ended ones."""
        of_table = _of_table(select(DagRun).options(joinedload(DagRun.dag_run_note)), run_id_prefix)
        active = session.scalars(of_table.where(DagRun.state.in_(ACTIVE)).order_by(DagRun.id)).all()
        ended = of_table.where(DagRun.state.not_in(ACTIVE)).order_by(DagRun.id.desc()).limit(most_ended)
        runs = [*active, *(session.scalars(ended).all() if most_ended else ())]
        tasks = self._tasks(session, [run.run_id for run in runs])
        return [_facts(run, tasks.get(run.run_id, TaskTry())) for run in runs]

    def end_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as failed; its worker learns it at its next heartbeat and ends the job."""
        return self._end(session, run_id, DagRunMutableStates.FAILED, reason)

    def complete_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as successful, as a person does on Airflow's page."""
        return self._end(session, run_id, DagRunMutableStates.SUCCESS, reason)

    def raise_priority(self, session: Session, run_ids: Sequence[str], weight: int) -> int:
        """Give the tasks of these runs that wait for a slot at least this priority; return how many changed."""
        waits = or_(TaskInstance.state == "scheduled", TaskInstance.state.is_(None))
        raised: Any = session.execute(
            update(TaskInstance)
            .where(TaskInstance.dag_id == SERVICE_DAG_ID, TaskInstance.task_id == TASK_ID, waits)
            .where(TaskInstance.run_id.in_(run_ids), TaskInstance.priority_weight < weight)
            .values(priority_weight=weight)
            .execution_options(synchronize_session=False)
        )
        return int(raised.rowcount)

    def _end(self, session: Session, run_id: str, state: DagRunMutableStates, reason: str) -> bool:
        run = session.scalar(
            select(DagRun).where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id == run_id).with_for_update()
        )
        if run is None or run.state not in ACTIVE:
            return False
        patch_dag_run_state(dag=self._dag_of(run, session), dag_run=run, state=state, session=session)
        run.note = reason[:MOST_NOTE_CHARACTERS]
        return True

    def page_of_runs(self, session: Session, search: RunSearch) -> RunPage:
        """Return a page of the recorded runs, newest first. It passes MOST_PASSED of them at most.

        Above its first page are the runs by hand that are not recorded yet, besides its limit.
        """
        if search.before is not None:
            return self._page_of_recorded(session, search)
        above = self._not_begun(session, search)
        page = self._page_of_recorded(session, search)
        # One may have begun meanwhile.
        known = {run.run_id for run in page.rows}
        return replace(page, rows=(*(run for run in above if run.run_id not in known), *page.rows))

    def _page_of_recorded(self, session: Session, search: RunSearch) -> RunPage:
        run, table = lake_run.c, lake_table.c
        reported = (
            run.reported_try.label("try_number"),
            run.outcome,
            run.job_ms,
            run.files_in,
            run.bytes_in,
            run.files_out,
            run.bytes_out,
            run.caused_by,
            run.due_ms,
            run.quote,
        )
        passed = select(run.run_id, run.table_id, run.service, run.created_ms, *reported)
        if search.table_id:
            passed = passed.where(run.table_id == search.table_id)
        if search.run_id:
            passed = passed.where(run.run_id == search.run_id)
        if search.before is not None:
            created_ms, run_id = search.before
            older = or_(run.created_ms < created_ms, and_(run.created_ms == created_ms, run.run_id < run_id))
            passed = passed.where(run.created_ms <= created_ms, older)
        passed = passed.order_by(run.created_ms.desc(), run.run_id.desc()).limit(MOST_PASSED)
        keys = session.execute(passed).all()
        wanted = [key for key in keys if not search.service or key.service == search.service]
        rows: list[RecordedRun] = []
        last = None
        for begin in range(0, len(wanted), IDS_PER_QUERY):
            part = wanted[begin : begin + IDS_PER_QUERY]
            found = {found.run_id: found for found in self._recorded(session, [key.run_id for key in part])}
            named = select(table.table_id, table.table_name, table.database_name, table.base_path)
            names = {
                row.table_id: row
                for row in session.execute(named.where(table.table_id.in_({key.table_id for key in part})))
            }
            for key in part:
                one = found.get(key.run_id)
                of_table = names.get(key.table_id)
                if one is None or (search.state and one.state != search.state):
                    continue
                if of_table is None or not search.audience.covers(of_table.base_path):
                    continue
                rows.append(_recorded_run(one, key, of_table))
                last = (key.created_ms, key.run_id)
                if len(rows) == search.limit:
                    return RunPage(tuple(rows), last)
        more = len(keys) == MOST_PASSED
        return RunPage(tuple(rows), (keys[-1].created_ms, keys[-1].run_id) if more else None)

    @staticmethod
    def _not_begun(session: Session, search: RunSearch) -> list[RecordedRun]:
        """Return the runs by hand that wait for their executor, newest first: no lease has recorded them yet.

        Active runs are few, whatever the age of the database: an index of Airflow's has the state.
        """
        waiting = (
            select(
                DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.end_date, DagRun.conf,
                DagRun.triggering_user_name, DagRun.queued_at, DagRun.run_after,
            )
            .where(DagRun.dag_id.in_(RECORDED_DAG_IDS), DagRun.state.in_(ACTIVE))
            .where(~select(lake_run.c.run_id).where(lake_run.c.run_id == DagRun.run_id).exists())
            .order_by(DagRun.id.desc())
            .limit(MOST_NOT_BEGUN)
        )  # fmt: skip
        runs = {(run.run_id, _base_path_of(run.conf)): run for run in session.execute(waiting)}
        ids = {table_id_of(path) for _, path in runs if path}
        table = lake_table.c
        named = select(table.table_id, table.table_name, table.database_name, table.base_path)
        tables = {row.table_id: row for row in session.execute(named.where(table.table_id.in_(ids)))} if ids else {}
        rows = []
        for (_, path), run in runs.items():
            of_table = tables.get(table_id_of(path)) if path else None
            if of_table is None or not search.audience.covers(of_table.base_path):
                continue
            created_ms = _ms(run.queued_at or run.run_after) or 0
            service = "indexing" if run.dag_id == INDEX_DAG_ID else _text(run.conf, "service")
            key = _Key(run.run_id, of_table.table_id, service, created_ms)
            wanted = {
                (search.table_id, key.table_id),
                (search.run_id, key.run_id),
                (search.service, service),
                (search.state, str(run.state)),
            }
            if all(asked in {"", found} for asked, found in wanted):
                rows.append(_recorded_run(run, key, of_table))
        return rows

    def count_runs(self, session: Session, since_ms: int, audience: Audience) -> Sequence[RunHour]:
        """Return the recorded runs since a time of tables that the audience may see by hour, service and state."""
        mine = audience_clauses(audience)
        hour = (lake_run.c.created_ms - lake_run.c.created_ms % HOUR_MS).label("hour_ms")
        seconds = func.coalesce(func.sum(TaskInstance.duration), 0)
        run = lake_run.c
        sums = (func.coalesce(func.sum(column), 0) for column in (run.job_ms, run.files_in, run.bytes_out))
        query = (
            select(hour, run.service, DagRun.state, func.count(), seconds, *sums)
            .join(DagRun, and_(DagRun.dag_id.in_(RECORDED_DAG_IDS), DagRun.run_id == lake_run.c.run_id))
            .outerjoin(
                TaskInstance,
                and_(
                    TaskInstance.dag_id == DagRun.dag_id,
                    TaskInstance.run_id == DagRun.run_id,
                    TaskInstance.task_id == TASK_ID,
                ),
            )
            .where(lake_run.c.created_ms >= since_ms)
            .group_by(hour, lake_run.c.service, DagRun.state)
        )
        if mine:
            query = query.join(lake_search, lake_search.c.table_id == lake_run.c.table_id).where(*mine)
        return [
            RunHour(int(row[0]), row[1], row[2], row[3], float(row[4]), float(row[5]) / 1000, int(row[6]), int(row[7]))
            for row in session.execute(query)
        ]

    @staticmethod
    def _recorded(session: Session, run_ids: list[str]) -> Sequence[Any]:
        columns = (
            DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.end_date, DagRun.conf,
            DagRun.triggering_user_name, TaskInstance.try_number, TaskInstance.start_date.label("task_start"),
        )  # fmt: skip
        task = and_(
            TaskInstance.dag_id == DagRun.dag_id,
            TaskInstance.run_id == DagRun.run_id,
            TaskInstance.task_id == TASK_ID,
        )
        query = select(*columns).outerjoin(TaskInstance, task)
        return session.execute(query.where(DagRun.dag_id.in_(RECORDED_DAG_IDS), DagRun.run_id.in_(run_ids))).all()

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
        columns = (
            TaskInstance.run_id, TaskInstance.state, TaskInstance.try_number, TaskInstance.max_tries,
            TaskInstance.hostname, TaskInstance.start_date, TaskInstance.end_date, TaskInstance.last_heartbeat_at,
        )  # fmt: skip
        query = select(*columns).where(
            TaskInstance.dag_id == SERVICE_DAG_ID, TaskInstance.task_id == TASK_ID, TaskInstance.run_id.in_(run_ids)
        )
        return {task.run_id: _try(task) for task in session.execute(query)}


def _facts(run: DagRun, task: TaskTry) -> RunFacts:
    # A cleared run is queued anew: its time counts from then.
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


@dataclass(frozen=True, slots=True)
class _Key:
    run_id: str
    table_id: str
    service: str
    created_ms: int


def _base_path_of(conf: Any) -> str:
    """Return the normalised base path that a run names; empty for a pattern of many tables, or nonsense."""
    path = _text(conf, "base_path")
    try:
        return "" if not path or any(character in path for character in "*?[") else normalise_base_path(path)
    except LakeError:
        return ""


def _recorded_run(run: Any, key: Any, table: Any) -> RecordedRun:
    return RecordedRun(
        run_id=run.run_id,
        dag_id=run.dag_id,
        table_id=key.table_id,
        table_name="" if table is None else table.table_name,
        database="" if table is None else table.database_name,
        service=key.service or _text(run.conf, "service"),
        state=str(run.state),
        by="manager" if is_manager_run(run.run_id) else run.triggering_user_name or "by hand",
        reason=_text(run.conf, "reason"),
        created_ms=key.created_ms,
        started_ms=_ms(getattr(run, "task_start", None) or run.start_date),
        ended_ms=_ms(run.end_date),
        tries=getattr(run, "try_number", None) or 0,
        caused_by=getattr(key, "caused_by", ""),
        due_ms=getattr(key, "due_ms", None),
        quote=parse_quote(getattr(key, "quote", None)),
        report=RunReport(**{name: getattr(key, name) for name in _REPORTED if hasattr(key, name)}),
    )


_REPORTED = tuple(entry.name for entry in fields(RunReport))


def _try(task: Any) -> TaskTry:
    return TaskTry(
        state=task.state,
        try_number=task.try_number,
        max_tries=task.max_tries,
        host=task.hostname or "",
        started_ms=_ms(task.start_date),
        # The task itself sets when the next try comes; it cannot be before this one ended.
        next_try_ms=_ms(task.end_date),
        heartbeat_ms=_ms(task.last_heartbeat_at),
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)

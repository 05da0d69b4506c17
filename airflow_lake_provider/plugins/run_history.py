"""The manager's gateway to runs with their tasks: list and end them, and the history that the pages show."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.datamodels.dag_run import DagRunMutableStates
from airflow.api_fastapi.core_api.services.public.dag_run import patch_dag_run_state
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from sqlalchemy import and_, case, func, literal, or_, select, update
from sqlalchemy.orm import joinedload

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.instant_clock import HOUR_MS
from airflow_lake_provider.job_contract import EraseStep
from airflow_lake_provider.manager.db.operations import (
    MAX_PASSED,
    RecordedRun,
    RunHour,
    RunPage,
    RunReport,
    parse_quote,
)
from airflow_lake_provider.manager.db.run_phases import Try, phases_of
from airflow_lake_provider.manager.db.schema import lake_run, lake_search, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses, search_clauses
from airflow_lake_provider.manager.runs.airflow_runs import (
    ERASE_DAG_ID,
    INDEX_DAG_ID,
    MANAGER,
    RESTORE_DAG_ID,
    SERVICE_DAG_ID,
    UPGRADE_DAG_ID,
    RunFacts,
    RunState,
    TaskTry,
)
from airflow_lake_provider.manager.runs.holder_ids import holder_id, run_of_holder
from airflow_lake_provider.plugins.dag_runs import (
    ACTIVE,
    TASK_ID,
    ServiceDagMissingError,
    note_of,
    runs_of_table,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.db.operations import RunSearch

RECORDED_DAG_IDS = (SERVICE_DAG_ID, INDEX_DAG_ID, RESTORE_DAG_ID, UPGRADE_DAG_ID, ERASE_DAG_ID)
"""The DAGs whose runs acquire an executor's lease, and so are recorded."""
_OF_INDEXES = holder_id(INDEX_DAG_ID, "", "build_indexes", 0)
"""Before the id of a run of `lake_reindex`: its first table's task; most have one."""
_SERVICES = {INDEX_DAG_ID: "indexing", RESTORE_DAG_ID: "savepoint", UPGRADE_DAG_ID: "savepoint", ERASE_DAG_ID: "ttl"}
"""What the DAGs of one service run."""
_OF_RESTORE = holder_id(RESTORE_DAG_ID, "", "restore")
_OF_UPGRADE = holder_id(UPGRADE_DAG_ID, "", "canary")
_OF_ERASURE = tuple(holder_id(ERASE_DAG_ID, "", step) for step in EraseStep)
MAX_NOT_BEGUN = 50
IDS_PER_QUERY = 200


class AirflowInstanceGateway:
    """Implements `manager.monitoring.InstanceGateway` on Airflow's tables."""

    def __init__(self) -> None:
        self._dags = DBDagBag()

    def list_runs(self, session: Session, table_id: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run of a table, oldest first, then the newest ended ones; empty: of every table."""
        of_table = runs_of_table(select(DagRun).options(joinedload(DagRun.dag_run_note)), table_id)
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
        if state is DagRunMutableStates.FAILED:
            _fail_skipped_tasks(session, run_id)
        run.note = note_of(reason)
        return True

    def is_of_other_tables(self, session: Session, run_id: str, base_path: str) -> bool:
        """Whether Airflow has a run of this holder's id whose conf names other tables, by path or by a pattern."""
        dag_id, of_dag = run_of_holder(run_id)
        if dag_id not in RECORDED_DAG_IDS:
            return False
        conf = session.scalar(select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == of_dag))
        if not (named := text_of(conf, "base_path")):
            return False
        if path := _base_path_of(conf):
            return table_id_of(path) != table_id_of(base_path)
        return not fnmatchcase(base_path, named.rstrip("/"))

    def page_of_runs(self, session: Session, search: RunSearch) -> RunPage:
        """Return a page of the recorded runs, newest first. It passes MAX_PASSED of them at most.

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
        table = lake_table.c
        keys = session.execute(_newest_runs(search)).all()
        wanted = [key for key in keys if not search.service or key.service == search.service]
        rows: list[RecordedRun] = []
        last = None
        for begin in range(0, len(wanted), IDS_PER_QUERY):
            part = wanted[begin : begin + IDS_PER_QUERY]
            runs = [run_of_holder(key.run_id) for key in part]
            ids = [run_id for _, run_id in runs]
            found = {(found.dag_id, found.run_id): found for found in self._recorded(session, ids)}
            earlier = self._earlier_tries(session, ids)
            named = select(table.table_id, table.table_name, table.database_name, table.base_path)
            names = {
                row.table_id: row
                for row in session.execute(named.where(table.table_id.in_({key.table_id for key in part})))
            }
            for key, run in zip(part, runs, strict=True):
                one = found.get(run)
                of_table = names.get(key.table_id)
                if one is None or (search.state and one.state != search.state):
                    continue
                if of_table is None or not search.audience.covers(of_table.base_path):
                    continue
                rows.append(_recorded_run(one, key, of_table, earlier.get(run, ())))
                last = (key.created_ms, key.run_id)
                if len(rows) == search.limit:
                    return RunPage(tuple(rows), last)
        more = len(keys) == MAX_PASSED
        return RunPage(tuple(rows), (keys[-1].created_ms, keys[-1].run_id) if more else None)

    @staticmethod
    def _not_begun(session: Session, search: RunSearch) -> list[RecordedRun]:
        """Return the runs by hand that wait for their executor, newest first: no lease has recorded them yet.

        Active runs are few, whatever the age of the database: an index of Airflow's has the state.
        """
        recorded_as = case(
            (DagRun.dag_id == INDEX_DAG_ID, literal(_OF_INDEXES) + DagRun.run_id),
            (DagRun.dag_id == RESTORE_DAG_ID, literal(_OF_RESTORE) + DagRun.run_id),
            (DagRun.dag_id == UPGRADE_DAG_ID, literal(_OF_UPGRADE) + DagRun.run_id),
            (DagRun.dag_id == ERASE_DAG_ID, literal(_OF_ERASURE[0]) + DagRun.run_id),
            else_=DagRun.run_id,
        )
        waiting = (
            select(
                DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.end_date, DagRun.conf,
                DagRun.triggering_user_name, DagRun.queued_at, DagRun.run_after,
            )
            .where(DagRun.dag_id.in_(RECORDED_DAG_IDS), DagRun.state.in_(ACTIVE))
            .where(~select(lake_run.c.run_id).where(lake_run.c.run_id == recorded_as).exists())
            .order_by(DagRun.id.desc())
            .limit(MAX_NOT_BEGUN)
        )  # fmt: skip
        runs = {(run.run_id, _base_path_of(run.conf)): run for run in session.execute(waiting)}
        ids = {table_id_of(path) for _, path in runs if path}
        table = lake_table.c
        named = select(table.table_id, table.table_name, table.database_name, table.base_path)
        if search.text or search.owner:
            named = named.where(table.table_id.in_(_tables_of(search)))
        tables = {row.table_id: row for row in session.execute(named.where(table.table_id.in_(ids)))} if ids else {}
        rows = []
        for (_, path), run in runs.items():
            of_table = tables.get(table_id_of(path)) if path else None
            if of_table is None or not search.audience.covers(of_table.base_path):
                continue
            created_ms = _ms(run.queued_at or run.run_after) or 0
            service = _SERVICES.get(run.dag_id) or text_of(run.conf, "service")
            key = _Key(run.run_id, of_table.table_id, service, created_ms)
            wanted = {
                (search.table_id, key.table_id),
                (search.run_id, key.run_id),
                (search.service, service),
                (search.state, str(run.state)),
            }
            if _is_within(search, created_ms) and all(asked in {"", found} for asked, found in wanted):
                rows.append(_recorded_run(run, key, of_table))
        return rows

    def count_runs(self, session: Session, since_ms: int, audience: Audience) -> Sequence[RunHour]:
        """Return the recorded runs since a time of tables that the audience may see by hour, service and state."""
        mine = audience_clauses(audience)
        hour = (lake_run.c.created_ms - lake_run.c.created_ms % HOUR_MS).label("hour_ms")
        seconds = func.coalesce(func.sum(TaskInstance.duration), 0)
        run = lake_run.c
        sums = (func.coalesce(func.sum(column), 0) for column in (run.job_ms, run.files_in, run.bytes_out))
        # The conditions are on these columns, not on Airflow's: its index finds each run.
        is_of_indexes = run.run_id.startswith(_OF_INDEXES, autoescape=True)
        dag_id = case((is_of_indexes, INDEX_DAG_ID), else_=SERVICE_DAG_ID)
        run_id = case((is_of_indexes, func.substr(run.run_id, len(_OF_INDEXES) + 1)), else_=run.run_id)
        query = (
            select(hour, run.service, DagRun.state, func.count(), seconds, *sums)
            .join(DagRun, and_(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
            .outerjoin(
                TaskInstance,
                and_(
                    TaskInstance.dag_id == DagRun.dag_id,
                    TaskInstance.run_id == DagRun.run_id,
                    TaskInstance.task_id == TASK_ID,
                ),
            )
            .where(lake_run.c.created_ms >= since_ms, run.outcome != "dry_run")
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
            DagRun.triggering_user_name, DagRun.queued_at, DagRun.clear_number, TaskInstance.try_number,
            TaskInstance.start_date.label("task_start"), TaskInstance.end_date.label("task_end"),
            TaskInstance.state.label("task_state"),
        )  # fmt: skip
        task = and_(
            TaskInstance.dag_id == DagRun.dag_id,
            TaskInstance.run_id == DagRun.run_id,
            TaskInstance.task_id == TASK_ID,
        )
        query = select(*columns).outerjoin(TaskInstance, task)
        return session.execute(query.where(DagRun.dag_id.in_(RECORDED_DAG_IDS), DagRun.run_id.in_(run_ids))).all()

    @staticmethod
    def _earlier_tries(session: Session, run_ids: list[str]) -> dict[tuple[str, str], list[Try]]:
        """Return the tries of runs before their last ones; Airflow keeps them when another one begins."""
        before = TaskInstanceHistory
        columns = (before.dag_id, before.run_id, before.try_number, before.start_date, before.end_date, before.state)
        mine = (before.dag_id.in_(RECORDED_DAG_IDS), before.run_id.in_(run_ids), before.task_id == TASK_ID)
        found: dict[tuple[str, str], list[Try]] = {}
        for row in session.execute(select(*columns).where(*mine)):
            if (began_ms := _ms(row.start_date)) is not None:
                one = Try(row.try_number, began_ms, _ms(row.end_date), row.state or "")
                found.setdefault((row.dag_id, row.run_id), []).append(one)
        return found

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


def _fail_skipped_tasks(session: Session, run_id: str) -> None:
    """Make the tasks failed that Airflow skipped because their run was ended before a worker began them.

    A run whose tasks are all skipped is a success to the scheduler, which on SQLite locks no rows: if it had just read
    the run as running, it would overwrite `failed`.
    """
    skipped = (TaskInstance.dag_id == SERVICE_DAG_ID, TaskInstance.run_id == run_id, TaskInstance.state == "skipped")
    session.execute(update(TaskInstance).where(*skipped).values(state="failed"))


def _facts(run: DagRun, task: TaskTry) -> RunFacts:
    # A cleared run is queued again: its time counts from then.
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


def _newest_runs(search: RunSearch) -> Select[Any]:
    """Return the recorded runs that a page passes, the newest first; service and state are compared afterwards."""
    run = lake_run.c
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
        run.error,
    )
    passed = select(run.run_id, run.table_id, run.service, run.created_ms, *reported)
    if search.table_id:
        passed = passed.where(run.table_id == search.table_id)
    if search.run_id:
        prefixes = ("", _OF_INDEXES, _OF_RESTORE, *_OF_ERASURE)
        passed = passed.where(run.run_id.in_([f"{prefix}{search.run_id}" for prefix in prefixes]))
    if search.text or search.owner or search.audience.is_limited:
        passed = passed.where(run.table_id.in_(_tables_of(search)))
    if search.since_ms is not None:
        passed = passed.where(run.created_ms >= search.since_ms)
    if search.until_ms is not None:
        passed = passed.where(run.created_ms < search.until_ms)
    if search.before is not None:
        created_ms, run_id = search.before
        older = or_(run.created_ms < created_ms, and_(run.created_ms == created_ms, run.run_id < run_id))
        passed = passed.where(run.created_ms <= created_ms, older)
    return passed.order_by(run.created_ms.desc(), run.run_id.desc()).limit(MAX_PASSED)


def _tables_of(search: RunSearch) -> Select[Any]:
    """Return the ids of the tables that are searched, by a text or an owner, and that the audience may see."""
    wanted = (*search_clauses(search.text, search.owner), *audience_clauses(search.audience))
    return select(lake_search.c.table_id).where(*wanted)


def _is_within(search: RunSearch, created_ms: int) -> bool:
    is_after = search.since_ms is None or created_ms >= search.since_ms
    return is_after and (search.until_ms is None or created_ms < search.until_ms)


def _base_path_of(conf: Any) -> str:
    """Return the normalised base path that a run names; empty for a pattern of many tables, or nonsense."""
    path = text_of(conf, "base_path")
    try:
        return "" if not path or any(character in path for character in "*?[") else normalise_base_path(path)
    except LakeError:
        return ""


def _recorded_run(run: Any, key: Any, table: Any, earlier: Sequence[Try] = ()) -> RecordedRun:
    tries = {one.number: one for one in earlier}
    number = getattr(run, "try_number", None) or 0
    began_ms = _ms(getattr(run, "task_start", None))
    # Airflow counts a try ahead while it waits for its slot: then its times are still those of the one before.
    if began_ms is not None and began_ms not in {one.began_ms for one in earlier}:
        task_end_ms = _ms(run.task_end)
        is_over = task_end_ms is not None and task_end_ms >= began_ms
        tries[number] = Try(number, began_ms, task_end_ms if is_over else None, run.task_state or "")
    first_ms = min((one.began_ms for one in tries.values()), default=None)
    # A run by hand is recorded by its executor, so later than it was queued; a cleared one is queued once more.
    queued_ms = None if getattr(run, "clear_number", 0) else _ms(run.queued_at)
    created_ms = min(at for at in (key.created_ms, queued_ms, first_ms) if at is not None)
    ended_ms = _ms(run.end_date)
    reported = {name: value for name in _REPORTED if (value := getattr(key, name, None)) is not None}
    return RecordedRun(
        run_id=run.run_id,
        dag_id=run.dag_id,
        table_id=key.table_id,
        table_name="" if table is None else table.table_name,
        database="" if table is None else table.database_name,
        service=key.service or text_of(run.conf, "service"),
        state=str(run.state),
        by="manager" if run.triggering_user_name == MANAGER else run.triggering_user_name or "by hand",
        reason=text_of(run.conf, "reason"),
        created_ms=created_ms,
        started_ms=first_ms,
        ended_ms=ended_ms,
        tries=number,
        phases=phases_of(created_ms, list(tries.values()), ended_ms),
        caused_by=getattr(key, "caused_by", ""),
        due_ms=getattr(key, "due_ms", None),
        quote=parse_quote(getattr(key, "quote", None)),
        report=RunReport(**reported),
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

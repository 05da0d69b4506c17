"""The manager's gateways to Airflow's DAG runs: find and create those of services, replication and applications."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.configuration import conf
from airflow.exceptions import DagNotFound, ParamValidationError
from airflow.jobs.job import Job, JobState
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.serialization.definitions.notset import is_arg_set
from airflow.serialization.definitions.param import SerializedParamsDict
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from jsonschema import FormatChecker
from jsonschema.validators import validator_for
from sqlalchemy import String, and_, bindparam, func, select

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.manager.db.operations import record_run
from airflow_lake_provider.manager.db.schema import lake_run, lake_sink, lake_work
from airflow_lake_provider.manager.db.work_item import WorkState
from airflow_lake_provider.manager.runs.airflow_runs import (
    DISCOVERY_DAG_ID,
    MANAGER,
    REPLICATION_DAG_ID,
    SERVICE_DAG_ID,
    STREAMS_DAG_ID,
    WARM_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
    RunState,
    ServiceRun,
)
from airflow_lake_provider.manager.runs.dag_problems import AirflowSettings, find_settings_problems
from airflow_lake_provider.manager.runs.run_ids import parse_run_id
from airflow_lake_provider.shared.plain_text import without_links

MAX_NOTE_CHARACTERS = 1000

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy import BindParameter, Select
    from sqlalchemy.orm import Session


def _find_needed(session: Session) -> dict[str, str]:
    """Return the DAGs that configured sinks and waiting work need, with what waits for each."""
    needed = {}
    sink = lake_sink.c
    wanted = sink.is_configured.is_(True), sink.paused.is_(False), sink.retire_ms.is_(None)
    # By the primary key: the first one nearly always is wanted, and without an order the whole table would be read.
    if session.execute(select(sink.sink).where(*wanted).order_by(sink.table_id, sink.sink).limit(1)).first():
        text = "sinks of the tables file get nothing, and what they lack is released when their ttl_s has passed"
        needed[REPLICATION_DAG_ID] = text
        if LakeSettings.from_conf(conf).streams_at_once > 0:
            needed[STREAMS_DAG_ID] = text
    if session.execute(select(lake_work.c.item_id).where(lake_work.c.state == WorkState.WAITING).limit(1)).first():
        needed[WARM_DAG_ID] = "work of the engine `warm` waits for a standing application"
    return needed


def _read_settings(session: Session) -> AirflowSettings:
    """Return this process's settings, which Airflow wants to be the same everywhere, and how many processes live."""
    living = (
        select(Job.job_type, func.count())
        .where(Job.job_type.in_((_SCHEDULER, _TRIGGERER)), Job.state == JobState.RUNNING)
        .where(Job.latest_heartbeat > datetime.now(UTC) - timedelta(seconds=_LIVES_FOR_S))
        .group_by(Job.job_type)
    )
    processes = {str(kind): int(count) for kind, count in session.execute(living)}
    return AirflowSettings(
        overrides_params=conf.getboolean("core", "dag_run_conf_overrides_params", fallback=True),
        parallelism=conf.getint("core", "parallelism"),
        schedulers=processes.get(_SCHEDULER, 0),
        max_active_services=LakeSettings.from_conf(conf).max_active_services,
        capacity=conf.getint("triggerer", "capacity"),
        triggerers=processes.get(_TRIGGERER, 0),
        token_s=conf.getint("execution_api", "jwt_expiration_time"),
        heartbeat_timeout_s=conf.getint("scheduler", "task_instance_heartbeat_timeout"),
        run_id_pattern=conf.get("scheduler", "allowed_run_id_pattern"),
    )


_SCHEDULER = "SchedulerJob"
_TRIGGERER = "TriggererJob"
_LIVES_FOR_S = 60.0
"""A process reports each few seconds; one that was killed keeps its state."""
ACTIVE = (RunState.QUEUED, RunState.RUNNING)
TASK_ID = "run_service"
DAGS_FOR_S = 1.0
BETWEEN_TRIES = frozenset({"up_for_retry", "up_for_reschedule"})


class AirflowRunGateway:
    """Implements `manager.scheduling.RunGateway` on Airflow's tables."""

    def __init__(self) -> None:
        self._dags = ReadDags()
        self._found: tuple[float, LakeDags] | None = None

    def find_active_runs(self, session: Session, table_id: str = "") -> Sequence[ServiceRun]:
        """Return every active run of a table, with its pool and queue; empty: of every table."""
        found = session.execute(_ACTIVE_RUNS[bool(table_id)], {"of_table": table_id} if table_id else {})
        return [
            ServiceRun(
                run_id,
                RunState(state),
                pool=text_of(conf, "pool"),
                queue=text_of(conf, "queue"),
                is_between_tries=task_state in BETWEEN_TRIES,
            )
            for run_id, state, conf, task_state in found.all()
        ]

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        """Return those of the runs that exist; each is one step in the unique key of Airflow's table."""
        query = select(DagRun.run_id, DagRun.state, DagRun.end_date)
        runs = _fetch(session, query.where(DagRun.dag_id == SERVICE_DAG_ID, DagRun.run_id.in_(run_ids)))
        void = _find_void(session, [run.run_id for run in runs if run.state is RunState.FAILED])
        return [replace(run, is_void=run.run_id in void) for run in runs]

    def find_lake_dags(self, session: Session) -> LakeDags:
        """Return whether the DAGs that the manager depends on are paused, and when `lake_watch` last succeeded.

        An answer holds for `DAGS_FOR_S`: every due decision of a burst asks.
        """
        before = self._found
        if before is None or not 0 <= time.monotonic() - before[0] < DAGS_FOR_S:
            self._found = before = (time.monotonic(), self._read_lake_dags(session))
        return before[1]

    @staticmethod
    def _read_lake_dags(session: Session) -> LakeDags:
        needed = _find_needed(session)
        dag_ids = (SERVICE_DAG_ID, WATCH_DAG_ID, DISCOVERY_DAG_ID, *needed)
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
        problems = find_settings_problems(_read_settings(session))
        return LakeDags(states, None if swept is None else int(swept.timestamp() * 1000), needed, problems)

    def create_run(
        self, session: Session, run_id: str, conf: dict[str, Any], note: str, *, user: str = MANAGER
    ) -> None:
        """Create a queued run of the service DAG in the caller's transaction."""
        made = parse_run_id(run_id)
        if made is None:
            raise ValueError(f"{run_id!r} is no id of a run of the manager's")
        _require_pool(session, text_of(conf, "pool"))
        dag = self._dags.find(session, SERVICE_DAG_ID)
        if dag is None:
            raise ServiceDagMissingError(
                f"DAG {SERVICE_DAG_ID} is not in Airflow's database yet; make the shipped DAGs a DAG bundle"
            )
        # As `trigger_dag` does, which reads and builds the whole DAG for each run. That no run of this id exists is
        # Airflow's unique key to say.
        dag.create_dagrun(
            run_id=run_id,
            run_after=datetime.now(UTC),
            conf=conf,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=user,
            state=DagRunState.QUEUED,
            note=note_of(note),
            session=session,
        )
        record_run(session, made.table_id, run_id, made.service, int(time.time() * 1000))

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
            triggering_user_name=MANAGER,
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
                triggering_user_name=MANAGER,
                run_id=run_id,
                conf=conf,
                note="work waits, and no standing application pulls it",
                session=session,
            )
        except DagNotFound as error:
            raise ServiceDagMissingError(
                f"DAG {WARM_DAG_ID} is not in Airflow's database yet; make the shipped DAGs a DAG bundle"
            ) from error


# --- The DAG of a run that is created: read once for each version of it, and the schemas of its Params built once


class ReadDags:
    """DAGs as Airflow has serialised them; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # It reads a version again after Airflow's own interval, if its content was replaced.
        self._bag = DBDagBag(load_op_links=False)

    def find(self, session: Session, dag_id: str) -> SerializedDAG | None:
        """Return the DAG's newest version; None while there is none."""
        newest = select(DagVersion.id).where(DagVersion.dag_id == dag_id).order_by(DagVersion.version_number.desc())
        version_id = session.scalar(newest.limit(1))
        if version_id is None:
            return None
        with self._lock:  # a burst reads a new version once
            dag = self._bag.get_dag(version_id, session)
            if dag is not None and not isinstance(dag.params, BuiltParams):
                dag.params = BuiltParams(dag.params)
        return dag


class BuiltParams(SerializedParamsDict):
    """Params that refuse what Airflow's refuse, and check a run's conf without checking their own schemas each time."""

    def __init__(self, params: SerializedParamsDict) -> None:
        super().__init__({name: params.get_param(name) for name in params})
        self._validators = {}
        for name in params:
            schema = params.get_param(name).schema
            kind = validator_for(schema)
            kind.check_schema(schema)
            self._validators[name] = kind(schema, format_checker=FormatChecker())

    def deep_merge(self, data: Mapping[str, Any] | None) -> SerializedParamsDict:
        """Check the values as Airflow checks what this returns; raise ParamValidationError for a wrong one."""
        given = data or {}
        for name, validator in self._validators.items():
            if not is_arg_set(value := given.get(name, self[name])):
                raise ParamValidationError(f"Invalid input for param {name}: No value passed")
            if (error := next(validator.iter_errors(value), None)) is not None:
                raise ParamValidationError(f"Invalid input for param {name}: {error.message}")
        return SerializedParamsDict()


def _require_pool(session: Session, name: str) -> None:
    # Airflow never schedules a task in a pool that does not exist; only the scheduler's log shows it.
    if name and session.execute(select(Pool.id).where(Pool.pool == name)).first() is None:
        raise PoolMissingError(
            f"pool {name!r} does not exist: create it (airflow pools set), or change the table's pool"
        )


def runs_of_table(query: Select[Any], table_id: str | BindParameter[str]) -> Select[Any]:
    """Restrict a query of DagRun to the service DAG's runs of a table, also those by hand; empty: of every table.

    `lake_run` has each table's newest ones. Airflow's table has no index by table: a search there would read the
    history of all tables.
    """
    query = query.where(DagRun.dag_id == SERVICE_DAG_ID)
    if isinstance(table_id, str) and not table_id:
        return query
    return query.where(DagRun.run_id.in_(select(lake_run.c.run_id).where(lake_run.c.table_id == table_id)))


def _active_runs(*, of_one_table: bool) -> Select[Any]:
    table_id = bindparam("of_table", type_=String) if of_one_table else ""
    query = runs_of_table(select(DagRun.run_id, DagRun.state, DagRun.conf, TaskInstance.state), table_id)
    mine = and_(
        TaskInstance.dag_id == DagRun.dag_id,
        TaskInstance.run_id == DagRun.run_id,
        TaskInstance.task_id == TASK_ID,
    )
    return query.where(DagRun.state.in_(ACTIVE)).order_by(DagRun.id.desc()).outerjoin(TaskInstance, mine)


_ACTIVE_RUNS = {of_one_table: _active_runs(of_one_table=of_one_table) for of_one_table in (True, False)}
"""By whether of one table. Built once: to build a query takes longer than to execute it, and each evaluation asks."""


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


def text_of(conf: Any, key: str) -> str:
    """Return a text of a run's conf; empty when there is none."""
    return str(conf.get(key) or "") if isinstance(conf, dict) else ""


def note_of(reason: str) -> str:
    """Return a reason as the note of a run, which Airflow's page shows as Markdown: a writer may name what it names."""
    return without_links(reason)[:MAX_NOTE_CHARACTERS]


class ServiceDagMissingError(StorageError):
    """The DAG that runs services has not been parsed yet; the manager retries."""


class PoolMissingError(StorageError):
    """The table's pool does not exist; the manager retries."""

"""The manager's gateway to Airflow's DAG runs, on Airflow's real tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.run_ids import run_id_of

pytestmark = pytest.mark.integration

CONF = {"base_path": "/lake/orders", "reason": "3 delta commits"}


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.metadata_database import open_session

    session = open_session()
    yield session
    session.rollback()
    session.close()


def test_created_run_is_found_by_its_table_and_refused_twice(session: Session) -> None:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.exc import IntegrityError

    from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    gateway, table_id = AirflowRunGateway(), f"or_ders-{uuid.uuid4().hex[:16]}"
    run_id = run_id_of(table_id, Service.COMPACTION, "20261121120001000")
    gateway.create_run(session, run_id, CONF, note="why [p](https://evil.example) <b>")
    session.commit()
    found = gateway.find_active_runs(session, table_id)
    assert [(run.run_id, run.state) for run in found] == [(run_id, RunState.QUEUED)]
    # Airflow's page shows a note as Markdown.
    (made,) = session.query(DagRun).filter(DagRun.run_id == run_id)
    assert made.note == "why [p] (https://evil.example) \u2039b\u203a"
    assert gateway.find_runs_by_id(
        session, [run_id, run_id_of(table_id, Service.COMPACTION, "20261121120001000", 2)]
    ) == [ServiceRun(run_id, RunState.QUEUED)]
    # An underscore is no wildcard: another table whose id differs there must not be found.
    assert gateway.find_active_runs(session, table_id.replace("or_ders", "orXders")) == []
    with pytest.raises(IntegrityError):
        gateway.create_run(session, run_id, CONF, note="why")


def test_create_run_that_is_rolled_back_leaves_nothing(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    gateway, table_id = AirflowRunGateway(), f"t-{uuid.uuid4().hex[:16]}"
    gateway.create_run(session, run_id_of(table_id, Service.COMPACTION, "20261121120001000"), CONF, note="why")
    session.rollback()
    assert gateway.find_active_runs(session, table_id) == []


def test_create_run_with_wrong_params_is_refused(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    with pytest.raises(ValueError, match="base_path"):
        AirflowRunGateway().create_run(
            session, run_id_of(f"t-{uuid.uuid4().hex}", Service.COMPACTION, "1"), {"base_path": ""}, note=""
        )


def test_params_are_checked_as_airflow_checks_them_and_their_schemas_once_for_a_burst(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.exceptions import ParamValidationError
    from airflow.models.serialized_dag import SerializedDagModel
    from jsonschema.validators import validator_for

    from airflow_lake_provider.plugins.dag_runs import SERVICE_DAG_ID, BuiltParams, ReadDags

    theirs = SerializedDagModel.get_dag(SERVICE_DAG_ID, session=session).params
    kind, checked = validator_for(theirs.get_param("base_path").schema), []
    dags = ReadDags()
    with monkeypatch.context() as patched:
        patched.setattr(kind, "check_schema", lambda schema, *_, **__: checked.append(schema))
        found = [dags.find(session, SERVICE_DAG_ID) for _ in range(3)]
        assert len(checked) == len(theirs)
    assert found[0] is not None
    assert found[0] is found[1] is found[2]
    ours = found[0].params
    assert isinstance(ours, BuiltParams)
    wrong = [
        {}, {"base_path": ""}, {"base_path": 3}, {"service": "none"}, {"instants": "20261121120001000"},
        {"instants": ["x"]}, {"retries": "many"}, {"retries": -1}, {"priority_weight": 0}, {"hudi_options": {"a": 1}},
        {"timeout_s": "soon"}, {"conflict": "off"}, {"mode": "none"}, {"pool": None}, {"unknown": 1},
    ]  # fmt: skip
    verdicts = []
    for given in wrong:
        conf = given if given == {} or "base_path" in given else CONF | given
        answers = []
        for params in (theirs, ours):
            try:
                params.deep_merge(conf).validate()
                answers.append("")
            except ParamValidationError as error:
                answers.append(str(error).partition(":")[0])
        assert answers[0] == answers[1], conf
        verdicts.append(answers[0])
    assert len(set(verdicts)) > 4


def test_runs_of_manager_and_by_hand_are_listed_newest_first_and_counted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages' operations: two runs of the manager and one by hand, which its executor's lease announced."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import delete, update

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.operations import RunReport, RunSearch, report_run
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.manager.db.schema import lake_run
    from airflow_lake_provider.plugins import run_history
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    path, gateway = f"/lake/listed-{uuid.uuid4().hex}", AirflowInstanceGateway()
    table_id = table_id_of(path)
    ids = [run_id_of(table_id, service, "20261121120001000") for service in (Service.COMPACTION, Service.CLEAN)]
    for run_id in ids:
        AirflowRunGateway().create_run(session, run_id, CONF, note="why")
    of_a_command = run_id_of(table_id, Service.ROLLBACK, "20261121120001000")
    AirflowRunGateway().create_run(session, of_a_command, CONF, note="why", user="root")
    by_hand = f"manual__{uuid.uuid4().hex}"
    template = session.query(DagRun).filter(DagRun.run_id == ids[0]).one()
    session.add(
        DagRun(
            dag_id=template.dag_id, run_id=by_hand, run_type=DagRunType.MANUAL, state="success", conf=CONF,
            triggered_by=DagRunTriggeredByType.UI, triggering_user_name="ada", run_after=template.run_after,
        )
    )  # fmt: skip
    session.commit()
    registry = open_registry()
    registry.register(
        Notice(path, "listed", Source.HINT, owner="sales")
    )  # a run of a table that was forgotten is listed no more
    executors = Executors(registry, lease_s=60)
    for _ in range(2):  # a second try acquires the lease again, and is the same run
        lease = executors.acquire(table_id, Service.ARCHIVE, by_hand, 1)
        executors.release(table_id, Service.ARCHIVE, lease.token)
    for number, run_id in enumerate((*ids, by_hand)):
        session.execute(update(lake_run).where(lake_run.c.run_id == run_id).values(created_ms=10_000_000 + number))
    session.commit()
    (commanded,) = gateway.page_of_runs(session, RunSearch(run_id=of_a_command)).rows
    assert commanded.by == "root"  # its id is that of a run of the manager
    session.execute(delete(lake_run).where(lake_run.c.run_id == of_a_command))
    session.commit()
    first = gateway.page_of_runs(session, RunSearch(table_id, limit=2))
    assert [(run.run_id, run.by, run.service) for run in first.rows] == [
        (by_hand, "ada", "archive"), (ids[1], "manager", "clean")
    ]  # fmt: skip
    assert first.rows[0].reason == "3 delta commits"
    second = gateway.page_of_runs(session, RunSearch(table_id, limit=2, before=first.before))
    assert [run.run_id for run in second.rows] == [ids[0]]
    assert second.before is None
    assert gateway.page_of_runs(session, RunSearch(table_id, state="success")).rows == first.rows[:1]
    assert gateway.page_of_runs(session, RunSearch(table_id, service="clean")).rows == first.rows[1:]
    assert gateway.page_of_runs(session, RunSearch(run_id=ids[1])).rows == first.rows[1:]

    def listed(**search: Any) -> list[str]:
        return [run.run_id for run in gateway.page_of_runs(session, RunSearch(**search)).rows]

    assert listed(text=path[5:].upper()) == [by_hand, *ids[::-1]]
    assert listed(text=path, since_ms=10_000_001, until_ms=10_000_002) == [ids[1]]
    assert listed(table_id=table_id, text="no such table") == listed(table_id=table_id, owner="hr") == []
    assert listed(table_id=table_id, owner="sales") == [by_hand, *ids[::-1]]

    def count(audience: Audience) -> dict[tuple[str, str], int]:
        found = gateway.count_runs(session, 0, audience)
        return {(one.service, one.state): one.runs for one in found if one.hour_ms == 7_200_000}

    assert count(Audience()) == {("archive", "success"): 1, ("clean", "queued"): 1, ("compaction", "queued"): 1}
    hidden, shown = Audience(hidden=(path,)), Audience(hidden=("/lake",), shown=(path,))
    assert (count(hidden), count(shown)) == ({}, count(Audience()))
    assert gateway.page_of_runs(session, RunSearch(table_id, audience=hidden)).rows == ()
    assert len(gateway.page_of_runs(session, RunSearch(table_id, audience=shown)).rows) == 3
    # A page that passes hidden runs alone names none of them as the next one's begin.
    monkeypatch.setattr(run_history, "MAX_PASSED", 2)
    passed = gateway.page_of_runs(session, RunSearch(since_ms=10_000_000, until_ms=10_000_003, audience=hidden))
    assert (passed.rows, passed.before) == ((), None)
    monkeypatch.undo()
    # What executors report is summed over tries, and a report that arrives twice counts once.
    for number, (outcome, files) in enumerate((("failed", None), ("completed", 12), ("completed", 12))):
        error = "no memory" if outcome == "failed" else ""
        report = RunReport(min(number + 1, 2), outcome, 1_000, files, files, files and 3, files and 700, error)
        report_run(session, table_id, ids[0], "compaction", report, 0)
    report_run(session, "another-table", ids[1], "clean", RunReport(9, "completed", 5), 0)
    session.commit()
    reports = {run.run_id: run.report for run in gateway.page_of_runs(session, RunSearch(table_id)).rows}
    assert reports[ids[0]] == RunReport(2, "completed", 2_000, 12, 12, 3, 700, "no memory")
    assert reports[ids[1]] == RunReport()
    hours = gateway.count_runs(session, 0, shown)  # other tests' runs are in other hours
    (hour,) = [one for one in hours if one.service == "compaction" and one.hour_ms == 7_200_000]
    assert (hour.job_s, hour.files_in, hour.bytes_out) == (2.0, 12, 700)
    # The table's instances have the run by hand as well.
    assert by_hand in {run.run_id for run in gateway.list_runs(session, table_id, 20)}


def test_time_of_a_run_is_that_of_its_tries_by_airflow(session: Session) -> None:
    """A killed try, the pause after it and the second try are in Airflow's tables; the run begins with the first."""
    from datetime import UTC, datetime, timedelta

    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.taskinstancehistory import TaskInstanceHistory

    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.manager.db.operations import RunSearch, record_run
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.dag_runs import TASK_ID, AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    path = f"/lake/tries-{uuid.uuid4().hex}"
    table_id = table_id_of(path)
    run_id = run_id_of(table_id, Service.COMPACTION, "20261121120001000")
    AirflowRunGateway().create_run(session, run_id, CONF, note="why")
    session.commit()
    open_registry().register(Notice(path, "tries", Source.HINT))
    queued = datetime.now(UTC).replace(microsecond=0)

    def at(seconds: float) -> datetime:
        return queued + timedelta(seconds=seconds)

    run = session.query(DagRun).filter(DagRun.run_id == run_id).one()
    task = session.query(TaskInstance).filter(TaskInstance.run_id == run_id, TaskInstance.task_id == TASK_ID).one()
    run.queued_at = queued
    task.try_number, task.start_date, task.end_date, task.state = 1, at(1), at(106), "failed"
    session.flush()
    TaskInstanceHistory.record_ti(task, session=session)
    session.flush()
    # The second try waits for its slot: Airflow counts it, with the times of the first.
    task.try_number, task.state = 2, "queued"
    record_run(session, table_id, run_id, "compaction", int(at(3).timestamp() * 1000))
    session.commit()

    def phases() -> list[tuple[str, int, float | None]]:
        (found,) = AirflowInstanceGateway().page_of_runs(session, RunSearch(table_id)).rows
        assert (found.created_ms, found.started_ms) == (_ms(queued), _ms(at(1)))
        return [
            (one.kind.value, one.try_number, None if one.ended_ms is None else (one.ended_ms - one.began_ms) / 1000)
            for one in found.phases
        ]

    assert phases() == [("waiting", 0, 1), ("try", 1, 105), ("pause", 0, None)]
    task.start_date, task.end_date, task.state = at(108), at(256), "success"
    run.state, run.end_date = "success", at(257)
    session.commit()
    assert phases() == [("waiting", 0, 1), ("try", 1, 105), ("pause", 0, 2), ("try", 2, 148), ("closing", 0, 1)]


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)


def test_run_of_many_tables_is_listed_of_each_of_them(session: Session) -> None:
    """A task of `lake_reindex` for each table has its own record; a run of another DAG with that id is none of them."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    from airflow_lake_provider.config.access import EVERYONE
    from airflow_lake_provider.manager.db.operations import RunReport, RunSearch, report_run
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.manager.runs.holder_ids import holder_id
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    gateway, registry = AirflowInstanceGateway(), open_registry()
    tables = [
        registry.mark_dirty(Notice(f"/lake/many-{uuid.uuid4().hex}", "many", Source.HINT)).table_id for _ in range(2)
    ]
    run_id = run_id_of(tables[0], Service.COMPACTION, "20261121120001000")
    AirflowRunGateway().create_run(session, run_id, CONF, note="why")
    template = session.query(DagRun).filter(DagRun.run_id == run_id).one()
    session.add(
        DagRun(
            dag_id="lake_reindex", run_id=run_id, run_type=DagRunType.MANUAL, state="success", conf={},
            triggered_by=DagRunTriggeredByType.UI, triggering_user_name="ada", run_after=template.run_after,
        )
    )  # fmt: skip
    hour_ms = 36_000_000
    for number, table_id in enumerate(tables):
        holder = holder_id("lake_reindex", run_id, "build_indexes", number)
        report_run(session, table_id, holder, "indexing", RunReport(1, "completed", 1_000, number), hour_ms)
    report_run(session, tables[0], holder_id("shop", run_id, "index"), "indexing", RunReport(1, "failed"), hour_ms)
    session.commit()
    for number, table_id in enumerate(tables):
        listed = gateway.page_of_runs(session, RunSearch(table_id, service="indexing")).rows
        assert [(run.dag_id, run.run_id, run.report.files_in) for run in listed] == [("lake_reindex", run_id, number)]
    assert len(gateway.page_of_runs(session, RunSearch(run_id=run_id, service="indexing")).rows) == 1
    hours = gateway.count_runs(session, hour_ms, EVERYONE)
    counted = [one for one in hours if one.hour_ms == hour_ms and one.service == "indexing"]
    assert [(one.state, one.runs) for one in counted] == [("success", 1)]


def test_run_by_hand_is_listed_before_its_executor_has_begun(session: Session) -> None:
    """Above the first page, until the lease has recorded it; once, and only to users that may see its table."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.operations import RunSearch
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    path, gateway = f"/lake/by-hand-{uuid.uuid4().hex}", AirflowInstanceGateway()
    table_id = table_id_of(path)
    run_id = run_id_of(table_id, Service.COMPACTION, "20261121120001000")
    AirflowRunGateway().create_run(session, run_id, CONF, note="why")
    template = session.query(DagRun).filter(DagRun.run_id == run_id).one()
    by_hand = f"by_hand.clean.{uuid.uuid4().hex}"
    session.add(
        DagRun(
            dag_id=template.dag_id, run_id=by_hand, run_type=DagRunType.MANUAL, state="queued",
            conf={"base_path": f"{path}/", "service": "clean", "reason": "dry run by ada"},
            triggered_by=DagRunTriggeredByType.UI, triggering_user_name="ada", run_after=template.run_after,
        )
    )  # fmt: skip
    session.commit()
    registry = open_registry()
    registry.register(Notice(path, "by_hand", Source.HINT))

    def listed(**search: object) -> list[tuple[str, str, str]]:
        rows = gateway.page_of_runs(session, RunSearch(table_id, **search)).rows
        return [(run.run_id, run.by, run.service) for run in rows]

    mine = (by_hand, "ada", "clean")
    assert listed(limit=1)[0] == mine
    assert len(listed(limit=1)) == 2
    assert listed(service="clean", state="queued") == [mine]
    assert listed(service="archive") == listed(service="clean", state="success") == []
    assert listed(audience=Audience(hidden=(path,))) == []
    assert listed(service="clean", text=path) == [mine]
    assert listed(service="clean", text="another") == listed(service="clean", since_ms=99_999_999_999_999) == []
    assert mine not in listed(before=(99_999_999_999_999, ""))
    assert gateway.is_of_other_tables(session, by_hand, "/lake/another")
    assert not gateway.is_of_other_tables(session, by_hand, path)
    assert not gateway.is_of_other_tables(session, "a run elsewhere", path)
    Executors(registry, lease_s=60).acquire(table_id, Service.CLEAN, by_hand, 1)
    session.commit()
    assert listed().count(mine) == 1


def test_dags_that_configured_sinks_and_waiting_work_need_are_named(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.jobs.job import Job

    from airflow_lake_provider.manager.db.schema import lake_sink, lake_work
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway

    gateway = AirflowRunGateway()
    assert gateway._read_lake_dags(session).needed == {}
    values = {
        "table_id": "orders-1", "hold": "0", "ttl_s": 60, "renewed_ms": 0, "needs_snapshot": False, "checkpoint": "",
        "completed_time": "", "running_until_ms": 0, "failures": 0, "retry_ms": 0, "problem": "",
    }  # fmt: skip
    for sink, is_configured, paused in (("by-hand", False, False), ("paused", True, True)):
        session.execute(lake_sink.insert().values(**values, sink=sink, is_configured=is_configured, paused=paused))
    assert gateway._read_lake_dags(session).needed == {}
    session.execute(lake_sink.insert().values(**values, sink="kafka", is_configured=True, paused=False))
    item = {
        "item_id": "one", "app_key": "k", "table_id": "orders-1", "service": "clean", "run_id": "r", "try_number": 1,
        "request": "{}", "timeout_ms": 1, "state": "waiting", "is_cancelled": False, "claim_token": "", "deaths": 0,
        "lines": "[]", "line_count": 0, "result": "", "message": "", "created_ms": 0, "claimed_ms": 0, "ended_ms": 0,
        "asked_ms": 0,
    }  # fmt: skip
    session.execute(lake_work.insert().values(**item))
    assert set(gateway._read_lake_dags(session).needed) == {"lake_replication", "lake_warm"}
    monkeypatch.setenv("AIRFLOW__LAKE__STREAMS_AT_ONCE", "4")
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    found = gateway._read_lake_dags(session)
    assert set(found.needed) == {"lake_replication", "lake_streams", "lake_warm"}
    assert "dag_run_conf_overrides_params" in found.settings_problems[0]
    assert len(found.settings_problems) == 1
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "10")
    monkeypatch.setenv("AIRFLOW__TRIGGERER__CAPACITY", "10")
    monkeypatch.setenv("AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME", "60")
    assert len(gateway._read_lake_dags(session).settings_problems) == 4
    # Two of each live, besides one that was killed an hour ago.
    for kind in ("SchedulerJob", "TriggererJob"):
        for age_s in (1, 2, 3600):
            begun = datetime.now(UTC) - timedelta(seconds=age_s)
            session.add(Job(job_type=kind, state="running", start_date=begun, latest_heartbeat=begun))
    session.flush()
    assert len(gateway._read_lake_dags(session).settings_problems) == 2

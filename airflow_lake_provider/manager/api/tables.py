"""Routes for Airflow's own tasks and people: what is registered, hints, the sweep."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query

from airflow_lake_provider.config.own_settings import apply_own
from airflow_lake_provider.errors import (
    ForbiddenError,
    LeaseHolder,
    LeaseLostError,
    MalformedRequestError,
    PathNotAllowedError,
)
from airflow_lake_provider.http import MAX_ANY_BODY_BYTES, MAX_LIST_BYTES, json_body
from airflow_lake_provider.hudi.base_path import normalise_base_path, require_allowed, table_id_of
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.job_contract import ContractError, JobRequest, Service, Standing, from_json
from airflow_lake_provider.manager.api.models import (
    AppKey,
    CancelBody,
    ConformanceAnswer,
    DiscoveredAnswer,
    DiscoveredBody,
    ExecutorBody,
    FinishAnswer,
    FinishBody,
    HintsAnswer,
    HintsBody,
    InstanceAnswer,
    InstancesAnswer,
    ItemAnswer,
    ItemsAnswer,
    LeaseAnswer,
    LeaseBody,
    PolicyAnswer,
    PullAnswer,
    PullBody,
    QuestionsBody,
    RequirementAnswer,
    RootAnswer,
    RootsAnswer,
    RunReportBody,
    SweepAnswer,
    TableAnswer,
    TablesAnswer,
    WorkBody,
    WorkStateAnswer,
)
from airflow_lake_provider.manager.api.services import (
    ManagerServices,
    Operator,
    Reader,
    Services,
    check_operate_all,
    check_operate_table,
    check_read_table,
)
from airflow_lake_provider.manager.api.store_threads import Reads
from airflow_lake_provider.manager.db.health import refresh_health
from airflow_lake_provider.manager.db.operations import OBSERVED, RunReport, report_run
from airflow_lake_provider.manager.db.rows import Notice, Source, policy_of
from airflow_lake_provider.manager.db.snoozes import Snoozes
from airflow_lake_provider.manager.db.work_item import Question, WorkItem
from airflow_lake_provider.manager.runs.run_ids import parse_run_id
from airflow_lake_provider.manager.scheduling.budgets import correct
from airflow_lake_provider.manager.supervision.instances import load_instances
from airflow_lake_provider.manager.supervision.writers_and_sinks import recorded_report, report_requirement
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.shared.hudi_settings import TABLE_NAME

if TYPE_CHECKING:
    from airflow_lake_provider.config.access import Grant
    from airflow_lake_provider.manager.db.typed_rows import TableRow

router = APIRouter(tags=["tables"])

_MAX_ROWS = 10_000


@router.get("/tables")
def list_tables(
    services: Services,
    reader: Reader,
    after: Annotated[str, Query(description="Table id, exclusive")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> TablesAnswer:
    """List the registry."""
    rows = services.registry.list_tables(limit, after, reader.audience)
    return TablesAnswer(tables=[_to_answer(row) for row in rows])


@router.get("/tables/silent")
def list_silent_tables(
    services: Services, reader: Reader, limit: Annotated[int, Query(ge=1, le=_MAX_ROWS)] = 1000
) -> TablesAnswer:
    """List tables silent past their heartbeat, the longest overdue first."""
    return TablesAnswer(tables=[_to_answer(row) for row in services.registry.list_silent(limit, reader.audience)])


@router.get("/tables/{table_id}", dependencies=[Depends(check_read_table)])
def get_table(services: Services, table_id: str) -> TableAnswer:
    """Return a table with its last decisions and their reasons."""
    answer = _to_answer(services.registry.get(table_id))
    silenced = [key.subject for key in Snoozes(services.registry).find(table_id) if key.is_failing_service]
    return answer.model_copy(update={"silenced_services": silenced})


@router.delete("/tables/{table_id}", status_code=204, dependencies=[Depends(check_operate_table)])
def forget_table(services: Services, table_id: str) -> None:
    """Forget a table with its sinks and holds; 409 while a job runs.

    The next notice, the tables file or discovery registers a table again that is still there.
    """
    services.loop.forget(table_id)


@router.post("/hints")
def receive_hints(
    services: Services, operator: Operator, body: Annotated[HintsBody, json_body(HintsBody, MAX_LIST_BYTES)]
) -> HintsAnswer:
    """Mark tables for evaluation, and postpone those that a sensor found unchanged."""
    notices = []
    for hint in body.hints:
        base_path = normalise_base_path(hint.base_path)
        operator.require_path(base_path)
        require_allowed(base_path, services.settings.allowed_roots)
        instants = tuple(hint.instants)
        notices.append(Notice(base_path, hint.table_name, Source.HINT, instants, is_own=hint.is_own))
    for notice in notices:
        services.loop.notify(notice)
    unchanged = _keep_covered(services, operator, body.unchanged_table_ids)
    services.loop.postpone(unchanged)
    return HintsAnswer(marked=len(notices), postponed=len(unchanged))


@router.post("/sweep")
def sweep(services: Services, operator: Operator) -> SweepAnswer:
    """Register configured tables, begin evaluations and repairs, act on deadlines.

    The answer waits for no table's storage: evaluations and repairs run in threads of this process.
    """
    operator.require_all_roots("a sweep")
    services.loop.register_configured_tables()
    waiting = services.registry.count_waiting()
    services.loop.start()
    services.loop.forget_missing_tables()
    swept = services.deadlines.sweep()
    repaired = services.repairs.start()
    return SweepAnswer(waiting=waiting, ended=swept.ended, overdue=swept.overdue, repaired=repaired)


def _keep_covered(services: ManagerServices, operator: Grant, table_ids: list[str]) -> list[str]:
    # A table of another team is left out like one that does not exist.
    if operator.roots is None:
        return table_ids
    rows = ((table_id, services.registry.find(table_id)) for table_id in table_ids)
    return [table_id for table_id, row in rows if row is not None and operator.covers(row.base_path)]


def _to_answer(row: TableRow) -> TableAnswer:
    return TableAnswer(
        table_id=row.table_id,
        base_path=row.base_path,
        table_name=row.table_name,
        database=row.database_name,
        owner=row.owner,
        identified=row.is_identified,
        dirty=row.dirty_since_ms is not None,
        notices=row.notices,
        last_notice_ms=row.last_notice_ms,
        last_notice_source=row.last_notice_source,
        last_notice_instant=row.last_notice_instant,
        evaluated_ms=row.evaluated_ms,
        evaluation_failures=row.evaluation_failures,
        next_evaluation_ms=row.next_evaluation_ms,
        retry_ms=row.retry_ms,
        completed_time=row.completed_time,
        changed_time=row.changed_time,
        decisions=json.loads(row.decisions),
        problem=row.problem,
    )


# --- `GET /policy`: the settings of one service of one table, for a run that the manager did not create

policy_router = APIRouter(tags=["policy"])


@policy_router.get("/policy")
async def get_policy(
    services: Services,
    operator: Operator,
    base_path: Annotated[str, Query(min_length=1, max_length=1000)],
    table_name: Annotated[str, Query(description=TABLE_NAME, max_length=250)],
    service: Service,
) -> PolicyAnswer:
    """Return the settings of a service's run, as the manager would create it.

    Of a token with roots the name does not count: it chooses the policy, and the table's own properties say it.
    """
    path = normalise_base_path(base_path)
    operator.require_path(path)

    def read() -> PolicyAnswer:
        return _read_policy(services, operator, path, table_name, service)

    return await services.store_threads.run(Reads.POLICY, operator.name, read)


def _read_policy(
    services: ManagerServices, operator: Grant, path: str, table_name: str, service: Service
) -> PolicyAnswer:
    if operator.roots is None:
        policy = services.tables.load().policy_for(path, table_name)
    else:
        row = services.registry.get(table_id_of(path))
        policy = policy_of(row, services.tables.load(), services.timeline_server.timelines.memory.open)
    if policy.table_may_set:
        require_allowed(path, services.settings.allowed_roots)
        properties = load_table_properties(services.timeline_server.timelines.memory.open(path))
        policy = apply_own(policy, properties.raw).policy
    return PolicyAnswer(
        hudi_options={**policy.hudi_options, **service_options(service, policy)},
        engine=policy.engine,
        spark_conn_id=policy.spark_conn_id,
        spark_conf=dict(policy.spark_conf),
        conflict=policy.conflict.model_dump(),
        timeout_s=policy.timeout_s,
    )


# --- `GET /tables/{id}/instances`: a table's services, the state of each, and what has to act next

instances_router = APIRouter(tags=["instances"], dependencies=[Depends(check_read_table)])


@instances_router.get("/tables/{table_id}/instances")
async def list_instances(
    services: Services,
    reader: Reader,
    table_id: str,
    ended: Annotated[int, Query(ge=0, le=200, description="How many ended instances at most")] = 20,
) -> InstancesAnswer:
    """List the active instances, then the newest ended ones."""
    return await services.store_threads.run(
        Reads.INSTANCES, reader.name, lambda: _list_instances(services, table_id, ended)
    )


def _list_instances(services: ManagerServices, table_id: str, ended: int) -> InstancesAnswer:
    found = load_instances(services.registry, services.instance_gateway, services.views, table_id, ended)
    now_ms = services.registry.now_ms()
    return InstancesAnswer(
        now_ms=now_ms,
        instances=[
            InstanceAnswer(
                service=instance.service,
                state=instance.state,
                owner=instance.owner,
                reason=instance.reason,
                run_id=instance.run_id,
                plans=list(instance.plans),
                since_ms=instance.since_ms,
                deadline_ms=instance.deadline_ms,
                overdue=instance.is_overdue(now_ms),
                tries=instance.tries,
            )
            for instance in found
        ],
    )


@instances_router.get("/tables/{table_id}/conformance")
def get_conformance(services: Services, table_id: str) -> ConformanceAnswer:
    """Return the last check of the table's writers, and which settings to change.

    The answer reads no storage: the manager checks after commits, at most every ten minutes.
    """
    report, checked_ms = recorded_report(services.registry.get(table_id))
    return ConformanceAnswer(
        checked_ms=checked_ms or None,
        requirements=[RequirementAnswer.model_validate(asdict(report_requirement(row))) for row in report.rows],
    )


# --- Routes for running tasks: what a try did, and the lease of the one executor of a table's service

runs_router = APIRouter(tags=["executors"], dependencies=[Depends(check_operate_table)])


@runs_router.post("/tables/{table_id}/runs", status_code=204)
def receive_report(
    services: Services, operator: Operator, table_id: str, body: Annotated[RunReportBody, json_body(RunReportBody)]
) -> None:
    """Record what a try of a run did, for pages, budgets and prices."""
    _require_own_run(services, operator, table_id, body.run_id)
    report = RunReport(**body.model_dump(include={entry.name for entry in fields(RunReport)}))
    now_ms = services.registry.now_ms()
    with services.registry.transaction() as session:
        correct(session, report_run(session, table_id, body.run_id, body.service.value, report, now_ms))
        refresh_health(session, table_id, now_ms)


def _require_own_run(services: ManagerServices, operator: Grant, table_id: str, run_id: str) -> None:
    """Refuse a team's caller that says a run of another table is one of its own table's.

    A record has one table: that of another team would lose its run, whose reasons and prices this team would read.
    """
    if operator.roots is None:
        return
    made = parse_run_id(run_id)
    is_of_other = run_id.startswith(f"{OBSERVED}.") if made is None else made.table_id != table_id
    if not is_of_other:
        base_path = services.registry.get(table_id).base_path
        with services.registry.transaction() as session:
            is_of_other = services.instance_gateway.is_of_other_tables(session, run_id, base_path)
    if is_of_other:
        raise ForbiddenError(f"run {run_id!r} is one of another table than {table_id}")


leases_router = APIRouter(
    prefix="/tables/{table_id}/executors/{service}",
    tags=["executors"],
    dependencies=[Depends(check_operate_table)],
)


@leases_router.post("")
def acquire(
    services: Services,
    operator: Operator,
    table_id: str,
    service: Service | Standing,
    body: Annotated[ExecutorBody, json_body(ExecutorBody)],
) -> LeaseAnswer:
    """Acquire the lease, also of an ended holder; 409 names the holder."""
    _require_own_run(services, operator, table_id, body.run_id)
    ended = None if body.ended is None else LeaseHolder(body.ended.run_id, body.ended.try_number)
    is_sure = operator.roots is None
    lease = services.executors.acquire(table_id, service, body.run_id, body.try_number, ended, is_sure=is_sure)
    return LeaseAnswer(token=lease.token, lease_s=services.settings.executor_lease_s)


@leases_router.post("/renew")
def renew(
    services: Services, table_id: str, service: Service | Standing, body: Annotated[LeaseBody, json_body(LeaseBody)]
) -> LeaseAnswer:
    """Prolong the lease; 409 when another executor has it."""
    services.executors.renew(table_id, service, body.token)
    return LeaseAnswer(token=body.token, lease_s=services.settings.executor_lease_s)


@leases_router.post("/release", status_code=204)
def release(
    services: Services, table_id: str, service: Service | Standing, body: Annotated[LeaseBody, json_body(LeaseBody)]
) -> None:
    """Release the lease."""
    services.executors.release(table_id, service, body.token)


# --- Routes of work for standing Spark applications. They serve all tables, so a token of a few roots is refused

work_router = APIRouter(tags=["work"], dependencies=[Depends(check_operate_all)])


@work_router.post("/tables/{table_id}/work")
def submit_work(
    services: Services, table_id: str, body: Annotated[WorkBody, json_body(WorkBody, MAX_LIST_BYTES)]
) -> WorkStateAnswer:
    """Add an item, or return the state of this try's earlier one; 409 while another try's is live.

    `alone`: no application runs it, its task does.
    """
    try:
        request = from_json(JobRequest, body.request)
    except ContractError as error:
        raise MalformedRequestError(f"the request of item {body.item_id}: {error}") from error
    if table_id_of(normalise_base_path(request.base_path)) != table_id:
        raise MalformedRequestError(f"the request of item {body.item_id} is for {request.base_path}, another table")
    require_allowed(normalise_base_path(request.base_path), services.settings.allowed_roots)
    item = WorkItem(
        body.item_id, body.app_key, body.conf, table_id, body.service.value, body.run_id, body.try_number,
        body.request, body.timeout_s,
    )  # fmt: skip
    return WorkStateAnswer(state=services.work.submit(item))


@work_router.post("/work/ask")
def ask_work(services: Services, body: Annotated[QuestionsBody, json_body(QuestionsBody)]) -> ItemsAnswer:
    """Answer waiting tasks, and renew their leases; a lost lease cancels its item."""
    for item in body.items:
        if item.lease and item.service is not None:
            try:
                services.executors.renew(item.table_id, item.service, item.lease)
            except LeaseLostError as error:
                services.work.cancel(item.item_id, str(error))
    answers = services.work.ask([Question(item.item_id, item.seen) for item in body.items])
    return ItemsAnswer(
        items=[
            ItemAnswer(
                item_id=answer.item_id,
                state=answer.state,
                lines=list(answer.lines),
                line_count=answer.line_count,
                result=answer.result,
                message=answer.message,
            )
            for answer in answers
        ]
    )


@work_router.post("/work/cancel", status_code=204)
def cancel_work(services: Services, body: Annotated[CancelBody, json_body(CancelBody)]) -> None:
    """End an item: immediately while it waits, else by its application."""
    services.work.cancel(body.item_id, body.reason)


@work_router.get("/work/application")
def get_application(services: Services, key: AppKey) -> dict[str, Any]:
    """Return with what a standing application is submitted."""
    return services.work.conf_of(key)


@work_router.post("/work/pull")
def pull_work(services: Services, body: Annotated[PullBody, json_body(PullBody, MAX_ANY_BODY_BYTES)]) -> PullAnswer:
    """Give an application work; 409 when it has lost its lease, and must end."""
    pulled = services.work.pull(body.key, body.lease, body.free, body.lines, body.known)
    return PullAnswer(requests=dict(pulled.requests), cancel=dict(pulled.cancel))


@work_router.post("/work/finish")
def finish_work(
    services: Services, body: Annotated[FinishBody, json_body(FinishBody, MAX_ANY_BODY_BYTES)]
) -> FinishAnswer:
    """Record an item's end, and give the table's next; 409 as above."""
    following = services.work.finish(
        body.key, body.lease, body.item_id, body.result, body.lines, takes_next=body.takes_next
    )
    return FinishAnswer(requests=dict(following))


# --- Routes for `lake_discovery`: which roots to search, and the tables that were found there

discovery_router = APIRouter(prefix="/discovery", tags=["discovery"])


@discovery_router.get("/roots")
def list_roots(services: Services, operator: Operator) -> RootsAnswer:
    """List the roots of `discover` entries; one outside the allowed roots has a problem."""
    operator.require_all_roots("the list of the roots")
    discoveries = services.tables.load().discoveries
    return RootsAnswer(
        roots=[
            RootAnswer(
                root=found.root,
                depth=found.depth,
                metastore=found.metastore,
                databases=list(found.databases),
                problem=_find_problem(services, found.root),
            )
            for found in discoveries
        ]
    )


@discovery_router.post("/tables")
def receive_tables(
    services: Services, operator: Operator, body: Annotated[DiscoveredBody, json_body(DiscoveredBody, MAX_LIST_BYTES)]
) -> DiscoveredAnswer:
    """Register unknown tables; one outside the allowed roots refuses them all."""
    notices = []
    for table in body.tables:
        base_path = normalise_base_path(table.base_path)
        operator.require_path(base_path)
        require_allowed(base_path, services.settings.allowed_roots)
        notices.append(Notice(base_path, table.table_name, Source.DISCOVERY))
    registered = sum(services.registry.register(notice) for notice in notices)
    if registered:
        services.loop.wake()
    return DiscoveredAnswer(registered=registered, known=len(notices) - registered)


def _find_problem(services: Services, root: str) -> str:
    try:
        require_allowed(root, services.settings.allowed_roots)
    except PathNotAllowedError as error:
        return str(error)
    return ""

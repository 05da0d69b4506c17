"""`/lake/api/tables/{id}`: one table, its timeline, its policy, and what an examination of its store shows.

Three routes change something: one forgets a table, one silences a problem, and one prepares a text that Airflow's own
API then writes.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from airflow_lake_provider.config.own_settings import apply_own, settings_with_own
from airflow_lake_provider.config.tables_source import pause_in_overrides, settings_in_force
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.activity_report import describe_activity
from airflow_lake_provider.doctor.evidence import find_zone_problems
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import (
    ConfigError,
    ForbiddenError,
    LakeError,
    MalformedRequestError,
    UnsupportedTableError,
)
from airflow_lake_provider.http import json_body
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.bulk import ByPerson
from airflow_lake_provider.manager.db.holds import ReaderHolds
from airflow_lake_provider.manager.db.search import find_summary
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.db.snoozes import Snoozes
from airflow_lake_provider.manager.db.typed_rows import ListedTable
from airflow_lake_provider.manager.health.health import FoundBy, ProblemKey, TableState
from airflow_lake_provider.manager.reports.help_places import finding_place, help_address
from airflow_lake_provider.manager.supervision.instances import load_instances
from airflow_lake_provider.manager.supervision.writers_and_sinks import (
    hold_of,
    load_sink_state,
    problem_of,
    recorded_report,
    report_requirement,
    state_of,
)
from airflow_lake_provider.ui.answers import (
    Memory,
    Seen,
    Services,
    load_tables,
    policy_of_row,
    row_of,
    storage_slot,
    to_response,
)
from airflow_lake_provider.ui.models import (
    LakeActivity,
    LakeExamination,
    LakeFinding,
    LakeHistory,
    LakeHold,
    LakeLag,
    LakePause,
    LakePolicy,
    LakeRepair,
    LakeRequirement,
    LakeRun,
    LakeSink,
    LakeTable,
    LakeTimeline,
    LakeTimelineProblem,
)
from airflow_lake_provider.ui.table_facts import MAX_INSTANTS, LakeSetting, services_of_row

if TYPE_CHECKING:
    from datetime import tzinfo

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.typed_rows import HoldRow, SinkRow, TableRow
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

MAX_ENDED = 50
MAX_MOMENT_MS = 4_102_444_800_000
"""Milliseconds: the end of a pause, at most; the year 2100."""
MAX_COMPARED = 500
"""Instants at work that a page compares, each with all others: a second of a processor."""

router = APIRouter(prefix="/api", tags=["pages"])


class PauseEditBody(BaseModel):
    """A change of the Variable over the tables file, not yet written."""

    text: str = Field(max_length=1_000_000, description="The Variable as Airflow has it now; empty when there is none")
    paused: bool
    service: Service | None = Field(None, description="One service of the table; null: the table")
    why: str = Field("", max_length=200, pattern=r"^[^\r\n]*$", description="Why it is paused")
    until_ms: int | None = Field(None, ge=0, le=MAX_MOMENT_MS, description="When the pause ends by itself")


class SnoozeBody(BaseModel):
    """A problem of a table, and until when it is silenced."""

    state: TableState
    source: FoundBy
    subject: str = Field(max_length=300)
    until_ms: int | None = Field(None, ge=0, le=MAX_MOMENT_MS, description="Null ends the snooze now")
    why: str = Field("", max_length=200, pattern=r"^[^\r\n]*$", description="Why it is silenced")


class NothingBody(BaseModel):
    """An empty object."""


@router.get("/tables/{table_id}", response_model=LakeTable)
def get_lake_table(request: Request, services: Services, memory: Memory, seen: Seen, table_id: str) -> Response:
    """Return a table: its services with how near each is, its runs and sinks, and what is wrong."""
    registry = services.registry
    row = _find_row(services, seen, table_id)
    now_ms = registry.now_ms()
    tables = load_tables(services)
    decisions = services_of_row(row.decisions, policy_of_row(tables, row), now_ms)
    report, checked_ms = recorded_report(row)
    with storage_slot(request):
        found = load_instances(registry, services.instance_gateway, services.views, table_id, MAX_ENDED)
        sinks = Sinks(registry).list_sinks(table_id)
        holds = ReaderHolds(registry).list_holds(table_id)
        zone = _find_zone(services, row, policy_of_row(tables, row)) if sinks or holds else None
    newest = memory.newest_runs(registry, [table_id])[table_id]
    listed = ListedTable(row, find_summary(registry, table_id))
    answer = LakeTable(
        row=row_of(listed, now_ms, decisions, newest, services.settings.docs_url),
        services=decisions,
        runs=[LakeRun.model_validate(one) for one in found],
        sinks=[_sink(sink, now_ms, zone) for sink in sinks],
        holds=[_hold(hold, zone) for hold in holds],
        notices=row.notices,
        last_notice_source=row.last_notice_source,
        registered_ms=row.registered_ms,
        holes=row.holes,
        observed=_observed(tables, row),
        is_paused=tables is not None and _is_paused(tables, row, now_ms),
        paused_services=[] if tables is None else _find_paused_services(tables, row, now_ms),
        writers=[LakeRequirement.model_validate(report_requirement(one)) for one in report.rows],
        writers_checked_ms=checked_ms or None,
    )
    return to_response(request, answer)


def require_may_pause(request: Request) -> None:
    """Refuse a user who may not write the Variable: a text takes a minute of a processor to read and to check."""
    if not request.state.viewer.may_pause:
        raise ForbiddenError(
            "pausing a table, or snoozing a problem of it, needs Airflow's permission to write the Variable over the "
            "tables file"
        )


def require_may_forget(request: Request) -> None:
    """Refuse a user who may not delete the DAG of table services."""
    if not request.state.viewer.may_forget:
        raise ForbiddenError("forgetting a table needs Airflow's permission to delete the DAG of table services")


@router.post("/tables/{table_id}/pause", response_model=LakePause, dependencies=[Depends(require_may_pause)])
def edit_pause(
    request: Request,
    services: Services,
    seen: Seen,
    table_id: str,
    body: Annotated[PauseEditBody, json_body(PauseEditBody)],
) -> LakePause:
    """Return the Variable's text with the table, or a service of it, paused or resumed.

    It writes nothing: Airflow's own route does.
    """
    row = _find_row(services, seen, table_id)
    if body.paused and (why := _observed(load_tables(services), row)):
        # The entry that the pause adds names the table's path, which would let a discovered table run.
        raise MalformedRequestError(f"the manager starts nothing on this table, so nothing can be paused: {why}")
    by = ByPerson(request.state.viewer.name, body.why, body.until_ms)
    pause = by.pause(body.service, services.registry.now_ms(), is_paused=body.paused)
    try:
        text = pause_in_overrides(body.text, row.base_path, row.table_name, pause)
    except ConfigError as error:
        raise MalformedRequestError(str(error)) from error
    return LakePause(text=text)


@router.post("/tables/{table_id}/snooze", status_code=204, dependencies=[Depends(require_may_pause)])
def snooze_problem(
    request: Request,
    services: Services,
    seen: Seen,
    table_id: str,
    body: Annotated[SnoozeBody, json_body(SnoozeBody)],
) -> None:
    """Silence a problem until a time, or end that, for users who may pause the table."""
    viewer = request.state.viewer
    require_own_page(request)
    row = _find_row(services, seen, table_id)
    key = ProblemKey.of(body.state, body.source, body.subject)
    snoozes = Snoozes(services.registry)
    if body.until_ms is None:
        snoozes.end(table_id, [key])
    else:
        snoozes.add(table_id, [key], ByPerson(viewer.name, body.why).words, body.until_ms)
    details = {"table_id": table_id, "table": row.table_name, "problem": f"{key.state} {key.source} {key.subject}"}
    details |= {"until_ms": str(body.until_ms or ""), "why": body.why}
    request.app.state.record_action(viewer.name, "lake.snooze_problem", details)


@router.post("/tables/{table_id}/forget", status_code=204, dependencies=[Depends(require_may_forget)])
def forget_lake_table(
    request: Request,
    services: Services,
    seen: Seen,
    table_id: str,
    body: Annotated[NothingBody, json_body(NothingBody)],
) -> None:
    """Forget a table, for users who may delete the DAG of table services."""
    viewer = request.state.viewer
    require_own_page(request)
    row = _find_row(services, seen, table_id)
    services.loop.forget(table_id)
    log.warning("user %s forgot table %s", viewer.name, table_id)
    details = {"table_id": table_id, "table": row.table_name, "base_path": row.base_path}
    request.app.state.record_action(viewer.name, "lake.forget_table", details)


def require_own_page(request: Request) -> None:
    """Raise ForbiddenError for what a page of another site sends with the user's cookie.

    Such a page can send a form, but no JSON without asking first, which nothing here allows.
    """
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/json" or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ForbiddenError("this request comes from another site")


@router.get("/tables/{table_id}/history", response_model=LakeHistory)
def get_lake_history(request: Request, services: Services, seen: Seen, table_id: str) -> Response:
    """Return what kept the services from running in the last days, and their runs, the newest first."""
    found = services.reports.history(_find_row(services, seen, table_id).base_path)
    return to_response(request, LakeHistory.model_validate(found))


@router.get("/tables/{table_id}/timeline", response_model=LakeTimeline)
def get_lake_timeline(request: Request, services: Services, memory: Memory, seen: Seen, table_id: str) -> Response:
    """Return the active timeline: instants in lanes, files and bytes over time, wrong time zones.

    A table that cannot be read is answered with its problem.
    """
    row = _find_row(services, seen, table_id)
    now_ms = services.registry.now_ms()
    with storage_slot(request):
        try:
            view = services.views.refresh(row.base_path)
            stamps = services.views.load_timeline_files(view).stamps
        except LakeError as error:
            return to_response(request, _unreadable(str(error)))
    properties = view.properties
    zone = zone_of_jobs(properties.time_zone, policy_of_row(load_tables(services), row).spark_conf)
    zone_problems = find_zone_problems(stamps, zone, properties.time_zone, now_ms)
    instants, sizes = memory.timeline(view, zone.zone)
    answer = LakeTimeline(
        problem="",
        table_type=properties.table_type,
        table_version=str(properties.raw.get("hoodie.table.version", "")),
        time_zone=properties.time_zone,
        indexes=list(properties.metadata_partitions),
        instants=instants,
        is_cut=len(view.timeline.instants) > MAX_INSTANTS,
        sizes=sizes,
        problems=[
            *(LakeTimelineProblem(message=f"{one.file_name}: {one.reason}", repair="") for one in view.problems),
            *(LakeTimelineProblem(message=one.message, repair=one.repair) for one in zone_problems),
        ],
    )
    return to_response(request, answer)


@router.get("/tables/{table_id}/policy", response_model=LakePolicy)
def get_lake_policy(request: Request, services: Services, seen: Seen, table_id: str) -> Response:
    """Return each setting in force, with what sets it."""
    row = _find_row(services, seen, table_id)
    tables = services.tables.load()
    settings = settings_in_force(tables, row.base_path, row.table_name)
    policy = tables.policy_for(row.base_path, row.table_name)
    if policy.table_may_set:
        with storage_slot(request):
            own = apply_own(policy, services.views.refresh(row.base_path).properties.raw)
        settings = list(settings_with_own(settings, own))
    return to_response(request, LakePolicy(settings=[LakeSetting(**asdict(one)) for one in settings]))


@router.get("/tables/{table_id}/examination", response_model=LakeExamination)
def examine_lake_table(request: Request, services: Services, seen: Seen, table_id: str) -> Response:
    """Return what the store shows: what is stuck, which instants clash, how far sinks are behind."""
    row = _find_row(services, seen, table_id)
    policy = policy_of_row(load_tables(services), row)
    answer = LakeExamination(problems=[], findings=[], active=[], lags=[])
    with storage_slot(request):
        storage = services.repairs.open_table(row.base_path)
        for examine in (_find_stuck, _find_active, _find_lags):
            try:
                answer = answer.model_copy(update=examine(services, storage, policy, table_id))
            except (LakeError, OSError) as error:
                # One part that cannot be read must not hide the others.
                answer = answer.model_copy(update={"problems": [*answer.problems, str(error)]})
    return to_response(request, answer)


def _find_stuck(services: ManagerServices, storage: Storage, policy: TablePolicy, table_id: str) -> dict[str, Any]:
    doctor = TableDoctor(storage, policy, "", services.registry.now_ms)
    docs_url = services.settings.docs_url
    return {"findings": [_finding(finding, repair, docs_url) for finding, repair in doctor.examine()]}


def _find_active(services: ManagerServices, storage: Storage, policy: TablePolicy, table_id: str) -> dict[str, Any]:
    table = open_conflict_table(storage, policy.hudi_options, policy.spark_conf)
    activity = table.read_activity(services.registry.now_ms())
    if len(activity.actives) > MAX_COMPARED:
        raise UnsupportedTableError(
            f"{len(activity.actives):,} instants are at work, too many to compare each with the others here: "
            "airflow lake conflicts shows them"
        )
    rows = describe_activity(activity, lambda claim: table.find_commits(claim, activity.snapshot))
    return {"active": [LakeActivity.model_validate(one) for one in rows]}


def _find_lags(services: ManagerServices, storage: Storage, policy: TablePolicy, table_id: str) -> dict[str, Any]:
    lags = []
    now_s = services.registry.now_ms() / 1000
    for row in Sinks(services.registry).list_sinks(table_id):
        hold = hold_of(row.hold, needs_snapshot=row.needs_snapshot)
        state = load_sink_state(storage, row.checkpoint, hold, now_s, policy.spark_conf)
        lags.append(
            LakeLag(
                sink=row.sink,
                lag_commits=state.lag.commits,
                lag_s=state.lag_s,
                held_bytes=state.held_bytes,
                snapshot_rows=state.lag.snapshot_rows,
                snapshot_total=state.lag.snapshot_total,
            )
        )
    return {"lags": lags}


def _finding(finding: Finding, repair: Repair, docs_url: str) -> LakeFinding:
    call = repair.call
    return LakeFinding(
        kind=finding.kind.value,
        instant=finding.instant,
        message=finding.message,
        holds_up=finding.holds_up,
        blocks=list(finding.blocks),
        repair=finding.repair,
        does=repair.does,
        refusal=repair.refusal,
        help=help_address(finding_place(finding.kind.value), docs_url),
        call=None
        if call is None or repair.refusal
        else LakeRepair(service=call.service.value, mode=call.mode.value, instants=list(call.instants)),
    )


# --- Parts of answers


def _find_row(services: ManagerServices, seen: Audience, table_id: str) -> TableRow:
    """Return a table's row; raise TableUnknownError, also for a table that the user may not see."""
    row = services.registry.find(table_id)
    seen.require_table(table_id, None if row is None else row.base_path)
    return services.registry.get(table_id) if row is None else row


def _observed(tables: TablesConfig | None, row: TableRow) -> str:
    if tables is None:
        return ""
    is_only_discovered = row.is_only_discovered
    return tables.find_why_observed(row.base_path, policy_of_row(tables, row), is_only_discovered=is_only_discovered)


def _is_paused(tables: TablesConfig, row: TableRow, now_ms: int) -> bool:
    table = row.base_path, row.table_name
    both = tables.policy_for(*table), tables.policy_without_overrides(*table)
    return [policy.is_paused_at(now_ms) for policy in both] == [True, False]


def _find_paused_services(tables: TablesConfig, row: TableRow, now_ms: int) -> list[str]:
    table = row.base_path, row.table_name
    policy = tables.policy_for(*table)
    below = tables.policy_without_overrides(*table)
    if policy.is_paused_at(now_ms):
        return []  # with the table, which is resumed as a whole
    return [one.value for one in Service if policy.find_pause(one, now_ms) and not below.find_pause(one, now_ms)]


def _find_zone(services: ManagerServices, row: TableRow, policy: TablePolicy) -> tzinfo | None:
    """Return the zone in which the table's instants are named; None while the table cannot be read."""
    try:
        properties = services.views.refresh(row.base_path).properties
        return zone_of_jobs(properties.time_zone, policy.spark_conf).zone
    except LakeError:
        return None


def _sink(row: SinkRow, now_ms: int, zone: tzinfo | None) -> LakeSink:
    checkpoint = json.loads(row.checkpoint) if row.checkpoint else {}
    hold = hold_of(row.hold, needs_snapshot=row.needs_snapshot)
    return LakeSink(
        sink=row.sink,
        state=state_of(row, checkpoint, now_ms),
        hold=hold,
        hold_ms=instant_time_ms(hold, zone) if hold and zone is not None else None,
        renewed_ms=row.renewed_ms,
        problem=problem_of(row),
    )


def _hold(row: HoldRow, zone: tzinfo | None) -> LakeHold:
    return LakeHold(
        reader=row.reader,
        reason=row.reason,
        hold_ms=instant_time_ms(row.hold, zone) if zone is not None else None,
        created_ms=row.created_ms,
        ends_ms=row.ends_ms,
        until_ms=row.until_ms,
        is_firm=row.is_firm,
    )


def _unreadable(problem: str) -> LakeTimeline:
    return LakeTimeline(
        problem=problem,
        table_type="",
        table_version="",
        time_zone="UTC",
        indexes=[],
        instants=[],
        is_cut=False,
        sizes=[],
        problems=[],
    )

"""`/lake/api/bulk`: one action on several tables, with a line for each. A dry run says what it would do.

A script sends the same as the page, with a token of Airflow's; each table is checked as for a single action.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from airflow_lake_provider.config.access import Audience  # noqa: TC001 - FastAPI reads the annotation
from airflow_lake_provider.errors import ForbiddenError, LakeError, MalformedRequestError
from airflow_lake_provider.http import json_body
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.bulk import (
    MAX_TABLES,
    BulkActions,
    BulkChoice,
    BulkVerdict,
    ByPerson,
    choose_tables,
)
from airflow_lake_provider.manager.db.search import TableSearch
from airflow_lake_provider.manager.health.health import MarkKind, TableState
from airflow_lake_provider.manager.scheduling.run_scheduler import ByHand
from airflow_lake_provider.ui.answers import Seen, Services, show, storage_slot
from airflow_lake_provider.ui.table_facts import Wire
from airflow_lake_provider.ui.table_routes import MAX_MOMENT_MS, require_may_pause, require_own_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.bulk import BulkLine, Chosen

router = APIRouter(prefix="/api/bulk", tags=["pages"])


class MatchingBody(BaseModel):
    """All tables that match each of these; empty ones match all."""

    q: str = Field("", max_length=500, description="Part of a name, a database or a path")
    state: list[TableState] = Field(default_factory=list, max_length=20)
    database: str = Field("", max_length=500)
    owner: str = Field("", max_length=500)
    mark: MarkKind | None = None
    label: str = Field("", max_length=200, description="The `label` of the tables' policy")


class ChoiceBody(BaseModel):
    """Which tables, at most 200: by their ids, or all that match."""

    table_ids: list[Annotated[str, Field(max_length=200)]] = Field(default_factory=list, max_length=MAX_TABLES)
    matching: MatchingBody | None = None
    why: str = Field("", max_length=200, pattern=r"^[^\r\n]*$")


class BulkRunBody(ChoiceBody):
    """Runs of one service."""

    service: Service
    dry_run: bool = False


class BulkPauseBody(ChoiceBody):
    """A change of the Variable over the tables file, not yet written."""

    text: str = Field(max_length=1_000_000, description="The Variable as Airflow has it now; empty when there is none")
    paused: bool
    service: Service | None = Field(None, description="One service of each table; null: the tables")
    until_ms: int | None = Field(None, ge=0, le=MAX_MOMENT_MS, description="When the pause ends by itself")


class BulkSnoozeBody(ChoiceBody):
    """Until when what the tables have now is silenced."""

    until_ms: int | None = Field(None, ge=0, le=MAX_MOMENT_MS, description="Null ends the snoozes now")
    dry_run: bool = False


class LakeBulkLine(Wire):
    """What an action does, or did, to one table."""

    table_id: str
    table: str
    base_path: str
    verdict: BulkVerdict
    """`done` (of a dry run: it would), `nothing` (it is so already), `refused`."""
    reason: str
    run_id: str


class LakeBulk(Wire):
    """What an action does, or did, to each table."""

    lines: list[LakeBulkLine]
    problem: str
    """What keeps all runs from beginning; empty when nothing does."""
    text: str
    """The Variable to write; empty where the action is no pause."""


def require_may_run(request: Request) -> None:
    """Refuse a user who may not start a run of the service DAG."""
    if not request.state.viewer.may_run:
        raise ForbiddenError("running services needs Airflow's permission to trigger the DAG lake_table_service")


@router.post("/run", response_model=LakeBulk, dependencies=[Depends(require_may_run)])
def run_services(
    request: Request, services: Services, seen: Seen, body: Annotated[BulkRunBody, json_body(BulkRunBody)]
) -> LakeBulk:
    """Start a run of a service of each table, due or not, unless it is paused or blocked."""
    require_own_page(request)
    viewer = request.state.viewer
    chosen = _choose(services, seen, body)
    name = viewer.name or "a user"
    reason = body.why.strip() or f"started by {name} on the Lake page, for {len(chosen.rows)} tables"
    with storage_slot(request):
        actions = _actions(services)
        lines = actions.run(chosen.rows, body.service, ByHand(name, reason), is_dry=body.dry_run)
    if not body.dry_run:
        _record(request, "lake.run_services", lines, {"service": body.service.value, "why": body.why})
    return _answer(chosen, lines, problem=actions.find_run_problem())


@router.post("/pause", response_model=LakeBulk, dependencies=[Depends(require_may_pause)])
def edit_pauses(
    request: Request, services: Services, seen: Seen, body: Annotated[BulkPauseBody, json_body(BulkPauseBody)]
) -> LakeBulk:
    """Return the Variable's text with the tables, or a service of each, paused or resumed."""
    chosen = _choose(services, seen, body)
    by = ByPerson(request.state.viewer.name, body.why, body.until_ms)
    pause = by.pause(body.service, services.registry.now_ms(), is_paused=body.paused)
    try:
        text, lines = _actions(services).pause(chosen.rows, body.text, body.service, pause)
    except LakeError as error:
        raise MalformedRequestError(str(error)) from error
    return _answer(chosen, lines, text=text)


@router.post("/snooze", response_model=LakeBulk, dependencies=[Depends(require_may_pause)])
def snooze_problems(
    request: Request, services: Services, seen: Seen, body: Annotated[BulkSnoozeBody, json_body(BulkSnoozeBody)]
) -> LakeBulk:
    """Silence each table's present problems until a time, or end that."""
    require_own_page(request)
    by = ByPerson(request.state.viewer.name, body.why, body.until_ms)
    chosen = _choose(services, seen, body)
    lines = _actions(services).snooze(chosen.rows, by, is_dry=body.dry_run)
    if not body.dry_run:
        _record(request, "lake.snooze_problems", lines, {"until_ms": str(body.until_ms or ""), "why": body.why})
    return _answer(chosen, lines)


def _actions(services: ManagerServices) -> BulkActions:
    return BulkActions(services.reports, services.settings.allowed_roots)


def _choose(services: ManagerServices, seen: Audience, body: ChoiceBody) -> Chosen:
    if bool(body.table_ids) == (body.matching is not None):
        raise MalformedRequestError("give either table_ids or matching; an empty object matches all tables")
    given = body.matching
    if given is None:
        choice = BulkChoice(tuple(body.table_ids))
    else:
        search = TableSearch(given.q, tuple(given.state), given.database, owner=given.owner, mark=given.mark)
        choice = BulkChoice(matching=search, label=given.label)
    return choose_tables(services.registry, services.tables.load(), choice, seen)


def _record(request: Request, event: str, lines: Sequence[BulkLine], details: dict[str, str]) -> None:
    done = [line.table_id for line in lines if line.verdict is BulkVerdict.DONE]
    found: dict[str, Any] = {**details, "tables": str(len(done)), "table_ids": " ".join(done)}
    request.app.state.record_action(request.state.viewer.name, event, found)


def _answer(chosen: Chosen, lines: Sequence[BulkLine], *, problem: str = "", text: str = "") -> LakeBulk:
    shown = [
        LakeBulkLine(
            **asdict(replace(line, table=show(line.table), base_path=show(line.base_path), reason=show(line.reason)))
        )
        for line in (*lines, *chosen.unknown)
    ]
    return LakeBulk(lines=shown, problem=show(problem), text=text)

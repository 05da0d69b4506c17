"""Routes of readers' holds: a long query, a backfill or an export keeps the files that it reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from airflow_lake_provider.http import json_body
from airflow_lake_provider.manager.api.models import LONGEST_TTL_S, SINGLE_LINE, InstantTime
from airflow_lake_provider.manager.api.services import (
    Holder,
    Services,
    check_hold_table,
    check_read_table,
)
from airflow_lake_provider.manager.api.store_threads import Reads
from airflow_lake_provider.manager.db.holds import ReaderHolds
from airflow_lake_provider.manager.supervision.reader_holds import WantedHold, describe_hold

if TYPE_CHECKING:
    from airflow_lake_provider.manager.supervision.reader_holds import HeldNow

router = APIRouter(tags=["holds"])

HoldId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


class HoldBody(BaseModel):
    """What a reader wants held."""

    reader: str = Field(min_length=1, max_length=100, pattern=SINGLE_LINE, description="What reads, for people")
    reason: str = Field("", max_length=300, pattern=SINGLE_LINE, description="Why, for people")
    at_instant: InstantTime | None = Field(None, description="As of when it reads; null: the newest snapshot")
    ttl_s: float = Field(300.0, ge=1, le=LONGEST_TTL_S, description="It ends after so long without a renewal")
    lasts_s: float | None = Field(
        None, gt=0, le=LONGEST_TTL_S, description="It ends after so long in any case; null: as the policy allows"
    )


class HoldAnswer(BaseModel):
    """A hold of a reader. Times are milliseconds since the epoch."""

    hold_id: str
    reader: str
    reason: str
    hold: str = Field(description="Requested time from which on files and instants are kept")
    held_s: int = Field(description="Since when it holds")
    ends_ms: int = Field(description="When it ends unless renewed")
    ends_in_s: float = Field(description="In how many seconds, for a caller with another clock")
    until_ms: int = Field(description="When it ends in any case")
    is_firm: bool = Field(description="False: runs that know nothing of it are at work, and the reader waits for them")
    waits_for: list[str] = Field(default_factory=list, description="Those runs")


class HoldsAnswer(BaseModel):
    """The readers' holds of a table."""

    holds: list[HoldAnswer]


@router.post("/tables/{table_id}/holds", dependencies=[Depends(check_hold_table)])
async def add_hold(
    services: Services, holder: Holder, table_id: str, body: Annotated[HoldBody, json_body(HoldBody)]
) -> HoldAnswer:
    """Hold a table's files. The reader begins when `is_firm` is true, here or in a renewal."""
    wanted = WantedHold(body.reader, body.reason, body.at_instant or "", body.ttl_s, body.lasts_s, holder.name)

    def add() -> HoldAnswer:
        return _answer(services, services.holds.add(table_id, wanted))

    return await services.store_threads.run(Reads.HOLD, holder.name, add)


@router.post("/tables/{table_id}/holds/{hold_id}/renew", dependencies=[Depends(check_hold_table)])
async def renew_hold(services: Services, holder: Holder, table_id: str, hold_id: HoldId) -> HoldAnswer:
    """Prolong a hold by its time to live; 409 when it has ended."""

    def renew() -> HoldAnswer:
        return _answer(services, services.holds.renew(table_id, hold_id))

    return await services.store_threads.run(Reads.RENEWAL, holder.name, renew)


@router.delete("/tables/{table_id}/holds/{hold_id}", status_code=204, dependencies=[Depends(check_hold_table)])
def release_hold(services: Services, table_id: str, hold_id: HoldId) -> None:
    """End a hold, if it has not ended."""
    ReaderHolds(services.registry).release(table_id, hold_id)


@router.get("/tables/{table_id}/holds", dependencies=[Depends(check_read_table)])
def list_holds(services: Services, table_id: str) -> HoldsAnswer:
    """List the readers' holds, the oldest instant first."""
    now_ms = services.registry.now_ms()
    rows = ReaderHolds(services.registry).list_holds(table_id)
    return HoldsAnswer(holds=[HoldAnswer(**asdict(describe_hold(row, now_ms))) for row in rows])


def _answer(services: Services, held: HeldNow) -> HoldAnswer:
    return HoldAnswer(**asdict(describe_hold(held.row, services.registry.now_ms())), waits_for=list(held.waits_for))

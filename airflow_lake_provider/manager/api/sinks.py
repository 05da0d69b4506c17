"""Routes of replication (bearer token): which sinks are due, what runs tell, and the safepoint of a table."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query

from airflow_lake_provider.manager.api.models import (
    BeginAnswer,
    BeginBody,
    ClaimBody,
    DueAnswer,
    DueSink,
    NewsBody,
    PauseBody,
    SafepointAnswer,
    SinkAnswer,
    SinksAnswer,
)
from airflow_lake_provider.manager.api.tables import Services, check_service_token
from airflow_lake_provider.manager.db.registry import is_identified, policy_of
from airflow_lake_provider.manager.db.sinks import RunNews, Sinks
from airflow_lake_provider.manager.sink_state import hold_ends_ms, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import RowMapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.api.services import ManagerServices

router = APIRouter(tags=["replication"], dependencies=[Depends(check_service_token)])

Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/sinks/due")
def list_due(services: Services, limit: Limit = 100) -> DueAnswer:
    """List the configured sinks whose tables moved, that failed and may be tried again, or that need a snapshot."""
    return DueAnswer(sinks=list(islice(_find_due(services, ""), limit)))


@router.post("/sinks/claim")
def claim_due(services: Services, body: ClaimBody, limit: Limit = 100) -> DueAnswer:
    """Give the sinks that are due to one run, and answer which; it must begin each within three minutes.

    Whoever asks again under the same run, because the answer got lost, is given the same ones.
    """
    sinks = Sinks(services.registry)
    mine = (due for due in _find_due(services, body.run_id) if sinks.claim(due.table_id, due.name, body.run_id))
    return DueAnswer(sinks=list(islice(mine, limit)))


@router.get("/tables/{table_id}/safepoint")
def get_safepoint(services: Services, table_id: str) -> SafepointAnswer:
    """Return what cleaning and archiving must not pass; what is past its time to live is released by asking."""
    sinks, row = Sinks(services.registry), services.registry.find(table_id)
    if row is not None:
        _configure(services, table_id, _policy(services, row))
    found = sinks.safepoint(table_id)
    return SafepointAnswer(instant=found.instant, holder=found.holder, released=list(found.released))


@router.get("/tables/{table_id}/sinks")
def list_sinks(services: Services, table_id: str) -> SinksAnswer:
    """List a table's sinks with their holds and problems: also those that the tables file has since just now."""
    sinks, row, now_ms = Sinks(services.registry), services.registry.find(table_id), services.registry.now_ms()
    if row is not None:
        _configure(services, table_id, _policy(services, row))
    return SinksAnswer(sinks=[_to_answer(row, now_ms) for row in sinks.list_sinks(table_id)])


@router.post("/tables/{table_id}/sinks/{sink}/begin")
def begin(services: Services, table_id: str, sink: str, body: BeginBody) -> BeginAnswer:
    """Take note that a run begins; the answer says whether it must take a snapshot. 409 while another run has it."""
    row = Sinks(services.registry).begin_run(table_id, sink, body.ttl_s, body.run_id)
    request = f"released.{row['renewed_ms']}" if row["needs_snapshot"] else ""
    return BeginAnswer(needs_snapshot=bool(row["needs_snapshot"]), request=request)


@router.post("/tables/{table_id}/sinks/{sink}/news", status_code=204)
def tell(services: Services, table_id: str, sink: str, body: NewsBody) -> None:
    """Take note of a run's progress, or of its end."""
    news = RunNews(body.run_id, body.checkpoint, body.completed_time, body.problem, body.ended)
    Sinks(services.registry).tell(table_id, sink, news)


@router.post("/tables/{table_id}/sinks/{sink}/pause", status_code=204)
def pause(services: Services, table_id: str, sink: str, body: PauseBody) -> None:
    """Pause or resume a sink. A paused one holds until its time to live is over."""
    Sinks(services.registry).pause(table_id, sink, paused=body.paused)


@router.delete("/tables/{table_id}/sinks/{sink}", status_code=204)
def forget(services: Services, table_id: str, sink: str) -> None:
    """Release a sink's hold for good; a configured one comes back with the next look at the configuration."""
    Sinks(services.registry).forget(table_id, sink)


def _find_due(services: ManagerServices, run_id: str) -> Iterator[DueSink]:
    sinks, after = Sinks(services.registry), ""
    while rows := services.registry.list_tables(1000, after):
        after = rows[-1]["table_id"]
        for row in rows:
            yield from _due_of(services, sinks, row, run_id)


def _due_of(services: ManagerServices, sinks: Sinks, table: RowMapping, run_id: str) -> list[DueSink]:
    if not is_identified(table):
        return []  # what a notice calls the table must neither begin nor end a stream; its first look is under way
    policy, table_id = _policy(services, table), table["table_id"]
    _configure(services, table_id, policy)
    if policy.replication:
        # No run begins for a sink that lacks nothing, so none could say that it is alive.
        sinks.renew(table_id)
    rows = {row["sink"]: row for row in sinks.list_sinks(table_id)} if policy.replication else {}
    return [
        DueSink(
            table_id=table_id,
            base_path=table["base_path"],
            table_name=table["table_name"],
            name=sink.name,
            sink=sink.sink,
            mode=sink.mode,
            key=list(sink.key),
            ttl_s=sink.ttl_s,
            options=dict(sink.options),
            spark_conf=dict(policy.spark_conf),
        )
        for sink in policy.replication
        if sink.name in rows and sinks.is_due(rows[sink.name], table["completed_time"], run_id)
    ]


def _configure(services: ManagerServices, table_id: str, policy: TablePolicy) -> None:
    ttls_s = {sink.name: sink.ttl_s for sink in policy.replication}
    Sinks(services.registry).configure(table_id, ttls_s, services.settings.sink_grace_s)


def _policy(services: ManagerServices, table: RowMapping) -> TablePolicy:
    return policy_of(table, services.tables.load(), services.timeline_server.timelines.memory.open)


def _to_answer(row: RowMapping, now_ms: int) -> SinkAnswer:
    checkpoint: dict[str, Any] = json.loads(row["checkpoint"]) if row["checkpoint"] else {}
    checkpoint.pop("schema", None)
    return SinkAnswer(
        name=row["sink"],
        hold=row["hold"],
        hold_ends_ms=hold_ends_ms(row),
        needs_snapshot=row["needs_snapshot"],
        paused=row["paused"],
        checkpoint=checkpoint,
        checkpoint_text=row["checkpoint"],
        completed_time=row["completed_time"],
        running=row["running_until_ms"] > now_ms,
        failures=row["failures"],
        problem=problem_of(row),
    )

"""Routes of replication: which sinks are due, what runs report, and the safepoint of a table."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query

from airflow_lake_provider.config.access import Right
from airflow_lake_provider.http import MAX_LIST_BYTES, json_body
from airflow_lake_provider.manager.api.models import (
    BeginAnswer,
    BeginBody,
    ClaimBody,
    DueAnswer,
    DueSink,
    PauseBody,
    ProgressBody,
    ReleaseBody,
    SafepointAnswer,
    SinkAnswer,
    SinkEntryAnswer,
    SinksAnswer,
    StandingClaim,
)
from airflow_lake_provider.manager.api.services import Operator, Reader, Services, check_operate_table, check_read_table
from airflow_lake_provider.manager.db.rows import policy_of
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks, is_as_configured
from airflow_lake_provider.manager.supervision.writers_and_sinks import hold_ends_ms, problem_of
from airflow_lake_provider.replication.job import as_source_options
from airflow_lake_provider.sink_options.run import heartbeat_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_lake_provider.config.access import Grant
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.typed_rows import Named, SinkRow, TableNames

router = APIRouter(tags=["replication"])

_CHECK_OPERATOR = [Depends(check_operate_table)]

Limit = Annotated[int, Query(ge=1, le=1000)]


@router.post("/sinks/claim")
def claim_due(
    services: Services, operator: Operator, body: Annotated[ClaimBody, json_body(ClaimBody)], limit: Limit = 100
) -> DueAnswer:
    """Give due sinks to a run, which must begin each within three minutes.

    Those that have lacked a change for the longest come first, so none waits for good behind busier tables. A run that
    repeats the request, because the answer was lost, gets the same sinks.
    """
    sinks = Sinks(services.registry)
    found = {(due.table_id, due.name): (due, row) for due, row in _find_due(services, operator, body.run_id)}
    if body.standing is not None or body.is_split:
        for_standing = body.standing is not None
        found = {named: each for named, each in found.items() if (not each[0].spark_conf) is for_standing}
    longest_first = sinks.note_due([row for _, row in found.values()])
    if body.standing is not None:
        places = choose_for_standing(longest_first, {named: row for named, (_, row) in found.items()}, body.standing)
        begun = (_begin_claimed(sinks, found[named][0], body.run_id) for named in places)
        return DueAnswer(sinks=list(islice((due for due in begun if due is not None), limit)))
    mine = (found[named][0] for named in longest_first if sinks.claim(*named, body.run_id))
    return DueAnswer(sinks=list(islice(mine, limit)))


def choose_for_standing(
    longest_first: Iterable[tuple[str, str]], rows: Mapping[tuple[str, str], SinkRow], claim: StandingClaim
) -> Iterator[tuple[str, str]]:
    """Return the due sinks that a driver of many streams may take, in their order; at most so many with a snapshot.

    A snapshot takes as long as its table is large: those must not have all of the driver's places.
    """
    running = set(claim.running)
    left = claim.snapshots
    for table_id, name in longest_first:
        row = rows[table_id, name]
        if f"{table_id}.{name}" in running:
            continue
        if begins_with_snapshot(row):
            if not left:
                continue
            left -= 1
        yield table_id, name


def begins_with_snapshot(row: SinkRow) -> bool:
    """Whether the next run of a sink takes a snapshot, as far as the manager knows."""
    return bool(row.needs_snapshot or not row.checkpoint or json.loads(row.checkpoint).get("snapshot") is not None)


def _begin_claimed(sinks: Sinks, due: DueSink, run_id: str) -> DueSink | None:
    """Claim a sink for a run that begins with it at once; None when another run has it by now."""
    if not sinks.claim(due.table_id, due.name, run_id):
        return None
    # Read after it was claimed: from then on nothing is released.
    row = sinks.get(due.table_id, due.name)
    return due.model_copy(update={"begun": _begun(row), "begins_with_snapshot": begins_with_snapshot(row)})


@router.get("/tables/{table_id}/safepoint", dependencies=_CHECK_OPERATOR)
def get_safepoint(services: Services, table_id: str) -> SafepointAnswer:
    """Return what cleaning and archiving must not pass, after releasing expired holds."""
    sinks = Sinks(services.registry)
    row = services.registry.find(table_id)
    if row is not None:
        _configure(services, table_id, _policy(services, row))
    found = sinks.safepoint(table_id)
    return SafepointAnswer(instant=found.instant, holder=found.holder, released=list(found.released))


@router.get("/tables/{table_id}/sinks", dependencies=[Depends(check_read_table)])
def list_sinks(services: Services, reader: Reader, table_id: str) -> SinksAnswer:
    """List a table's sinks with their holds and problems.

    For a token that may operate, sinks that were just added to the tables file are among them.
    """
    sinks = Sinks(services.registry)
    row = services.registry.find(table_id)
    now_ms = services.registry.now_ms()
    # Adding and retiring sinks is a change.
    if row is not None and Right.OPERATE in reader.rights:
        _configure(services, table_id, _policy(services, row))
    return SinksAnswer(sinks=[_to_answer(row, now_ms) for row in sinks.list_sinks(table_id)])


@router.get("/tables/{table_id}/sinks/{sink}/entry", dependencies=_CHECK_OPERATOR)
def get_entry(services: Services, table_id: str, sink: str) -> SinkEntryAnswer:
    """Return what the tables file sets of a sink, for a manual run."""
    policy = _policy(services, services.registry.get(table_id))
    entry = next((one for one in policy.replication if one.name == sink), None)
    of_table = SinkEntryAnswer(
        options=as_source_options(policy.hudi_options),
        spark_conf=dict(policy.spark_conf),
        names={one.name: one.sink for one in policy.replication},
    )
    if entry is None:
        return of_table
    own = {
        "options": {**of_table.options, **entry.options},
        "sink": entry.sink,
        "mode": str(entry.mode),
        "key": list(entry.key),
        "ttl_s": entry.ttl_s,
        "max_hold_s": entry.max_hold_s,
        "max_held_bytes": entry.max_held_bytes,
    }
    return of_table.model_copy(update=own)


@router.post("/tables/{table_id}/sinks/{sink}/begin", dependencies=_CHECK_OPERATOR)
def begin(
    services: Services, table_id: str, sink: str, body: Annotated[BeginBody, json_body(BeginBody)]
) -> BeginAnswer:
    """Record that a run begins, and return whether it must take a snapshot; 409 while another has the sink."""
    return _begun(Sinks(services.registry).begin_run(table_id, sink, body.ttl_s, body.run_id))


def _begun(row: SinkRow) -> BeginAnswer:
    request = f"released.{row.renewed_ms}" if row.needs_snapshot else ""
    checkpoint = json.loads(row.checkpoint) if row.checkpoint else {}
    return BeginAnswer(
        needs_snapshot=bool(row.needs_snapshot), request=request, generation=checkpoint.get("generation", 0)
    )


@router.post("/tables/{table_id}/sinks/{sink}/progress", status_code=204, dependencies=_CHECK_OPERATOR)
def record_progress(
    services: Services, table_id: str, sink: str, body: Annotated[ProgressBody, json_body(ProgressBody, MAX_LIST_BYTES)]
) -> None:
    """Record a run's progress, or its end."""
    progress = RunProgress(
        body.run_id, body.checkpoint, body.completed_time, body.problem, body.ended, body.snapshot_reason
    )
    Sinks(services.registry).record_progress(table_id, sink, progress)


@router.post("/tables/{table_id}/sinks/{sink}/pause", status_code=204, dependencies=_CHECK_OPERATOR)
def pause(services: Services, table_id: str, sink: str, body: Annotated[PauseBody, json_body(PauseBody)]) -> None:
    """Pause or resume a sink. A paused one holds until its time to live ends."""
    Sinks(services.registry).pause(table_id, sink, paused=body.paused)


@router.post("/tables/{table_id}/sinks/{sink}/release", status_code=204, dependencies=_CHECK_OPERATOR)
def release(services: Services, table_id: str, sink: str, body: Annotated[ReleaseBody, json_body(ReleaseBody)]) -> None:
    """End a hold that exceeds the entry's limit; the sink begins with a new snapshot."""
    Sinks(services.registry).release(table_id, sink, body.hold, body.reason)


@router.delete("/tables/{table_id}/sinks/{sink}", status_code=204, dependencies=_CHECK_OPERATOR)
def forget(services: Services, table_id: str, sink: str) -> None:
    """Forget a sink and its hold; a configured one is added again."""
    Sinks(services.registry).forget(table_id, sink)


def _find_due(services: ManagerServices, operator: Grant, run_id: str) -> Iterator[tuple[DueSink, SinkRow]]:
    """Return the due sinks with their rows, with a few queries for each thousand tables: it answers each minute."""
    sinks = Sinks(services.registry)
    after = ""
    while tables := services.registry.list_names(1000, after):
        before, after = after, tables[-1].table_id
        # A name from a notice must neither begin nor end a stream; the first evaluation is under way.
        wanted = [row for row in tables if row.is_identified and operator.covers(row.base_path)]
        policies = {row.table_id: _policy(services, row) for row in wanted}
        known = sinks.list_between(before, after)
        for table_id, policy in policies.items():
            if not is_as_configured(known.get(table_id, {}), _ttls_s(policy)):
                _configure(services, table_id, policy)
        # A sink that is up to date has no run that could renew its hold.
        sinks.renew(*(table_id for table_id, policy in policies.items() if policy.replication))
        known = sinks.list_between(before, after)
        for row in wanted:
            yield from _due_of(sinks, row, policies[row.table_id], known.get(row.table_id, {}), run_id)


def _due_of(
    sinks: Sinks, table: TableNames, policy: TablePolicy, rows: Mapping[str, SinkRow], run_id: str
) -> Iterator[tuple[DueSink, SinkRow]]:
    for sink in policy.replication:
        heartbeat_s = heartbeat_of(sink.options)
        if sink.name in rows and sinks.is_due(rows[sink.name], table.changed_time, run_id, heartbeat_s):
            due = DueSink(
                table_id=table.table_id,
                base_path=table.base_path,
                table_name=table.table_name,
                name=sink.name,
                sink=sink.sink,
                mode=sink.mode,
                key=list(sink.key),
                ttl_s=sink.ttl_s,
                max_hold_s=sink.max_hold_s,
                max_held_bytes=sink.max_held_bytes,
                options={**as_source_options(policy.hudi_options), **sink.options},
                spark_conf=dict(policy.spark_conf),
                database=table.database_name,
                changed_time=table.changed_time,
            )
            yield due, rows[sink.name]


def _configure(services: ManagerServices, table_id: str, policy: TablePolicy) -> None:
    Sinks(services.registry).configure(table_id, _ttls_s(policy), services.settings.sink_grace_s)


def _ttls_s(policy: TablePolicy) -> dict[str, float]:
    return {sink.name: sink.ttl_s for sink in policy.replication}


def _policy(services: ManagerServices, table: Named) -> TablePolicy:
    return policy_of(table, services.tables.load(), services.timeline_server.timelines.memory.open)


def _to_answer(row: SinkRow, now_ms: int) -> SinkAnswer:
    checkpoint: dict[str, Any] = json.loads(row.checkpoint) if row.checkpoint else {}
    checkpoint.pop("schema", None)
    return SinkAnswer(
        name=row.sink,
        hold=row.hold,
        hold_ends_ms=hold_ends_ms(row),
        needs_snapshot=row.needs_snapshot,
        paused=row.paused,
        checkpoint=checkpoint,
        checkpoint_text=row.checkpoint,
        completed_time=row.completed_time,
        running=row.running_until_ms > now_ms,
        failures=row.failures,
        problem=problem_of(row),
    )

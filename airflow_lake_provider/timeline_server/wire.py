"""The timeline server's wire types. Times named `_ms` are milliseconds since the epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hudi.instant import TimelineProblem, instant_from_dict
from airflow_lake_provider.hudi.pending import PendingPlan
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.timeline_server.snapshot import PlannedSnapshot, TimelineSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.shared.actions import Action

MAX_TABLES = 1000
MAX_WAIT_S = 60.0


class InstantAnswer(BaseModel):
    """One instant in its highest state."""

    requested_time: str = Field(description="yyyyMMddHHmmssSSS")
    action: str
    state: str = Field(description="REQUESTED, INFLIGHT or COMPLETED")
    completed_time: str | None
    file_name: str


class ProblemAnswer(BaseModel):
    """A file of the timeline that cannot be parsed."""

    file_name: str
    reason: str


class PlanAnswer(InstantAnswer):
    """A pending plan: what it will rewrite or build."""

    file_groups: list[tuple[str, str]] = Field(description="Partition and file id of each that it rewrites")
    indexes: list[str] = Field(description="Folders of the metadata table that it builds")
    up_to: str = Field(description="The last write that a plan of indexes takes up")


class TimelineAnswer(BaseModel):
    """A table's complete active timeline, by requested time."""

    base_path: str
    version: str = Field(description="Changes when, and only when, the timeline or the table's properties do")
    as_of_ms: int = Field(description="When the storage was read")
    stale_ms: int = Field(description="How long ago that was")
    next_evaluation_ms: int | None = Field(description="Latest time of the next refresh; null: on request only")
    is_announced: bool = Field(description="The table's writers announce their commits to this server")
    properties: dict[str, str]
    instants: list[InstantAnswer]
    problems: list[ProblemAnswer]
    plans: list[PlanAnswer] | None = Field(default=None, description="The pending plans; only with `plans=true`")
    plan_problems: list[ProblemAnswer] | None = Field(
        default=None, description="Pending plans that cannot be read; only with `plans=true`"
    )


class LatestAnswer(BaseModel):
    """The newest instants of a table's active timeline; null where it has none of the kind."""

    base_path: str
    version: str = Field(description="That of the whole timeline, as `GET /timeline/view` returns it")
    as_of_ms: int = Field(description="When the storage was read")
    stale_ms: int = Field(description="How long ago that was")
    completed: InstantAnswer | None = Field(description="The one of the requested actions that completed last")
    pending: InstantAnswer | None = Field(description="The one of them that was requested last and is not completed")
    write_without_holes: InstantAnswer | None = Field(
        description="The last completed write before the first pending one, whatever actions were requested"
    )


class WatchedTable(BaseModel):
    """A table that the caller waits for."""

    base_path: str = Field(min_length=1, max_length=2000)
    version: str = Field(default="", max_length=64, description="The version that the caller has; empty: none")
    poll_interval_s: float | None = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="How often to refresh while the writers announce nothing; null: the caller asks once and waits for "
        "nothing, so the table keeps its own heartbeat",
    )
    unannounced_interval_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="How often to refresh in any case, for what no writer announces; null: never",
    )


class PollBody(BaseModel):
    """A long poll. Without a cursor, or with tables, the named tables are compared with the versions given."""

    cursor: str = Field(default="", max_length=64)
    tables: list[WatchedTable] = Field(default_factory=list, max_length=MAX_TABLES)
    wait_s: float = Field(default=0.0, ge=0, le=MAX_WAIT_S)


class ChangedTable(BaseModel):
    """A table that changed. `timeline` is set for named tables; `error` when it cannot be read."""

    base_path: str
    version: str = ""
    timeline: TimelineAnswer | None = None
    error: str = Field(default="", description="Class of the error")
    detail: str = ""


class PollAnswer(BaseModel):
    """What changed after the cursor; continue with the new one. `resync`: compare versions, the cursor is unknown."""

    cursor: str
    resync: bool
    changed: list[ChangedTable]


class ArchivedInstantAnswer(BaseModel):
    """An archived instant."""

    requested_time: str
    action: str
    completed_time: str | None
    file_name: str


class ArchiveAnswer(BaseModel):
    """The archived part of a timeline; instants may be missing while there are problems."""

    base_path: str
    instants: list[ArchivedInstantAnswer]
    problems: list[ProblemAnswer]


class TimelineHealthAnswer(BaseModel):
    """The state of the server."""

    status: str
    version: str
    tables: int
    kept: int = Field(description="Tables whose timeline is in memory")
    unreadable: int = Field(description="Tables whose last refresh failed")
    hints_waiting: int


def snapshot_to_dict(snapshot: TimelineSnapshot) -> dict[str, Any]:
    """Return the part of a TimelineAnswer that a snapshot has."""
    return {
        "base_path": snapshot.base_path,
        "version": snapshot.version,
        "as_of_ms": snapshot.as_of_ms,
        "properties": dict(snapshot.properties.raw),
        "instants": [instant_to_dict(instant) for instant in snapshot.timeline.instants],
        "problems": [{"file_name": p.file_name, "reason": p.reason} for p in snapshot.timeline.problems],
    }


def plans_to_dict(found: PlannedSnapshot) -> dict[str, Any]:
    """Return the part of a TimelineAnswer that pending plans are."""
    return {
        "plans": [
            {
                **instant_to_dict(plan.instant),
                "file_groups": plan.file_groups,
                "indexes": plan.indexes,
                "up_to": plan.up_to,
            }
            for plan in found.plans
        ],
        "plan_problems": [{"file_name": p.file_name, "reason": p.reason} for p in found.problems],
    }


def planned_from_dict(body: Mapping[str, Any]) -> PlannedSnapshot:
    """Return what a TimelineAnswer with plans has. Raises TimelineServerUnavailableError for anything else."""
    snapshot = snapshot_from_dict(body)
    try:
        plans = tuple(
            PendingPlan(
                instant_from_dict(plan),
                tuple((str(partition), str(file_id)) for partition, file_id in plan["file_groups"]),
                tuple(str(name) for name in plan["indexes"]),
                str(plan["up_to"]),
            )
            for plan in body["plans"]
        )
        problems = tuple(TimelineProblem(str(p["file_name"]), str(p["reason"])) for p in body["plan_problems"])
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineServerUnavailableError(f"the timeline server's answer has no plans: {error!r}") from error
    return PlannedSnapshot(snapshot, plans, problems)


def instant_to_dict(instant: Instant) -> dict[str, Any]:
    """Return the shape of an InstantAnswer."""
    return {**instant.to_dict(), "file_name": instant.file_name}


def latest_to_dict(snapshot: TimelineSnapshot, actions: Sequence[Action]) -> dict[str, Any]:
    """Return the part of a LatestAnswer that a snapshot has; without actions, of all."""
    timeline = snapshot.timeline
    pending = timeline.pending(*actions)
    found = {
        "completed": timeline.latest_completed(*actions),
        "pending": pending[-1] if pending else None,
        "write_without_holes": timeline.latest_write_without_holes(),
    }
    head = {"base_path": snapshot.base_path, "version": snapshot.version, "as_of_ms": snapshot.as_of_ms}
    return head | {name: None if one is None else instant_to_dict(one) for name, one in found.items()}


@dataclass(frozen=True, slots=True)
class LatestInstants:
    """A LatestAnswer as the client returns it."""

    version: str
    as_of_ms: int
    completed: Instant | None
    pending: Instant | None
    write_without_holes: Instant | None


def latest_from_dict(body: Mapping[str, Any]) -> LatestInstants:
    """Return what a LatestAnswer has. Raises TimelineServerUnavailableError for anything else."""
    try:
        names = ("completed", "pending", "write_without_holes")
        found = {name: None if body[name] is None else instant_from_dict(body[name]) for name in names}
        return LatestInstants(str(body["version"]), int(body["as_of_ms"]), **found)
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineServerUnavailableError(f"the timeline server's answer has no instants: {error!r}") from error


def snapshot_from_dict(body: Mapping[str, Any]) -> TimelineSnapshot:
    """Return the snapshot of a TimelineAnswer. Raises TimelineServerUnavailableError for anything else."""
    try:
        base_path = str(body["base_path"])
        return TimelineSnapshot(
            base_path=base_path,
            version=str(body["version"]),
            properties=build_table_properties(body["properties"], base_path),
            timeline=Timeline(
                tuple(instant_from_dict(instant) for instant in body["instants"]),
                tuple(TimelineProblem(str(p["file_name"]), str(p["reason"])) for p in body["problems"]),
            ),
            as_of_ms=int(body["as_of_ms"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TimelineServerUnavailableError(f"the timeline server's answer is not a timeline: {error!r}") from error


# --- Answers as JSON. One call of the encoder keeps all other threads from running, so a long list takes many calls

_MAX_ITEMS = 500


def encode_answer(answer: Mapping[str, Any]) -> bytes:
    """Return an answer as JSON, its list of instants in parts."""
    head = _dumps({name: value for name, value in answer.items() if name != "instants"})
    if "instants" not in answer:
        return head
    return with_field(head, "instants", _encode_list(answer["instants"]))


def with_field(encoded: bytes, name: str, value: bytes) -> bytes:
    """Return an object in JSON, which has fields, with one more; `value` is JSON as well."""
    return b"%s,%s:%s}" % (encoded[:-1], _dumps(name), value)


def encode_list(items: Iterable[bytes]) -> bytes:
    """Return a list in JSON of what is JSON already."""
    return b"[" + b",".join(items) + b"]"


def _encode_list(items: Sequence[Any]) -> bytes:
    parts = (_dumps(items[begin : begin + _MAX_ITEMS])[1:-1] for begin in range(0, len(items), _MAX_ITEMS))
    return encode_list(parts)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

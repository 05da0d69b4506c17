"""The timeline server's wire types. Times named `_ms` are milliseconds since the epoch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hudi.instant import instant_from_dict
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, TimelineProblem
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_TABLES = 1000
MOST_WAIT_S = 60.0


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


class WatchedTable(BaseModel):
    """A table that the caller waits for."""

    base_path: str = Field(min_length=1, max_length=2000)
    version: str = Field(default="", max_length=64, description="The version that the caller has; empty: none")
    poll_interval_s: float = Field(
        default=60.0, gt=0, le=86_400, description="How often to refresh while the writers announce nothing"
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
    tables: list[WatchedTable] = Field(default_factory=list, max_length=MOST_TABLES)
    wait_s: float = Field(default=0.0, ge=0, le=MOST_WAIT_S)


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
        "instants": [{**i.to_dict(), "file_name": i.file_name} for i in snapshot.timeline.instants],
        "problems": [{"file_name": p.file_name, "reason": p.reason} for p in snapshot.timeline.problems],
    }


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

_MOST_ITEMS = 500


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
    parts = (_dumps(items[begin : begin + _MOST_ITEMS])[1:-1] for begin in range(0, len(items), _MOST_ITEMS))
    return encode_list(parts)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

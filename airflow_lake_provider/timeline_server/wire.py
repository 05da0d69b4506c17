"""The timeline server's wire types. Times named `_ms` are milliseconds since the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hudi.instant import Action, Instant, State
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, TimelineProblem
from airflow_lake_provider.timeline_server.snapshot import TimelineChanges, TimelineSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """A file of the timeline that is not understood."""

    file_name: str
    reason: str


class TimelineAnswer(BaseModel):
    """A table's complete active timeline, by requested time."""

    base_path: str
    version: str = Field(description="Changes when, and only when, the timeline or the table's properties do")
    as_of_ms: int = Field(description="Storage was asked then")
    stale_ms: int = Field(description="How long ago that was")
    next_look_ms: int | None = Field(description="When the server looks again at the latest; null: when asked")
    is_announced: bool = Field(description="The table's writers announce their commits to this server")
    properties: dict[str, str]
    instants: list[InstantAnswer]
    problems: list[ProblemAnswer]


class ChangesAnswer(BaseModel):
    """What changed since a version."""

    base_path: str
    version: str
    is_complete: bool = Field(description="The version is not remembered: `put` is the whole timeline")
    put: list[InstantAnswer]
    gone: list[str] = Field(description="File names of instants that are no longer on the active timeline")
    as_of_ms: int


class WatchedTable(BaseModel):
    """A table that the caller waits for."""

    base_path: str = Field(min_length=1, max_length=2000)
    version: str = Field(default="", max_length=64, description="The version that the caller has; empty: none")
    poll_interval_s: float = Field(
        default=60.0, gt=0, le=86_400, description="How often to look while the writers announce nothing"
    )


class PollBody(BaseModel):
    """A long poll. Without a cursor, or with tables, the named tables are compared with the versions given."""

    cursor: str = Field(default="", max_length=64)
    tables: list[WatchedTable] = Field(default_factory=list, max_length=MOST_TABLES)
    wait_s: float = Field(default=0.0, ge=0, le=MOST_WAIT_S)


class ChangedTable(BaseModel):
    """A table that changed. `timeline` is there for named tables; `error` when it cannot be read."""

    base_path: str
    version: str = ""
    timeline: TimelineAnswer | None = None
    error: str = Field(default="", description="Class of the error")
    detail: str = ""


class PollAnswer(BaseModel):
    """What changed after the cursor; ask again with the new one. `resync`: compare versions, the cursor is unknown."""

    cursor: str
    resync: bool
    changed: list[ChangedTable]


class HintedTable(BaseModel):
    """A table that somebody knows to have changed."""

    base_path: str = Field(min_length=1, max_length=2000)
    instants: list[str] = Field(default_factory=list, max_length=1000, description="Requested times, completed now")


class TimelineHintsBody(BaseModel):
    """Tables to look at now."""

    hints: list[HintedTable] = Field(max_length=10_000)


class TimelineHintsAnswer(BaseModel):
    """How many tables will be looked at."""

    hinted: int


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
    """How the server is."""

    status: str
    version: str
    tables: int
    kept: int = Field(description="Tables whose timeline is in memory")
    unreadable: int = Field(description="Tables whose last look failed")
    hints_waiting: int


def instant_to_dict(instant: Instant) -> dict[str, Any]:
    """Return the shape of an InstantAnswer."""
    return {
        "requested_time": instant.requested_time,
        "action": instant.action.value,
        "state": instant.state.value,
        "completed_time": instant.completed_time,
        "file_name": instant.file_name,
    }


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
        raise TimelineServerUnavailableError(f"the timeline server's answer is no timeline: {error!r}") from error


def instant_from_dict(body: Mapping[str, Any]) -> Instant:
    """Return the instant of an InstantAnswer. Raises KeyError, TypeError, ValueError."""
    completed_time = body["completed_time"]
    return Instant(
        str(body["requested_time"]),
        Action(body["action"]),
        State(body["state"]),
        None if completed_time is None else str(completed_time),
        str(body["file_name"]),
    )


def changes_to_dict(changes: TimelineChanges) -> dict[str, Any]:
    """Return the shape of a ChangesAnswer."""
    return {
        "base_path": changes.base_path,
        "version": changes.version,
        "is_complete": changes.is_complete,
        "put": [instant_to_dict(instant) for instant in changes.put],
        "gone": list(changes.gone),
        "as_of_ms": changes.as_of_ms,
    }


def changes_from_dict(body: Mapping[str, Any]) -> TimelineChanges:
    """Return the changes of a ChangesAnswer. Raises TimelineServerUnavailableError for anything else."""
    try:
        return TimelineChanges(
            base_path=str(body["base_path"]),
            version=str(body["version"]),
            is_complete=bool(body["is_complete"]),
            put=tuple(instant_from_dict(instant) for instant in body["put"]),
            gone=tuple(str(name) for name in body["gone"]),
            as_of_ms=int(body["as_of_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineServerUnavailableError(f"the timeline server's answer holds no changes: {error!r}") from error

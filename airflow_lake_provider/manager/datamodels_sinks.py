"""Wire types of replication's routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

LONGEST_TTL_S = 10 * 365 * 86_400


RunId = Annotated[str, Field(min_length=1, max_length=250, description="The DAG run's id; its tries share it")]


class ClaimBody(BaseModel):
    """A run asks for what is due."""

    run_id: RunId


class BeginBody(BaseModel):
    """A run begins."""

    run_id: RunId
    ttl_s: Annotated[
        float, Field(gt=0, le=LONGEST_TTL_S, description="Time to live of the hold, for a sink that is not configured")
    ]


class BeginAnswer(BaseModel):
    """Whether the run must begin with a snapshot, and the request that it obeys with it."""

    needs_snapshot: bool
    request: str


class NewsBody(BaseModel):
    """What a run tells of itself."""

    run_id: RunId
    checkpoint: Annotated[str, Field(max_length=1_000_000, description="Durable in the sink; empty: none new")] = ""
    completed_time: Annotated[str, Field(max_length=40, description="How far the table was, nothing left")] = ""
    problem: Annotated[str, Field(max_length=10_000)] = ""
    ended: bool = False


class PauseBody(BaseModel):
    """Start no more runs, or start them again."""

    paused: bool


class SafepointAnswer(BaseModel):
    """What cleaning and archiving must not pass."""

    instant: Annotated[str | None, Field(description="Requested time; 0 is everything, null is nothing")]
    holder: str
    released: Annotated[list[str], Field(description="Sinks that were released by this very question")]


class DueSink(BaseModel):
    """One sink that should run now."""

    table_id: str
    base_path: str
    table_name: str
    name: str
    sink: str
    mode: str
    key: list[str]
    ttl_s: float
    options: dict[str, str]
    spark_conf: dict[str, str]


class DueAnswer(BaseModel):
    """The sinks that should run now."""

    sinks: list[DueSink]


class SinkAnswer(BaseModel):
    """One sink of a table."""

    name: str
    hold: Annotated[str, Field(description="Requested time from which on files and instants are held; 0: all")]
    hold_ends_ms: Annotated[int, Field(description="When the hold is released unless renewed, ms since the epoch")]
    needs_snapshot: bool
    paused: bool
    checkpoint: dict[str, Any]
    checkpoint_text: str
    completed_time: str
    running: bool
    failures: int
    problem: str


class SinksAnswer(BaseModel):
    """A table's sinks."""

    sinks: list[SinkAnswer]

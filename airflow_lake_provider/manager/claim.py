"""Marks, claims and looks: how a table gets from a notice to a look, as values of the registry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A durable dirty mark: whoever looks at the table after it was made has seen what it stands for."""

    table_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to look at one dirty table until the lease ends."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    token: str
    dirty_seq: int
    dirty_since_ms: int
    look_failures: int
    looked_ms: int | None = None
    """When the table was looked at before; None when it never was."""
    is_retry: bool = False
    """The loop's own time to look again has come; otherwise only the marks up to `dirty_seq` made the table due."""
    turns: str | None = None
    """The services' last runs, as text (`planner.turns`)."""
    is_identified: bool = False
    """Name and database come from hoodie.properties; otherwise they are what a notice announced."""
    has_database: bool = False
    """hoodie.properties name a database; otherwise `database` is what a commit callback announced."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """What a look at a table said.

    `next_look_ms` is when the table counts as silent. `retry_ms` is when the loop itself shall look again although
    nothing was announced: a back-off ends, a run should have ended, a failed look is due again.
    """

    next_look_ms: int
    retry_ms: int | None = None
    completed_time: str = ""
    view_version: str = ""
    decisions_json: str = "[]"
    holes: int = 0
    problem: str = ""
    failed: bool = False
    turns_json: str = ""
    """Of a look that did not fail."""

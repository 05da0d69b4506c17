"""How a table gets from a notice to an evaluation, as values: the notice, its mark, the lease and the result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# --- A notice: a caller claims that a table changed. It causes an evaluation and is never trusted


class Source(StrEnum):
    """The sender of the notice."""

    COMMIT_CALLBACK = "commit_callback"
    SERVICE_MANAGER_CLIENT = "service_manager_client"
    HINT = "hint"
    """A task of the provider: a service ended, or a sensor saw a commit without a notice."""
    CONFIG = "config"
    DISCOVERY = "discovery"
    """The search of a root found the table."""
    HEARTBEAT = "heartbeat"
    """The timeline server refreshed a silent table and found a commit without a notice."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One table changed, as the sender claims.

    `base_path` is normalised. `instants` are requested times, oldest first, and may be empty.
    """

    base_path: str
    table_name: str
    source: Source
    instants: tuple[str, ...] = ()
    database: str = ""
    owner: str = ""
    is_own: bool = False
    """A task of the provider reports the end of a service; `instants` are those that it completed."""


# --- What the registry makes of it: a mark, then a lease, then the result of an evaluation


@dataclass(frozen=True, slots=True)
class Mark:
    """A durable dirty mark: an evaluation that begins after it sees the change that caused it."""

    table_id: str
    seq: int
    base_path: str
    """As the registry spells it: the first notice's spelling is kept, since jobs and readers use the path."""


@dataclass(frozen=True, slots=True)
class TableLease:
    """The right to evaluate one dirty table until the lease ends."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    token: str
    dirty_seq: int
    dirty_since_ms: int
    evaluation_failures: int
    evaluated_ms: int | None = None
    """When the table was evaluated before; None when it never was."""
    is_retry: bool = False
    """The loop's own time to retry has come; otherwise only the marks up to `dirty_seq` made the table due."""
    last_runs: str | None = None
    """The services' last runs, as text (`planner.last_runs`)."""
    decisions: str = "[]"
    """The decisions of the last evaluation that did not fail, as the registry stores them."""
    is_identified: bool = False
    """Name and database come from hoodie.properties; otherwise they are what a notice announced."""
    has_database: bool = False
    """hoodie.properties name a database; otherwise `database` is what a commit callback announced."""
    is_only_discovered: bool = False
    """Discovery registered it, and no writer has announced a commit since."""
    real_id: str | None = None
    """`table_id_of` where a local path leads, as the last evaluation found it."""
    registered_ms: int = 0
    announced: str = ""
    """The newest commits that a commit callback announced (`parse_instants`)."""
    served: str = ""
    """The newest instants that tasks reported as their own, with the moments of the reports (`parse_instants`)."""
    conformance: str | None = None
    """What the checks of the table's writers proved, as text (`planner.conformance`)."""
    owner: str = ""
    """The table's owner, as a commit callback named it."""
    source: str = ""
    """What sent the last notice (`Source`)."""
    last_notice_ms: int = 0
    """When it came; 0 before the first one."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What an evaluation of a table found.

    `next_evaluation_ms` is when the table counts as silent. `retry_ms` is when the loop evaluates the table again
    without a notice: a back-off ends, a run should have ended, a failed evaluation is due again.
    """

    next_evaluation_ms: int
    retry_ms: int | None = None
    completed_time: str = ""
    changed_time: str = ""
    view_version: str = ""
    decisions_json: str = "[]"
    holes: int = 0
    problem: str = ""
    failed: bool = False
    is_missing: bool = False
    """No table is at the base path; only with `failed`."""
    last_runs_json: str = ""
    """Set by an evaluation that did not fail."""
    conformance: str | None = None
    """Set by an evaluation that checked the table's writers; None leaves what is stored."""

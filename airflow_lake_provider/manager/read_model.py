"""What the manager answers about the lake and its tables: one read model for the commands, the routes and the pages.

The reports build it, the routes answer it as JSON, and the commands read it from there (`shared.typed_json`). Times are
ms since the epoch. A state is a text, so that an older command prints one that a newer manager has. A field that is
added later gets a default, so that a newer command reads an older manager.

Standard library only: the command `lake` starts with it.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - what reads and prints the dataclasses needs the annotations
from dataclasses import dataclass

# --- Prices: what a run is expected to cost and bring


@dataclass(frozen=True, slots=True)
class ExpectedBenefit:
    """What a run is expected to bring; 0 where nothing of the kind is."""

    log_bytes: float = 0.0
    files: float = 0.0
    instants: float = 0.0
    freed_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class QuotedPrice:
    """What a run was expected to cost and bring, as it is stored with the run (`planner.price.Price.to_dict`)."""

    seconds: tuple[float, ...] = ()
    """Of its jobs: the figure, and both ends of an interval that holds about four of five outcomes; empty: unknown."""
    bytes: tuple[float, ...] = ()
    """That it writes, likewise."""
    benefit: ExpectedBenefit = ExpectedBenefit()
    points: float = 0.0
    """The benefit as one figure."""
    cores: int = 1
    basis: str = ""
    """What the figures rest on, in words."""
    weight: float | None = None
    """How many times the benefit counts in the ranking; None: once."""


# --- The whole lake


@dataclass(frozen=True, slots=True)
class ProblemsReport:
    """What stops or delays all tables, one sentence each, the most severe first."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """The runs of one service in the last 24 hours that have one state."""

    service: str
    state: str
    runs: int
    run_s: float


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """24 hours, or seven days, of all tables, and the backlog at their end."""

    until_ms: int
    runs: int
    failed_tries: int
    core_s: float
    rewritten_bytes: int
    waiting: int
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewReport:
    """The whole lake in numbers."""

    problems: tuple[str, ...]
    now_ms: int
    tables: int
    need_attention: int
    marked: Mapping[str, int]
    """Tables by mark."""
    states: Mapping[str, int]
    """Tables by state."""
    databases: Mapping[str, int]
    backlog_bytes: int
    oldest_dirty_ms: int | None
    oldest_due_ms: int | None = None
    holes: int
    days: tuple[SpanFigures, ...] = ()
    """The last 24 hours and the 24 before, as far as they were recorded."""
    weeks: tuple[SpanFigures, ...] = ()
    """The same of seven days."""
    last_day: tuple[EndedRuns, ...]


# --- A list of tables


@dataclass(frozen=True, slots=True)
class ReportedProblem:
    """Something that a person has to act on, or may (`health.Problem`)."""

    state: str
    source: str
    subject: str
    cause: str
    remedy: str
    since_ms: int
    notify_after_ms: int | None
    snoozed_until_ms: int | None


@dataclass(frozen=True, slots=True)
class ReportedMark:
    """A wish that holds something back (`health.TableMark`)."""

    kind: str
    service: str
    why: str
    since_ms: int
    ends_ms: int | None


@dataclass(frozen=True, slots=True)
class ReportedTable:
    """A table in a list."""

    table_id: str
    table: str
    database: str
    state: str
    since_ms: int | None
    problem: str
    """The cause of the worst problem that is not silenced; empty: none."""
    remedy: str
    help: str
    problems: tuple[ReportedProblem, ...]
    marks: tuple[ReportedMark, ...]
    log_bytes: int
    base_bytes: int
    files: int
    file_bytes: int
    due: tuple[str, ...]
    blocked: tuple[str, ...]
    last_commit_ms: int | None
    last_notice_ms: int | None
    evaluated_ms: int | None
    next_evaluation_ms: int | None
    owner: str
    base_path: str


@dataclass(frozen=True, slots=True)
class TablesReport:
    """A page of tables."""

    tables: tuple[ReportedTable, ...]
    total: int
    """On all pages."""
    next: tuple[object, ...]
    """The key of the next page; empty on the last one."""
    problems: tuple[str, ...] = ()
    """What stops all tables; on the first page only."""


# --- The backlog, and the bill


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingService:
    """A service of a table that is due and waits, or that would run on an observed table."""

    rank: int
    table_id: str
    table: str
    database: str
    base_path: str
    service: str
    urgency: str
    """How urgent it is; empty: not known."""
    points_per_core_s: float | None
    price: QuotedPrice | None = None
    since_ms: int
    expected_ms: int | None
    """About when it starts; None: not known, or never by this budget."""
    short_of: str
    """The budget that had no room for it."""
    ahead: int
    """How many that rank before it wait for the same budget."""
    why: str
    due_because: str


@dataclass(frozen=True, slots=True)
class ReportedBudget:
    """A budget of 24 hours: what it has, what is used, waits and arrived, and what would hold the backlog."""

    scope: str
    shown: str
    slots: int | None
    core_hours_per_day: float | None
    bytes_per_day: int | None
    spent_core_hours: float
    spent_bytes: int
    waiting: int
    waiting_core_hours: float
    waiting_bytes: int
    arrived_core_hours: float
    arrived_bytes: int
    pressure: str
    needed_slots: int | None
    needed_core_hours_per_day: float | None
    needed_bytes_per_day: int | None
    text: str


@dataclass(frozen=True, slots=True)
class BacklogReport:
    """What waits in its ranked order, what would run on observed tables, and how the budgets bear it."""

    now_ms: int
    waiting: tuple[WaitingService, ...]
    observed: tuple[WaitingService, ...]
    budgets: tuple[ReportedBudget, ...]
    pressure: str


@dataclass(frozen=True, slots=True)
class BackpressureReport:
    """Whether writers should slow down, and why."""

    pressure: str
    budgets: tuple[ReportedBudget, ...]
    text: str


@dataclass(frozen=True, slots=True)
class BillLine:
    """What services of one table, owner, label or kind cost and brought, next to what was predicted."""

    name: str
    base_path: str
    """Of a table; empty otherwise."""
    runs: int
    failed_tries: int
    core_s: float
    expected_core_s: float
    rewritten_bytes: int
    expected_bytes: int
    files_before: int
    files_after: int
    files_saved: int


@dataclass(frozen=True, slots=True)
class BillReport:
    """The most expensive lines of a bill."""

    by: str
    since_ms: int
    is_cut: bool
    lines: tuple[BillLine, ...]


# --- One table: its runs, its history


@dataclass(frozen=True, slots=True)
class ReportedInstance:
    """One service of a table for one state of it (`instances.Instance`)."""

    service: str
    state: str
    owner: str
    """What has to act by `until_ms`."""
    run_id: str
    until_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ActiveInstance(ReportedInstance):
    """One that has not ended."""

    overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedOperation:
    """What was expected of a run, and what it cost and brought."""

    caused_by: str | None
    due_ms: int | None
    started_ms: int | None
    outcome: str | None
    files_in: int | None
    bytes_in: int | None
    files_out: int | None
    bytes_out: int | None
    error: str
    job_s: float
    price: QuotedPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun(ReportedInstance):
    """An instance with its record."""

    operation: ReportedOperation | None = None
    plans: tuple[str, ...]
    since_ms: int | None
    tries: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class RunsReport:
    """A table's instances: requested, active, then the newest ended ones."""

    base_path: str
    instances: tuple[ReportedRun, ...]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """What was so with a service of a table, from when until when."""

    service: str
    """Empty: the table."""
    situation: str
    from_ms: int
    until_ms: int | None
    """None: it goes on."""
    due_ms: int | None
    reason: str
    what: str
    """The situation in words."""


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """What kept a table's services from running, and when they ran, the newest first."""

    base_path: str
    now_ms: int
    days: int
    """What ended before is forgotten."""
    lines: tuple[HistoryLine, ...]


# --- One table: its explanation


@dataclass(frozen=True, slots=True)
class ExplainedService:
    """A service of a table: its rules, what was found, what blocks it, what would start now."""

    service: str
    verdict: str
    reason: str
    rules: Mapping[str, object]
    found: Mapping[str, object]
    now: str = ""
    """What would be done with it now; empty: it is not due."""
    run_id: str = ""
    run_reason: str = ""
    mode: str = ""
    plans: tuple[str, ...] = ()
    price: QuotedPrice | None = None
    """None where nothing would start."""


@dataclass(frozen=True, slots=True)
class ReportedHold:
    """A reader that keeps files of a table."""

    hold_id: str
    reader: str
    reason: str
    hold: str
    """Requested time from which on cleaning leaves files."""
    held_s: int
    ends_ms: int
    """When it ends unless it is renewed; `until_ms`: in any case."""
    ends_in_s: float
    until_ms: int
    is_firm: bool
    """False: the reader waits for services that began before its hold."""


@dataclass(frozen=True, slots=True)
class ReportedRequirement:
    """One thing that a table requires of its writers, and whether they meet it."""

    requirement: str
    state: str
    evidence: str
    endangers: str
    settings: tuple[str, ...]
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportedSetting:
    """One setting that is not built in, and what sets it (`config.tables_source.SettingInForce`)."""

    name: str
    value: str
    """As JSON."""
    source: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationReport:
    """Every service of a table, and all that is in the way of some."""

    table: str
    base_path: str
    type: str
    version: int
    timeline: str
    damaged: str
    registered: bool
    evaluation_problem: str
    next_evaluation_ms: int | None
    settings_problem: str
    dag_problems: tuple[str, ...]
    own_problems: tuple[str, ...] = ()
    """What the table sets in its hoodie.properties, and may not."""
    lock_problem: str
    holes: tuple[str, ...]
    """The last completed write without holes, what is in the way, and what happens to the later commits."""
    services: tuple[ExplainedService, ...]
    holds: tuple[ReportedHold, ...] = ()
    writers: tuple[ReportedRequirement, ...]
    """What the table requires of its writers, as `airflow lake check-writer` prints it."""
    instances: tuple[ActiveInstance, ...]
    settings: tuple[ReportedSetting, ...]
    """What the tables file and the Variable over it set, with file and line."""

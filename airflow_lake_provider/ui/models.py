"""The answers of `/lake/api` that are no facts of one table alone: wire types with the text of the HTTP reference."""

from __future__ import annotations

from airflow_lake_provider.manager.db.run_phases import PhaseKind
from airflow_lake_provider.manager.health.health import MarkKind, TableState
from airflow_lake_provider.manager.supervision.instances import InstanceState
from airflow_lake_provider.ui.table_facts import (
    LakeInstant,
    LakeMark,
    LakeProblem,
    LakeService,
    LakeSetting,
    LakeSize,
    Wire,
)

# --- The whole lake


class LakeState(Wire):
    """How many tables have a state."""

    state: TableState
    tables: int
    needs_attention: bool
    """Whether a person has to act on it."""


class LakeMarked(Wire):
    """How many tables have a mark."""

    mark: MarkKind
    tables: int


class LakeDatabase(Wire):
    """How many tables a database has."""

    database: str
    tables: int


class LakeOwner(Wire):
    """How many tables an owner has."""

    owner: str
    tables: int


class LakeHour(Wire):
    """The runs of one service that were created within an hour and have one state now."""

    hour_ms: int
    service: str
    state: str
    """Airflow's: `queued`, `running`, `success` or `failed`."""
    runs: int
    run_s: float
    """How long their tasks ran, in seconds."""
    job_s: float
    """How long their Spark jobs ran, in seconds."""
    files_in: int
    """Files that they replaced or deleted, as far as reported."""
    bytes_out: int
    """Bytes that they wrote, as far as reported."""


class LakeSpan(Wire):
    """24 hours, or seven days, of all tables, by what executors reported, and the backlog at their end."""

    until_ms: int
    runs: int
    """That ended."""
    failed_tries: int
    core_s: float
    rewritten_bytes: int
    waiting: int
    """Services that were due and waited for a budget."""
    log_bytes: int
    """In log files that no compaction had merged."""


class LakeOverview(Wire):
    """The whole lake in numbers."""

    tables: int
    states: list[LakeState]
    """The worst first."""
    marked: list[LakeMarked]
    databases: list[LakeDatabase]
    """The 50 with the most tables."""
    owners: list[LakeOwner]
    """The 50 with the most tables."""
    backlog_bytes: int
    """Bytes in log files that no compaction has merged."""
    oldest_dirty_ms: int | None
    """Since when the table waits that has waited longest for an evaluation."""
    oldest_due_ms: int | None
    """Since when the service has been due that has waited longest and does not run."""
    holes: int
    """Pending writes and plans with completed writes after them."""
    hours: list[LakeHour]
    """The last 24 hours."""
    days: list[LakeSpan]
    """The last 24 hours and the 24 before, as far as they were recorded; nothing where some tables are hidden."""
    weeks: list[LakeSpan]
    """The same of seven days."""
    problems: list[str]
    """What stops or delays all tables: a paused DAG, a loop that makes no pass, refused notices with their senders
    (not for a user from whom tables are hidden), a budget that the backlog outgrows."""


class LakeLastRun(Wire):
    """The last run of any service of a table whose end was reported, by the manager or by hand."""

    service: str
    outcome: str
    """`completed`, `nothing_to_do` or `failed`."""
    ended_ms: int
    run_id: str


class LakeRow(Wire):
    """One table in a list."""

    table_id: str
    name: str
    database: str
    owner: str
    base_path: str
    state: TableState
    since_ms: int | None
    """Since when it has the state; null of a table that was not evaluated yet."""
    headline: str
    problems: list[LakeProblem]
    """What a person has to act on, the worst first."""
    marks: list[LakeMark]
    log_bytes: int
    base_bytes: int
    """Of the file groups that have log files; 0 when unknown."""
    files: int
    """Base files of the file groups that the active timeline shows."""
    file_bytes: int
    last_commit_ms: int | None
    """When the newest write that changed rows completed, by the timeline at the last evaluation."""
    last_notice_ms: int | None
    evaluated_ms: int | None
    next_evaluation_ms: int | None
    services: list[LakeService]
    """Those whose policy is on, or that are in a state other than healthy."""
    last_run: LakeLastRun | None
    rewritten: list[int]
    """What its newest runs that rewrote files wrote, in bytes, the oldest first; at most 12."""


class LakeTables(Wire):
    """One page of tables."""

    rows: list[LakeRow]
    total: int
    """On all pages."""
    next: str
    """`after` of the next page; empty on the last one."""


class LakeUser(Wire):
    """The user that asks, with what Airflow allows; the pages offer nothing else, and Airflow checks it again."""

    name: str
    may_run: bool
    """Start a run of `lake_table_service`."""
    may_clear: bool
    """Clear a run of it, so that it is tried again."""
    may_index: bool
    """Start a run of `lake_reindex`."""
    may_pause: bool
    """Write the Variable over the tables file."""
    may_forget: bool
    """Delete the DAG of table services, which forgetting a table needs as well."""
    variable: str
    """The Variable's name; `off` is none."""


class LakePhase(Wire):
    """One part of a run's time; each begins where the one before it ended, so that they add up to all of it."""

    kind: PhaseKind
    began_ms: int
    ended_ms: int | None
    """Null while the run goes on."""
    try_number: int
    """0 of what is no try."""
    state: str
    """Of a try: Airflow's."""


class LakeOperation(Wire):
    """One DAG run of a service, by the manager or by hand.

    The flat form of `RecordedRun`, which nests report and quote: a column of the page, and of its CSV, has one name.
    """

    run_id: str
    dag_id: str
    table_id: str
    table_name: str
    database: str
    service: str
    state: str
    """Airflow's: `queued`, `running`, `success` or `failed`."""
    by: str
    """`manager`, or the user who started it."""
    reason: str
    """Why it was started."""
    error: str
    """Why its last failed try failed; empty: none has, or its task was killed before it could say it."""
    created_ms: int
    started_ms: int | None
    """When its first try began."""
    ended_ms: int | None
    tries: int
    phases: list[LakePhase]
    outcome: str
    """Of its last try, by the timeline: `completed`, `nothing_to_do`, `failed`, `dry_run`; empty: not reported."""
    job_s: float
    """How long its Spark jobs ran, all tries together, in seconds."""
    files_in: int | None
    """Files that it replaced, or deleted; null when unknown."""
    bytes_in: int | None
    files_out: int | None
    bytes_out: int | None
    caused_by: str
    """What made the manager evaluate the table: a notice's source, or `retry`; empty of runs by hand."""
    due_ms: int | None
    """Since when the service was due."""
    expected_s: float | None
    """What its jobs were expected to take when it was created; null of runs by hand."""
    expected_low_s: float | None
    """The interval holds about four of five outcomes."""
    expected_high_s: float | None
    expected_bytes: float | None
    """What it was expected to write."""
    benefit: float | None
    """What it was expected to bring: 1 for 64 MiB of log, 10 files or instants, or 1 GiB of storage."""


class LakeOperations(Wire):
    """One page of runs, newest first. It may be short, or empty, and still have a next one."""

    rows: list[LakeOperation]
    next: str
    """`after` of the next page; empty at the end."""


# --- One table


class LakeRun(Wire):
    """One instance of a service: what is requested, active or ended."""

    service: str
    state: InstanceState
    owner: str
    """What has to act next."""
    reason: str
    run_id: str
    plans: list[str]
    """Requested times of its plans."""
    since_ms: int | None
    deadline_ms: int | None
    tries: int


class LakeSink(Wire):
    """One sink of replication."""

    sink: str
    state: str
    hold: str
    """Requested time from which on cleaning must leave files; `0` is everything, empty nothing."""
    hold_ms: int | None
    renewed_ms: int
    problem: str


class LakeHold(Wire):
    """A reader that keeps files of the table."""

    reader: str
    reason: str
    hold_ms: int | None
    """From when on cleaning leaves what is replaced."""
    created_ms: int
    ends_ms: int
    """When it ends unless it is renewed; `until_ms`: in any case."""
    until_ms: int
    is_firm: bool
    """False: the reader waits for services that began before its hold."""


class LakePause(Wire):
    """The Variable with one table, or one service of it, paused, or not paused any more."""

    text: str


class LakeRequirement(Wire):
    """What the table requires of its writers, and whether they meet it."""

    requirement: str
    state: str
    """`met`, `broken`, or why that is not known."""
    evidence: str
    endangers: str
    settings: list[str]
    """What to set in the writers."""
    blocks: list[str]
    """Services that do not start meanwhile."""


class LakeTable(Wire):
    """One table by its last evaluation."""

    row: LakeRow
    services: list[LakeService]
    runs: list[LakeRun]
    sinks: list[LakeSink]
    holds: list[LakeHold]
    notices: int
    last_notice_source: str
    registered_ms: int
    holes: int
    observed: str
    """Why the manager starts nothing on the table; empty when it does."""
    is_paused: bool
    """Whether the Variable over the tables file pauses it."""
    paused_services: list[str]
    """Services that the Variable pauses; a pause in the tables file itself is not among them."""
    writers: list[LakeRequirement]
    """By the last check after a commit; none before the first."""
    writers_checked_ms: int | None


class LakeBillLine(Wire):
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


class LakeBill(Wire):
    """The most expensive lines of a bill, at most 1,000."""

    by: str
    since_ms: int
    is_cut: bool
    lines: list[LakeBillLine]


class LakeSituation(Wire):
    """What was so with a service of a table, from when until when."""

    service: str
    """Empty: the table."""
    situation: str
    what: str
    """The situation in words."""
    from_ms: int
    until_ms: int | None
    """None: it goes on."""
    due_ms: int | None
    """Since when the service was due; None: it was not."""
    reason: str
    """The last one of that time."""


class LakeHistory(Wire):
    """What kept a table's services from running, and when they ran, the newest first."""

    days: int
    """What ended before is forgotten."""
    lines: list[LakeSituation]


class LakeTimelineProblem(Wire):
    """Something that is wrong with a table's timeline, and what to do."""

    message: str
    repair: str


class LakeTimeline(Wire):
    """The active timeline of a table, read from its store."""

    problem: str
    """Why it cannot be read; empty when it was."""
    table_type: str
    table_version: str
    time_zone: str
    indexes: list[str]
    """Complete partitions of the metadata table."""
    instants: list[LakeInstant]
    """By requested time, the newest 3,000."""
    is_cut: bool
    sizes: list[LakeSize]
    """By time, the newest 1,000."""
    problems: list[LakeTimelineProblem]


class LakeRepair(Wire):
    """A run of a service that repairs what is stuck."""

    service: str
    mode: str
    instants: list[str]


class LakeFinding(Wire):
    """Something that is stuck."""

    kind: str
    instant: str
    message: str
    holds_up: str
    blocks: list[str]
    repair: str
    """What repairs it, in words."""
    does: str
    """What the doctor would do; empty when it does nothing."""
    refusal: str
    """Why it does nothing."""
    help: str
    """Where the documentation explains it: an address, or a file."""
    call: LakeRepair | None
    """The repair as a run that a user may start; null where files have to be moved: `airflow lake doctor`."""


class LakeActivity(Wire):
    """An instant at work on the table."""

    instant: str
    action: str
    role: str
    state: str
    heartbeat_age_s: int | None
    file_groups: str
    clashes: list[str]
    """What it gives way to."""
    unread: list[str]
    """Files that cannot be read, so that clashes are not known."""


class LakeLag(Wire):
    """How far a sink is behind the table."""

    sink: str
    lag_commits: int
    lag_s: float
    """Since the oldest commit completed that it does not have."""
    held_bytes: int
    """In files that newer ones have replaced since its hold."""
    snapshot_rows: int | None
    """Within a snapshot, whose instant the commits come after: how many of its rows the sink has."""
    snapshot_total: int | None
    """How many rows the snapshot has; null before they were counted."""


class LakeExamination(Wire):
    """What the table's store shows now."""

    problems: list[str]
    """What could not be examined."""
    findings: list[LakeFinding]
    active: list[LakeActivity]
    lags: list[LakeLag]


class LakePolicy(Wire):
    """Every setting in force for a table."""

    settings: list[LakeSetting]

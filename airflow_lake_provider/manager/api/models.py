"""Wire types of the manager app."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from airflow_lake_provider.hudi.base_path import MAX_NAME_LENGTH
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.supervision.instances import InstanceState
from airflow_lake_provider.planner.conformance import Conformity, Requirement
from airflow_lake_provider.shared.hudi_settings import TABLE_NAME

INSTANT_PATTERN = r"^[0-9]{8,24}$"

InstantTime = Annotated[
    str,
    StringConstraints(pattern=INSTANT_PATTERN),
    Field(description="Requested time of an instant, digits only", examples=["20261121024807033"]),
]
TableName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH, strip_whitespace=True),
    Field(description=TABLE_NAME),
]
BasePath = Annotated[str, StringConstraints(min_length=1, max_length=2000), Field(description="The table's base path")]


class HintBody(BaseModel):
    """One table that a task of the provider wants evaluated."""

    base_path: BasePath
    table_name: TableName
    instants: list[InstantTime] = Field(default_factory=list, description="New instants, oldest first")
    is_own: bool = Field(default=False, description="A service of the provider ended, and completed these instants")


class HintsBody(BaseModel):
    """Tables to evaluate, and tables that a sensor read and found unchanged."""

    hints: list[HintBody] = Field(default_factory=list, max_length=10_000)
    unchanged_table_ids: list[str] = Field(default_factory=list, max_length=10_000)


class HintsAnswer(BaseModel):
    """How many tables were marked and postponed."""

    marked: int
    postponed: int


class SweepAnswer(BaseModel):
    """How many tables waited for an evaluation, and what the sweep did about deadlines."""

    waiting: int = Field(description="Tables that are evaluated next, 1,000 at most")
    ended: int = Field(default=0, description="Runs that were ended because they passed their deadline_s")
    overdue: int = Field(default=0, description="Instances that are past the deadline of their state")
    repaired: int = Field(default=0, description="Repairs since the last sweep, as the tables' policies allow")


SINGLE_LINE = r"^[^\r\n]*$"
"""A text that others read in one line of a log."""
RunId = Annotated[
    str,
    Field(min_length=1, max_length=250, pattern=SINGLE_LINE, description="Which task of which run; its tries share it"),
]


class TryBody(BaseModel):
    """One try of a run."""

    run_id: RunId
    try_number: int = Field(ge=0, le=1_000_000)


class ExecutorBody(TryBody):
    """The run that requests to execute a service."""

    ended: TryBody | None = Field(default=None, description="A holder that the caller knows to have ended")


class LeaseBody(BaseModel):
    """The token of a held lease."""

    token: str = Field(min_length=1, max_length=40)


class LeaseAnswer(BaseModel):
    """A held lease. It ends `lease_s` seconds from now unless renewed."""

    token: str
    lease_s: float


AppKey = Annotated[
    str,
    StringConstraints(pattern=r"^warm-[0-9a-f]{16}$"),
    Field(description="Work of one queue, connection and Spark configuration"),
]
ItemId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$"), Field(description="An item of work")]


class WorkBody(TryBody):
    """An item of work for a standing application, from the task of a run."""

    item_id: ItemId
    app_key: AppKey
    service: Service
    conf: dict[str, Any] = Field(description="What the application is submitted with")
    request: str = Field(max_length=1_000_000, description="The JobRequest, as the job contract prints it")
    timeout_s: float = Field(default=0.0, ge=0, le=10**8, allow_inf_nan=False, description="0: none")


class WorkStateAnswer(BaseModel):
    """The state of an item."""

    state: str


class QuestionBody(BaseModel):
    """A task's question about its item."""

    item_id: ItemId
    seen: int = Field(default=0, ge=0, le=10**9, description="How many lines of the item's log it has")
    table_id: str = Field(default="", max_length=80)
    service: Service | None = None
    lease: str = Field(default="", max_length=40, description="The executor's lease to renew; empty: none")


class QuestionsBody(BaseModel):
    """What the tasks of one process ask together."""

    items: list[QuestionBody] = Field(max_length=1000)


class ItemAnswer(BaseModel):
    """An item: its state, the lines of its log since, and the JobResult of one that ended."""

    item_id: str
    state: str
    lines: list[str]
    line_count: int
    result: str
    message: str


class ItemsAnswer(BaseModel):
    """The items that are known."""

    items: list[ItemAnswer]


class CancelBody(BaseModel):
    """An item that must end, and why."""

    item_id: ItemId
    reason: str = Field(default="it was cancelled", max_length=1000)


class PullBody(BaseModel):
    """What a standing application has room for, and the new lines of its items' logs."""

    key: AppKey
    lease: str = Field(max_length=40)
    free: int = Field(ge=0, le=1000)
    lines: dict[str, list[str]] = Field(default_factory=dict, max_length=1000)
    known: list[ItemId] | None = Field(
        default=None, max_length=1000, description="The items that it runs; it gets those again that it does not know"
    )


class PullAnswer(BaseModel):
    """The requests of the items that the application gets, and those of its items that it has to end, with reasons."""

    requests: dict[str, str]
    cancel: dict[str, str]


class FinishBody(BaseModel):
    """The end of an item."""

    key: AppKey
    lease: str = Field(max_length=40)
    item_id: ItemId
    result: str = Field(max_length=1_000_000, description="The JobResult, as the job contract prints it")
    lines: list[str] = Field(default_factory=list, max_length=10_000, description="The last lines of its log")
    takes_next: bool = Field(default=False, description="The application runs the next item of the same table")


class FinishAnswer(BaseModel):
    """The request of the table's next item, if the application takes one and one waits."""

    requests: dict[str, str]


class TableAnswer(BaseModel):
    """One table of the registry. Times are milliseconds since the epoch."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    owner: str
    identified: Annotated[
        bool,
        Field(description="hoodie.properties give the name; otherwise a notice announced it, and it selects no policy"),
    ]
    dirty: bool
    notices: int
    last_notice_ms: int | None
    last_notice_source: str
    last_notice_instant: str
    evaluated_ms: int | None
    evaluation_failures: int
    next_evaluation_ms: int | None
    retry_ms: int | None
    completed_time: str = Field(description="Completed time of the newest instant at the last evaluation")
    changed_time: str = Field(description="The same of the newest write that changed rows, or of a later restore")
    decisions: list[dict[str, Any]]
    problem: str
    silenced_services: list[str] = Field([], description="Services whose failures a person has snoozed; of one table")


class TablesAnswer(BaseModel):
    """A page of tables, in the order of their ids."""

    tables: list[TableAnswer]


class InstanceAnswer(BaseModel):
    """One instance of a table service. Times are milliseconds since the epoch."""

    service: str = Field(description="The service; `evaluation` while the loop has not evaluated a notice")
    state: InstanceState
    owner: str = Field(description="What has to act next; empty when the instance has ended")
    reason: str
    run_id: str = Field(description="The DAG run; empty while there is none")
    plans: list[str] = Field(description="Requested times of the plans that it was created for")
    since_ms: int | None
    deadline_ms: int | None = Field(description="When its time in this state ends")
    overdue: bool
    tries: int


class RequirementAnswer(BaseModel):
    """One thing that a table requires of its writers."""

    requirement: Requirement
    state: Conformity = Field(description="unknown: nothing proves either")
    evidence: str
    endangers: str = Field(description="What a writer that breaks it endangers")
    settings: list[str] = Field(description="What to set in the writers, key=value")
    blocks: list[Service] = Field(description="Services that start only when the writers meet it")


class ConformanceAnswer(BaseModel):
    """The last check of a table's writers."""

    checked_ms: int | None = Field(description="When, ms since the epoch; null: they were never checked")
    requirements: list[RequirementAnswer]


class InstancesAnswer(BaseModel):
    """A table's instances: requested ones, active runs, then the newest ended ones."""

    now_ms: int
    instances: list[InstanceAnswer]


class PolicyAnswer(BaseModel):
    """The settings of one service of one table in the tables file."""

    hudi_options: dict[str, str] = Field(description="Hudi options, including those that carry the policy")
    engine: str = Field(description="Empty: [lake] engine")
    spark_conn_id: str = Field(description="Empty: [lake] spark_conn_id")
    spark_conf: dict[str, str]
    conflict: dict[str, bool | float | str]
    timeout_s: float = Field(description="Of one try")


# --- Wire types of replication's routes

LONGEST_TTL_S = 10 * 365 * 86_400


MAX_COUNT = 2**60
"""A sum of a day's runs still fits into the database."""


class StandingClaim(BaseModel):
    """What a driver of many streams can take, next to what it runs."""

    running: Annotated[
        list[Annotated[str, Field(max_length=400)]],
        Field(max_length=1000, description="Streams (table id, dot, sink) that it has already"),
    ] = []
    snapshots: Annotated[int, Field(ge=0, description="How many more sinks that begin with a snapshot it takes")] = 0


class ClaimBody(BaseModel):
    """A run requests the sinks that are due.

    Those whose table has no Spark settings of its own belong to the driver of many streams where there is one:
    `standing` is what it can take, and `is_split` asks for the rest.
    """

    run_id: RunId
    standing: StandingClaim | None = None
    is_split: bool = False


class BeginBody(BaseModel):
    """A run begins."""

    run_id: RunId
    ttl_s: Annotated[
        float, Field(gt=0, le=LONGEST_TTL_S, description="Time to live of the hold, for a sink that is not configured")
    ]


class BeginAnswer(BaseModel):
    """Whether the run must begin with a snapshot, and the snapshot request that it fulfils."""

    needs_snapshot: bool
    request: str
    generation: Annotated[int, Field(description="Of the last checkpoint that a run reported; 0 without one")]


class ProgressBody(BaseModel):
    """What a run reports about itself."""

    run_id: RunId
    checkpoint: Annotated[str, Field(max_length=1_000_000, description="Durable in the sink; empty: none new")] = ""
    completed_time: Annotated[str, Field(max_length=40, description="The table's changed time, nothing left to do")] = (
        ""
    )
    problem: Annotated[str, Field(max_length=10_000)] = ""
    ended: bool = False
    snapshot_reason: Annotated[str, Field(max_length=10_000, description="Why a new snapshot began, if one did")] = ""


class RunReportBody(BaseModel):
    """What an executor's try did, by the timeline; for people."""

    run_id: RunId
    try_number: Annotated[int, Field(ge=1)]
    service: Service
    outcome: Annotated[str, Field(max_length=40, description="completed, nothing_to_do, failed or dry_run")]
    job_ms: Annotated[int, Field(ge=0, le=MAX_COUNT, description="How long its job ran")] = 0
    files_in: Annotated[int | None, Field(ge=0, le=MAX_COUNT, description="Files that it replaced or deleted")] = None
    bytes_in: Annotated[int | None, Field(ge=0, le=MAX_COUNT)] = None
    files_out: Annotated[int | None, Field(ge=0, le=MAX_COUNT, description="Files that it wrote")] = None
    bytes_out: Annotated[int | None, Field(ge=0, le=MAX_COUNT)] = None
    error: Annotated[str, Field(max_length=1000, description="Why it failed, in a sentence")] = ""


class PauseBody(BaseModel):
    """Start no more runs, or start them again."""

    paused: bool


class ReleaseBody(BaseModel):
    """Release a hold before its time to live."""

    reason: Annotated[str, Field(min_length=1, max_length=1000)]
    hold: str
    """The hold that was found too large; one that has moved since stays."""


class SafepointAnswer(BaseModel):
    """What cleaning and archiving must not pass."""

    instant: Annotated[str | None, Field(description="Requested time; 0 is everything, null is nothing")]
    holder: str
    released: Annotated[list[str], Field(description="Sinks that this request released")]


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
    max_hold_s: float | None = None
    max_held_bytes: int | None = None
    options: dict[str, str]
    spark_conf: dict[str, str]
    database: str = ""
    changed_time: Annotated[str, Field(description="When the table had changed last as the sink was claimed")] = ""
    begins_with_snapshot: bool = False
    begun: Annotated[BeginAnswer | None, Field(description="For a driver of many streams: its run has begun")] = None


class DueAnswer(BaseModel):
    """The sinks that should run now."""

    sinks: list[DueSink]


class SinkEntryAnswer(BaseModel):
    """What the tables file has of a sink; `sink` is empty where it has no such one, and the rest is the table's."""

    options: dict[str, str]
    spark_conf: dict[str, str]
    sink: Annotated[str, Field(description="What it is, such as kafka")] = ""
    mode: str = ""
    key: list[str] = []
    ttl_s: float | None = None
    max_hold_s: float | None = None
    max_held_bytes: int | None = None
    names: Annotated[dict[str, str], Field(description="The table's sinks in the tables file: name and sink")] = {}


class SinkAnswer(BaseModel):
    """One sink of a table."""

    name: str
    hold: Annotated[str, Field(description="Requested time from which the sink holds files and instants; 0: all")]
    hold_ends_ms: Annotated[int, Field(description="When the hold ends unless renewed, ms since the epoch")]
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


# --- Wire types of discovery: which roots to search, and what was found


class RootAnswer(BaseModel):
    """A root to search for tables."""

    root: str
    depth: int = Field(description="How many levels below the root")
    metastore: str = Field("", description="The Hive metastore that names the tables; empty: folders are listed")
    databases: list[str] = Field([], description="Glob patterns of its databases")
    problem: str = Field(description="Why the search is not allowed; empty when it is")


class RootsAnswer(BaseModel):
    """The roots of the tables' settings."""

    roots: list[RootAnswer]


class DiscoveredTable(BaseModel):
    """A table that was found."""

    base_path: BasePath
    table_name: TableName


class DiscoveredBody(BaseModel):
    """Tables that were found below a root."""

    tables: list[DiscoveredTable] = Field(max_length=10_000)


class DiscoveredAnswer(BaseModel):
    """How many tables are new to the registry; the loop evaluates them next."""

    registered: int
    known: int

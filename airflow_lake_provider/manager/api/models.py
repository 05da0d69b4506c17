"""Wire types of the manager app."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from airflow_lake_provider.manager.instances import InstanceState  # noqa: TC001 - pydantic reads it

INSTANT_PATTERN = r"^[0-9]{8,24}$"

InstantTime = Annotated[
    str,
    StringConstraints(pattern=INSTANT_PATTERN),
    Field(description="Requested time of an instant, digits only", examples=["20261121024807033"]),
]
TableName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=500, strip_whitespace=True),
    Field(description="hoodie.table.name"),
]
BasePath = Annotated[str, StringConstraints(min_length=1, max_length=2000), Field(description="The table's base path")]


class WriteStatBody(BaseModel):
    """What the notice uses of one file's write statistics (about 1 KB on the wire); the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    totalWriteBytes: int | None = Field(default=0, description="Bytes written by this commit")


class CommitCallbackBody(BaseModel):
    """Body of Hudi's `HoodieWriteCommitHttpCallback` (`HoodieWriteCommitCallbackMessage`).

    `commitActionType` and `extraMetadata` arrive without their values (Hudi serialises its own Option as a bean), so
    they are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    commitTime: InstantTime
    tableName: TableName
    basePath: BasePath
    hoodieWriteStat: list[WriteStatBody] | None = Field(default=None, description="One entry per written file")

    @field_validator("tableName")
    @classmethod
    def _refuse_control_characters(cls, value: str) -> str:
        return refuse_control_characters(value)


class HintBody(BaseModel):
    """One table that one of our own tasks wants looked at."""

    base_path: BasePath
    table_name: TableName
    instants: list[InstantTime] = Field(default_factory=list, description="New instants, oldest first")


class HintsBody(BaseModel):
    """Tables to look at, and tables that were looked at from outside and showed nothing new."""

    hints: list[HintBody] = Field(default_factory=list, max_length=10_000)
    quiet_table_ids: list[str] = Field(default_factory=list, max_length=10_000)


class AcceptedAnswer(BaseModel):
    """The notice is durable; the table will be looked at."""

    table_id: str = Field(description="The table's identifier here")
    accepted: bool = True


class HintsAnswer(BaseModel):
    """How many tables were marked and postponed."""

    marked: int
    postponed: int


class SweepAnswer(BaseModel):
    """How many dirty tables this call looked at, and what it did about deadlines."""

    looked: int
    ended: int = Field(default=0, description="Runs that were ended because they passed their deadline_s")
    overdue: int = Field(default=0, description="Instances that stand in one state past its deadline")
    repaired: int = Field(default=0, description="Repairs that the doctor did, as the tables' policies allow")


class TryBody(BaseModel):
    """One try of a run."""

    run_id: str = Field(min_length=1, max_length=250)
    try_number: int = Field(ge=0, le=1_000_000)


class ExecutorBody(TryBody):
    """Who wants to execute a service."""

    ended: TryBody | None = Field(default=None, description="A holder of which the caller knows that it has ended")


class LeaseBody(BaseModel):
    """The token of a held lease."""

    token: str = Field(min_length=1, max_length=40)


class LeaseAnswer(BaseModel):
    """A held lease. `lease_s` is for how long from now it holds unless renewed."""

    token: str
    lease_s: float


class ConfigState(StrEnum):
    """Which settings of the tables are in force."""

    OK = "ok"
    LAST_GOOD = "last_good"
    NONE = "none"


class TableAnswer(BaseModel):
    """One table of the registry. Times are milliseconds since the epoch."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    owner: str
    identified: Annotated[
        bool,
        Field(description="The name is hoodie.properties' own; otherwise what was announced, and selects no policy"),
    ]
    dirty: bool
    notices: int
    last_notice_ms: int | None
    last_notice_source: str
    last_notice_instant: str
    looked_ms: int | None
    look_failures: int
    next_look_ms: int | None
    retry_ms: int | None
    completed_time: str = Field(description="Completed time of the newest instant at the last look")
    decisions: list[dict[str, Any]]
    problem: str


class TablesAnswer(BaseModel):
    """A page of tables, in the order of their ids."""

    tables: list[TableAnswer]


class InstanceAnswer(BaseModel):
    """One instance of a table service. Times are milliseconds since the epoch."""

    service: str = Field(description="The service; `look` while it is not known what a notice leads to")
    state: InstanceState
    owner: str = Field(description="Who has to act next; empty when nobody has to")
    reason: str
    run_id: str = Field(description="The DAG run; empty while there is none")
    plans: list[str] = Field(description="Requested times of the plans that it was created for")
    since_ms: int | None
    deadline_ms: int | None = Field(description="Until when it may stay in this state")
    overdue: bool
    tries: int


class InstancesAnswer(BaseModel):
    """A table's instances: requested ones, active runs, then the newest ended ones."""

    now_ms: int
    instances: list[InstanceAnswer]


class PolicyAnswer(BaseModel):
    """What the tables file says of one service of one table."""

    hudi_options: dict[str, str] = Field(description="With those by which the policy travels: retention and the like")
    engine: str = Field(description="Empty: [lake] engine")
    spark_conn_id: str = Field(description="Empty: [lake] spark_conn_id")
    spark_conf: dict[str, str]
    conflict: dict[str, bool | float | str]
    timeout_s: float = Field(description="Of one try")


class HealthAnswer(BaseModel):
    """The app is mounted and its database answers."""

    status: str
    version: str
    loop: bool
    tables_config: ConfigState = Field(
        description="ok; last_good: the tables' settings are wrong, those before them hold; none: nothing is decided"
    )
    last_sweep_s: int | None = Field(description="How long ago lake_watch last succeeded; null: never")
    problems: list[str] = Field(description="What is wrong with the DAGs that run and watch services")


class ConfigAnswer(BaseModel):
    """The tables' settings, and what is wrong with them."""

    tables_config: ConfigState
    problem: str = Field(description="What is wrong, with file and line; empty when nothing is")
    entries: int = Field(description="Entries of the tables file in force")
    overrides: int = Field(description="Entries of the Variable in force")


def refuse_control_characters(value: str) -> str:
    """Return the value, or raise ValueError when it holds control characters."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("must not contain control characters")
    return value


# --- Wire types of replication's routes

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


# --- Wire types of discovery: which roots to search, and what was found


class RootAnswer(BaseModel):
    """A root to search for tables."""

    root: str
    depth: int = Field(description="How many levels below the root")
    problem: str = Field(description="Why it must not be searched; empty when it may")


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
    """How many tables are new to the registry; they are looked at next."""

    registered: int
    known: int

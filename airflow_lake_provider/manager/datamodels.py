"""Wire types of the manager app."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

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
    """How many dirty tables this call looked at."""

    looked: int


class ExecutorBody(BaseModel):
    """Who wants to execute a service."""

    run_id: str = Field(min_length=1, max_length=250)
    try_number: int = Field(ge=0, le=1_000_000)


class LeaseBody(BaseModel):
    """The token of a held lease."""

    token: str = Field(min_length=1, max_length=40)


class LeaseAnswer(BaseModel):
    """A held lease. `lease_s` is for how long from now it holds unless renewed."""

    token: str
    lease_s: float


class TableAnswer(BaseModel):
    """One table of the registry. Times are milliseconds since the epoch."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    owner: str
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


class HealthAnswer(BaseModel):
    """The app is mounted and its database answers."""

    status: str
    version: str
    loop: bool


def refuse_control_characters(value: str) -> str:
    """Return the value, or raise ValueError when it holds control characters."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("must not contain control characters")
    return value

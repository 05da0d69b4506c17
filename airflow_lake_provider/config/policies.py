"""When which service of a table is due, and how it may run: the values of the tables file.

A rule of None is off; any rule that holds makes a service due, or, with `combine: all`, only all that are on together.
A combination that Hudi would refuse, or that could lose data, is refused here. Each field says with `setting` what it
may be: the parser of the tables file and its JSON schema follow from that, and the field's docstring is the setting's
description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow_lake_provider.config.kinds import (
    FROM_0,
    FROM_1,
    SECONDS,
    Clock,
    Flag,
    Names,
    Off,
    OneOf,
    Options,
    Positive,
    Section,
    Text,
    Texts,
    TimeZone,
    setting,
)
from airflow_lake_provider.config.owned_options import OWNED_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.kinds import Located

# --- The `replication` setting of a table: a list of sinks, each with what it receives and how long it may hold back

DAY_S = 86_400.0
_STREAM = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", "up to 80 letters, digits, _, - and .")
_SINK = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", "the name of a sink: kafka, file, database, noop or one of your own")
_MODE = Text("changes|latest", "changes, latest")
_FORMATS: Mapping[str, OneOf] = MappingProxyType(
    {
        "kafka": OneOf(("json", "avro")),
        "file": OneOf(("json", "parquet")),
        "database": OneOf(("json",)),
        "noop": OneOf(("json",)),
    }
)


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """One sink of a table."""

    name: str
    """Names the stream together with the table; the sink's kind unless the entry says otherwise."""
    sink: str
    """Under which name the sink is registered."""
    mode: str = "changes"
    """`changes` (operation, row before and after) or `latest` (the row, or nothing; copy-on-write tables only)."""
    key: tuple[str, ...] = ()
    """Fields of the key; empty takes the table's record key."""
    ttl_s: float = DAY_S
    """A sink that makes no progress for so long holds nothing back any more, and begins with a new snapshot."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What else the entry says: the sink's own settings. `conn_id` names an Airflow connection with more of them."""


@dataclass(frozen=True, slots=True)
class SinkEntries:
    """The kind of the `replication` setting."""

    def parse(self, located: Located, name: str) -> tuple[ReplicationPolicy, ...]:
        """Return the sinks. What a sink's own settings may be is known to the sink, which checks them in its run."""
        if not isinstance(located.value, list):
            raise located.error(f"{name} must be a list of sinks")
        policies = tuple(_parse_entry(item) for item in located.value)
        names = [policy.name for policy in policies]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise located.error(f"two sinks are named {twice!r}: give one of them another name")
        return policies

    def schema(self) -> dict[str, Any]:
        """Return the same as JSON schema."""
        entry = {
            "type": "object",
            "properties": {
                "name": _STREAM.schema(),
                "sink": _SINK.schema(),
                "mode": _MODE.schema(),
                "key": {"type": "array", "items": {"type": "string"}},
                "ttl_s": SECONDS.schema(),
            },
            "required": ["sink"],
            # Formats of one's own sinks are for those to check.
            "allOf": [
                {"if": {"properties": {"sink": {"const": sink}}}, "then": {"properties": {"format": form.schema()}}}
                for sink, form in _FORMATS.items()
            ],
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
        return {"type": "array", "items": entry}


def _parse_entry(located: Located) -> ReplicationPolicy:
    if not isinstance(located.value, dict) or "sink" not in located.value:
        raise located.error("an entry of replication must be a mapping with sink")
    body = dict(located.value)
    sink = _SINK.parse(body.pop("sink"), "sink")
    named = body.pop("name", None)
    name = _STREAM.parse(named, "name") if named is not None else sink
    mode, key, ttl_s = (body.pop(part, None) for part in ("mode", "key", "ttl_s"))
    if "format" in body and sink in _FORMATS and _FORMATS[sink].parse(body["format"], "format") == "json":
        # What each sink writes unless it is told otherwise.
        del body["format"]
    if key is not None and not _is_list_of_texts(key):
        raise key.error("key must be a list of fields")
    for option, item in body.items():
        if item.value is None or isinstance(item.value, (dict, list)):
            raise item.error(f"{option} is {item.text!r}, allowed: a text, a number, true or false")
    return ReplicationPolicy(
        name=name,
        sink=sink,
        mode=_MODE.parse(mode, "mode") if mode is not None else "changes",
        key=tuple(item.value for item in key.value) if key is not None else (),
        ttl_s=SECONDS.parse(ttl_s, "ttl_s") if ttl_s is not None else DAY_S,
        options=MappingProxyType({option: item.text for option, item in body.items()}),
    )


def _is_list_of_texts(located: Located) -> bool:
    return isinstance(located.value, list) and all(isinstance(item.value, str) for item in located.value)


# --- When the services of a table may begin: days and hours in a time zone. Pure; the clock is passed in

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Opens at `begin` (inclusive) on each of `days`, closes at `end` (exclusive); over midnight when end <= begin.

    Hours are the wall clock's in `time_zone`. An opening hour that a change to summer time skips is the same moment as
    the hour after it.
    """

    days: tuple[str, ...] = setting(Names(DAYS, may_be_empty=False), DAYS)
    begin: time = setting(Clock(), time(0))
    end: time = setting(Clock(), time(0))
    time_zone: str = setting(TimeZone(), "UTC")

    def is_open(self, now: datetime) -> bool:
        """Whether a service may begin now."""
        return any(opens <= now < closes for opens, closes in self._around(now))

    def next_opening(self, now: datetime) -> datetime:
        """Return when it opens next, later than now."""
        return min(opens for opens, _ in self._around(now, days_ahead=8) if opens > now)

    def find_wait_end(self, now: datetime) -> datetime | None:
        """Return when it opens next; None while it is open."""
        return None if self.is_open(now) else self.next_opening(now)

    def __str__(self) -> str:
        """Return it as people write it."""
        days = "each day" if set(self.days) == set(DAYS) else ", ".join(self.days)
        return f"{days} {self.begin:%H:%M} to {self.end:%H:%M} {self.time_zone}"

    def _around(self, now: datetime, days_ahead: int = 1) -> list[tuple[datetime, datetime]]:
        zone = ZoneInfo(self.time_zone)
        today = now.astimezone(zone).date()
        dates = [today + timedelta(days=offset) for offset in range(-1, days_ahead + 1)]
        return [self._on(day, zone) for day in dates if DAYS[day.weekday()] in self.days]

    def _on(self, day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
        last_day = day if self.end > self.begin else day + timedelta(days=1)
        opens = datetime.combine(day, self.begin, zone).astimezone(UTC)
        closes = datetime.combine(last_day, self.end, zone).astimezone(UTC)
        return opens, closes


# --- The shapes in which a table's timeline gets stuck, by the names that the tables file and the doctor use


class Shape(StrEnum):
    """One way to be stuck. Which of them can be repaired, and how, is said by the doctor."""

    ORPHANED_LOCK = "orphaned_lock"
    """The lock file of a writer that was killed."""
    UNREADABLE_FILE = "unreadable_file"
    FOREIGN_TIME_ZONE = "foreign_time_zone"
    """The newest instants were named in another zone than that of the jobs: no service is started."""
    DISORDERED_WRITES = "disordered_writes"
    """Writes that sort before a compaction, or another commit, that was made before them: readers leave them out."""
    FAILED_WRITE = "failed_write"
    """A write without heartbeat that nobody rolled back."""
    DANGLING_REPLACECOMMIT = "dangling_replacecommit"
    """The same, requested only: what `run_ttl` leaves when nothing has expired."""
    PLAN_WITHOUT_EXECUTOR = "plan_without_executor"
    BLOCKING_CLUSTERING = "blocking_clustering"
    """A clustering plan without executor: updates of its file groups are rejected."""
    UNGUARDED_SERVICE = "unguarded_service"
    """A clustering or clean that began and has no heartbeat: it may be at work, or dead."""
    OVERTAKEN_LOG_COMPACTION = "overtaken_log_compaction"
    """A log compaction behind a newer compaction, which Hudi never executes any more."""
    STALE_INDEX_BUILD = "stale_index_build"
    DUPLICATE_INDEX_PLAN = "duplicate_index_plan"
    INDEX_WITHOUT_PLAN = "index_without_plan"
    FROZEN_ARCHIVE = "frozen_archive"
    """Archiving that waits for a compaction of the metadata table."""


COMBINE = OneOf(("any", "all"))
_COLUMN = r"[A-Za-z_][A-Za-z0-9_.]*"
INDEXES = Texts(
    rf"files|partition_stats|bloom_filters|record_index|column_stats(:{_COLUMN}(,{_COLUMN})*)?|secondary_index:{_COLUMN}"
    rf"|expression_index:[A-Za-z_][A-Za-z0-9_]*:[a-z_0-9]+\({_COLUMN}\)(:.+)?",
    "files, column_stats, column_stats:amount,ts, partition_stats, bloom_filters, record_index, secondary_index:city, "
    "expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd",
)
NAME = Text(r"[A-Za-z0-9][A-Za-z0-9_.:/@ -]*", "a name: letters, digits and _.:/@ -")


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When compaction is due."""

    enabled: bool = setting(Flag(), default=True)
    delta_commits: int | None = setting(Off(FROM_1), 5)
    """Completed delta commits since the last compaction (Hudi's own default is 5)."""
    log_to_base_ratio: float | None = setting(Off(Positive()), 0.5)
    """Bytes in log files over bytes in the base files below them."""
    min_log_bytes: int = setting(FROM_0, 0)
    """The ratio rule looks only at tables that have at least this many bytes in log files."""
    max_age_s: float | None = setting(Off(SECONDS), None)
    """How long the oldest delta commit may wait."""
    combine: str = setting(COMBINE, "any")
    """Whether any rule makes it due, or only all that are on together."""


OTHERS = "others' plans only"


@dataclass(frozen=True, slots=True)
class LogCompactionPolicy:
    """When log compaction is due: many small log files of a file slice become one. Off unless asked for."""

    enabled: bool | None = setting(Off(Flag(), OTHERS), None)
    """Null: none is planned, but a plan that somebody left behind is executed, because it blocks others."""
    log_files: int | None = setting(Off(FROM_1), 5)
    """Log files in one file slice (Hudi's `hoodie.log.compaction.blocks.threshold`)."""
    max_age_s: float | None = setting(Off(SECONDS), None)
    """How long the oldest delta commit may wait, where a file slice has more than one log file."""
    combine: str = setting(COMBINE, "any")
    """Whether any rule makes it due, or only all that are on together."""


@dataclass(frozen=True, slots=True)
class ClusteringPolicy:
    """When clustering is due. Off unless asked for: it rewrites data, and fails writers that update it meanwhile."""

    enabled: bool | None = setting(Off(Flag(), OTHERS), None)
    """Null: none is planned, but a plan that somebody left behind is executed, because it blocks others."""
    commits: int | None = setting(Off(FROM_1), None)
    """Completed writes since the last clustering."""
    small_files: int | None = setting(Off(FROM_1), 10)
    """Small base files in one partition, as far as the active timeline tells their sizes."""
    small_file_bytes: int = setting(FROM_1, 104_857_600)
    """A base file below this size is small (Hudi's `hoodie.parquet.small.file.limit` is 100 MiB)."""
    max_age_s: float | None = setting(Off(SECONDS), None)
    """How long the oldest write since the last clustering may wait."""
    combine: str = setting(COMBINE, "any")
    """Whether any rule makes it due, or only all that are on together."""


@dataclass(frozen=True, slots=True)
class CleanPolicy:
    """When cleaning is due. Retention is Hudi's KEEP_LATEST_COMMITS."""

    enabled: bool = setting(Flag(), default=True)
    commits: int | None = setting(Off(FROM_1), 5)
    """Completed writes since the last clean."""
    max_age_s: float | None = setting(Off(SECONDS), None)
    """How long the oldest write since the last clean may wait."""
    combine: str = setting(COMBINE, "any")
    """Whether any rule makes it due, or only all that are on together."""
    retained_commits: int = setting(FROM_1, 10)
    """`hoodie.clean.commits.retained`: file versions that these commits need are kept."""


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """When archiving is due."""

    enabled: bool = setting(Flag(), default=True)
    min_commits: int = setting(FROM_1, 20)
    """`hoodie.keep.min.commits`: how many completed writes stay on the active timeline."""
    max_commits: int = setting(FROM_1, 30)
    """`hoodie.keep.max.commits`: with more than these it is due."""


@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """When pending writes are rolled back: their heartbeat has expired. A write that never had one is left alone."""

    enabled: bool = setting(Flag(), default=True)
    after_s: float = setting(SECONDS, 600.0)
    """A pending write younger than this is left alone, whatever its heartbeat says."""


@dataclass(frozen=True, slots=True)
class TtlPolicy:
    """When partitions expire. None does unless asked for: their rows are deleted."""

    retained_days: int | None = setting(Off(FROM_1), None)
    """A partition that nobody wrote to for more days than this is deleted."""
    check_every_s: float = setting(SECONDS, 86_400.0)
    """How often expired partitions are looked for; each time is a run."""
    max_partitions: int = setting(FROM_1, 1000)
    """At most so many go in one run, the oldest first."""


@dataclass(frozen=True, slots=True)
class MetadataCompactionPolicy:
    """When the metadata table is compacted, which Hudi's writers do themselves unless that is delegated or fails."""

    enabled: bool = setting(Flag(), default=True)
    commits: int = setting(FROM_1, 30)
    """More completed writes than this since its last compaction; Hudi's writers compact it after 10."""


@dataclass(frozen=True, slots=True)
class IndexingPolicy:
    """Which indexes a table shall have in its metadata table (docs/indexing.md). Pending builds are run in any case."""

    enabled: bool = setting(Flag(), default=True)
    indexes: tuple[str, ...] = setting(INDEXES, ())
    """What is missing of these is built: `record_index`, `column_stats:amount,ts`, `secondary_index:city`, ..."""
    check: str = setting(Text("cheap|full", "cheap, full"), "cheap")
    """How a build is verified: by timeline and metadata table, or also by the data files' contents."""
    wait_s: float = setting(SECONDS, 300.0)
    """How long a build waits for a moment without writers that would be missing in the index."""
    check_timeout_s: int = setting(FROM_1, 900)
    """`hoodie.metadata.index.check.timeout.seconds`: how long a built index waits for writers that may not know it."""


@dataclass(frozen=True, slots=True)
class ConflictPolicy:
    """Early conflict detection between our services and the table's writers."""

    enabled: bool = setting(Flag(), default=True)
    """Ask before a service begins who is at work on its file groups, and watch them while it runs."""
    strategy: str = setting(NAME, "AsyncTimelineMarkerBased")
    """How a running service is watched: a strategy of RFC-56, or one that a package registers."""
    period_s: float = setting(SECONDS, 10.0)
    """How often a running service is checked, and how soon one that waits is looked at again."""
    initial_delay_s: float = setting(SECONDS, 1.0)
    """How long after its start a service is checked first."""


@dataclass(frozen=True, slots=True)
class DoctorPolicy:
    """Which stuck shapes may be repaired, and from which age on something counts as left behind."""

    repairs: tuple[Shape, ...] = setting(Names.of(Shape), ())
    """Shapes that the doctor may repair; none unless asked for."""
    notify: bool = setting(Flag(), default=True)
    """Whether people are told of a shape that neither the doctor may repair nor a service that is due will mend."""
    stuck_after_s: float = setting(SECONDS, 600.0)
    """For what a heartbeat would speak if it were alive, and for plans that never began."""
    lock_after_s: float = setting(SECONDS, 1800.0)
    """For a lock file beside which no heartbeat lives."""
    unguarded_after_s: float = setting(SECONDS, 21_600.0)
    """For what has no heartbeat: an index build, a service by somebody else, a write in single-writer mode."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """What holds for one table."""

    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    logcompaction: LogCompactionPolicy = field(default_factory=LogCompactionPolicy)
    clustering: ClusteringPolicy = field(default_factory=ClusteringPolicy)
    clean: CleanPolicy = field(default_factory=CleanPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    rollback: RollbackPolicy = field(default_factory=RollbackPolicy)
    ttl: TtlPolicy = field(default_factory=TtlPolicy)
    metacompaction: MetadataCompactionPolicy = field(default_factory=MetadataCompactionPolicy)
    indexing: IndexingPolicy = field(default_factory=IndexingPolicy)
    conflict: ConflictPolicy = field(default_factory=ConflictPolicy)
    doctor: DoctorPolicy = field(default_factory=DoctorPolicy)
    replication: tuple[ReplicationPolicy, ...] = setting(SinkEntries(), ())
    """Where the table's changes go; none unless asked for."""
    hudi_options: Mapping[str, str] = setting(Options(r"^hoodie\.", "Hudi setting (hoodie.*)", OWNED_OPTIONS), {})
    """Passed to every service of the table; the lock provider must be here, and nothing that a service sets itself."""
    engine: str = setting(NAME, "")
    """What executes the services, by the name under which the engine is registered; empty takes `[lake] engine`."""
    spark_conn_id: str = setting(NAME, "")
    """Connection that says where the table's Spark jobs run; empty takes `[lake] spark_conn_id`."""
    spark_conf: Mapping[str, str] = setting(Options(r"^spark\.", "Spark setting (spark.*)"), {})
    """Spark settings of every service of the table."""
    pool: str = setting(NAME, "")
    """Airflow pool that the service's task takes a slot of; empty takes default_pool."""
    queue: str = setting(NAME, "")
    """Queue of the executor (Celery, Edge) that the service's task is sent to; empty takes the executor's own."""
    timeout_s: float = setting(SECONDS, 43_200.0)
    """One try of a service is ended, and retried, after this."""
    retries: int = setting(FROM_0, 4)
    """Tries after the first, within one run."""
    start_within_s: float = setting(SECONDS, 3_600.0)
    """A run that has not begun after this is reported."""
    deadline_s: float = setting(SECONDS, 86_400.0)
    """A run that has not ended after this is ended as failed, whatever it is doing."""
    heartbeat_timeout_s: float | None = setting(Off(SECONDS, "the table's rhythm"), None)
    """Silence after which the table is looked at once without a notice; None follows the table's rhythm."""
    max_runs_per_instant: int = setting(FROM_1, 3)
    retry_backoff_s: float = setting(SECONDS, 60.0)
    max_active_runs: int = setting(FROM_1, 1)
    """Services of the table that may run at once."""
    maintenance_window: MaintenanceWindow | None = setting(Off(Section(MaintenanceWindow, is_whole=True)), None)
    """When new plans may be made; None is always. Pending plans hold others up and are executed at any time."""

    def find_problem(self) -> str | None:
        """Say in one sentence which settings contradict each other; None when none do."""
        if self.archive.min_commits <= self.clean.retained_commits:
            return (
                f"archive.min_commits ({self.archive.min_commits}) must be greater than clean.retained_commits "
                f"({self.clean.retained_commits}): Hudi cleans by what is on the active timeline"
            )
        if self.archive.max_commits <= self.archive.min_commits:
            return (
                f"archive.max_commits ({self.archive.max_commits}) must be greater than archive.min_commits "
                f"({self.archive.min_commits})"
            )
        if self.deadline_s < self.timeout_s:
            return f"deadline_s ({self.deadline_s:g}) must not be less than timeout_s ({self.timeout_s:g})"
        return None

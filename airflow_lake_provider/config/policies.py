"""When which service of a table is due, and how it may run: the values of the tables file.

A rule of None is off; any rule that holds makes a service due, or, with `combine: all`, only all that are on together.
A combination that Hudi would refuse, or that could lose data, is refused here. A field and its docstring are all that a
setting needs: the parser of the tables file, its errors and its JSON schema follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from airflow_lake_provider.config.kinds import (
    Allowed,
    Clock,
    From0,
    From1,
    Listed,
    Name,
    NullMeans,
    Options,
    Positive,
    Seconds,
    Settings,
    Text,
    TimeZone,
    Written,
    problem,
    require_no_secret,
    texts_of,
)
from airflow_lake_provider.config.owned_options import OWNED_OPTIONS, explain_unbuilt_index

# --- The `replication` setting of a table: a list of sinks, each with what it receives and how long it may hold back

DAY_S = 86_400.0
_NAME_OF_STREAM = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}"
_FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kafka": ("json", "avro", "debezium"),
        "file": ("json", "parquet"),
        "database": ("json",),
        "hudi": ("json",),
        "noop": ("json",),
    }
)


class ReplicationPolicy(Settings):
    """One sink of a table. What else an entry says are the sink's own settings, which the sink checks in its run."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "additionalProperties": {"type": ["string", "number", "boolean"]},
            # Formats of one's own sinks are for those to check.
            "allOf": [
                {
                    "if": {"properties": {"sink": {"const": sink}}},
                    "then": {"properties": {"format": {"enum": list(formats)}}},
                }
                for sink, formats in _FORMATS.items()
            ],
        },
    )

    sink: Annotated[
        str, Text(_NAME_OF_STREAM, "the name of a sink: kafka, file, database, hudi, noop or one of your own")
    ]
    """Under which name the sink is registered."""
    name: Annotated[str, Text(_NAME_OF_STREAM, "up to 80 letters, digits, _, - and .")] = ""
    """Names the stream together with the table; the sink's kind unless the entry says otherwise."""
    mode: Literal["changes", "latest"] = "changes"
    """`changes` (operation, row before and after) or `latest` (the row, or nothing when it was deleted)."""
    key: Listed[Annotated[str, Allowed("fields")]] = ()
    """Fields of the key; empty takes the table's record key."""
    ttl_s: Seconds = DAY_S
    """A sink that makes no progress for so long holds nothing back any more, and begins with a new snapshot."""
    max_hold_s: Seconds | None = None
    """As its run ends, a sink that lacks a commit older than this is released, progress or not; off unless set."""
    max_held_bytes: From1 | None = None
    """As its run ends, a sink that lacks commits and holds more bytes of replaced files is released; off unless set."""

    @property
    def options(self) -> Mapping[str, str]:
        """The sink's own settings. `conn_id` names an Airflow connection with more of them."""
        return MappingProxyType(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _read(cls, entry: Any) -> Any:
        if not isinstance(entry, Mapping) or "sink" not in entry:
            return entry
        own = {key: value for key, value in entry.items() if key in cls.model_fields}
        options = {key: value for key, value in entry.items() if key not in own}
        options = Written(options, entry.texts) if isinstance(entry, Written) else options
        require_no_secret(options)
        texts = texts_of(options)
        allowed = _FORMATS.get(own["sink"], ()) if isinstance(own["sink"], str) else ()
        if allowed and texts.get("format", "json") not in allowed:
            raise problem(f"format is {texts['format']!r}, allowed: {', '.join(allowed)}", "format")
        if allowed and texts.get("format") == "json":
            # What each sink writes anyway.
            del texts["format"]
        return {"name": own["sink"], **own, **texts}


def _named_once(sinks: tuple[ReplicationPolicy, ...]) -> tuple[ReplicationPolicy, ...]:
    names = [sink.name for sink in sinks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise problem(f"two sinks are named {twice!r}: give one of them another name")
    return sinks


# --- When the services of a table may begin: days and hours in a time zone. Pure; the clock is passed in

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)


class MaintenanceWindow(Settings):
    """Opens at `begin` (inclusive) on each of `days`, closes at `end` (exclusive); over midnight when end <= begin.

    Hours are the wall clock's in `time_zone`. An opening hour that a change to summer time skips is the same moment as
    the hour after it.
    """

    is_whole: ClassVar[bool] = True

    days: Annotated[Listed[Day], Field(min_length=1)] = DAYS
    begin: Clock = time(0)
    end: Clock = time(0)
    time_zone: TimeZone = "UTC"

    @model_validator(mode="before")
    @classmethod
    def _read_hours(cls, window: Any) -> Any:
        # YAML reads 22:30 without quotes as a number; what was written counts.
        if not isinstance(window, Written):
            return window
        return {**window, **{key: text for key, text in window.texts.items() if key in {"begin", "end"}}}

    def is_open(self, now: datetime) -> bool:
        """Whether a service may begin now."""
        return any(opens <= now < closes for opens, closes in self._around(now))

    def next_opening(self, now: datetime) -> datetime:
        """Return when it opens next, later than now."""
        return min(opens for opens, _ in self._around(now, days_ahead=8) if opens > now)

    def find_wait_end(self, now: datetime) -> datetime | None:
        """Return when it opens next; None while it is open."""
        return None if self.is_open(now) else self.next_opening(now)

    @property
    def least_open_s(self) -> int:
        """For how long it is open each time, seconds; a change of the clock aside."""
        opens, closes = (moment.hour * 3600 + moment.minute * 60 for moment in (self.begin, self.end))
        return (closes - opens) % 86_400 or 86_400

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


class StuckKind(StrEnum):
    """One way to be stuck. Which of them can be repaired, and how, is said by the doctor."""

    ORPHANED_LOCK = "orphaned_lock"
    """The lock file of a writer that was killed."""
    UNREADABLE_FILE = "unreadable_file"
    FOREIGN_TIME_ZONE = "foreign_time_zone"
    """The newest instants were named in another zone than that of the jobs: no service is started."""
    DISORDERED_WRITES = "disordered_writes"
    """Writes that sort before a compaction, or another commit, that was made before them: readers leave them out."""
    FAILED_WRITE = "failed_write"
    """A write without heartbeat that no process rolled back."""
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
    ARCHIVED_BEHIND_SAVEPOINT = "archived_behind_savepoint"
    """Writes that were archived although a savepoint before them stays: readers leave their files out."""


def _require_built(text: str) -> str:
    advice = explain_unbuilt_index(text)
    if advice:
        raise problem(f"{text!r}: {advice}")
    return text


_COLUMN = r"[A-Za-z_][A-Za-z0-9_.]*"
Index = Annotated[
    str,
    AfterValidator(_require_built),
    Text(
        rf"files|partition_stats|bloom_filters|record_index|column_stats(:{_COLUMN}(,{_COLUMN})*)?"
        rf"|secondary_index:{_COLUMN}"
        rf"|expression_index:[A-Za-z_][A-Za-z0-9_]*:[a-z_0-9]+\({_COLUMN}\)(:.+)?",
        "files, column_stats, column_stats:amount,ts, partition_stats, bloom_filters, record_index, "
        "secondary_index:city, expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd",
    ),
]


_BY_WHOM = "by whom and why, in up to 300 characters"


class ServicePolicy(Settings):
    """What the policies of all services have."""

    paused: Annotated[Annotated[str, Text(r"[^\n]{1,300}", _BY_WHOM)] | None, NullMeans("not paused")] = None
    """By whom, and why: the service is decided and shown, and never started, pending plans neither; runs by hand go on.
    The Lake's page writes it into the Variable over this file."""


class CompactionPolicy(ServicePolicy):
    """When compaction is due."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    delta_commits: From1 | None = 5
    """Completed delta commits since the last compaction (Hudi's own default is 5)."""
    log_to_base_ratio: Positive | None = 0.5
    """Bytes in log files over bytes in the base files below them."""
    min_log_bytes: From0 = 0
    """The ratio rule counts only on tables that have at least this many bytes in log files."""
    max_age_s: Seconds | None = None
    """How long the oldest delta commit may wait."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""


class LogCompactionPolicy(ServicePolicy):
    """When log compaction is due: many small log files of a file slice become one. Off unless asked for."""

    enabled: Annotated[bool | None, NullMeans("others' plans only")] = None
    """Null: plan none, but execute a plan that another process left behind, because it blocks others."""
    log_files: From1 | None = 5
    """Log files in one file slice (Hudi's `hoodie.log.compaction.blocks.threshold`)."""
    max_age_s: Seconds | None = None
    """How long the oldest delta commit may wait, where a file slice has more than one log file."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""


class ClusteringPolicy(ServicePolicy):
    """When clustering is due. Off unless asked for: it rewrites data, and fails writers that update it meanwhile."""

    enabled: Annotated[bool | None, NullMeans("others' plans only")] = None
    """Null: plan none, but execute a plan that another process left behind, because it blocks others."""
    commits: From1 | None = None
    """Completed writes since the last clustering."""
    small_files: From1 | None = 10
    """Small base files in one partition, as far as the active timeline holds their sizes."""
    small_file_bytes: From1 = 104_857_600
    """A base file below this size is small (Hudi's `hoodie.parquet.small.file.limit` is 100 MiB)."""
    max_age_s: Seconds | None = None
    """How long the oldest write since the last clustering may wait."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""


class CleanPolicy(ServicePolicy):
    """When cleaning is due, and what it keeps."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    commits: From1 | None = 5
    """Completed writes since the last clean."""
    max_age_s: Seconds | None = None
    """How long the oldest write since the last clean may wait."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""
    policy: Literal["commits", "hours", "versions"] = "commits"
    """What retention counts (`hoodie.clean.policy`): the last commits, the last hours, or versions of each file."""
    retained_commits: From1 = 10
    """`hoodie.clean.commits.retained`, for `policy: commits`: file versions that these commits need are kept."""
    retained_hours: From1 | None = None
    """`hoodie.clean.hours.retained`, for `policy: hours`: file versions that commits of these hours need are kept."""
    retained_versions: From1 | None = None
    """`hoodie.clean.fileversions.retained`, for `policy: versions`: so many of each file group, however old."""


class ArchivePolicy(ServicePolicy):
    """When archiving is due."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    min_commits: From1 = 20
    """`hoodie.keep.min.commits`: how many completed writes stay on the active timeline."""
    max_commits: From1 = 30
    """`hoodie.keep.max.commits`: with more than these it is due."""


class RollbackPolicy(ServicePolicy):
    """When pending writes are rolled back: their heartbeat has expired. A write that never had one is left alone."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    after_s: Seconds = 600.0
    """A pending write younger than this is left alone, whatever its heartbeat says."""


class TtlPolicy(ServicePolicy):
    """When partitions expire. None does unless asked for: their rows are deleted."""

    retained_days: From1 | None = None
    """The service deletes a partition without a write for more days than this."""
    check_every_s: Seconds = 86_400.0
    """How often the service checks for expired partitions; each time is a run."""
    max_partitions: From1 = 1000
    """At most so many go in one run, the oldest first."""


class SavepointPolicy(ServicePolicy):
    """Savepoints at intervals, and how long they stay. None unless asked for: they hold cleaning and archiving back."""

    every_s: Seconds | None = None
    """How often the newest completed write gets a savepoint, if anything was written since the last one."""
    keep: From0 = 7
    """So many of the newest savepoints that this service made stay; 0 makes none, and removes those that it made."""
    expire_after_s: Seconds | None = None
    """The service also removes those of its savepoints that are older than this, but for its newest one."""


class OrphanPolicy(ServicePolicy):
    """When orphan files are searched for: files in the partitions that no instant, plan or savepoint knows."""

    enabled: bool = False
    """The search is off unless asked for."""
    mode: Literal["report", "quarantine"] = "report"
    """`report` only lists orphan files; `quarantine` moves them below `.hoodie/.aux/lake_quarantine` of the table."""
    min_age_days: From1 = 7
    """A younger file stays, by its modification time and by its instant; never less than the table's longest commit."""
    keep_days: From1 = 30
    """Quarantined files are deleted after so many days, by the next run; until then `mode: undo` puts them back."""
    check_every_s: Seconds = 604_800.0
    """How often the service searches; each time is a run that lists every partition."""
    max_files: From1 = 1000
    """At most so many go in one run, the oldest first: the table's lock is held while they are moved."""


class MetadataCompactionPolicy(ServicePolicy):
    """When the metadata table is compacted, which Hudi's writers do themselves unless that is delegated or fails."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    commits: From1 = 30
    """More completed writes than this since its last compaction; Hudi's writers compact it after 10."""


class IndexingPolicy(ServicePolicy):
    """Which indexes the provider builds in the metadata table (docs/indexing.md). Pending builds run in any case."""

    enabled: bool = True
    indexes: Listed[Index] = ()
    """What is missing of these is built: `record_index`, `column_stats:amount,ts`, `secondary_index:city`, ..."""
    check: Literal["cheap", "full"] = "cheap"
    """How a build is verified: by timeline and metadata table, or also by the data files' contents."""
    wait_s: Seconds = 300.0
    """How long a build waits for a moment without writers that would be missing in the index."""
    verify_every_s: Seconds | None = None
    """How often rows are searched for by the complete indexes of `indexes`; one that misses rows is unlisted, and built
    anew. Null: never."""
    check_timeout_s: From1 = 900
    """`hoodie.metadata.index.check.timeout.seconds`: how long a built index waits for writers that may not know it."""


class ConflictPolicy(Settings):
    """Early conflict detection between the provider's services and the table's writers."""

    enabled: bool = True
    """Check before a service begins which writers work on its file groups, and watch them while it runs."""
    strategy: Name = "AsyncTimelineMarkerBased"
    """How a running service is watched: a strategy of RFC-56, or one that a package registers."""
    period_s: Seconds = 10.0
    """How often a running service is checked, and the pause between two checks of one that waits."""
    initial_delay_s: Seconds = 1.0
    """How long after its start a service is checked first."""


class DoctorPolicy(Settings):
    """Which stuck shapes may be repaired, and from which age on something counts as left behind."""

    repairs: Listed[Annotated[StuckKind, Field(strict=False)]] = ()
    """Shapes that the doctor may repair; none unless asked for."""
    notify: bool = True
    """Whether people are notified of a shape that neither the doctor may repair nor a due service repairs."""
    stuck_after_s: Seconds = 600.0
    """For what a heartbeat would speak if it were alive, and for plans that never began."""
    lock_after_s: Seconds = 1800.0
    """For a lock file on a table without a living heartbeat."""
    unguarded_after_s: Seconds = 21_600.0
    """For what has no heartbeat: an index build, a service of another process, a write in single-writer mode."""


HudiOptions = Annotated[Mapping[str, str], Options(r"^hoodie\.", "Hudi setting (hoodie.*)", OWNED_OPTIONS)]
SparkConf = Annotated[Mapping[str, str], Options(r"^spark\.", "Spark setting (spark.*)")]


def _no_options() -> Mapping[str, str]:
    return MappingProxyType({})


class TablePolicy(Settings):
    """What holds for one table."""

    called: ClassVar[str] = "a policy"

    mode: Annotated[Literal["manage", "observe"] | None, NullMeans("by how the table became known")] = None
    """`observe` decides and shows what is due, and starts nothing. Null observes a table that `lake_discovery` found,
    until its writer announces a commit or an entry of this file names its path; it manages all others."""
    compaction: CompactionPolicy = CompactionPolicy()
    logcompaction: LogCompactionPolicy = LogCompactionPolicy()
    clustering: ClusteringPolicy = ClusteringPolicy()
    clean: CleanPolicy = CleanPolicy()
    archive: ArchivePolicy = ArchivePolicy()
    rollback: RollbackPolicy = RollbackPolicy()
    ttl: TtlPolicy = TtlPolicy()
    metacompaction: MetadataCompactionPolicy = MetadataCompactionPolicy()
    indexing: IndexingPolicy = IndexingPolicy()
    savepoint: SavepointPolicy = SavepointPolicy()
    orphans: OrphanPolicy = OrphanPolicy()
    conflict: ConflictPolicy = ConflictPolicy()
    conformance: Literal["block", "report"] = "block"
    """`block` starts no service that would endanger a writer as it is configured, or that such a writer would endanger.
    `report` only shows it: for tables whose writers and services never run at the same time."""
    doctor: DoctorPolicy = DoctorPolicy()
    replication: Annotated[Listed[Annotated[ReplicationPolicy, Allowed("sinks")]], AfterValidator(_named_once)] = ()
    """Where the table's changes go; none unless asked for."""
    hudi_options: HudiOptions = Field(default_factory=_no_options)
    """Passed to every service of the table; the lock provider must be here, and nothing that a service sets itself."""
    engine: Name = ""
    """What executes the services: spark-submit, warm, auto, or another engine by the name under which it is registered;
    empty takes `[lake] engine`."""
    spark_conn_id: Name = ""
    """Connection that says where the table's Spark jobs run; empty takes `[lake] spark_conn_id`."""
    spark_conf: SparkConf = Field(default_factory=_no_options)
    """Spark settings of every service of the table."""
    pool: Name = ""
    """Airflow pool that the service's task takes a slot of; empty takes default_pool."""
    queue: Name = ""
    """Queue of the executor (Celery, Edge) that the service's task is sent to; empty takes the executor's own."""
    label: Name = ""
    """Names the budget of `budgets.labels` that the table's services share."""
    timeout_s: Seconds = 43_200.0
    """One try of a service is ended, and retried, after this."""
    retries: From0 = 4
    """Tries after the first, within one run."""
    start_within_s: Seconds = 3_600.0
    """A run that has not begun after this is reported."""
    deadline_s: Seconds = 86_400.0
    """A run that has not ended after this is ended as failed, whatever it is doing."""
    heartbeat_timeout_s: Annotated[Seconds | None, NullMeans("the table's commit interval")] = None
    """Silence after which the table is refreshed without a notice; null follows the table's commit interval."""
    max_runs_per_instant: From1 = 3
    """Failed runs for one state of the table, after which the manager gives up until the table changes."""
    retry_backoff_s: Seconds = 60.0
    """Pause before the run after a failed one; it doubles each time."""
    max_active_runs: From1 = 1
    """Services of the table that may run at once."""
    maintenance_window: MaintenanceWindow | None = None
    """When new plans may be made; None is always. Pending plans hold others up and are executed at any time."""

    def find_pause(self, service: str) -> str:
        """Return by whom a service is paused, and why; empty when it is not, or when no section has that name."""
        rules = getattr(self, service, None)
        return rules.paused or "" if isinstance(rules, ServicePolicy) else ""

    def find_why_observed(self, *, is_only_discovered: bool) -> str:
        """Return why nothing may start on the table, and what to do; empty when the table is managed."""
        if self.mode == "observe":
            return "mode: observe in the tables file; mode: manage lets it run"
        if self.mode is None and is_only_discovered:
            return (
                "lake_discovery found this table, and its owner has not agreed: an entry of the tables file that names "
                "its path, mode: manage, or the commit callback of its writer lets it run"
            )
        return ""

    def find_problem(self) -> str | None:
        """Say in one sentence which settings contradict each other; None when none do."""
        if self.clean.policy == "hours" and self.clean.retained_hours is None:
            return "clean.policy: hours needs clean.retained_hours: for how many hours file versions are kept"
        if self.clean.policy == "versions" and self.clean.retained_versions is None:
            return "clean.policy: versions needs clean.retained_versions: how many versions of each file are kept"
        if self.clean.policy != "hours" and self.clean.retained_hours is not None:
            return f"clean.retained_hours needs clean.policy: hours (it is {self.clean.policy}), or null"
        if self.clean.policy != "versions" and self.clean.retained_versions is not None:
            return f"clean.retained_versions needs clean.policy: versions (it is {self.clean.policy}), or null"
        if self.clean.policy == "versions" and self.replication:
            return (
                "clean.policy: versions cannot hold files back for replication, which needs those of certain commits: "
                "use commits or hours"
            )
        if self.clean.policy == "commits" and self.archive.min_commits <= self.clean.retained_commits:
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

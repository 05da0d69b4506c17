"""When each service of a table is due, how it runs, and when it may begin: one policy for each, and the window.

A rule of None is off; any rule that holds makes a service due, or, with `combine: all`, only all that are on together.
A field and its docstring are all that a setting needs (`config.kinds`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from airflow_lake_provider.config.kinds import (
    Clock,
    From0,
    From1,
    Listed,
    Moment,
    Name,
    NullMeans,
    Positive,
    Seconds,
    Settings,
    Text,
    TimeZone,
    Written,
    problem,
)
from airflow_lake_provider.config.owned_options import explain_unbuilt_index
from airflow_lake_provider.shared.catalog_names import NAME, NAME_IN_WORDS


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


CatalogName = Annotated[str, Text(NAME, NAME_IN_WORDS)]
_METASTORE = r"thrift://[A-Za-z0-9.-]{1,253}:\d{1,5}"
Metastore = Annotated[str, Text(rf"{_METASTORE}(,{_METASTORE})*", "thrift://host:9083, several separated by commas")]

Column = Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]*", "a column of the table, such as customer")]
Layout = Literal["linear", "z-order", "hilbert"]

_BY_WHOM = "by whom and why, in up to 300 characters"


class Pausable(Settings):
    """What a person may hold back: a table, or a service of it."""

    paused: Annotated[Annotated[str, Text(r"[^\n]{1,300}", _BY_WHOM)] | None, NullMeans("not paused")] = None
    """By whom, and why: what is due is decided and shown, and not started, not even pending plans; manual runs go on.
    The Lake's page writes it into the Variable."""
    paused_until: Annotated[Moment | None, NullMeans("until it is resumed")] = None
    """When the pause ends by itself."""

    @property
    def pause_ends_ms(self) -> int | None:
        """When the pause ends; None: it has no end."""
        ends = self.paused_until
        return None if ends is None else int(datetime.fromisoformat(ends).timestamp() * 1000)

    def is_paused_at(self, now_ms: int) -> bool:
        """Whether the pause is in force at a time."""
        ends_ms = self.pause_ends_ms
        return bool(self.paused) and (ends_ms is None or now_ms < ends_ms)


class ServicePolicy(Pausable):
    """What the policies of all services have."""


class RewritePolicy(ServicePolicy):
    """What the policies of services have that rewrite rows which readers see already."""

    verify: Literal["all", "sample", "off"] = "sample"
    """How many rewritten rows the job compares with what a reader saw, before it commits. A difference fails the run
    and blocks rewriting of the table until a person lifts the block (docs/services.md)."""


class CompactionPolicy(RewritePolicy):
    """When compaction is due."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    delta_commits: From1 | None = 5
    """Completed delta commits since the last compaction."""
    log_to_base_ratio: Positive | None = 0.5
    """Bytes in log files over bytes in the base files below them."""
    min_log_bytes: From0 = 0
    """The ratio rule needs at least this many bytes in log files."""
    max_age_s: Seconds | None = None
    """How long the oldest delta commit may wait."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""


class LogCompactionPolicy(RewritePolicy):
    """When log compaction is due: it merges small log files of a file slice. Off unless enabled."""

    enabled: Annotated[bool | None, NullMeans("others' plans only")] = None
    """Null: only execute plans that another process left behind, as they block others."""
    log_files: From1 | None = 5
    """Log files in one file slice (Hudi's `hoodie.log.compaction.blocks.threshold`)."""
    max_age_s: Seconds | None = None
    """How long the oldest delta commit may wait, where a file slice has more than one log file."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""


class ClusteringPolicy(RewritePolicy):
    """When clustering is due. Off unless enabled: writers that update the rewritten data meanwhile fail."""

    enabled: Annotated[bool | None, NullMeans("others' plans only")] = None
    """Null: only execute plans that another process left behind, as they block others."""
    commits: From1 | None = None
    """Completed writes since the last clustering."""
    small_files: From1 | None = 10
    """Small base files in one partition. A plan takes such partitions, the worst first, at most
    `hoodie.clustering.plan.strategy.max.num.groups` (30); the others follow."""
    small_file_bytes: From1 = 104_857_600
    """A base file below this size is small; only small ones are rewritten
    (`hoodie.clustering.plan.strategy.small.file.limit`)."""
    max_age_s: Seconds | None = None
    """How long the oldest write since the last clustering may wait."""
    combine: Literal["any", "all"] = "any"
    """Whether any rule makes it due, or only all that are on together."""
    sort_columns: Listed[Column] = ()
    """Sorts rewritten rows (`hoodie.clustering.plan.strategy.sort.columns`), so that queries that filter by these
    columns open few files. The job refuses a column that the table lacks."""
    layout: Layout = "linear"
    """How `sort_columns` order rows (`hoodie.layout.optimize.strategy`): `linear` serves filters by the first column,
    the others filters by any."""


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
    """What retention counts (`hoodie.clean.policy`)."""
    retained_commits: From1 = 10
    """For `policy: commits` (`hoodie.clean.commits.retained`): keeps what the last so many commits need."""
    retained_hours: From1 | None = None
    """For `policy: hours` (`hoodie.clean.hours.retained`): keeps what commits of the last hours need."""
    retained_versions: From1 | None = None
    """For `policy: versions` (`hoodie.clean.fileversions.retained`): versions of each file group, however old."""


class ArchivePolicy(ServicePolicy):
    """When archiving is due."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    min_commits: From1 = 20
    """`hoodie.keep.min.commits`: completed writes that stay on the active timeline."""
    max_commits: From1 = 30
    """`hoodie.keep.max.commits`: with more it is due."""
    checkpoint_days: From0 = 30
    """Days for which the newest commit with a stream's checkpoint stays active: the stream finds it nowhere else."""
    checkpoint_keys: Listed[Annotated[str, Text(r"[^\s,]{1,200}", "a key of commit metadata")]] = ()
    """Metadata keys of a stream's position, besides those of HoodieStreamer and Structured Streaming."""


class RollbackPolicy(ServicePolicy):
    """When pending writes with an expired heartbeat are rolled back. Those that never had one are left alone."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    after_s: Seconds = 600.0
    """A younger write is left alone, whatever its heartbeat says."""


class TtlPolicy(ServicePolicy):
    """When partitions or rows expire and are deleted. None does unless `retained_days` or `column` is set."""

    retained_days: From1 | None = None
    """Days without a write after which a partition is deleted."""
    check_every_s: Seconds = 86_400.0
    """How often the service checks; each time is a run."""
    max_partitions: From1 = 1000
    """Partitions that one run deletes at most, the oldest first."""
    column: Column | None = None
    """Rows expire by this column (date, timestamp or whole number) instead of partitions; a null never expires."""
    column_days: From1 | None = None
    """Days after which a row expires by its `column`."""
    column_unit: Annotated[Literal["s", "ms", "us"] | None, NullMeans("it is no whole number")] = None
    """What a `column` of whole numbers counts since the epoch."""
    column_mode: Literal["delete", "report"] = "delete"
    """`report` only counts expired rows."""
    max_rows: From1 = 1_000_000
    """Rows that one run deletes at most, by whole file groups, those with the oldest rows first."""
    max_file_groups: From1 = 100
    """File groups from which one run deletes rows at most; it holds the table's lock meanwhile."""

    @property
    def is_on(self) -> bool:
        """Whether partitions or rows expire."""
        return self.retained_days is not None or self.column is not None


class SavepointPolicy(ServicePolicy):
    """Savepoints at intervals, and their lifetime. Off unless `every_s` is set: they hold back cleans and archiving."""

    every_s: Seconds | None = None
    """How often the newest completed write gets a savepoint, unless nothing was written since the last one."""
    keep: From0 = 7
    """How many of the service's newest savepoints stay; 0 makes none, and removes all of its own."""
    expire_after_s: Seconds | None = None
    """Savepoints of the service that are older than this are also removed, except the newest."""


class OrphanPolicy(ServicePolicy):
    """Search for orphan files: files in partitions that no instant, plan or savepoint names."""

    enabled: bool = False
    """Whether the service searches."""
    mode: Literal["report", "quarantine"] = "report"
    """`report` only lists orphan files; `quarantine` moves them below `.hoodie/.aux/lake_quarantine`."""
    min_age_days: From1 = 7
    """Younger files stay, by modification time and by instant; never less than the table's longest commit."""
    keep_days: From1 = 30
    """Days after which the next run deletes quarantined files; until then a run with mode `undo` puts them back."""
    check_every_s: Seconds = 604_800.0
    """How often the service searches: a run that lists every partition."""
    max_files: From1 = 1000
    """Files that one run moves at most, the oldest first; it holds the table's lock meanwhile."""


class SyncPolicy(ServicePolicy):
    """How the table is registered in a catalog, by Hudi's own sync tool. Off unless enabled."""

    enabled: bool = False
    """Whether the catalog gets the table, its columns and its partitions."""
    metastore: Annotated[Metastore | None, NullMeans("that of the jobs' hive-site.xml")] = None
    """Addresses of the Hive metastore, separated by commas. Other catalogs: `hudi_options`."""
    database: CatalogName = "default"
    """The catalog's database; Hudi makes a missing one."""
    table: Annotated[CatalogName | None, NullMeans("the last part of the table's path")] = None
    """The table's name there. A merge-on-read table also gets it with `_ro` and with `_rt` appended."""


class IntegrityPolicy(ServicePolicy):
    """When samples of files and record keys are compared. Off unless enabled; a run changes nothing."""

    enabled: bool = False
    """Whether the service compares."""
    keys: Literal["partition", "table", "off"] = "partition"
    """Where a record key must have one row; `off` where keys may be written several times."""
    check_every_s: Seconds = 86_400.0
    """How often the service compares; each time is a run."""
    max_partitions: From1 = 20
    """Partitions that one run compares at most; of more it draws a sample, in each run another."""
    max_bytes: From1 = 1_073_741_824
    """Bytes of the file groups whose keys one run reads at most; of more it draws a sample."""


class MetadataCompactionPolicy(ServicePolicy):
    """When the metadata table is compacted. Hudi's writers do that themselves, unless they delegate it or it fails."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    commits: From1 = 30
    """More completed writes than this since its last compaction (Hudi's writers: 10)."""


class IndexingPolicy(ServicePolicy):
    """Which indexes the provider builds in the metadata table (docs/indexing.md); pending builds run without any."""

    enabled: bool = True
    """False: leave the service alone, pending plans as well."""
    indexes: Listed[Index] = ()
    """The service builds what is missing of these: `record_index`, `column_stats:amount,ts`, `secondary_index:city`,
    ..."""
    check: Literal["cheap", "full"] = "cheap"
    """How a build is verified: by timeline and metadata table, or also by the data files."""
    wait_s: Seconds = 300.0
    """How long a build waits until no writer runs that would be missing in the index."""
    verify_every_s: Seconds | None = None
    """How often the service looks up sampled rows by the complete `indexes`; it unlists and rebuilds one that misses
    rows. Null: never."""
    check_timeout_s: From1 = 900
    """How long a built index waits for writers that may not know it (`hoodie.metadata.index.check.timeout.seconds`)."""


class ServicePolicies(Settings):
    """The policies of all services of a table; each has the name of its service."""

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
    sync: SyncPolicy = SyncPolicy()
    integrity: IntegrityPolicy = IntegrityPolicy()


class ConflictPolicy(Settings):
    """Early conflict detection between the provider's services and the table's writers."""

    enabled: bool = True
    """Check which writers work on a service's file groups, before it begins and while it runs."""
    strategy: Name = "AsyncTimelineMarkerBased"
    """How a running service is watched: a strategy of RFC-56, or a registered one."""
    period_s: Seconds = 10.0
    """How often a running or waiting service is checked."""
    initial_delay_s: Seconds = 1.0
    """When after its start a service is checked first."""


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

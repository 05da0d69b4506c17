"""When which service of a table is due, and how it may run: the values of the tables file.

A rule of None is off; any rule that holds makes a service due, or, with `combine: all`, only all that are on together.
A combination that Hudi would refuse, or that could lose data, is refused here. Each field says with `setting` what it
may be: the parser of the tables file and its JSON schema follow from that, and the field's docstring is the setting's
description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_lake_provider.maintenance_window import MaintenanceWindow
from airflow_lake_provider.owned_options import OWNED_OPTIONS
from airflow_lake_provider.replication_policy import ReplicationPolicy, SinkEntries
from airflow_lake_provider.scalar_kinds import FROM_0, FROM_1, SECONDS, Flag, OneOf, Positive, Text
from airflow_lake_provider.setting_kinds import Names, Off, Options, Section, Texts, setting
from airflow_lake_provider.stuck_shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

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

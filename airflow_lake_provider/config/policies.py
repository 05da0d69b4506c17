"""What holds for one table (`TablePolicy`): its services, sinks, maintenance window, engine and limits.

A combination that Hudi would refuse, or that could lose data, is refused here. A field and its docstring are all that a
setting needs: the parser of the tables file, its errors and its JSON schema follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from airflow_lake_provider.config.kinds import (
    Allowed,
    From0,
    From1,
    Listed,
    Name,
    NullMeans,
    Options,
    Seconds,
    Settings,
    Text,
    Written,
    problem,
    require_no_secret,
    texts_of,
)
from airflow_lake_provider.config.may_set import MaySet  # noqa: TC001 - pydantic reads it
from airflow_lake_provider.config.owned_options import OWNED_OPTIONS, REFERENCE
from airflow_lake_provider.config.service_policies import (
    ConflictPolicy,
    MaintenanceWindow,
    Pausable,
    ServicePolicies,
    ServicePolicy,
)
from airflow_lake_provider.hudi.properties import find_zone_problem
from airflow_lake_provider.shared.partition_filter import (
    DEFAULT_MAX_GROUP_BYTES,
    DEFAULT_TARGET_FILE_BYTES,
    LAYOUT,
    MAX_GROUP_BYTES,
    SMALL_FILE_LIMIT,
    SORT_COLUMNS,
    TARGET_FILE_BYTES,
    int_of,
)
from airflow_lake_provider.sink_options.entry import BUILT_IN_FORMATS, check_entry
from airflow_lake_provider.sink_options.options import OptionError

# --- The `replication` setting of a table: a list of sinks, each with what it receives and how long it may hold back

DAY_S = 86_400.0
_NAME_OF_STREAM = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}"


class ReplicationPolicy(Settings):
    """One sink of a table. What else an entry says are the sink's own settings; those of built-in sinks are checked."""

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
                for sink, formats in BUILT_IN_FORMATS.items()
            ],
        },
    )

    sink: Annotated[
        str, Text(_NAME_OF_STREAM, "the name of a sink: kafka, file, database, hudi, noop or one of your own")
    ]
    """The sink's registered name."""
    name: Annotated[str, Text(_NAME_OF_STREAM, "up to 80 letters, digits, _, - and .")] = ""
    """Names the stream together with the table; empty takes `sink`."""
    mode: Literal["changes", "latest"] = "changes"
    """`changes`: operation, row before and after. `latest`: the row, or nothing after its deletion."""
    key: Listed[Annotated[str, Allowed("fields")]] = ()
    """Fields of the key; empty takes record key and partition fields."""
    ttl_s: Seconds = DAY_S
    """When the hold of a sink without progress ends; the sink then begins with a new snapshot."""
    max_hold_s: Seconds | None = None
    """As its run ends, the hold of a sink that lacks an older commit ends, progress or not; off unless set."""
    max_held_bytes: From1 | None = None
    """The same, when the sink lacks commits and holds more bytes of replaced files than this."""

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
        allowed = BUILT_IN_FORMATS.get(own["sink"], ()) if isinstance(own["sink"], str) else ()
        if allowed and texts.get("format", "json") not in allowed:
            raise problem(f"format is {texts['format']!r}, allowed: {', '.join(allowed)}", "format")
        if allowed and texts.get("format") == "json":
            # What each sink writes anyway.
            del texts["format"]
        return {"name": own["sink"], **own, **texts}

    @model_validator(mode="after")
    def _check(self) -> Self:
        references = [name for name, text in self.options.items() if text.startswith(REFERENCE)]
        try:
            check_entry(self.sink, self.mode, self.options, references, type(self).model_fields)
        except OptionError as error:
            raise problem(str(error), error.option) from error
        return self


def _named_once(sinks: tuple[ReplicationPolicy, ...]) -> tuple[ReplicationPolicy, ...]:
    names = [sink.name for sink in sinks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise problem(f"two sinks are named {twice!r}: give one of them another name")
    return sinks


# --- How a table's timeline can be stuck, by the names that the tables file and the doctor use


class StuckKind(StrEnum):
    """One way to be stuck. The doctor says which kinds can be repaired, and how."""

    ORPHANED_LOCK = "orphaned_lock"
    """The lock file of a writer that was killed."""
    UNREADABLE_FILE = "unreadable_file"
    EMPTY_PLAN = "empty_plan"
    """A plan of zero bytes, which no process can execute; one of a compaction stops every writer."""
    LOST_METADATA_TABLE = "lost_metadata_table"
    """A metadata table that the properties list and that is gone, or has an empty file: every writer fails."""
    FOREIGN_TIME_ZONE = "foreign_time_zone"
    """The newest instants were named in another zone than that of the jobs: no service is started."""
    DISORDERED_WRITES = "disordered_writes"
    """Writes that sort before a compaction, or another commit, that was made before them: readers leave them out."""
    FAILED_WRITE = "failed_write"
    """A write without heartbeat that no process rolled back."""
    DANGLING_REPLACECOMMIT = "dangling_replacecommit"
    """The same, requested only: what `run_ttl` leaves when nothing has expired."""
    PLAN_WITHOUT_EXECUTOR = "plan_without_executor"
    LOST_FILES = "lost_files"
    """A compaction whose plan reads files that are gone or cut short: it fails, and readers fail or miss rows."""
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
    ROWS_DIFFER = "rows_differ"
    """A service would have changed what readers see: no service rewrites the table until a person lifts the block."""
    GONE_FILES = "gone_files"
    """Files that the metadata table lists, and that the store lacks or has cut short (service `integrity`)."""
    UNLISTED_FILES = "unlisted_files"
    """Files of completed writes that the metadata table does not list (service `integrity`)."""
    DUPLICATE_KEYS = "duplicate_keys"
    """Record keys with several rows (service `integrity`)."""
    ARCHIVED_BEHIND_SAVEPOINT = "archived_behind_savepoint"
    """Writes that were archived although a savepoint before them stays: readers leave their files out."""
    ARCHIVED_BEHIND_HEAD = "archived_behind_head"
    """The same behind an index build or a restore that stays: a compaction leaves their log files out."""


class DoctorPolicy(Settings):
    """Which problems may be repaired, and the ages from which something counts as left behind."""

    repairs: Listed[Annotated[StuckKind, Field(strict=False)]] = ()
    """What the doctor may repair; empty: nothing."""
    notify: bool = True
    """Whether people are notified of problems that neither the doctor nor a due service repairs."""
    stuck_after_s: Seconds = 600.0
    """Age of instants whose executor would send a heartbeat, and of plans that never began."""
    lock_after_s: Seconds = 1800.0
    """Age of a lock file that the doctor moves away, on a table without a living heartbeat."""
    unguarded_after_s: Seconds = 21_600.0
    """Age of what has no heartbeat: index builds, services of other processes, writes in single-writer mode."""


class HoldPolicy(Settings):
    """What readers may hold of a table's files: a long query, a backfill, an export."""

    enabled: bool = True
    """Whether readers may hold files."""
    max_hold_s: Seconds = DAY_S
    """How long a hold may last, and how long ago the files that it keeps may have been replaced."""
    max_held_bytes: From1 | None = None
    """Bytes of replaced files with which a hold ends; off unless set."""


HudiOptions = Annotated[Mapping[str, str], Options(r"^hoodie\.", "Hudi setting (hoodie.*)", OWNED_OPTIONS)]
SparkConf = Annotated[Mapping[str, str], Options(r"^spark\.", "Spark setting (spark.*)")]


Weight = Annotated[float, Field(ge=0.01, le=100), Allowed("a number from 0.01 to 100")]

_MIN_ARCHIVED = 2
"""Commits that one run of archiving takes at least."""


def _no_options() -> Mapping[str, str]:
    return MappingProxyType({})


class TablePolicy(Pausable, ServicePolicies):
    """What holds for one table."""

    called: ClassVar[str] = "a policy"

    mode: Annotated[Literal["manage", "observe"] | None, NullMeans("by how the table became known")] = None
    """`observe` decides and shows what is due, and starts nothing. Null observes tables that `lake_discovery` found,
    until their writers announce a commit or an entry names their path; it manages all others."""
    conflict: ConflictPolicy = ConflictPolicy()
    conformance: Literal["block", "report"] = "block"
    """`block` starts no service that a writer, as configured, would endanger or be endangered by. `report` only shows
    it: for tables whose writers and services never run concurrently."""
    doctor: DoctorPolicy = DoctorPolicy()
    holds: HoldPolicy = HoldPolicy()
    table_may_set: Listed[MaySet] = ()
    """What `lake.*` keys of hoodie.properties may set, numbers within bounds: `compaction.delta_commits 2..50`,
    `clustering.sort_columns`."""
    asset_events: Literal["services", "commits", "both"] = "services"
    """What adds events to the table's Airflow asset: completed services, writers' commits, or both."""
    replication: Annotated[Listed[Annotated[ReplicationPolicy, Allowed("sinks")]], AfterValidator(_named_once)] = ()
    """Where the table's changes go; empty: nowhere."""
    hudi_options: HudiOptions = Field(default_factory=_no_options)
    """Hudi settings of every service; the lock provider must be here, and nothing that a service sets itself."""
    engine: Name = ""
    """What executes the services, as `[lake] engine`, which holds when it is empty."""
    spark_conn_id: Name = ""
    """Airflow connection of the Spark jobs; empty takes `[lake] spark_conn_id`."""
    spark_conf: SparkConf = Field(default_factory=_no_options)
    """Spark settings of every service."""
    pool: Name = ""
    """Airflow pool of the services' tasks; empty takes default_pool."""
    queue: Name = ""
    """Queue of Airflow's executor (Celery, Edge) for the services' tasks; empty takes its default."""
    label: Name = ""
    """The budget of `budgets.labels` that the table shares."""
    weight: Weight = 1.0
    """What a service brings counts so many times in the ranked order."""
    timeout_s: Seconds = 43_200.0
    """When Airflow ends one try of a service, and retries it."""
    retries: From0 = 4
    """Tries after the first, within one run."""
    start_within_s: Seconds = 3_600.0
    """When the manager reports a run that has not begun."""
    deadline_s: Seconds = 86_400.0
    """When the manager ends a run as failed."""
    heartbeat_timeout_s: Annotated[Seconds | None, NullMeans("the table's commit interval")] = None
    """Silence after which the table is refreshed without a notice; null follows its commit interval."""
    max_runs_per_instant: From1 = 3
    """Failed runs for one state of the table, after which retries follow every six hours only."""
    retry_backoff_s: Seconds = 60.0
    """Pause before the run after a failed one; it doubles each time."""
    max_active_runs: From1 = 1
    """Services of the table that may run concurrently."""
    maintenance_window: MaintenanceWindow | None = None
    """When new plans may be made; null is always. Pending plans are executed at any time."""

    def find_pause(self, service: str, now_ms: int) -> str:
        """Return by whom a service, or the table, is paused now, and why; empty when neither is."""
        found = self._find_pause(service, now_ms)
        return "" if found is None else found.paused or ""

    def find_pause_end_ms(self, service: str, now_ms: int) -> int | None:
        """Return when the pause of a service ends that is in force now; None when it has no end, or is none."""
        found = self._find_pause(service, now_ms)
        return None if found is None else found.pause_ends_ms

    def _find_pause(self, service: str, now_ms: int) -> Pausable | None:
        rules = getattr(self, service, None)
        own = rules if isinstance(rules, ServicePolicy) else ServicePolicy()
        return next((one for one in (self, own) if one.is_paused_at(now_ms)), None)

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
        if self.deadline_s < self.timeout_s:
            return f"deadline_s ({self.deadline_s:g}) must not be less than timeout_s ({self.timeout_s:g})"
        problem = self._find_retention_problem() or self._find_clustering_problem() or self._find_expiry_problem()
        return problem or find_zone_problem(self.spark_conf)

    def _find_retention_problem(self) -> str | None:
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
        if self.archive.max_commits - self.archive.min_commits < _MIN_ARCHIVED:
            return (
                f"archive.max_commits ({self.archive.max_commits}) is one more than archive.min_commits "
                f"({self.archive.min_commits}), so each commit would make a run of archiving due: raise it"
            )
        return None

    def _find_expiry_problem(self) -> str | None:
        rules = self.ttl
        if (rules.column is None) != (rules.column_days is None):
            missing = "column_days" if rules.column_days is None else "column"
            return f"ttl.column and ttl.column_days go together: ttl.{missing} is not set"
        if rules.column is not None and rules.retained_days is not None:
            return (
                "ttl.retained_days deletes whole partitions by when they were written, ttl.column rows by their "
                "values: keep one of the two"
            )
        return None

    def _find_layout_problem(self) -> str | None:
        rules = self.clustering
        found = next((name for name in (SORT_COLUMNS, LAYOUT) if name in self.hudi_options), None)
        if rules.sort_columns and found is not None:
            return f"hudi_options: {found} contradicts clustering.sort_columns and clustering.layout: remove it"
        return None

    def _find_clustering_problem(self) -> str | None:
        contradicting = self._find_layout_problem()
        if contradicting is not None or not self.clustering.enabled:
            return contradicting
        small = self.clustering.small_file_bytes
        options = self.hudi_options
        if int_of(options, SMALL_FILE_LIMIT, small) != small:
            return (
                f"hudi_options: {SMALL_FILE_LIMIT}={options[SMALL_FILE_LIMIT]} contradicts "
                f"clustering.small_file_bytes ({small}), which a plan takes as its limit: set that, and remove it"
            )
        for name, default in (
            (TARGET_FILE_BYTES, DEFAULT_TARGET_FILE_BYTES),
            (MAX_GROUP_BYTES, DEFAULT_MAX_GROUP_BYTES),
        ):
            if (found := int_of(options, name, default)) <= small:
                return (
                    f"clustering.small_file_bytes ({small}) must be less than {name} ({found}): what a clustering "
                    "writes would count as small again"
                )
        return None

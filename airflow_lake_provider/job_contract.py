"""What Airflow and its Spark drivers agree on: the request and the result of a job, and the names that both use.

A task writes one request file, the driver one result file when it ends by itself; an absent result means that the
driver died. Neither is the truth about the table: the timeline is (G3). Table services and replication share the form
of the files (`to_json`, `from_json`), the kinds of failures, and the driver's exit codes.

Standard library only: this file travels to the driver, which has no more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE, LOCK_PROVIDER
from airflow_lake_provider.shared.typed_json import read_exact

CONTRACT_VERSION = 1

# --- Exit codes of a driver

EXIT_DONE = 0
EXIT_FAILED = 1
"""The result says what failed."""
EXIT_UNUSABLE = 2
"""There was no usable request, Spark did not start, or the result could not be written."""
EXIT_NO_CLUSTER = 69
"""Spark's cluster did not answer when the driver asked for a session; the table is untouched."""
EXIT_ORPHANED = 75
"""The driver ended itself because its submitter ended, or because it got SIGTERM (EX_TEMPFAIL: try again)."""

# --- Options of a request that are not Hudi's

SAFEPOINT = "lake.safepoint"
"""Option of clean and archive: the requested time that they must leave to the readers of changes; `0` is all."""
RETAINED_HOURS = "lake.clean.retained_hours"
"""Option of clean and archive: what the commits of the last so many hours need is kept; the job counts them."""
EXECUTOR_ENDED = "lake.executor.ended"
"""Option of a withdrawal: the caller has ended the plan's executor for certain, whatever its heartbeat says."""
ORPHAN_OPTIONS = "lake.orphans."
"""How the options of the removal of orphan files begin."""
ORPHAN_MODE = f"{ORPHAN_OPTIONS}mode"
"""`report` or `quarantine`."""
ORPHAN_MIN_AGE_DAYS = f"{ORPHAN_OPTIONS}min_age_days"
ORPHAN_KEEP_DAYS = f"{ORPHAN_OPTIONS}keep_days"
ORPHAN_MAX_FILES = f"{ORPHAN_OPTIONS}max_files"
SAVEPOINT_KEEP = "lake.savepoint.keep"
"""Option of savepoints: how many of those that the service made stay; without it all do."""
SAVEPOINT_EXPIRE_S = "lake.savepoint.expire_after_s"
RESTORE_TAKES_BACK = "lake.restore.takes_back"
"""Option of a restore: requested times of the writes and plans that it may take back, separated by commas."""
UPGRADE_VERSION = "lake.upgrade.version"
"""Option of a change of the table's version: the version that it is to have."""
CHECKPOINT_KEYS = "lake.archive.checkpoint_keys"
"""Option of archive: further keys of commit metadata that hold a stream's position, separated by commas."""
CHECKPOINT_DAYS = "lake.archive.checkpoint_days"
"""Option of archive: for how many days the newest checkpoint of a stream stays active; without it, none does."""
WRITERS_FIRST = "lake.conflict.writers_first"
"""Option of a service that can fail writers: when it is `true`, the job gives way to living writers as well."""
VERIFY = "lake.verify"
"""Option of a service that rewrites rows: how much of them it compares (`Verify`); without it a sample."""
TTL_OPTIONS = "lake.ttl."
"""How the options begin by which `ttl` deletes rows instead of partitions."""
TTL_COLUMN = f"{TTL_OPTIONS}column"
"""The column by whose value a row expires; with it, no partition does."""
TTL_COLUMN_DAYS = f"{TTL_OPTIONS}column_days"
TTL_COLUMN_UNIT = f"{TTL_OPTIONS}column_unit"
"""`s`, `ms` or `us`: what a column of whole numbers counts since the epoch."""
TTL_COLUMN_MODE = f"{TTL_OPTIONS}column_mode"
"""`report` or `delete`."""
TTL_MAX_ROWS = f"{TTL_OPTIONS}max_rows"
TTL_MAX_FILE_GROUPS = f"{TTL_OPTIONS}max_file_groups"
ERASE_OPTIONS = "lake.erase."
ERASE_STEP = f"{ERASE_OPTIONS}step"
"""Option of an erasure: which step of it the job does (`EraseStep`)."""
ERASE_FOLDER = f"{ERASE_OPTIONS}folder"
"""The folder that has the file of keys, and gets the receipt. The keys themselves are never an option."""
ERASE_SINKS = f"{ERASE_OPTIONS}sinks"
"""What a check, and the receipt, say of the table's sinks and of readers' holds, one on a line."""
SYNC_METASTORE = "lake.sync.metastore"
"""Option of sync: addresses of the Hive metastore; without it, those of the jobs' `hive-site.xml`."""
SYNC_DATABASE = "lake.sync.database"
SYNC_TABLE = "lake.sync.table"
"""The table's name in the catalog; without it, the last part of its path."""
INTEGRITY_KEYS = "lake.integrity.keys"
"""Option of a check: among which rows a record key must be the only one (`KeyScope`)."""
INTEGRITY_MAX_PARTITIONS = "lake.integrity.max_partitions"
INTEGRITY_MAX_BYTES = "lake.integrity.max_bytes"
INDEX_OPTIONS = "lake.index."
"""How the options of an index build begin that are not Hudi's."""
INDEX_WANTED = f"{INDEX_OPTIONS}wanted"
"""The indexes to build: a JSON list of objects with `partition`, `hudi_type` and `settings`."""
INDEX_CHECK = f"{INDEX_OPTIONS}check"
INDEX_WAIT_S = f"{INDEX_OPTIONS}wait_s"
INDEX_DROP = f"{INDEX_OPTIONS}drop"
INDEX_DROP_FIRST = f"{INDEX_OPTIONS}drop_first"
INDEX_NO_WRITER = f"{INDEX_OPTIONS}no_writer"
WORK_OPTIONS = "lake.work."
"""How the options begin of the request for a standing application, which has no service of its own and pulls work."""
WORK_URL = f"{WORK_OPTIONS}url"
"""Where the manager's routes are, with their path. A request with this option is one for a standing application."""
WORK_TOKEN = f"{WORK_OPTIONS}token"
"""The service token; in a request that is stored, a reference to it."""
WORK_KEY = f"{WORK_OPTIONS}key"
"""Which work it pulls: that of one queue, connection and Spark configuration."""
WORK_LEASE = f"{WORK_OPTIONS}lease"
"""The token of the application's own lease: work is given to its holder only."""
WORK_CA = f"{WORK_OPTIONS}ca"
"""The private authorities that the manager's certificate may come from, as PEM text; the driver may be elsewhere."""
WORK_AT_ONCE = f"{WORK_OPTIONS}at_once"
WORK_IDLE_S = f"{WORK_OPTIONS}idle_s"
WORK_MAX_AGE_S = f"{WORK_OPTIONS}max_age_s"
LAKE_OPTIONS = frozenset(
    {
        SAFEPOINT, RETAINED_HOURS, EXECUTOR_ENDED, ORPHAN_MODE, ORPHAN_MIN_AGE_DAYS, ORPHAN_KEEP_DAYS, ORPHAN_MAX_FILES,
        SAVEPOINT_KEEP, SAVEPOINT_EXPIRE_S, RESTORE_TAKES_BACK, UPGRADE_VERSION, CHECKPOINT_KEYS, CHECKPOINT_DAYS,
        WRITERS_FIRST, VERIFY, TTL_COLUMN, TTL_COLUMN_DAYS, TTL_COLUMN_UNIT, TTL_COLUMN_MODE, TTL_MAX_ROWS,
        TTL_MAX_FILE_GROUPS, ERASE_STEP, ERASE_FOLDER, ERASE_SINKS,
        SYNC_METASTORE, SYNC_DATABASE, SYNC_TABLE, INTEGRITY_KEYS, INTEGRITY_MAX_PARTITIONS, INTEGRITY_MAX_BYTES,
        INDEX_WANTED, INDEX_CHECK, INDEX_WAIT_S, INDEX_DROP, INDEX_DROP_FIRST,
        INDEX_NO_WRITER, WORK_URL, WORK_TOKEN, WORK_KEY, WORK_LEASE, WORK_CA, WORK_AT_ONCE, WORK_IDLE_S, WORK_MAX_AGE_S,
    }
)  # fmt: skip
"""All of them. One that a job does not know may be what another release keeps the table safe with: it is refused."""
LAKE_PREFIX = "lake."

# --- Hudi's names

METADATA_TABLE = ".hoodie/metadata"
"""The folder of a table's metadata table, below the base path."""
SECONDARY_INDEX_PREFIX = "secondary_index_"
EXPRESSION_INDEX_PREFIX = "expr_index_"
"""How the folders of these indexes begin in the metadata table; each is named for one index."""
INDEX_CLASH = (
    "column_stats and an expression index on one table: by a fault of Hudi 1.2 each write fails after a clean; drop "
    "one, before column_stats set hoodie.metadata.index.column.stats.enable=false in all writers (docs/limitations.md)"
)


def have_index_clash(partitions: Collection[str]) -> bool:
    """Whether Hudi writes a clean's entries of one index into another (`convertMetadataToExpressionIndexRecords`)."""
    return "column_stats" in partitions and any(name.startswith(EXPRESSION_INDEX_PREFIX) for name in partitions)


COMPACTIONS_PASS_FROM = 8
"""The first table version in which writers and compactions never meet."""

HEARTBEAT_INTERVAL = "hoodie.client.heartbeat.interval_in_ms"
HEARTBEAT_MISSES = "hoodie.client.heartbeat.tolerable.misses"
DEFAULT_HEARTBEAT_INTERVAL_MS = 60_000
DEFAULT_HEARTBEAT_MISSES = 2

HUDI_SPARK_CONF: Mapping[str, str] = MappingProxyType(
    {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        # An executor so initializes this class before its first task. Hudi 1.2.0 compares schemas by identity: where a
        # schema of the metadata table comes before the class, that table's records fail (ArrayIndexOutOfBounds).
        "spark.kryo.classesToRegister": "org.apache.hudi.metadata.HoodieMetadataPayload",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }
)
"""What Hudi needs from a Spark session."""

PLANNED_BEAT_MS = 1000
"""Time of the heartbeat that a job leaves for a plan that it made and did not begin, ms since the epoch.

It says whose plan it is, and nothing of an executor: a writer's own service may have begun it since.
"""
ENDED_BEAT_MS = 2000
"""The same for a plan whose execution failed: its executor has ended."""

LIVE_WORK = frozenset({"waiting", "running"})
"""States of an item of work (`WorkState`) that has not ended."""

OPTIMISTIC = "optimistic_concurrency_control"
MULTI_WRITER_MODES = (OPTIMISTIC, "non_blocking_concurrency_control")
# They guard the threads of one JVM, or nothing. A writer is another process.
PROVIDERS_WITHOUT_REACH = ("InProcessLockProvider", "NoopLockProvider")

MEMORY_KEYS = ("spark.driver.memory", "spark.executor.memory")

_T = TypeVar("_T")

# --- What a table shows of the Hudi that writes it. No writer leaves its version or its settings behind

LAST_VERSION_OF_1_0 = 8
"""Tables of a newer version were never written by Hudi 1.0."""
LAST_WRITES = 10
_RECORD = b'"HoodieMetadataRecord"'
_SINCE_1_1 = b'"valueType"'


def are_of_1_0(headers: Iterable[bytes]) -> bool:
    """Return whether Hudi 1.0 made one of the writes whose metadata log files begin like this.

    The blocks of that log carry the schema of their records (`HoodieMetadata.avsc`), to which 1.1 added `valueType`.
    """
    return any(_RECORD in header and _SINCE_1_1 not in header for header in headers)


class ContractError(ValueError):
    """A request or result file is not one of this contract; the message names the field."""


class Service(StrEnum):
    """Table services, in the spelling of Hudi's timeline actions where they leave one.

    `archive`, `orphans`, `sync` and `integrity` leave no instant, `ttl` a `replacecommit`, or of rows a `commit` or
    `deltacommit`, `metacompaction` a `compaction` of the metadata table.
    """

    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ARCHIVE = "archive"
    ROLLBACK = "rollback"
    TTL = "ttl"
    METACOMPACTION = "metacompaction"
    INDEXING = "indexing"
    SAVEPOINT = "savepoint"
    ORPHANS = "orphans"
    """Removal of files that no instant knows (Iceberg: `remove_orphan_files`)."""
    SYNC = "sync"
    """Registration in a catalog, by Hudi's own sync tools."""
    INTEGRITY = "integrity"
    """A sampled check of files and record keys, which changes nothing."""


IN_TURN = (Service.ROLLBACK, Service.COMPACTION, Service.CLEAN, Service.ARCHIVE)
"""The order in which a standing application runs what waits of one table; all other services come behind.

A rollback ends what failed writers left; a clean removes what a compaction replaced; archiving comes after a clean,
which plans by what is on the active timeline.
"""


class Standing(StrEnum):
    """What holds an executor's lease without being a service of a table."""

    APPLICATION = "application"
    """A standing Spark application; instead of a table's id, its lease has the key of the work that it pulls."""
    RESTORE = "restore"
    """A restore of a table: next to its lease, no service of the table has one."""
    UPGRADE = "upgrade"
    """A change of a table's version: the same."""
    ERASURE = "erasure"
    """A step of an erasure: the same."""


ALONE = frozenset({Standing.RESTORE, Standing.UPGRADE, Standing.ERASURE})
"""Next to these leases nothing else runs on the table."""


class Mode(StrEnum):
    """Which half of a service runs."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    SCHEDULE_AND_EXECUTE = "schedule_and_execute"
    WITHDRAW = "withdraw"
    """Take what stops writers out of a table: pending plans, or a metadata table that is lost (metacompaction)."""
    UNDO = "undo"
    """Put quarantined files back; orphans only."""
    RESTORE = "restore"
    """Take the table back to a savepoint, which `instants` names; savepoint only."""
    UPGRADE = "upgrade"
    """Give the table another version, up or down; savepoint only."""
    ERASE = "erase"
    """Do a step of the erasure of record keys (`EraseStep`); ttl only."""


class EraseStep(StrEnum):
    """The steps of an erasure; each repeats harmlessly."""

    CHECK = "check"
    """Find which files have the keys."""
    DELETE = "delete"
    REWRITE = "rewrite"
    """Compact, and clean what is older than what readers see."""
    PROVE = "prove"
    """Search every file, and write the receipt."""


@dataclass(frozen=True, slots=True)
class ServiceTraits:
    """What a service is to planner, task and job, besides its decision: its row in `TRAITS`."""

    job: str
    """Its Spark job: module and function below `lake_jobs`."""
    has_period: bool = False
    """It depends on the clock, and has a run in each period of its own."""
    retains: bool = False
    """Storage or the timeline grows without it."""
    can_wait: bool = False
    """It rewrites or searches whole tables, and is the last to get a slot."""
    removes_in: frozenset[Mode] = frozenset()
    """The modes in which the run itself chooses what is removed; a plan that exists names that."""
    reads_data_files: bool = False
    """How much it reads decides whether a standing application may run it."""
    why_alone: str = ""
    """Why no standing application runs it; empty when one may."""
    needs_lock: bool = True
    """It changes the table, and so needs the lock that its writers share."""
    is_harmless_to_unseen: bool = False
    """It neither rewrites, removes nor indexes by what a reader sees of the table."""
    lists_partitions: bool = False
    """It goes by Hudi's list of a table's partitions, or changes what counts as committed in them."""


_ALL_MODES = frozenset(Mode)
TRAITS: Mapping[Service, ServiceTraits] = MappingProxyType(
    {
        Service.COMPACTION: ServiceTraits(
            "services.compaction:run_compaction", reads_data_files=True, lists_partitions=True
        ),
        Service.LOGCOMPACTION: ServiceTraits(
            "services.compaction:run_log_compaction", can_wait=True, reads_data_files=True, lists_partitions=True
        ),
        Service.CLUSTERING: ServiceTraits(
            "services.clustering:run_clustering",
            can_wait=True,
            why_alone="it rewrites whole partitions, and the task watches for writers while it runs",
            lists_partitions=True,
        ),
        Service.CLEAN: ServiceTraits(
            "services.clean:run_clean", retains=True, removes_in=_ALL_MODES - {Mode.EXECUTE}, lists_partitions=True
        ),
        Service.ARCHIVE: ServiceTraits(
            "services.archive:run_archive",
            retains=True,
            removes_in=_ALL_MODES,
            is_harmless_to_unseen=True,
            lists_partitions=True,
        ),
        Service.ROLLBACK: ServiceTraits("services.rollback:run_rollback", is_harmless_to_unseen=True),
        Service.TTL: ServiceTraits(
            "services.expiry:run_expiry", has_period=True, can_wait=True, removes_in=_ALL_MODES, lists_partitions=True
        ),
        Service.METACOMPACTION: ServiceTraits(
            "services.compaction:run_metadata_compaction", retains=True, reads_data_files=True
        ),
        Service.INDEXING: ServiceTraits(
            "indexing.job:run_indexing",
            can_wait=True,
            why_alone="it reads the whole table, with settings of its own for the session",
            lists_partitions=True,
        ),
        Service.SAVEPOINT: ServiceTraits(
            "services.savepoint:run_savepoint",
            has_period=True,
            removes_in=_ALL_MODES - {Mode.RESTORE, Mode.UPGRADE},
            is_harmless_to_unseen=True,
        ),
        Service.ORPHANS: ServiceTraits(
            "services.orphans:run_orphans",
            has_period=True,
            removes_in=_ALL_MODES - {Mode.SCHEDULE, Mode.UNDO},
            why_alone="it lists the whole table",
        ),
        Service.SYNC: ServiceTraits(
            "services.sync:run_sync",
            why_alone="it waits for a catalog",
            needs_lock=False,
            is_harmless_to_unseen=True,
        ),
        Service.INTEGRITY: ServiceTraits(
            "services.integrity:run_integrity",
            has_period=True,
            can_wait=True,
            why_alone="it reads whole partitions",
            needs_lock=False,
            is_harmless_to_unseen=True,
        ),
    }
)


class Outcome(StrEnum):
    """How one service of a job ended, as its driver saw it."""

    SCHEDULED = "scheduled"
    COMPLETED = "completed"
    NOTHING_TO_DO = "nothing_to_do"
    FAILED = "failed"


class FailureKind(StrEnum):
    """What a failure calls for. `OTHER` is retried with backoff."""

    LOCK = "lock"  # the table lock could not be taken: try later
    BUSY = "busy"  # another executor's heartbeat on the same plan lives: try later
    PLAN_GONE = "plan_gone"  # the named plan is not pending any more: evaluate the table again
    CONFLICT = "conflict"  # a writer's commit stands in the way: wait for the writer
    OUT_OF_MEMORY = "out_of_memory"
    INFRASTRUCTURE = "infrastructure"  # store, work_dir or manager: no verdict about the plan; wait for them
    REFUSED = "refused"  # it cannot be done as things are, and no retry helps: the message names what to change
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Submitter:
    """The process that started the job; when it has ended, the driver ends itself, so that a retry is alone.

    `start_ticks` is field 22 of `/proc/<pid>/stat` and distinguishes a re-used process id.
    """

    host: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """One service to run.

    `instants` are requested times of pending plans to execute; empty means: every plan that is pending, and for
    `SCHEDULE_AND_EXECUTE` a new plan only when none is pending. `options` are Hudi settings of this service alone.
    """

    service: Service
    mode: Mode
    instants: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def lease_of(request: ServiceRequest) -> Service | Standing:
    """Return what the lease of a request's executor is called: some have one that keeps all services away."""
    alone = {
        Mode.RESTORE: Standing.RESTORE,
        Mode.UPGRADE: Standing.UPGRADE,
        Mode.ERASE: Standing.ERASURE,
    }
    return alone.get(request.mode, request.service)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What one Spark job does to one table. `hudi_options` hold for all services (lock provider, ...)."""

    job_id: str
    base_path: str
    table_name: str
    services: tuple[ServiceRequest, ...]
    result_path: str
    hudi_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    submitter: Submitter | None = None


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """How one service went. Times are ISO 8601 with zone; sizes are of the completed instants' own metadata."""

    service: Service
    outcome: Outcome
    scheduled_instants: tuple[str, ...] = ()
    completed_instants: tuple[str, ...] = ()
    failure_kind: FailureKind | None = None
    message: str = ""
    started_at: str = ""
    ended_at: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job that ended by itself says of its services, in the order of the request."""

    job_id: str
    services: tuple[ServiceResult, ...]
    spark_application_id: str = ""
    memory: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Spark's settings of memory that were in force, wherever they came from; those that were not made are missing."""

    @property
    def has_failed(self) -> bool:
        """Whether one of its services failed."""
        return any(service.outcome is Outcome.FAILED for service in self.services)

    def find(self, service: Service) -> ServiceResult | None:
        """Return what it says of a service; None when that is nothing."""
        return next((found for found in self.services if found.service is service), None)


# --- A rewrite that would have changed what readers see: its mark in the table, until a person lifts it

REWRITES = frozenset({Service.COMPACTION, Service.LOGCOMPACTION, Service.CLUSTERING})
"""Services that write rows again which readers see already: after them readers must see the same."""
REWRITE_BLOCK = ".hoodie/.aux/lake_rows_differ.json"
"""File in a table on which no service may rewrite rows; the doctor reports it as `rows_differ`, and lifts it."""


class Verify(StrEnum):
    """How many of the rows that a service rewrites it compares with what a reader saw before."""

    ALL = "all"
    SAMPLE = "sample"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RowsDiffer:
    """What a comparison found, for people."""

    service: Service
    instant: str
    difference: str
    """In words: partition, file group, and keys."""


def describe_block(content: bytes) -> str:
    """Return in one sentence what blocks the rewriting of a table whose mark has this content."""
    try:
        found = from_json(RowsDiffer, content.decode())
        what = f"{found.service} {found.instant} would have changed what readers see: {found.difference}"
    except (ContractError, UnicodeDecodeError):
        what = "a service would have changed what readers see"
    return (
        f"{what}. No service rewrites this table until {REWRITE_BLOCK} is gone: find the cause, then lift the block "
        "(`airflow lake doctor`, rows_differ)"
    )


# --- A change of a table's version that is on its way: its mark in the table, which is gone once it was verified

UPGRADE_MARK = ".hoodie/.aux/lake_upgrade.json"
"""While it is there, Hudi may have moved half of the timeline: nothing but the same change may touch the table."""


UNSEEN = -1


@dataclass(frozen=True, slots=True)
class UpgradeMark:
    """What a change of the version began with, and where it goes."""

    began_at: int
    """The version that the table had."""
    goal: int
    instants: tuple[str, ...]
    """The completed instants, as `requested time.action`."""
    rows: int
    """What readers saw: the number of rows, and an order-free hash of them; `UNSEEN` where half had moved already."""
    hashes: int
    metadata_partitions: tuple[str, ...]
    properties: str
    """What `hoodie.properties` had, for people."""
    goes_back: str = ""
    """Why the table goes back to the version that it had; empty where it does not."""

    @property
    def target(self) -> int:
        """The version that the next step leads to."""
        return self.began_at if self.goes_back else self.goal


def describe_mark(content: bytes) -> str:
    """Return in one sentence what keeps everything else away from a table whose mark has this content."""
    try:
        found = from_json(UpgradeMark, content.decode())
        what = f"from {found.began_at} to {found.goal}"
    except (ContractError, UnicodeDecodeError):
        what = "to another one"
    return (
        f"a change of its version {what} is not finished, and half of its timeline may have moved: run lake_upgrade "
        f"again ({UPGRADE_MARK})"
    )


# --- What a check of integrity has found: a file for each kind in the table, until a run finds it gone

DAMAGE_FOLDER = ".hoodie/.aux/lake_integrity"


class KeyScope(StrEnum):
    """Among which rows a record key must be the only one."""

    PARTITION = "partition"
    TABLE = "table"
    OFF = "off"


class DamageKind(StrEnum):
    """What a check finds; the doctor reports it by the same name."""

    GONE_FILES = "gone_files"
    """Files that the metadata table lists, and that the store lacks or has cut short."""
    UNLISTED_FILES = "unlisted_files"
    """Files of completed writes that the metadata table does not list: readers miss their rows."""
    DUPLICATE_KEYS = "duplicate_keys"

    @property
    def place(self) -> str:
        """The file that says what is known of it."""
        return f"{DAMAGE_FOLDER}/{self.value}.json"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that a check found, for people, and the partitions that it is in."""

    kind: DamageKind
    partitions: tuple[str, ...]
    what: str


@dataclass(frozen=True, slots=True)
class KnownDamage:
    """Everything of one kind that is known of a table."""

    found: tuple[Damage, ...]


def describe_damage(content: bytes) -> str:
    """Return in words what such a file says."""
    try:
        found = from_json(KnownDamage, content.decode()).found
    except (ContractError, UnicodeDecodeError):
        return "a check has found damage; its report is not readable"
    more = f"; and in {len(found) - 1} more places ({DAMAGE_FOLDER} of the table)" if len(found) > 1 else ""
    return f"{found[0].what if found else 'a check has found damage'}{more}"


def find_lock_problem(hudi_options: Mapping[str, str]) -> str | None:
    """Say in one sentence why these options do not guard a service against writers; None when they do."""
    provider = hudi_options.get(LOCK_PROVIDER, "").strip()
    if not provider:
        return (
            f"no {LOCK_PROVIDER} is configured; a service in a second process needs the lock provider that the "
            f"table's writers use: set it in hudi_options of the tables file (and in the writers, with "
            f"{CONCURRENCY_MODE}={OPTIMISTIC})"
        )
    if provider.rsplit(".", 1)[-1] in PROVIDERS_WITHOUT_REACH:
        return (
            f"{LOCK_PROVIDER}={provider} does not reach beyond one process; use one that all writers share, "
            "for example FileSystemBasedLockProvider or ZookeeperBasedLockProvider"
        )
    mode = hudi_options.get(CONCURRENCY_MODE, OPTIMISTIC).strip().lower()
    if mode not in MULTI_WRITER_MODES:
        return f"{CONCURRENCY_MODE}={mode} takes no lock; use {OPTIMISTIC}"
    return None


# --- The form of the files: any frozen dataclass of texts, numbers, enums, tuples, mappings of texts, and the like


def to_json(value: Any) -> str:
    """Print a request or a result; `from_json` is the inverse."""
    return json.dumps(_plain(value) | {"contract_version": CONTRACT_VERSION}, indent=2, sort_keys=True, default=_plain)


def from_json(kind: type[_T], text: str) -> _T:
    """Parse a file that `to_json` printed. Raises ContractError for what is missing, unknown or of another type."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ContractError(f"not JSON: {error}") from error
    if not isinstance(body, dict) or "contract_version" not in body:
        raise ContractError("field 'contract_version' is missing")
    version = body.pop("contract_version")
    if version != CONTRACT_VERSION:
        raise ContractError(
            f"contract_version is {version!r}, this code speaks {CONTRACT_VERSION}: use one release for tasks and Spark"
        )
    try:
        found = read_exact(kind, body)
    except ValueError as error:
        raise ContractError(str(error)) from error
    if isinstance(found, JobRequest):
        _refuse_unknown_options(found)
    return found


def _refuse_unknown_options(request: JobRequest) -> None:
    options = (request.hudi_options, *(service.options for service in request.services))
    unknown = sorted({name for some in options for name in some if name.startswith(LAKE_PREFIX)} - LAKE_OPTIONS)
    if unknown:
        raise ContractError(
            f"option {', '.join(unknown)} is unknown to this code, so another release made the request: use one "
            "release for tasks and Spark"
        )


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}

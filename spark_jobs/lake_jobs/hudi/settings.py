"""The Hudi settings that a table service runs with."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.instant_clock import MARGIN_COMMITS_OF_HOURS, commits_to_keep
from airflow_lake_provider.job_contract import (
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    DEFAULT_HEARTBEAT_MISSES,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_MISSES,
    OPTIMISTIC,
    RETAINED_HOURS,
    SAFEPOINT,
    Service,
)
from airflow_lake_provider.shared.hudi_settings import (
    ARCHIVE_AUTOMATIC,
    AUTO_DELETE_INDEXES,
    CLEAN_AUTOMATIC,
    CLEAN_COMMITS_RETAINED,
    CLEAN_POLICY,
    CLEAN_TRIGGER_MAX_COMMITS,
    CLEAN_TRIGGER_STRATEGY,
    CLUSTERING_ASYNC_ENABLED,
    CLUSTERING_ASYNC_MAX_COMMITS,
    CLUSTERING_ENABLE_EXPIRATIONS,
    CLUSTERING_INLINE,
    CLUSTERING_INLINE_MAX_COMMITS,
    CLUSTERING_SCHEDULE_INLINE,
    COLUMN_STATS_ENABLE,
    COMPACT_INLINE,
    COMPACT_INLINE_MAX_DELTA_COMMITS,
    COMPACT_SCHEDULE_INLINE,
    COMPACTION_TRIGGER,
    CONCURRENCY_MODE,
    FAILED_WRITES_POLICY,
    KEEP_MAX_COMMITS,
    KEEP_MIN_COMMITS,
    LOCK_PROVIDER,
    LOG_COMPACTION_ENABLE,
    LOG_COMPACTION_INLINE,
    METADATA_ENABLE,
    PARTITION_STATS_ENABLE,
    PARTITION_TTL_INLINE,
    STREAMING_WRITES,
    TABLE_SERVICE_MANAGER_ENABLED,
    TABLE_SERVICES_ENABLED,
    WRITE_AUTO_UPGRADE,
    WRITE_TABLE_VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

LOG_BUFFER_BYTES = 1 << 20
LOCK_FILE_PROVIDER = "FileSystemBasedLockProvider"

ALWAYS: Mapping[str, str] = {
    # Its default, true, drops every index of the table that this job does not name (seen on 1.2.0).
    AUTO_DELETE_INDEXES: "false",
    # Or Hudi would hand the plan to a service manager instead of running it.
    TABLE_SERVICE_MANAGER_ENABLED: "false",
    # Writers of a managed lake set it to false, and their settings are the table's settings.
    TABLE_SERVICES_ENABLED: "true",
    # EAGER would roll back writers that are alive.
    FAILED_WRITES_POLICY: "LAZY",
    # Hudi would beat for a plan that no driver executes yet, and so keep its executor away.
    CLUSTERING_ENABLE_EXPIRATIONS: "false",
    # One service does one thing: no other service rides along. None of these stops a service that is called by name.
    CLEAN_AUTOMATIC: "false",
    ARCHIVE_AUTOMATIC: "false",
    COMPACT_INLINE: "false",
    COMPACT_SCHEDULE_INLINE: "false",
    CLUSTERING_INLINE: "false",
    CLUSTERING_SCHEDULE_INLINE: "false",
    CLUSTERING_ASYNC_ENABLED: "false",
    LOG_COMPACTION_INLINE: "false",
    PARTITION_TTL_INLINE: "false",
    # The table's version is its owner's decision.
    WRITE_AUTO_UPGRADE: "false",
}

# The manager decided that the service is due before this job started; Hudi's own trigger must not refuse it. Most
# services have none. Archiving reads compaction's trigger, and has to leave a writer's trigger enough instants to
# count: only the planner knows whether a writer has one (`planner/archive_limits.py`).
WHEN_SCHEDULING: Mapping[Service, Mapping[str, str]] = {
    Service.COMPACTION: {
        COMPACTION_TRIGGER: "NUM_COMMITS",
        COMPACT_INLINE_MAX_DELTA_COMMITS: "1",
    },
    Service.CLUSTERING: {
        CLUSTERING_INLINE_MAX_COMMITS: "1",
        CLUSTERING_ASYNC_MAX_COMMITS: "1",
    },
    Service.CLEAN: {
        CLEAN_TRIGGER_STRATEGY: "NUM_COMMITS",
        # Not 1: a shortened retention must take effect before the next commit, too.
        CLEAN_TRIGGER_MAX_COMMITS: "0",
    },
    Service.LOGCOMPACTION: {LOG_COMPACTION_ENABLE: "true"},
    Service.METACOMPACTION: {
        "hoodie.metadata.compact.max.delta.commits": "1",
        # Its writers may hand the plans to a service manager that never came.
        "hoodie.metadata.table.service.manager.enabled": "false",
    },
    # What is built here is committed under the lock. Other services write to the metadata table as the writers do: one
    # that did not stream would roll back what a living, streaming writer has in flight there, and fail its commit.
    Service.INDEXING: {STREAMING_WRITES: "false"},
}


def service_settings(
    service: Service, options: Mapping[str, str], table_version: int, metadata_partitions: Collection[str]
) -> dict[str, str]:
    """Return the settings of a client that runs a service; what is in ALWAYS and WHEN_SCHEDULING cannot be overridden.

    `table_version` and `metadata_partitions` are the table's own. A client left to its defaults would write by the
    newest version's rules, and would build a metadata table and column statistics that the table's owner turned off.
    """
    return {
        # Hudi opens a log file again for each of its blocks, each time with a buffer of this size (16 MiB unless set):
        # 1 GiB for the compaction of a tiny table. Larger blocks are read past the buffer.
        "hoodie.memory.dfs.buffer.max.size": str(LOG_BUFFER_BYTES),
        **{key: _flag(on=partition in metadata_partitions) for partition, key in METADATA_SETTINGS.items()},
        **options,
        # Whatever the writers' mode: Hudi opens a non-blocking client only for a writer with a simple bucket index.
        CONCURRENCY_MODE: OPTIMISTIC,
        WRITE_TABLE_VERSION: str(table_version),
        **ALWAYS,
        **WHEN_SCHEDULING.get(service, {}),
    }


METADATA_SETTINGS: Mapping[str, str] = {
    "files": METADATA_ENABLE,
    "column_stats": COLUMN_STATS_ENABLE,
    # With column statistics on, its default would have the service build it.
    "partition_stats": PARTITION_STATS_ENABLE,
}
"""Parts of a metadata table by which the settings of a client are derived."""


def find_change(version: int, partitions: Collection[str], version_now: int, partitions_now: Collection[str]) -> str:
    """Return what changed of that by which a client's settings were derived, in words; empty when nothing did. Pure.

    A client that goes on with them would commit past a metadata table, whose readers then miss the commit's rows.
    """
    if version != version_now:
        return f"its version went from {version} to {version_now}"
    # Next to column statistics, Hudi's client itself begins partition statistics when it writes files, whatever its
    # settings say (1.2.0), and keeps them from then on.
    came = sorted((set(METADATA_SETTINGS) - {"partition_stats"}) & (set(partitions_now) - set(partitions)))
    went = sorted(set(METADATA_SETTINGS) & (set(partitions) - set(partitions_now)))
    if "files" in came:
        return "its metadata table was switched on"
    if "files" in went:
        return "its metadata table was switched off, or removed"
    return ", ".join([f"{name} came into its metadata table" for name in came] + [f"{name} left it" for name in went])


class MetadataWriteMode(StrEnum):
    """How the recent writers of a table update the metadata table."""

    AT_COMMIT = "at_commit"
    STREAMING = "streaming"
    UNKNOWN = "unknown"


RECENT_WRITES = 10
SERVICES = frozenset({"COMPACT", "LOG_COMPACT", "CLUSTER"})


def decide_metadata_write_mode(
    writes: Iterable[tuple[str, Callable[[], bool | None]]], *, without_services: bool
) -> MetadataWriteMode:
    """Return how the last writes, newest first, updated the metadata table: each with its operation.

    One streaming write is enough: there may be several writers. Services do as the writers do, so they prove nothing
    about writers; they count unless they are left out. Whether a write was streamed is None where nothing shows it.
    """
    counted = (ask for operation, ask in writes if not (without_services and operation in SERVICES))
    found = MetadataWriteMode.UNKNOWN
    for was_streamed in islice((ask() for ask in counted), RECENT_WRITES):
        if was_streamed:
            return MetadataWriteMode.STREAMING
        if was_streamed is not None:
            found = MetadataWriteMode.AT_COMMIT
    return found


def write_metadata_as_writers(options: Mapping[str, str], mode: MetadataWriteMode) -> dict[str, str]:
    """Return the options with writers' way to update the metadata table, unless they say one.

    Of two clients of a table that do it both ways, the one that does not stream rolls back what the other one has in
    flight there. Hudi 1.0 never streams, 1.2 streams unless it is set otherwise.
    """
    if STREAMING_WRITES in options or mode is not MetadataWriteMode.AT_COMMIT:
        return dict(options)
    return {**options, STREAMING_WRITES: "false"}


def wait_for_lock_without_end(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for executing a plan: with a lock file, Hudi must not give up waiting for the lock.

    A `compact` of 1.2.0 that gives up ends a transaction it never began, which deletes the lock file of the writer that
    holds it. The job's own time-out, outside the JVM, is the deadline instead.
    """
    if not settings[LOCK_PROVIDER].strip().endswith(LOCK_FILE_PROVIDER):
        return dict(settings)
    return {**settings, "hoodie.write.lock.client.num_retries": "100000000"}


_NAMED_BY_PATH = "Implicit"
"""In the names of Hudi's lock providers that make the lock's name of the base path (ZooKeeper's, DynamoDB's)."""


def find_link_problem(real_path: str, options: Mapping[str, str]) -> str | None:
    """Return why a lock does not guard a table that is reached by symbolic links; None when it does.

    `real_path` is the path without links, empty when there are none. Locks that lie in the table, or that settings
    name, are one for all its paths.
    """
    provider = options.get(LOCK_PROVIDER, "").strip()
    if not real_path or _NAMED_BY_PATH not in provider.rsplit(".", 1)[-1]:
        return None
    return (
        f"this is {real_path} by another name, and {LOCK_PROVIDER}={provider} makes the lock of the name, so that two "
        f"names have two locks: use {real_path} in all writers and in the tables file, or another lock provider"
    )


HEARTBEAT_EXPIRES_S = DEFAULT_HEARTBEAT_INTERVAL_MS * DEFAULT_HEARTBEAT_MISSES / 1000
"""Hudi's default; a table with another one has it in its settings, see `heartbeat_expires_s`."""


def heartbeat_expires_s(settings: Mapping[str, str]) -> float:
    """Return the age at which a heartbeat has expired, by the settings that all clients of a table share.

    Raises ValueError when one of them is no whole number.
    """
    interval_ms = int(settings.get(HEARTBEAT_INTERVAL, DEFAULT_HEARTBEAT_INTERVAL_MS))
    return interval_ms * int(settings.get(HEARTBEAT_MISSES, DEFAULT_HEARTBEAT_MISSES)) / 1000


def _flag(*, on: bool) -> str:
    return "true" if on else "false"


# --- Holds cleaning and archiving back for the readers of a table's changes, and by hours. Pure.
#
# Hudi has no consumer's position: it retains so many commits, counted from the newest one when it plans. So the
# position becomes a count, at the last moment, with room for the commits that complete until the plan is made. What a
# plan passes all the same, replication finds out and answers with a snapshot.

# Hudi's own defaults.
_RETAINED_DEFAULT = 10
_MIN_DEFAULT = 20
_MAX_DEFAULT = 30


def hold_back(
    service: Service, options: Mapping[str, str], completed: Collection[str], hours_ago: Callable[[int], str]
) -> dict[str, str]:
    """Return the options with retention raised to the safepoint and to the retained hours, which are taken out of them.

    `completed` are those of `commits_to_keep`; `hours_ago` returns the instant time of so many hours before now.
    Raises ValueError when the hours are no whole number.
    """
    options = dict(options)
    safepoint = options.pop(SAFEPOINT, "")
    hours = options.pop(RETAINED_HOURS, "")
    if not (safepoint or hours) or service not in (Service.CLEAN, Service.ARCHIVE):
        return options
    needed = commits_to_keep(completed, safepoint) if safepoint else 0
    if hours:
        needed = max(needed, commits_to_keep(completed, hours_ago(int(hours)), MARGIN_COMMITS_OF_HOURS))
    retained = int(options.get(CLEAN_COMMITS_RETAINED, _RETAINED_DEFAULT))
    if needed > retained or CLEAN_POLICY in options:
        # Another policy does not count commits.
        options[CLEAN_POLICY] = "KEEP_LATEST_COMMITS"
    options[CLEAN_COMMITS_RETAINED] = str(max(retained, needed))
    if service is Service.ARCHIVE:
        # Hudi wants retained < least < most, and cleans by what is on the active timeline.
        least = max(int(options.get(KEEP_MIN_COMMITS, _MIN_DEFAULT)), int(options[CLEAN_COMMITS_RETAINED]) + 1)
        options[KEEP_MIN_COMMITS] = str(least)
        options[KEEP_MAX_COMMITS] = str(max(int(options.get(KEEP_MAX_COMMITS, _MAX_DEFAULT)), least + 1))
    return options


# --- Which versions of Hudi can run services. Pure

CLIENT_CLASS = "org.apache.hudi.client.BaseHoodieClient"
LOCK_METHOD = "getTransactionManager"


def find_version_problem(client_class: Any) -> str:
    """Return what the client's class of this job's Hudi lacks, naming the version; empty when it has all. Pure.

    1.0.2 does not let its client's lock be held, which every service does.
    """
    if any(str(method.getName()) == LOCK_METHOD for method in client_class.getDeclaredMethods()):
        return ""
    version = client_class.getPackage().getImplementationVersion()
    return (
        f"services cannot run with Hudi {version}: {CLIENT_CLASS} has no {LOCK_METHOD}(), so the table's lock cannot "
        "be held; run the job with Hudi 1.2.0 or 1.1.1 ([lake] spark_jars or spark_packages)"
    )

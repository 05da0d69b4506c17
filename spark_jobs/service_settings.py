"""The Hudi settings that a table service runs with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from job_contract import CONCURRENCY_MODE, LOCK_PROVIDER, OPTIMISTIC, Service

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FAILED_WRITES_POLICY = "hoodie.clean.failed.writes.policy"
LOCK_FILE_PROVIDER = "FileSystemBasedLockProvider"

ALWAYS: Mapping[str, str] = {
    # Its default, true, drops every index of the table that this job does not name (seen on 1.2.0).
    "hoodie.metadata.auto.delete.partitions": "false",
    # Or Hudi would hand the plan to a service manager instead of running it.
    "hoodie.table.service.manager.enabled": "false",
    # Writers of a managed lake set it to false, and their settings are the table's settings.
    "hoodie.table.services.enabled": "true",
    # EAGER would roll back writers that are alive.
    FAILED_WRITES_POLICY: "LAZY",
    # Hudi would beat for a plan that nobody executes yet, and so keep its executor away.
    "hoodie.clustering.enable.expirations": "false",
    # One service does one thing: no other service rides along. None of these stops a service that is called by name.
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.schedule.inline": "false",
    "hoodie.clustering.async.enabled": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.partition.ttl.inline": "false",
    # The table's version is its owner's decision.
    "hoodie.write.auto.upgrade": "false",
}

# Whether a service is due was decided before this job started; Hudi's own gate must not refuse it. Archiving goes
# without: it reads compaction's gate, and would not leave the writers' trigger enough instants to count.
WHEN_SCHEDULING: Mapping[Service, Mapping[str, str]] = {
    Service.COMPACTION: {
        "hoodie.compact.inline.trigger.strategy": "NUM_COMMITS",
        "hoodie.compact.inline.max.delta.commits": "1",
    },
    Service.CLUSTERING: {
        "hoodie.clustering.inline.max.commits": "1",
        "hoodie.clustering.async.max.commits": "1",
    },
    Service.CLEAN: {
        "hoodie.clean.trigger.strategy": "NUM_COMMITS",
        # Not 1: a retention that was shortened is to be had before the next commit as well.
        "hoodie.clean.trigger.max.commits": "0",
    },
    Service.ARCHIVE: {},
    Service.LOGCOMPACTION: {"hoodie.log.compaction.enable": "true"},
    Service.ROLLBACK: {},
    Service.TTL: {},
    Service.METACOMPACTION: {
        "hoodie.metadata.compact.max.delta.commits": "1",
        # Its writers may hand the plans to a service manager that never came.
        "hoodie.metadata.table.service.manager.enabled": "false",
    },
    # What is built here is committed under the lock. Other services write to the metadata table as the writers do: one
    # that did not stream would roll back what a living, streaming writer has in flight there, and fail its commit.
    Service.INDEXING: {"hoodie.metadata.streaming.write.enabled": "false"},
}


def service_settings(
    service: Service, options: Mapping[str, str], table_version: int, metadata_partitions: Collection[str]
) -> dict[str, str]:
    """Return the settings of a client that runs a service; what is in ALWAYS and WHEN_SCHEDULING cannot be overridden.

    `table_version` and `metadata_partitions` are the table's own. A client left to its defaults would write by the
    newest version's rules, and would build a metadata table and column statistics that the table's owner turned off.
    """
    return {
        CONCURRENCY_MODE: OPTIMISTIC,
        "hoodie.metadata.enable": _flag(on="files" in metadata_partitions),
        "hoodie.metadata.index.column.stats.enable": _flag(on="column_stats" in metadata_partitions),
        # With column statistics on, its default would have the service build it.
        "hoodie.metadata.index.partition.stats.enable": _flag(on="partition_stats" in metadata_partitions),
        **options,
        "hoodie.write.table.version": str(table_version),
        **ALWAYS,
        **WHEN_SCHEDULING[service],
    }


def wait_for_lock_without_end(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for executing a plan: with a lock file, Hudi must not give up waiting for the lock.

    A `compact` of 1.2.0 that gives up ends a transaction it never began, which deletes the lock file of the writer that
    holds it. The job's own time-out, outside the JVM, is the deadline instead.
    """
    if not settings[LOCK_PROVIDER].strip().endswith(LOCK_FILE_PROVIDER):
        return dict(settings)
    return {**settings, "hoodie.write.lock.client.num_retries": "100000000"}


def _flag(*, on: bool) -> str:
    return "true" if on else "false"

"""The settings that `airflow lake init` prints for writers: of one job, or of all jobs that read `hudi-defaults.conf`.

Hudi reads that file from the folder that the driver's `HUDI_CONF_DIR` names (`DFSPropertiesConfiguration`, 1.2.0).
What a job or its session sets itself goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.shared.hudi_settings import (
    ARCHIVE_AUTOMATIC,
    AUTO_DELETE_INDEXES,
    CLEAN_AUTOMATIC,
    COMPACT_INLINE,
    CONCURRENCY_MODE,
    LOCK_PROVIDER,
    TABLE_SERVICES_ENABLED,
    WRITE_LOCK_FILESYSTEM_EXPIRE,
)
from airflow_lake_provider.sink_options.stores import may_lock_by_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE_LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
_ZOOKEEPER_LOCK = "org.apache.hudi.client.transaction.lock.ZookeeperBased"
"""Two classes begin so: one derives the lock's node from the base path, the other takes it from settings."""
_LOCK_OF_EACH_PATH = f"{_ZOOKEEPER_LOCK}ImplicitBasePathLockProvider"
FLINK_SERVICES = ("compaction.async.enabled", "compaction.schedule.enabled", "clean.async.enabled")
"""Hudi's Flink connector has its own switches of the services that a writer runs."""


def writer_options(callback_url: str, lock_provider: str) -> dict[str, str]:
    """Return the settings of a writer that sends its notices to this address."""
    return {
        "hoodie.write.commit.callback.on": "true",
        "hoodie.write.commit.callback.http.url": callback_url,
        "hoodie.write.commit.callback.http.api.key": "<one of [lake] callback_tokens>",
        "hoodie.write.commit.callback.http.timeout.seconds": "5",
        TABLE_SERVICES_ENABLED: "false",
        COMPACT_INLINE: "false",
        CLEAN_AUTOMATIC: "false",
        ARCHIVE_AUTOMATIC: "false",
        CONCURRENCY_MODE: "optimistic_concurrency_control",
        AUTO_DELETE_INDEXES: "false",
        **lock_options(lock_provider),
    }


def suggest_lock(paths: Iterable[str]) -> str:
    """Return the lock provider for tables at these paths: a file's where their stores allow it, else ZooKeeper's."""
    return FILE_LOCK if all(map(may_lock_by_file, paths)) else _LOCK_OF_EACH_PATH


def lock_options(lock_provider: str) -> dict[str, str]:
    """Return the settings of a lock provider, which writers and services share."""
    options = {LOCK_PROVIDER: lock_provider}
    if lock_provider == FILE_LOCK:
        options[WRITE_LOCK_FILESYSTEM_EXPIRE] = "2"
    if lock_provider.startswith(_ZOOKEEPER_LOCK):
        # Hudi 1.2 does not read `hoodie.write.lock.zookeeper.port`.
        options["hoodie.write.lock.zookeeper.url"] = "<host>:2181"
    return options


def spark_text(options: Mapping[str, str]) -> str:
    """Return the settings as lines of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in options.items())


def flink_text(options: Mapping[str, str]) -> str:
    """Return the settings as the options of a table of Flink."""
    body = ",\n".join(
        f"  '{key}' = '{value}'" for key, value in {**options, **dict.fromkeys(FLINK_SERVICES, "false")}.items()
    )
    return f"-- experimental, not tried against Flink; options of the connector 'hudi'\nWITH (\n{body}\n)\n"


def hudi_defaults_text(options: Mapping[str, str]) -> str:
    """Return a `hudi-defaults.conf`: what every writer of a cluster needs, and nothing of a single table."""
    return f"""\
# hudi-defaults.conf: connects every Spark writer that reads it to Airflow. Put it into /etc/hudi/conf of each host on
# which drivers run, or into a folder that their HUDI_CONF_DIR names. It holds a secret: only writers may read it.
# A setting of a job goes before one of this file. Hudi reads no spark.hoodie.* for writes.
{spark_text(options)}"""

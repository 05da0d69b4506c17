"""The time zone in which this product's jobs name a table's instants, as far as it is known outside of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_lake_provider.instant_clock import stamps_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.storage.table_storage import Storage

# What a JVM is started with wins over its environment, and the user's own options over an administrator's.
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_ENVIRONMENT = ("spark.yarn.appMasterEnv.TZ", "spark.kubernetes.driverEnv.TZ")
_USER_ZONE = re.compile(r"-Duser\.timezone=[\"']?([^\s\"']+)")


@dataclass(frozen=True, slots=True)
class JobZone:
    """A zone by its name for people; without `zone` it is this process's own."""

    name: str
    zone: tzinfo | None

    def offset_ms(self, time_ms: int) -> int:
        """Return by how many ms the zone's wall clock is ahead of UTC at a time (ms since the epoch)."""
        ahead = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(self.zone).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds() * 1000)


def zone_of_jobs(table_zone: str, spark_conf: Mapping[str, str]) -> JobZone | None:
    """Return the zone in which jobs with these Spark settings name instants; None where only the job knows it.

    `table_zone` is `hoodie.table.timeline.timezone`. Where the settings name none, the jobs are taken to run in the
    zone of this process; a job compares with its own JVM's before it plans anything.
    """
    if table_zone == "UTC":
        return JobZone("UTC", UTC)
    named = [*_of_java_options(spark_conf), *(spark_conf[key] for key in _ENVIRONMENT if key in spark_conf)]
    if named:
        try:
            return JobZone(named[0], ZoneInfo(named[0]))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return None  # Java knows other names, and takes what it does not know for GMT
    return JobZone(f"this process's zone, {datetime.now().astimezone():%Z}", None)


def load_stamps(storage: Storage, properties: TableProperties) -> tuple[Stamp, ...]:
    """Return names and times of the active timeline's files; one listing. Raises StorageError."""
    try:
        entries = storage.list_entries(properties.timeline_path)
    except FileNotFoundError:  # moved or dropped meanwhile, which the next refresh reports
        return ()
    return stamps_of((entry.name, entry.modified_ms) for entry in entries if not entry.is_folder)


def _of_java_options(spark_conf: Mapping[str, str]) -> list[str]:
    # Java takes the last one.
    found = (_USER_ZONE.findall(spark_conf.get(key, "")) for key in _JAVA_OPTIONS)
    return [names[-1] for names in found if names]

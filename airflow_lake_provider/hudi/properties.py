"""A table's `hoodie.properties`.

Hudi rewrites the file in place with a backup next to it, and reads the backup while the main file is missing or has no
valid checksum (`HoodieTableConfig.fetchConfigs`); so does this reader.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_lake_provider.errors import ConfigError, DamagedFileError, TableNotFoundError, UnsupportedTableError
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.instant_clock import stamps_of
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.shared.hudi_settings import (
    COPY_ON_WRITE,
    MERGE_ON_READ,
    TABLE_NAME,
    TABLE_PARTITION_FIELDS,
    TABLE_RECORD_KEY,
    TABLE_TYPE,
    TIMELINE_ZONE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage

META_FOLDER = ".hoodie"
PROPERTIES_FILE = f"{META_FOLDER}/hoodie.properties"
BACKUP_FILE = f"{META_FOLDER}/hoodie.properties.backup"
SUPPORTED_VERSIONS = (6, 8, 9)
_CHECKSUM = "hoodie.table.checksum"
_LAST_VERSION_OF_LAYOUT_1 = 7


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties of a table. Paths are relative to the base path."""

    name: str
    database: str
    table_type: str
    """`COPY_ON_WRITE` or `MERGE_ON_READ`."""
    version: int
    layout: Layout
    time_zone: str
    """`UTC`, or `LOCAL`: the zone of the writers' JVMs."""
    timeline_path: str
    history_path: str
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    metadata_partitions: tuple[str, ...]
    metadata_partitions_inflight: tuple[str, ...]
    raw: Mapping[str, str]

    @property
    def slices_by_completion(self) -> bool:
        """Whether Hudi finds the file slice of a log file by when its write completed."""
        return self.table_type == MERGE_ON_READ and self.layout is Layout.V2


MAX_PROPERTIES_BYTES = 1024 * 1024
"""Limit of `hoodie.properties`; tables with many settings have a few kilobytes."""


def load_table_properties(storage: Storage) -> TableProperties:
    """Read and check the properties.

    Raises TableNotFoundError (neither file), DamagedFileError (no usable content), UnsupportedTableError (version).
    """
    best: dict[str, str] | None = None
    # The main file a second time: an update that ends between the first two reads leaves neither to be seen.
    for path in (PROPERTIES_FILE, BACKUP_FILE, PROPERTIES_FILE):
        values = _read(storage, path)
        if values is not None and _is_whole(values):
            return build_table_properties(values, storage.base_path)
        # Tables of early writers carry no checksum at all: a file that names its table is good enough then.
        if best is None or TABLE_NAME not in best:
            best = values if values is not None else best
    if best is None:
        raise TableNotFoundError(f"no Hudi table at {storage.base_path!r}: {PROPERTIES_FILE} is missing")
    return build_table_properties(best, storage.base_path)


def _read(storage: Storage, path: str) -> dict[str, str] | None:
    try:
        return parse_java_properties(storage.read_bytes(path, MAX_PROPERTIES_BYTES).decode("utf-8", "replace"))
    except FileNotFoundError:
        return None


def _is_whole(values: Mapping[str, str]) -> bool:
    return _CHECKSUM in values and values[_CHECKSUM] == str(_checksum(values))


def _checksum(values: Mapping[str, str]) -> int:
    table = f"{values.get('hoodie.database.name', '')}.{values.get(TABLE_NAME, '')}"
    return zlib.crc32(table.encode())


def build_table_properties(values: Mapping[str, str], base_path: str) -> TableProperties:
    """Build the properties from key and value. Raises DamagedFileError, UnsupportedTableError."""
    name = values.get(TABLE_NAME, "")
    if not name:
        raise DamagedFileError(f"{base_path}/{PROPERTIES_FILE} names no table (hoodie.table.name)")
    if "\0" in name or "\0" in values.get("hoodie.database.name", ""):
        raise DamagedFileError(f"{base_path}/{PROPERTIES_FILE} has a name with a NUL character: {name[:80]!r}")
    table_type = values.get(TABLE_TYPE, COPY_ON_WRITE)
    if table_type not in (COPY_ON_WRITE, MERGE_ON_READ):
        raise DamagedFileError(f"{base_path}/{PROPERTIES_FILE} has {TABLE_TYPE}={table_type[:80]!r}: no such type")
    version = _version(values, base_path)
    layout = Layout.V1 if version <= _LAST_VERSION_OF_LAYOUT_1 else Layout.V2
    if layout is Layout.V1:
        timeline_path = META_FOLDER
        history_path = f"{META_FOLDER}/{values.get('hoodie.archivelog.folder') or 'archived'}"
    else:
        timeline_path = f"{META_FOLDER}/{values.get('hoodie.timeline.path') or 'timeline'}"
        history_path = f"{timeline_path}/{values.get('hoodie.timeline.history.path') or 'history'}"
    # Otherwise a process that may write one table's properties could have any folder listed.
    if ".." in history_path.split("/") or "\0" in history_path:
        raise DamagedFileError(f"{base_path}/{PROPERTIES_FILE} has its timeline outside the table: {history_path!r}")
    return TableProperties(
        name=name,
        database=values.get("hoodie.database.name", ""),
        table_type=table_type,
        version=version,
        layout=layout,
        time_zone=values.get(TIMELINE_ZONE, "LOCAL").upper(),
        timeline_path=timeline_path,
        history_path=history_path,
        record_key_fields=_split(values.get(TABLE_RECORD_KEY, "")),
        partition_fields=_split(values.get(TABLE_PARTITION_FIELDS, "")),
        metadata_partitions=_split(values.get("hoodie.table.metadata.partitions", "")),
        metadata_partitions_inflight=_split(values.get("hoodie.table.metadata.partitions.inflight", "")),
        raw=MappingProxyType(dict(values)),
    )


def _version(values: Mapping[str, str], base_path: str) -> int:
    text = values.get("hoodie.table.version", "")
    if text not in {str(version) for version in SUPPORTED_VERSIONS}:
        supported = ", ".join(str(version) for version in SUPPORTED_VERSIONS)
        raise UnsupportedTableError(
            f"table {base_path!r} has hoodie.table.version={text!r}; this package reads versions {supported}"
        )
    return int(text)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


MAX_LINES = 20_000
MAX_BACKSLASHES = 100_000
"""Limits of a file of properties: each line and each escape costs a microsecond or two."""


def parse_java_properties(text: str) -> dict[str, str]:
    """Parse `java.util.Properties` text: comments, continued lines, `=`/`:`/blank separators, escapes.

    Raises DamagedFileError for a text of too many lines or escapes.
    """
    if max(text.count("\n"), text.count("\r")) > MAX_LINES or text.count("\\") > MAX_BACKSLASHES:
        raise DamagedFileError(f"{PROPERTIES_FILE} has more than {MAX_LINES} lines or {MAX_BACKSLASHES} backslashes")
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split_pair(line)
        values[_unescape(key)] = _unescape(value)
    return values


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending: list[str] = []
    is_continued = False  # not by a line that was empty
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(" \t\f")
        if not is_continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending.append(line[:-1])
            is_continued = is_continued or len(line) > 1
            continue
        lines.append("".join((*pending, line)))
        pending = []
        is_continued = False
    if is_continued:
        lines.append("".join(pending))
    return lines


_KEY = re.compile(r"[^=: \t\f\\]*(?:\\.[^=: \t\f\\]*)*\\?", re.DOTALL)
"""A key in its escaped spelling: up to the first separator that no backslash precedes."""


def _split_pair(line: str) -> tuple[str, str]:
    found = _KEY.match(line)
    assert found is not None
    key = found[0]
    rest = line[found.end() :].lstrip(" \t\f")
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(" \t\f")
    return key, rest


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    joined = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), text)
    # Java writes characters beyond the basic plane as two escapes.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- The time zone in which the provider's jobs name a table's instants, as far as it is known outside of them

# What a JVM is started with wins over its environment, and the user's own options over an administrator's.
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_ENVIRONMENT = ("spark.yarn.appMasterEnv.TZ", "spark.kubernetes.driverEnv.TZ")
_JAVA_OFFSET = re.compile(r"GMT(?P<sign>[+-])(?P<hours>[01]?\d|2[0-3])(?::?(?P<minutes>[0-5]\d))?")
_USER_ZONE = re.compile(r"-Duser\.timezone=[\"']?([^\s\"']+)")


@dataclass(frozen=True, slots=True)
class JobZone:
    """A zone, and its name for people."""

    name: str
    zone: tzinfo

    def offset_ms(self, time_ms: int) -> int:
        """Return by how many ms the zone's wall clock is ahead of UTC at a time (ms since the epoch)."""
        ahead = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(self.zone).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds() * 1000)


class ProcessZone(tzinfo):
    """The zone of this process (`TZ`, else the machine's), with its changes to summer time and back."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Return by how much the wall clock is ahead of UTC at a wall clock's time."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Return None: how much of the offset is summer time does not matter here."""
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """Return the zone's short name at a wall clock's time."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        """Return the wall clock's time of a moment in UTC; in autumn one wall time means two moments."""
        there = moment.replace(tzinfo=UTC).astimezone()
        wall = there.replace(tzinfo=self)
        return wall if wall.utcoffset() == there.utcoffset() else wall.replace(fold=1)


def zone_of_jobs(table_zone: str, spark_conf: Mapping[str, str]) -> JobZone:
    """Return the zone in which jobs with these Spark settings name instants, by which all ages are computed.

    `table_zone` is `hoodie.table.timeline.timezone`. Where the settings name none, the jobs are taken to run in the
    zone of this process; a job compares with its own JVM's before it plans anything. Raises ConfigError for a name
    that only Java knows.
    """
    if table_zone == "UTC":
        return JobZone("UTC", UTC)
    name, found = _named_zone(spark_conf)
    if found is not None:
        return JobZone(name, found)
    if name:
        raise ConfigError(_explain_zone(name))
    return JobZone(f"this process's zone, {datetime.now(ProcessZone()):%Z}", ProcessZone())


def find_zone_problem(spark_conf: Mapping[str, str]) -> str | None:
    """Return why the zone that Spark settings name is not usable, and what to do; None when it is, or without one."""
    name, found = _named_zone(spark_conf)
    return _explain_zone(name) if name and found is None else None


def _named_zone(spark_conf: Mapping[str, str]) -> tuple[str, tzinfo | None]:
    named = [*_of_java_options(spark_conf), *(spark_conf[key] for key in _ENVIRONMENT if key in spark_conf)]
    if not named:
        return "", None
    if (offset := _JAVA_OFFSET.fullmatch(named[0])) is not None:
        ahead = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"] or 0))
        return named[0], timezone(ahead if offset["sign"] == "+" else -ahead)
    try:
        return named[0], ZoneInfo(named[0])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return named[0], None


def _explain_zone(name: str) -> str:
    # Java takes a name that it does not know for GMT.
    return (
        f"spark_conf sets the jobs' time zone to {name!r}, which is no name of the IANA database, so the ages of "
        "instants cannot be computed: name it like America/New_York or GMT+5:30"
    )


@dataclass(frozen=True, slots=True)
class TimelineFiles:
    """The files of an active timeline, and whether the metadata table that the properties list is gone."""

    entries: tuple[FileEntry, ...] = ()
    is_metadata_lost: bool = False

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """Names and times of the files, which show the time zones that named them."""
        return stamps_of((entry.name, entry.modified_ms) for entry in self.entries)


def load_timeline_files(storage: Storage, properties: TableProperties) -> TimelineFiles:
    """Return the files of the active timeline; one listing, and one stat. Raises StorageError."""
    try:
        entries = storage.list_entries(properties.timeline_path)
    except FileNotFoundError:  # moved or dropped meanwhile, which the next refresh reports
        return TimelineFiles()
    is_lost = bool(properties.metadata_partitions) and storage.stat(f"{METADATA_TABLE}/{PROPERTIES_FILE}") is None
    return TimelineFiles(tuple(entry for entry in entries if not entry.is_folder), is_lost)


def _of_java_options(spark_conf: Mapping[str, str]) -> list[str]:
    # Java takes the last one.
    found = (_USER_ZONE.findall(spark_conf.get(key, "")) for key in _JAVA_OPTIONS)
    return [names[-1] for names in found if names]

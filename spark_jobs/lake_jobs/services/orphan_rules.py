"""Which files in a table's partitions are orphans: pure functions over listing, timeline, archive, plans and clock.

A file is an orphan when it is certain that no reader, plan, savepoint, rollback or writer needs it: an attempt of a
completed write that is not in its metadata, or a file of a write that never completed and is no longer pending. What is
not certain stays, and is reported with the reason.

Hudi's names: base files `<file id>_<write token>_<instant>.<format>`; log files `.<file id>_<instant>.log.<n>_<token>`,
of which the instant is the delta commit's from table version 8 on, and that of the file slice before; change logs have
`.cdc` behind that. Source: `FSUtils`, `HoodieLogFile`; the cases are those of Hudi's `RepairUtils`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS, instant_time_ms
from airflow_lake_provider.job_contract import (
    ORPHAN_KEEP_DAYS,
    ORPHAN_MAX_FILES,
    ORPHAN_MIN_AGE_DAYS,
    ORPHAN_MODE,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

QUARANTINE = "quarantine"
LOGS_NAME_THEIR_WRITE_FROM = 8
"""The first table version whose log files carry the instant of the write that made them."""
PARTITION_METADATA = ".hoodie_partition_metadata"
_FIRST_REAL_YEAR = "1970"
"""Instants before it are Hudi's own: bootstrap and the metadata table's beginnings."""

_TOKEN = r"\d+-\d+-\d+"
_BASE = re.compile(rf"(?P<group>[A-Za-z0-9.+=-]+)_{_TOKEN}_(?P<instant>\d{{14,17}})\.[a-z]+", re.ASCII)
_LOG = re.compile(
    rf"\.(?P<group>[A-Za-z0-9.+=-]+)_(?P<instant>\d{{14,17}})\.log\.\d+(?:_{_TOKEN})?(?:\.cdc)?", re.ASCII
)
_TAIL = 12
"""Characters by which file ids are found quickly."""
_RUN = re.compile(rb"[A-Za-z0-9_.+=-]+")


class OrphanSettingError(ValueError):
    """A setting of the removal of orphan files is missing or is no whole number from 1."""


@dataclass(frozen=True, slots=True)
class OrphanRules:
    """The policy of one run."""

    quarantines: bool
    min_age_days: int
    keep_days: int
    max_files: int


def read_orphan_rules(settings: Mapping[str, str], table: str) -> OrphanRules:
    """Return the rules that the job's settings say. Raises OrphanSettingError."""
    values = {}
    for key, default in ((ORPHAN_MIN_AGE_DAYS, "7"), (ORPHAN_KEEP_DAYS, "30"), (ORPHAN_MAX_FILES, "1000")):
        text = settings.get(key, default).strip()
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise OrphanSettingError(f"{table}: {key} is {text!r}, it must be a whole number from 1")
        values[key] = int(text)
    return OrphanRules(
        settings.get(ORPHAN_MODE, "report") == QUARANTINE,
        values[ORPHAN_MIN_AGE_DAYS],
        values[ORPHAN_KEEP_DAYS],
        values[ORPHAN_MAX_FILES],
    )


# --- What is known of the table


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file below the base path; `modified_ms` is the store's time, ms since the epoch (0: not known)."""

    path: str
    size_bytes: int
    modified_ms: int

    @property
    def partition(self) -> str:
        """The folder of the file; empty in a table without partitions."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class HudiName:
    """The parts of a data file's name."""

    group: str
    instant: str
    is_log: bool


def parse_name(name: str) -> HudiName | None:
    """Return the parts of a data file's name; None for a name that Hudi gives to no data file."""
    for pattern, is_log in ((_BASE, False), (_LOG, True)):
        found = pattern.fullmatch(name)
        if found is not None:
            return HudiName(found["group"], found["instant"], is_log)
    return None


class Names:
    """The file names that documents hold: timeline files, whose texts are plain in JSON and in Hudi's Avro alike.

    A document holds a name when the name is part of it in any field (statistics, previous base file, file slice of a
    log file, change logs, ...), so that no field of any version of Hudi's schemas can be missed.
    """

    def __init__(self, documents: Iterable[bytes] = ()) -> None:
        self._runs: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        for document in documents:
            self.add(document)

    def add(self, document: bytes) -> None:
        """Add a document's names."""
        for run in _RUN.findall(document):
            text = run.decode("ascii")
            group, separator, rest = text.partition("_")
            if separator:
                # Avro writes a text's length before it, which can read as one more letter.
                self._runs.setdefault(rest, set()).add(group)
                self._groups.setdefault(group[-_TAIL:], set()).add(group)

    def has_group(self, file_id: str) -> bool:
        """Whether a file of this file group is named. A short id may be found in a longer one."""
        if len(file_id) < _TAIL:
            return any(found.endswith(file_id) for groups in self._groups.values() for found in groups)
        return any(found.endswith(file_id) for found in self._groups.get(file_id[-_TAIL:], ()))

    def __contains__(self, name: str) -> bool:
        group, _, rest = name.partition("_")
        return any(found.endswith(group) for found in self._runs.get(rest, ()))


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """What timeline, archive, plans, savepoints, markers, heartbeats and metadata table say at one moment."""

    table_version: int
    first_version: int
    """With which version the table began: older log files keep their names when a table is upgraded."""
    named: Names
    """By the metadata of completed writes, active or archived."""
    completed: Mapping[str, str]
    """Each completed write in question, active or archived, by requested time: empty, or why its metadata is unread."""
    known_from: str
    """After this requested time, active and archived timeline together know every write; empty is never."""
    pending: Mapping[str, str]
    """What is pending, by requested time, in words; with the write that a pending rollback removes."""
    mentioned: tuple[tuple[str, Names], ...] = ()
    """What else names files: pending plans and savepoints; in words."""
    listed: Names = field(default_factory=Names)
    """What the metadata table lists in the partitions in question; nothing without one."""
    living: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Instants whose heartbeat is fresh."""
    busy_partitions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Partitions in which a living writer works, and which one."""
    markers_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """When the markers of an instant last changed, ms since the epoch."""
    put_back: Collection[str] = ()
    """Paths that a person has put back from a quarantine."""


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """What is not older than both stays."""

    modified_before_ms: int
    requested_before: str
    """An instant time in the table's zone."""


def min_age_ms(rules: OrphanRules, commits: Iterable[tuple[str, str]]) -> int:
    """Return the least age of an orphan: the policy's, and at least the table's longest commit.

    `commits` are requested and completed time of the completed writes.
    """
    longest = 0
    for requested, completed in commits:
        began_ms = instant_time_ms(requested, UTC)
        ended_ms = instant_time_ms(completed, UTC)
        if began_ms is not None and ended_ms is not None:
            longest = max(longest, ended_ms - began_ms)
    return max(rules.min_age_days * DAY_MS, longest)


# --- The decision


class FileStanding(StrEnum):
    """What a file is to the table."""

    KNOWN = "known"
    """A completed write, a plan, a savepoint or the metadata table names it."""
    IN_USE = "in_use"
    """It belongs to something pending, or to a living writer."""
    YOUNG = "young"
    """It is too young to say."""
    AMBIGUOUS = "ambiguous"
    """It may be an orphan, and stays."""
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One file with its standing, and why."""

    file: ListedFile
    standing: FileStanding
    reason: str


def judge_files(
    files: Collection[ListedFile], evidence: TableEvidence, limits: AgeLimits, among: Collection[ListedFile] = ()
) -> tuple[FileFinding, ...]:
    """Return the standing of each file. `among` are all files of the table, by default these."""
    held = _groups_held(among or files, evidence)
    return tuple(_judge(file, evidence, limits, held) for file in files)


def _groups_held(files: Iterable[ListedFile], evidence: TableEvidence) -> Mapping[tuple[str, str], str]:
    """Return for each file group the newest instant of a file that exists and that a completed write made."""
    newest: dict[tuple[str, str], str] = {}
    for file in files:
        parts = parse_name(file.name)
        if parts is not None and (file.name in evidence.named or file.name in evidence.listed):
            key = (file.partition, parts.group)
            newest[key] = max(newest.get(key, ""), parts.instant)
    return newest


def _judge(
    file: ListedFile, evidence: TableEvidence, limits: AgeLimits, held: Mapping[tuple[str, str], str]
) -> FileFinding:
    if file.name.startswith(PARTITION_METADATA):
        return FileFinding(file, FileStanding.KNOWN, "the partition's own metadata")
    parts = parse_name(file.name)
    if parts is None:
        return FileFinding(file, FileStanding.AMBIGUOUS, "not a name that Hudi gives to a data file")
    if file.name in evidence.named:
        return FileFinding(file, FileStanding.KNOWN, "a completed write names it")
    for what, names in (*evidence.mentioned, ("the metadata table", evidence.listed)):
        if file.name in names:
            return FileFinding(file, FileStanding.KNOWN, f"{what} names it")
    user = _find_user(file, parts, evidence)
    if user:
        return FileFinding(file, FileStanding.IN_USE, user)
    doubt = _find_doubt(file, parts, evidence)
    if doubt:
        return FileFinding(file, FileStanding.AMBIGUOUS, doubt)
    youth = _find_youth(file, parts, evidence, limits)
    if youth:
        return FileFinding(file, FileStanding.YOUNG, youth)
    return _judge_by_write(file, parts, evidence, held)


def _find_user(file: ListedFile, parts: HudiName, evidence: TableEvidence) -> str:
    for found in (evidence.pending, evidence.living):
        if parts.instant in found:
            return f"it belongs to {found[parts.instant]}"
    writer = evidence.busy_partitions.get(file.partition)
    return "" if writer is None else f"the writer {writer} works in its partition"


def _find_doubt(file: ListedFile, parts: HudiName, evidence: TableEvidence) -> str:
    if file.path in evidence.put_back:
        return "a person has put it back from the quarantine"
    if parts.is_log and min(evidence.table_version, evidence.first_version) < LOGS_NAME_THEIR_WRITE_FROM:
        return "the log file's name does not say which write made it (table versions before 8)"
    if parts.instant < _FIRST_REAL_YEAR or instant_time_ms(parts.instant, UTC) is None:
        return f"{parts.instant} is no time: files of a bootstrap stay"
    if file.modified_ms <= 0:
        return "the store does not say when it was modified"
    return ""


def _find_youth(file: ListedFile, parts: HudiName, evidence: TableEvidence, limits: AgeLimits) -> str:
    if file.modified_ms >= limits.modified_before_ms:
        return "it was modified too recently"
    if parts.instant >= limits.requested_before:
        return f"its instant {parts.instant} is too recent"
    if evidence.markers_ms.get(parts.instant, 0) >= limits.modified_before_ms:
        return f"the markers of {parts.instant} changed too recently"
    return ""


def _judge_by_write(
    file: ListedFile, parts: HudiName, evidence: TableEvidence, held: Mapping[tuple[str, str], str]
) -> FileFinding:
    write = parts.instant
    problem = evidence.completed.get(write)
    if problem:
        return FileFinding(
            file, FileStanding.AMBIGUOUS, f"the metadata of its write {write} is not readable: {problem}"
        )
    if problem is None:
        if not evidence.known_from:
            return FileFinding(file, FileStanding.AMBIGUOUS, f"the archive, which may know {write}, is not readable")
        if write <= evidence.known_from:
            reason = f"its write {write} is older than what active and archived timeline know ({evidence.known_from})"
            return FileFinding(file, FileStanding.AMBIGUOUS, reason)
        reason = f"its write {write} never completed, or was rolled back: it is on neither timeline"
        return FileFinding(file, FileStanding.ORPHAN, reason)
    # Only a group of which nothing else is left, and which others know, may hold rows here alone.
    newest = held.get((file.partition, parts.group))
    if newest is None and evidence.named.has_group(parts.group):
        reason = f"the file that {write} names in its place is missing, and so is every later one of its file group"
        return FileFinding(file, FileStanding.AMBIGUOUS, reason)
    return FileFinding(
        file, FileStanding.ORPHAN, f"an attempt that failed: the completed write {write} does not name it"
    )


# --- The report of a run


def describe_findings(findings: Collection[FileFinding], other_tables: Sequence[str] = (), examples: int = 5) -> str:
    """Return the findings in one sentence: counts, bytes and examples of the orphans, and of what stays in doubt.

    `other_tables` are folders that were not searched, as they are tables of their own.
    """
    orphans = [finding for finding in findings if finding.standing is FileStanding.ORPHAN]
    counts = Counter(finding.standing for finding in findings)
    text = (
        f"{len(orphans)} orphan files of {sum(finding.file.size_bytes for finding in orphans):,} bytes among "
        f"{len(findings)} files"
    )
    rest = [
        f"{counts[kind]} {kind.replace('_', ' ')}"
        for kind in FileStanding
        if counts[kind] and kind != FileStanding.ORPHAN
    ]
    text += f" ({', '.join(rest)})" if rest else ""
    if orphans:
        text += f"; for example {', '.join(finding.file.path for finding in orphans[:examples])}"
    doubtful = Counter(finding.reason for finding in findings if finding.standing is FileStanding.AMBIGUOUS)
    if doubtful:
        reason, count = doubtful.most_common(1)[0]
        text += f"; {sum(doubtful.values())} files stay because it is not certain, mostly ({count}): {reason}"
    if other_tables:
        text += f"; not searched, as they are tables of their own: {', '.join(other_tables[:examples])}"
        text += f" and {len(other_tables) - examples} more" if len(other_tables) > examples else ""
    return text

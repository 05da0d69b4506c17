"""What a restore of a table to a savepoint takes back, and what forbids it. Pure; nothing is restored.

Source: Hudi 1.2 `RestorePlanActionExecutor`, `BaseHoodieWriteClient`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.report_lines import (
    LineKind,
    ReportLine,
    is_refused,
    listed_names,
    refuse,
    state_refusals,
)
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.obstacles import explain_pending_restore
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, Action
from airflow_lake_provider.shared.hudi_settings import (
    COLUMN_STATS_ENABLE,
    MERGE_ON_READ,
    METADATA_ENABLE,
    PARTITION_STATS_ENABLE,
    WRITE_AUTO_UPGRADE,
)
from airflow_lake_provider.shared.taken_back import TimedInstant, is_taken_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.doctor.evidence import Evidence
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """A table at one moment, with what depends on the writes after one of its savepoints."""

    evidence: Evidence
    savepoint: str
    commits: Mapping[str, CommitMetadata] = field(default_factory=lambda: MappingProxyType({}))
    """Metadata of completed writes that would be taken back, by requested time, where it can be read."""
    index_births: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Since which instant each index is there."""
    metadata_timeline: Timeline | None = None
    streams: tuple[str, ...] = ()
    """Sinks that have writes which would be taken back."""
    holds: tuple[str, ...] = ()
    """Holds of readers, in words."""
    runs: tuple[str, ...] = ()
    """Runs of services that have the table's lease."""
    resumes: bool = False
    """A restore to this savepoint is pending: the same one, run again, goes on."""

    @property
    def taken_back(self) -> tuple[Instant, ...]:
        """What the restore takes back (`find_taken_back`)."""
        return find_taken_back(self.evidence.timeline, self.evidence.properties.table_type, self.savepoint)

    @property
    def taken_times(self) -> list[tuple[str, str | None]]:
        """Requested and completed times of what the restore takes back."""
        return [(instant.requested_time, instant.completed_time) for instant in self.taken_back]

    @property
    def younger_indexes(self) -> Mapping[str, str]:
        """Indexes that are younger than the savepoint, with the instant since which they are there."""
        return {name: time for name, time in self.index_births.items() if time > self.savepoint}

    @property
    def reaches_back(self) -> bool:
        """Whether the metadata table, if there is one, can be restored to the savepoint."""
        if self.metadata_timeline is None:
            return True
        writes = self.metadata_timeline.completed_writes
        compactions = [write.requested_time for write in writes if write.action is Action.COMMIT]
        first = min((write.requested_time for write in writes), default="")
        return self.savepoint > min(compactions, default="") and self.savepoint >= first


def find_taken_back(timeline: Timeline, table_type: str, savepoint: str) -> tuple[Instant, ...]:
    """Return the writes and plans that a restore takes back, by requested time; empty without the savepoint's write.

    Pending writes are among them, also those that began before the savepoint.
    """
    saved = find_saved(timeline, savepoint)
    if saved is None:
        return ()
    merges_logs = table_type == MERGE_ON_READ
    at = _timed(saved)
    return tuple(i for i in timeline.instants if is_taken_back(_timed(i), at, merges_logs=merges_logs))


def find_saved(timeline: Timeline, savepoint: str) -> Instant | None:
    """Return the completed write of a savepoint; None when it is not on the active timeline."""
    return next((write for write in timeline.completed_writes if write.requested_time == savepoint), None)


def _timed(instant: Instant) -> TimedInstant:
    completed_time = instant.ordering_time if instant.is_completed else ""
    return TimedInstant(instant.action, instant.requested_time, completed_time)


def check_restore(facts: RestoreFacts) -> tuple[ReportLine, ...]:
    """Return what forbids a restore to the savepoint, then what it takes back, then what to run it with."""
    refused = tuple(_refusals(facts))
    taken = facts.taken_back
    if not taken and not facts.resumes:
        return refused
    lines = [_taken_line(instant, facts.commits.get(instant.requested_time)) for instant in taken]
    what_else = (*_index_lines(facts), *_metadata_lines(facts), *_stream_lines(facts), *_setting_lines(facts))
    return (*refused, *lines, *what_else)


def _setting_lines(facts: RestoreFacts) -> Iterator[ReportLine]:
    """Yield what the session must set, because Hudi's defaults are not those of the table."""
    yield _set(WRITE_AUTO_UPGRADE, "an upgrade within the restore shows rows again that it has taken back")
    partitions = facts.evidence.properties.metadata_partitions
    if not partitions or not facts.reaches_back:
        why = "the table has none" if not partitions else "it does not reach back to the savepoint"
        yield _set(METADATA_ENABLE, f"the restore stops half-way at the metadata table: {why}")
        return
    for index, setting in _ON_BY_DEFAULT.items():
        if index not in partitions or index in facts.younger_indexes:
            yield _set(setting, f"the restore stops half-way, or each write after it fails: the table lacks {index}")


_ON_BY_DEFAULT: Mapping[str, str] = MappingProxyType(
    {
        "column_stats": COLUMN_STATS_ENABLE,
        "partition_stats": PARTITION_STATS_ENABLE,
    }
)
"""Indexes that a session of Hudi 1.2 makes unless it is set otherwise."""


def _set(setting: str, why: str) -> ReportLine:
    return ReportLine(LineKind.SETTING, f"{setting}=false", why, "set it in the session that restores")


def sum_up(lines: Sequence[ReportLine]) -> str:
    """Return the report in one line."""
    taken = [line for line in lines if line.kind is LineKind.TAKEN_BACK]
    known = [line.rows for line in taken if line.rows is not None]
    lost = f"takes back {len(taken)} writes and plans, {sum(known):,} changed rows in {len(known)} of them"
    if is_refused(lines):
        return f"refused; it {lost}" if taken else "refused"
    return f"nothing forbids it; it {lost}"


def _refusals(facts: RestoreFacts) -> Iterator[ReportLine]:
    yield from _savepoint_refusals(facts)
    evidence = facts.evidence
    restoring = explain_pending_restore(i.requested_time for i in evidence.timeline.pending(Action.RESTORE))
    if restoring and not facts.resumes:
        yield refuse(facts.savepoint, restoring, "repeat that restore with the savepoint that it began with")
    yield from state_refusals(evidence, facts.runs, facts.holds)


def _savepoint_refusals(facts: RestoreFacts) -> Iterator[ReportLine]:
    evidence = facts.evidence
    savepoints = [i.requested_time for i in evidence.timeline.completed() if i.action is Action.SAVEPOINT]
    if facts.savepoint not in savepoints:
        known = f"it has {listed_names(savepoints)}" if savepoints else "it has none: set savepoint.every_s"
        yield refuse(facts.savepoint, "the table has no completed savepoint of this instant", known)
        return
    if find_saved(evidence.timeline, facts.savepoint) is None:
        yield refuse(
            facts.savepoint,
            "the savepoint's write is archived, so Hudi does not know what came after it",
            f"choose another one ({listed_names(savepoints)}); take hoodie.archive.beyond.savepoint out of writers",
        )
        return
    if evidence.archived_behind is not None:
        yield refuse(
            evidence.archived_behind.head.requested_time,
            f"{evidence.archived_behind.describe()}: a restore cannot take them back",
            "see airflow lake doctor",
        )
    taken = facts.taken_back
    if not taken and not facts.resumes:
        yield refuse(facts.savepoint, "nothing was written after this savepoint", "there is nothing to restore")
    lost = {instant.requested_time for instant in taken}
    for younger in savepoints:
        if younger in lost:
            yield refuse(
                younger,
                "this savepoint is of a write that would be taken back, which Hudi refuses",
                f"restore to it instead, or remove it first: CALL delete_savepoint(..., instant_time => '{younger}')",
            )


def _taken_line(instant: Instant, commit: CommitMetadata | None) -> ReportLine:
    subject = instant.requested_time
    if not instant.is_completed:
        kind = "plan of a service" if instant.action in COMPARABLE_ACTION else "write"
        return ReportLine(LineKind.TAKEN_BACK, subject, f"pending {kind} ({instant.action})")
    if commit is None:
        return ReportLine(LineKind.TAKEN_BACK, subject, f"{instant.action} whose metadata cannot be read")
    what = f"{instant.action} ({commit.operation})"
    return ReportLine(LineKind.TAKEN_BACK, subject, what, rows=commit.changed_rows, bytes=commit.written_bytes)


def _index_lines(facts: RestoreFacts) -> Iterator[ReportLine]:
    for name, time in sorted(facts.younger_indexes.items()):
        yield ReportLine(
            LineKind.INDEX,
            name,
            f"built at {time}, after the savepoint: a restore empties it, and each write fails then",
            "drop it before the restore, build it again afterwards",
        )


def _metadata_lines(facts: RestoreFacts) -> Iterator[ReportLine]:
    if not facts.reaches_back:
        yield ReportLine(
            LineKind.METADATA,
            METADATA_TABLE,
            "it does not reach back to the savepoint: Hudi deletes it, or stops half-way",
            "the next write builds it again; build its indexes again",
        )


def _stream_lines(facts: RestoreFacts) -> Iterator[ReportLine]:
    for stream in facts.streams:
        yield ReportLine(
            LineKind.STREAM,
            stream,
            "it has writes that would be taken back: its next run begins a new generation, with a snapshot",
        )

"""Finds files of a table that no instant knows, reports them, and moves them into the table's quarantine when asked to.

What a file is to the table, `orphan_rules` decides; how it is moved, put back and deleted, `quarantine` says. Here both
meet the table: everything is listed without the lock, and decided again for the orphans among it under the lock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.hudi.table import LoadedTable, find_heartbeat_age_s, hold_lock, instant_time_of, requested_times
from lake_jobs.services.context import ServiceContext, open_context, open_waiting_client, seconds_since
from lake_jobs.services.living_writers import load_living_writers
from lake_jobs.services.orphan_evidence import (
    add_archive,
    add_markers,
    add_metadata_table,
    find_other_table,
    list_table,
    load_evidence,
    stat_file,
)
from lake_jobs.services.orphan_rules import (
    AgeLimits,
    FileFinding,
    FileStanding,
    ListedFile,
    OrphanRules,
    describe_findings,
    judge_files,
    min_age_ms,
    parse_name,
    read_orphan_rules,
)
from lake_jobs.services.quarantine import Quarantine, UndoRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

MAX_LOGGED = 1000
"""Files that the log names, of orphans and of what is not certain each."""


MAX_MOVING_S = 60.0
"""Writers wait for the lock meanwhile, and a lock may expire: what is left then, the next run moves."""


class UnknownWriterError(Exception):
    """A writer may be at work of which it is not known what it touches."""


def run_orphans(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request: `schedule` reports in any case, `execute` does what the policy says, `undo` puts files back.

    `instants` of an undo are the quarantines to put back; without any all are. Raises ServiceRefusedError,
    NoTableError, OrphanSettingError, or Py4JJavaError when the store or Hudi fails.
    """
    context = open_context(spark, job, request)
    table = f"table {job.table_name} at {job.base_path}"
    quarantine = Quarantine(TableFiles(spark, job.base_path))
    if request.mode is Mode.UNDO:
        return _undo(context, quarantine)
    rules = read_orphan_rules(context.settings, table)
    if request.mode is Mode.SCHEDULE or not rules.quarantines:
        return _report(context, quarantine, rules)
    return _quarantine(context, quarantine, rules)


def _undo(context: ServiceContext, quarantine: Quarantine) -> ServiceResult:
    try:
        back = quarantine.undo(context.request.instants)
    except UndoRefusedError as error:
        raise ServiceRefusedError(f"table {context.job.table_name} at {context.job.base_path}: {error}") from error
    outcome = Outcome.COMPLETED if back.files else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.ORPHANS, outcome, message=f"put {back} back; no later run moves them again")


def _report(context: ServiceContext, quarantine: Quarantine, rules: OrphanRules) -> ServiceResult:
    findings, other_tables = _search(context, quarantine, rules)
    message = f"found {describe_findings(findings, other_tables)}; nothing was moved (orphans.mode: report)"
    _log(context, findings)
    found = any(map(_is_orphan, findings))
    return ServiceResult(Service.ORPHANS, Outcome.COMPLETED if found else Outcome.NOTHING_TO_DO, message=message)


def _quarantine(context: ServiceContext, quarantine: Quarantine, rules: OrphanRules) -> ServiceResult:
    quarantine.finish()
    deleted = quarantine.delete_expired(_now_ms(context) - rules.keep_days * DAY_MS)
    findings, other_tables = _search(context, quarantine, rules)
    _log(context, findings)
    orphans = [finding.file for finding in findings if _is_orphan(finding)]
    orphans = sorted(orphans, key=lambda file: (file.modified_ms, file.path))[: rules.max_files]
    parts = [f"found {describe_findings(findings, other_tables)}"]
    try:
        if orphans:
            parts.append(_move(context, quarantine, rules, orphans, [finding.file for finding in findings]))
    except UnknownWriterError as error:
        return ServiceResult(Service.ORPHANS, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")
    if deleted.files:
        parts.append(f"deleted {deleted} that were in quarantine for more than {rules.keep_days} days")
    outcome = Outcome.COMPLETED if orphans or deleted.files else Outcome.NOTHING_TO_DO
    context.log_progress("; ".join(parts[1:]) or "nothing was moved")
    return ServiceResult(Service.ORPHANS, outcome, message="; ".join(parts))


def _search(
    context: ServiceContext, quarantine: Quarantine, rules: OrphanRules
) -> tuple[tuple[FileFinding, ...], tuple[str, ...]]:
    """Return every file of the table's partitions with its standing, the files outside of them as doubtful, and the
    folders of other tables.
    """
    started = time.monotonic()
    # The listing comes first: what is written after it is not judged, and what was written before it is known by now.
    listing = list_table(context)
    with open_waiting_client(context) as client:
        findings = _decide(context, client, quarantine, rules, listing.files)
    context.log_progress(f"judged {len(listing.files)} files in {seconds_since(started)}")
    for folder in listing.other_tables:
        context.log_progress(f"{folder} is a table of its own, and was not searched")
    outside = "it lies in no partition of the table"
    strangers = (FileFinding(file, FileStanding.AMBIGUOUS, outside) for file in listing.strangers)
    return (*findings, *strangers), listing.other_tables


def _decide(
    context: ServiceContext,
    client: Any,
    quarantine: Quarantine,
    rules: OrphanRules,
    files: Collection[ListedFile],
    among: Collection[ListedFile] = (),
) -> tuple[FileFinding, ...]:
    """Judge files by the table as it is now. The archive and the metadata table are read for what is in question."""
    state = context.read_table_state()
    evidence = load_evidence(context, state, quarantine.list_put_back())
    limits = _limits(context, state, rules)
    # Each further part is read for what is in question alone: it makes no orphan of a file that is none without it.
    unknown = [file for file in files if parse_name(file.name) is not None and file.name not in evidence.named]
    if unknown:
        evidence = add_metadata_table(context, client, state, evidence, unknown)
        unknown = [file for file in unknown if file.name not in evidence.listed]
        evidence = add_markers(context, add_archive(state, evidence, unknown), unknown)
    return judge_files(files, evidence, limits, among)


def _is_orphan(finding: FileFinding) -> bool:
    return finding.standing is FileStanding.ORPHAN


def _limits(context: ServiceContext, state: LoadedTable, rules: OrphanRules) -> AgeLimits:
    writes = state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants()
    commits = [(str(instant.requestedTime()), str(instant.getCompletionTime())) for instant in writes]
    before_ms = _now_ms(context) - min_age_ms(rules, commits)
    return AgeLimits(before_ms, instant_time_of(context.spark, before_ms))


def _move(
    context: ServiceContext,
    quarantine: Quarantine,
    rules: OrphanRules,
    orphans: Sequence[ListedFile],
    among: Collection[ListedFile],
) -> str:
    """Decide about the orphans once more under the table's lock, and move them; return what was moved, in words."""
    with open_waiting_client(context) as client, hold_lock(context.spark, client):
        _require_known_writers(context)
        # A table may have been created in one of the folders since they were listed.
        others = {folder for folder in {orphan.partition for orphan in orphans} if find_other_table(context, folder)}
        own = [orphan for orphan in orphans if orphan.partition not in others]
        present = [file for orphan in own if (file := stat_file(context, orphan.path)) is not None]
        decided = _decide(context, client, quarantine, rules, present, among)
        sure = [finding for finding in decided if _is_orphan(finding)]
        if not sure:
            return "none of them was an orphan any more"
        now_ms = _now_ms(context)
        id = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
        ends_s = time.monotonic() + MAX_MOVING_S
        moved = quarantine.take(id, now_ms, context.job.job_id, sure, lambda: time.monotonic() < ends_s)
    return (
        f"moved {moved} into quarantine {id}; mode undo with instants {id} puts them back, the first run after "
        f"{rules.keep_days} days deletes them"
    )


def _require_known_writers(context: ServiceContext) -> None:
    """Raise UnknownWriterError while a writer may be at work whose files are not known. Call it under the lock."""
    state = context.read_table_state()
    for writer in load_living_writers(context, state):
        if writer.partitions is None:
            raise UnknownWriterError(f"writer {writer.instant} has not announced yet which files it works on")
    writes = state.timeline.getCommitsTimeline().filterPendingExcludingCompaction()
    clusterings = frozenset(requested_times(state.timeline.filterPendingClusteringTimeline()))
    for instant in requested_times(writes):
        has_beat = find_heartbeat_age_s(context.spark, state.base_path, instant) is not None
        if instant not in clusterings and not has_beat:
            raise UnknownWriterError(
                f"the write {instant} is pending without a heartbeat, so nothing says whether its writer is at work"
            )


def _log(context: ServiceContext, findings: Collection[FileFinding]) -> None:
    for standing in (FileStanding.ORPHAN, FileStanding.AMBIGUOUS):
        named = [finding for finding in findings if finding.standing is standing]
        for finding in named[:MAX_LOGGED]:
            context.log_progress(
                f"{standing}: {finding.file.path} ({finding.file.size_bytes:,} bytes): {finding.reason}"
            )
        if len(named) > MAX_LOGGED:
            context.log_progress(f"{standing}: {len(named) - MAX_LOGGED} more files")


def _now_ms(context: ServiceContext) -> int:
    return store_now_ms(context.spark, context.job.base_path)

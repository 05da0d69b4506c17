"""Erases record keys from a table, and says when they are physically gone: check, delete, rewrite, prove.

The file of keys lies in a folder outside of the table; the steps leave what they know next to it, and the receipt. Each
step repeats harmlessly. Every removal is Hudi's own: a deletion by its writer, a compaction, cleans of both tables.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    ERASE_FOLDER,
    ERASE_OPTIONS,
    ERASE_SINKS,
    ERASE_STEP,
    SAFEPOINT,
    ContractError,
    EraseStep,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    from_json,
    to_json,
)
from airflow_lake_provider.shared.hudi_settings import (
    CLEAN_INCREMENTAL,
    CLEAN_POLICY,
    CLEAN_VERSIONS_RETAINED,
    COMMIT_METADATA_PREFIX,
    MERGE_ON_READ,
)
from lake_jobs.driver.failure import classify, describe
from lake_jobs.hudi.files import META_FOLDER, TableFiles, open_path
from lake_jobs.hudi.table import LoadedTable, find_instant, requested_times
from lake_jobs.services.clean import run_clean
from lake_jobs.services.compaction import run_compaction, run_metadata_compaction
from lake_jobs.services.context import ServiceContext, open_context
from lake_jobs.services.erasure_rules import (
    KEYS_FILE,
    RECEIPT_FILE,
    STATE_FILE,
    ErasureState,
    Keepers,
    Receipt,
    describe_receipt,
    hash_key,
    hide_keys,
    list_partitions,
    read_keys,
    write_receipt,
)
from lake_jobs.services.erasure_search import find_live, mark_chosen, search_files
from lake_jobs.services.living_writers import WriterInTheWayError
from lake_jobs.services.row_deletion import (
    IS_CHOSEN,
    DeletionDiffersError,
    DeletionGroup,
    RowChoice,
    delete_under_lock,
    find_deletion_problem,
)
from lake_jobs.services.ttl import PartitionInUseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lake_jobs.services.erasure_rules import ErasedKey

_Run: TypeAlias = "Callable[[SparkSession, JobRequest, ServiceRequest], ServiceResult]"
COMMIT_KEY = "lake_erasure"
"""In the extra metadata of a deletion: whose it is."""
_SELECTED = "hoodie.clean.partition.filter.selected"
_MAX_COMPACTIONS = 2
"""One that was planned before the deletion, and the one after it."""


class _Folder:
    """The folder of an erasure: the keys, what the steps know, and the receipt."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")
        table = self._find_table()
        if not self._path or table:
            raise ServiceRefusedError(f"the folder of the keys must be outside of every table, and {table} is one")
        self._files = TableFiles(spark, self._path)

    def _find_table(self) -> str:
        """Return the table that the folder is in; empty when it is in none."""
        fs, folder = open_path(self._spark, self._path or "/")
        while folder is not None:
            if fs.exists(self._spark._jvm.org.apache.hadoop.fs.Path(folder, META_FOLDER)):
                return str(folder)
            folder = folder.getParent()
        return ""

    def load_keys(self) -> tuple[ErasedKey, ...]:
        if self._files.size_of(KEYS_FILE) is None:
            raise ServiceRefusedError(f"{self._path}/{KEYS_FILE} is not there: write the keys into it, one on a line")
        return read_keys(self._files.read(KEYS_FILE))

    def load_state(self) -> ErasureState:
        if self._files.size_of(STATE_FILE) is None:
            self.save(STATE_FILE, ErasureState(secrets.token_hex(8), secrets.token_hex(32)))
        return from_json(ErasureState, self._files.read(STATE_FILE).decode())

    def load_receipt(self) -> Receipt | None:
        if self._files.size_of(RECEIPT_FILE) is None:
            return None
        try:
            return from_json(Receipt, self._files.read(RECEIPT_FILE).decode())
        except ContractError:
            return None

    def save(self, name: str, content: ErasureState | Receipt) -> None:
        self._files.create(name, to_json(content).encode())
        fs, path = open_path(self._spark, f"{self._path}/{name}")
        fs.setPermission(path, self._spark._jvm.org.apache.hadoop.fs.permission.FsPermission("600"))


def run_erasure(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Do one step. Raises ServiceRefusedError, NoTableError; no error has a key in it."""
    options = {key: value for key, value in job.hudi_options.items() if not key.startswith(ERASE_OPTIONS)}
    asked = {key: value for key, value in job.hudi_options.items() if key.startswith(ERASE_OPTIONS)}
    # The services that it calls know nothing of an erasure.
    job = replace(job, hudi_options=options)
    request = replace(request, options={**asked, **request.options})
    context = open_context(spark, job, request)
    problem = find_deletion_problem(context.first_state)
    if context.first_state.meta_client.getTableConfig().getBootstrapBasePath().isPresent():
        problem = "its rows are in files outside of it (bootstrap)"
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: keys are not erased, because {problem}")
    if ERASE_STEP not in request.options:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: keys are erased by the DAG lake_erase")
    folder = _Folder(spark, request.options.get(ERASE_FOLDER, ""))
    keys = folder.load_keys()
    state = folder.load_state()
    step = {
        EraseStep.CHECK: _check,
        EraseStep.DELETE: _delete,
        EraseStep.REWRITE: _rewrite,
        EraseStep.PROVE: _prove,
    }[EraseStep(request.options[ERASE_STEP])]
    try:
        return step(context, folder, keys, state)
    except (PartitionInUseError, WriterInTheWayError) as error:
        return _failed(FailureKind.CONFLICT, hide_keys(f"{error}", keys, state.secret))
    except Py4JJavaError as error:
        # Not raised: a caller that prints it would print what Hudi says of a record.
        causes = context.find_causes(error)
        return _failed(classify(causes), hide_keys(describe(causes), keys, state.secret))
    except DeletionDiffersError as error:
        return _failed(FailureKind.OTHER, hide_keys(f"{error}", keys, state.secret))


def _failed(kind: FailureKind, message: str) -> ServiceResult:
    return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=kind, message=message)


def _done(message: str, *instants: str) -> ServiceResult:
    return ServiceResult(Service.TTL, Outcome.COMPLETED, completed_instants=instants, message=message)


# --- The steps


def _check(context: ServiceContext, folder: _Folder, keys: Sequence[ErasedKey], state: ErasureState) -> ServiceResult:
    receipt = _search(context, folder, keys, state)
    lines = [f"a deletion of {len(keys)} keys; nothing was changed", *describe_receipt(receipt)]
    lines += _list_delays(context)
    for line in lines:
        context.log_progress(line)
    return _done("\n".join(lines))


def _list_delays(context: ServiceContext) -> list[str]:
    state = context.first_state
    timeline = state.timeline
    clusterings = requested_times(timeline.filterPendingClusteringTimeline())
    pending = requested_times(timeline.filterInflightsAndRequested())
    lines = [f"delayed: clustering {each} is pending, and its rows must stay until its end" for each in clusterings]
    lines += [f"delayed: {each} is pending, and keeps its files" for each in pending if each not in clusterings]
    if _held(context):
        lines.append(f"delayed: a sink or a reader holds what was written since {_held(context)}")
    return lines


def _held(context: ServiceContext) -> str:
    return context.job.hudi_options.get(SAFEPOINT, "")


def _delete(context: ServiceContext, folder: _Folder, keys: Sequence[ErasedKey], state: ErasureState) -> ServiceResult:
    """Delete what readers see, in one commit that says whose it is; what a writer has deleted already is no error."""
    live = find_live(context.spark, context.job.base_path, keys)
    seen = tuple(sorted({line for line, *_ in live} | set(state.seen)))
    partitions = tuple(sorted({partition for _, partition, *_ in live} | set(state.partitions)))
    folder.save(STATE_FILE, replace(state, seen=seen, partitions=partitions))
    if not live:
        deletion = _find_deletion(context.first_state, state)
        return _done(f"readers see none of the {len(keys)} keys", *([deletion[0]] if deletion else []))
    groups = sorted({(partition, name.partition("_")[0]) for _, partition, name, _ in live})
    choice = RowChoice(
        "to be erased",
        frozenset(),
        partial(mark_chosen, context.spark, keys, IS_CHOSEN),
        {COMMIT_METADATA_PREFIX: COMMIT_KEY, COMMIT_KEY: state.id},
    )
    instant, deleted = delete_under_lock(context, [DeletionGroup(*group) for group in groups], choice)
    message = f"deleted {deleted:,} rows of {len(groups):,} file groups"
    context.log_progress(message)
    return _done(message, *([instant] if instant else []))


def _find_deletion(state: LoadedTable, erasure: ErasureState) -> tuple[str, str] | None:
    """Return requested and completed time of the last deletion of an erasure; None where it has none."""
    if not erasure.seen:
        return None
    commits = state.timeline.getCommitsTimeline().filterCompletedInstants()
    for instant in commits.getReverseOrderedInstants().iterator():
        if state.timeline.readCommitMetadata(instant).getMetadata(COMMIT_KEY) == erasure.id:
            requested = str(instant.requestedTime())
            return requested, str(instant.getCompletionTime() or requested)
    return None


def _rewrite(context: ServiceContext, folder: _Folder, keys: Sequence[ErasedKey], state: ErasureState) -> ServiceResult:
    """Compact the table, clean what is older than what readers see, and do the same to the metadata table."""
    if find_live(context.spark, context.job.base_path, keys):
        return _failed(FailureKind.REFUSED, "readers see some of the keys: clear the task delete, which deletes them")
    done: list[str] = []
    spark = context.spark
    job = context.job
    for service, run, options in _list_rewrites(context, state):
        for _ in range(_MAX_COMPACTIONS if service is Service.COMPACTION else 1):
            mode = Mode.EXECUTE if service is Service.METACOMPACTION else Mode.SCHEDULE_AND_EXECUTE
            result = run(spark, job, ServiceRequest(service, mode, (), options))
            context.log_progress(f"{service}: {result.outcome} {result.message}")
            if result.outcome is Outcome.FAILED:
                return replace(result, service=Service.TTL, message=f"{service}: {result.message}")
            if service is not Service.METACOMPACTION:
                done += result.completed_instants
            if result.outcome is Outcome.NOTHING_TO_DO:
                break
    return _done(f"rewrote and cleaned: {', '.join(done) or 'nothing was left to do'}", *done)


def _list_rewrites(context: ServiceContext, state: ErasureState) -> list[tuple[Service, _Run, dict[str, str]]]:
    latest = {CLEAN_POLICY: "KEEP_LATEST_FILE_VERSIONS", CLEAN_VERSIONS_RETAINED: "1"}
    names = [name for name in state.partitions if name]
    selects = bool(names) and len(names) == len(state.partitions) and not any("," in name for name in names)
    # Hudi takes a filter only for a clean that reads all versions.
    partitions = {_SELECTED: ",".join(names), CLEAN_INCREMENTAL: "false"} if selects else {}
    held = {SAFEPOINT: _held(context)} if _held(context) else {}
    rewrites: list[tuple[Service, _Run, dict[str, str]]] = []
    if context.first_state.table_type == MERGE_ON_READ:
        rewrites.append((Service.COMPACTION, run_compaction, {}))
    rewrites.append((Service.CLEAN, run_clean, {**latest, **partitions, **held}))
    if context.first_state.metadata_partitions:
        rewrites.append((Service.METACOMPACTION, run_metadata_compaction, latest))
    return rewrites


def _prove(context: ServiceContext, folder: _Folder, keys: Sequence[ErasedKey], state: ErasureState) -> ServiceResult:
    receipt = _search(context, folder, keys, state)
    folder.save(RECEIPT_FILE, receipt)
    lines = describe_receipt(receipt)
    for line in lines:
        context.log_progress(line)
    message = "\n".join(lines)
    if receipt.gone < len(keys):
        return _failed(FailureKind.REFUSED, message)
    return _done(message)


def _search(context: ServiceContext, folder: _Folder, keys: Sequence[ErasedKey], state: ErasureState) -> Receipt:
    """Search every file, and let the next rewrite clean the partitions of all that have a key or cannot be read."""
    began = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    # Before the files, so that a write that begins meanwhile is seen by one of both.
    live = find_live(context.spark, context.job.base_path, keys)
    searched = search_files(context.spark, context.first_state, keys)
    folder.save(STATE_FILE, replace(state, partitions=list_partitions(searched.paths, state.partitions)))
    now = context.read_table_state()
    deletion = _find_deletion(now, state)
    keepers = Keepers(
        _list_saved(now),
        frozenset(requested_times(now.timeline.filterInflightsAndRequested())),
        deletion[0] if deletion else "",
        {line: commit for line, _, _, commit in live},
        _held(context),
    )
    elsewhere = context.request.options.get(ERASE_SINKS, "")
    before = folder.load_receipt()
    receipt = Receipt(
        context.job.base_path,
        state.id,
        keepers.deletion,
        began,
        searched.files,
        searched.bytes,
        before.keys if before is not None else (),
        tuple(f"{path}: {reason}" for path, reason in searched.unread),
        tuple(line for line in elsewhere.splitlines() if line),
    )
    deleted_at = _as_iso(context.spark, deletion[1]) if deletion else ""
    with_times = [(key, hash_key(state.secret, key), deleted_at if key.line in state.seen else "") for key in keys]
    return write_receipt(receipt, with_times, searched.places, keepers)


def _as_iso(spark: SparkSession, instant: str) -> str:
    times = spark._jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator
    seconds = int(times.parseDateFromInstantTime(instant).getTime()) / 1000
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _list_saved(state: LoadedTable) -> dict[str, str]:
    saved = {}
    savepoints = state.timeline.getSavePointTimeline().filterCompletedInstants()
    for savepoint in requested_times(savepoints):
        instant = find_instant(savepoints, savepoint)
        partitions = state.timeline.readSavepointMetadata(instant).getPartitionMetadata()
        for partition in partitions:
            saved.update(dict.fromkeys(map(str, partitions[partition].getSavepointDataFile()), savepoint))
    return saved

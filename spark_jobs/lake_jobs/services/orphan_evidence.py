"""Reads what a table knows of its files, through Hudi's own classes: the evidence of `orphan_rules.judge_files`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action
from airflow_lake_provider.shared.hudi_settings import INITIAL_VERSION
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.files import META_FOLDER, open_path, read_stream
from lake_jobs.hudi.table import LoadedTable, requested_times
from lake_jobs.services.living_writers import find_beating, load_living_writers
from lake_jobs.services.orphan_rules import PARTITION_METADATA, ListedFile, Names, TableEvidence, parse_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext

ARCHIVED_AT_ONCE = 50
"""Archived writes whose metadata is in the JVM's memory at a time."""


# --- The files of a table


@dataclass(frozen=True, slots=True)
class TableListing:
    """All files below a base path but those of `.hoodie`, and those of other tables."""

    files: tuple[ListedFile, ...]
    """Those in partitions."""
    strangers: tuple[ListedFile, ...]
    """Those in folders that are no partitions."""
    other_tables: tuple[str, ...] = ()
    """Folders below the base path that are tables of their own."""


def list_table(context: ServiceContext) -> TableListing:
    """List every partition on the store itself: Hudi's own listing leaves out what it does not know.

    A folder with a `.hoodie` of its own is another table. This table's timeline knows none of its files, so all of them
    would count as orphans: the listing ends there.
    """
    files: list[ListedFile] = []
    strangers: list[ListedFile] = []
    others: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        statuses = _list_folder(context, folder)
        names = {str(status.getPath().getName()): status for status in statuses}
        if folder and META_FOLDER in names:
            others.append(folder)
            continue
        folders += [_below(folder, name) for name, status in names.items() if _is_folder(name, status)]
        found = [
            ListedFile(_below(folder, name), int(status.getLen()), int(status.getModificationTime()))
            for name, status in names.items()
            if not status.isDirectory() and not _is_checksum(name)
        ]
        is_partition = any(file.name.startswith(PARTITION_METADATA) for file in found)
        (files if is_partition else strangers).extend(found)
    return TableListing(tuple(files), tuple(strangers), tuple(sorted(others)))


def find_other_table(context: ServiceContext, partition: str) -> str:
    """Return the folder of a table of its own in which a partition lies, or which it is; empty when there is none."""
    parts = partition.split("/") if partition else []
    for folder in ("/".join(parts[: count + 1]) for count in range(len(parts))):
        fs, hadoop_path = open_path(context.spark, f"{context.job.base_path}/{folder}/{META_FOLDER}")
        if fs.exists(hadoop_path):
            return folder
    return ""


def _list_folder(context: ServiceContext, folder: str) -> list[Any]:
    fs, path = open_path(context.spark, f"{context.job.base_path}/{folder}" if folder else context.job.base_path)
    return list(fs.listStatus(path))


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_folder(name: str, status: Any) -> bool:
    return bool(status.isDirectory()) and name != META_FOLDER


def _is_checksum(name: str) -> bool:
    # Hadoop's local file system keeps one for each file, and moves it with the file.
    return name.startswith(".") and name.endswith(".crc")


def stat_file(context: ServiceContext, path: str) -> ListedFile | None:
    """Return a file as it is now; None when it is not there."""
    fs, hadoop_path = open_path(context.spark, f"{context.job.base_path}/{path}")
    try:
        status = fs.getFileStatus(hadoop_path)
    except Py4JJavaError as error:
        if any(cause.class_name.endswith("FileNotFoundException") for cause in causes_of(error.java_exception)):
            return None
        raise
    return ListedFile(path, int(status.getLen()), int(status.getModificationTime()))


# --- What the table knows of them


def load_evidence(context: ServiceContext, state: LoadedTable, put_back: Collection[str]) -> TableEvidence:
    """Return what the active timeline, its plans and savepoints, heartbeats and markers say; not the archive yet."""
    names = TimelineTexts(context.spark, state)
    named = Names()
    completed = {}
    mentioned: list[tuple[str, Names]] = []
    pending: dict[str, str] = {}
    for instant in state.timeline.getInstants():
        time = str(instant.requestedTime())
        action = str(instant.getAction())
        if not instant.isCompleted():
            what = f"the pending {action} {time}"
            pending[time] = what
            mentioned.append((what, Names(names.contents_of(time))))
            if action == Action.ROLLBACK:
                write = _write_rolled_back(context, state, instant)
                pending[write] = f"the write {write}, which {what} removes"
        elif action == Action.SAVEPOINT:
            mentioned.append((f"the savepoint {time}", Names(names.contents_of(time, ".savepoint"))))
        elif action in COMPLETED_WRITE_ACTIONS:
            completed[time] = read_write(state.timeline, instant, named)
    config = state.meta_client.getTableConfig()
    return TableEvidence(
        table_version=state.table_version,
        first_version=_first_version(config, state.table_version),
        named=named,
        completed=completed,
        known_from="",
        pending=pending,
        mentioned=tuple(mentioned),
        living=_find_living(context),
        busy_partitions={
            partition: writer.instant
            for writer in load_living_writers(context, state)
            for partition in writer.partitions or ()
        },
        put_back=put_back,
    )


def _first_version(config: Any, table_version: int) -> int:
    text = str(config.getProps().getProperty(INITIAL_VERSION) or "")
    # A table without it began before Hudi 1.0, or is not upgraded.
    return int(text) if text.isdigit() else min(table_version, 6)


def _write_rolled_back(context: ServiceContext, state: LoadedTable, rollback: Any) -> str:
    utils = context.spark._jvm.org.apache.hudi.table.action.rollback.RollbackUtils
    return str(utils.getRollbackPlan(state.meta_client, rollback).getInstantToRollback().getCommitTime())


def read_write(timeline: Any, instant: Any, named: Names) -> str:
    """Add the names in a completed write's metadata; return why it cannot be read, or nothing."""
    try:
        details = timeline.getInstantDetails(instant)
        content = bytes(details.get()) if details.isPresent() else b""
        # Hudi reads it whole, so it is neither damaged nor cut off.
        timeline.readCommitMetadata(instant)
    except Py4JJavaError as error:
        return describe(causes_of(error.java_exception)) or "damaged"
    if not (content.startswith(b"{") or (content.startswith(b"Obj\x01") and _is_plain(content))):
        # Hudi 1.2 gives nothing usable of what layout 1 has archived.
        return "neither JSON nor a plain Avro container"
    named.add(content)
    return ""


def _is_plain(content: bytes) -> bool:
    """Whether an Avro container is not compressed, so that names can be found in its bytes."""
    _, found, rest = content.partition(b"avro.codec")
    return not found or rest[1:5] == b"null"


def _find_living(context: ServiceContext) -> dict[str, str]:
    beating = find_beating(context.spark, context.job.base_path, context.settings)
    return {name: f"{name}, whose heartbeat is fresh" for name in beating}


class TimelineTexts:
    """The contents of the timeline's files, whichever state they are of."""

    def __init__(self, spark: SparkSession, state: LoadedTable) -> None:
        self._spark = spark
        self._folder = state.meta_client.getTimelinePath().toString()
        fs, path = open_path(spark, self._folder)
        self._files = [str(status.getPath().getName()) for status in fs.listStatus(path) if status.isFile()]

    def contents_of(self, requested: str, suffix: str = "") -> list[bytes]:
        """Return the contents of the instants' files that were requested at this time."""
        wanted = (
            name
            for name in self._files
            if name.startswith((f"{requested}.", f"{requested}_")) and name.endswith(suffix)
        )
        return [content for name in wanted if (content := self._read(name))]

    def _read(self, name: str) -> bytes:
        fs, path = open_path(self._spark, f"{self._folder}/{name}")
        return read_stream(self._spark, name, fs.open(path))


# --- What is read for the files in question alone


def add_archive(state: LoadedTable, evidence: TableEvidence, files: Iterable[ListedFile]) -> TableEvidence:
    """Return the evidence with the archived writes of these files, and from when on the timelines know every write."""
    wanted = sorted(
        {
            parts.instant
            for file in files
            if (parts := parse_name(file.name)) is not None
            and parts.instant not in evidence.completed
            and parts.instant not in evidence.pending
        }
    )
    try:
        archive = state.meta_client.getArchivedTimeline()
        first = archive.getCommitsTimeline().firstInstant()
        known_from = str(first.get().requestedTime()) if first.isPresent() else _first_write(state)
        completed = dict(evidence.completed)
        for begin in range(0, len(wanted) if first.isPresent() else 0, ARCHIVED_AT_ONCE):
            part = wanted[begin : begin + ARCHIVED_AT_ONCE]
            # It leaves out the first of the two.
            before = str(int(part[0]) - 1).zfill(len(part[0]))
            archive.loadCompletedInstantDetailsInMemory(before, part[-1])
            for time in part:
                problems = [
                    read_write(archive, instant, evidence.named)
                    if str(instant.getAction()) in COMPLETED_WRITE_ACTIONS
                    else f"it is archived as {instant.getAction()}"
                    for instant in archive.findInstantsInClosedRange(time, time).getInstants()
                ]
                if problems:
                    completed[time] = next((problem for problem in problems if problem), "")
            archive.clearInstantDetailsFromMemory(before, part[-1])
    except Py4JJavaError:
        return replace(evidence, known_from="")
    return replace(evidence, completed=completed, known_from=known_from)


def _first_write(state: LoadedTable) -> str:
    """Return from when on an active timeline without an archive is complete; empty when that is not known.

    A savepoint can keep an instant active whose successors were archived, into an archive that was removed since.
    """
    saved = frozenset(requested_times(state.timeline.getSavePointTimeline()))
    writes = requested_times(state.timeline.getCommitsTimeline().filterCompletedInstants())
    return next((time for time in writes if time not in saved), "")


def add_metadata_table(
    context: ServiceContext, client: Any, state: LoadedTable, evidence: TableEvidence, files: Iterable[ListedFile]
) -> TableEvidence:
    """Return the evidence with what the metadata table lists in the partitions of these files, if there is one."""
    if "files" not in state.metadata_partitions:
        return evidence
    jvm = context.spark._jvm
    table = jvm.org.apache.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    listed = Names()
    for partition in sorted({file.partition for file in files}):
        base = context.job.base_path
        path = jvm.org.apache.hudi.storage.StoragePath(f"{base}/{partition}" if partition else base)
        for info in table.getTableMetadata().getAllFilesInPartition(path):
            listed.add(str(info.getPath().getName()).encode())
    return replace(evidence, listed=listed)


def add_markers(context: ServiceContext, evidence: TableEvidence, files: Iterable[ListedFile]) -> TableEvidence:
    """Return the evidence with when the markers of these files' instants changed last."""
    changed = {}
    for instant in sorted({parts.instant for file in files if (parts := parse_name(file.name)) is not None}):
        fs, path = open_path(context.spark, f"{context.job.base_path}/{META_FOLDER}/.temp/{instant}")
        if fs.exists(path):
            # One level is enough: a direct marker changes the folder that it is in.
            times = [int(status.getModificationTime()) for status in fs.listStatus(path)]
            changed[instant] = max([int(fs.getFileStatus(path).getModificationTime()), *times])
    return replace(evidence, markers_ms=changed)

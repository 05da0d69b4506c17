"""Gives a table another version by Hudi's own handlers, and compares what readers see before and after it.

Hudi moves the files of a timeline one by one, and writes the version last. Between the two it takes a completed write
whose file has moved, and whose plan has not, for a failed one, and its next try rolls it back. So a mark in the table
says what it had before, no service but this one runs while it is there, and a run that died is gone on with: what is
left is moved first, and only then Hudi begins again.

Source: Hudi 1.2 `UpgradeDowngrade`, `SevenToEightUpgradeHandler`, `EightToSevenDowngradeHandler`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    METADATA_TABLE,
    UNSEEN,
    UPGRADE_MARK,
    UPGRADE_VERSION,
    VERIFY,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    UpgradeMark,
    Verify,
    from_json,
    to_json,
)
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS
from airflow_lake_provider.shared.hudi_settings import (
    COMPACTION_STRATEGY,
    LOCK_PROVIDER,
    MERGE_ON_READ,
    METADATA_ENABLE,
    TABLE_SERVICES_ENABLED,
    WRITE_AUTO_UPGRADE,
    WRITE_TABLE_VERSION,
)
from lake_jobs.driver.files import log_progress
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.settings import ALWAYS, service_settings
from lake_jobs.hudi.table import hold_lock, list_active, open_client, read_table_state, take_zone_of_table
from lake_jobs.services.compaction import run_compaction
from lake_jobs.services.context import IN_PROCESS_LOCK, open_context
from lake_jobs.services.living_writers import find_beating
from lake_jobs.services.upgrade_rules import MOVED_FROM, completed_in, find_moved, steps_to, times_of
from lake_jobs.verify.execution import compared_fields
from lake_jobs.verify.rows import NO_ROWS, UNIT, Fingerprint, fingerprints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable

META = ".hoodie"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
PROPERTIES = ".hoodie/hoodie.properties"
MAX_NAMED = 5
MAX_COMPACTIONS = 3
"""One that was pending, and one of what was written since; the last one finds nothing."""
UNBOUNDED = {
    COMPACTION_STRATEGY: "org.apache.hudi.table.action.compact.strategy.UnBoundedCompactionStrategy",
    VERIFY: Verify.ALL.value,
}


def run_upgrade(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Give a table the version that the request names, up or down. Repeated, it goes on where it was interrupted.

    Raises ServiceRefusedError, NoTableError, or Py4JJavaError.
    """
    target = int({**job.hudi_options, **request.options}.get(UPGRADE_VERSION, "0"))
    files = TableFiles(spark, job.base_path)
    mark = _load_mark(files)
    if mark is None:
        state = read_table_state(spark, job.base_path)
        if not steps_to(state.table_version, target):
            message = f"the table has version {target} already"
            return ServiceResult(Service.SAVEPOINT, Outcome.NOTHING_TO_DO, message=message)
        names = _names_of(files)
        if find_moved(state.table_version, *names):
            # By another process, which died, or which has the lock until it ends.
            mark = _mark_half_moved(files, state, target, names)
        else:
            failed = _compact(spark, job) if state.table_type == MERGE_ON_READ else None
            if failed is not None:
                return failed
            mark = _leave_mark(spark, job, request, target)
    elif target != mark.goal:
        return _failed(FailureKind.REFUSED, f"a change of the version to {mark.goal} is on its way: finish that first")
    change = _Change(spark, job, request, files)
    with change.lock():
        failed = change.run(mark)
    if failed is not None:
        return failed
    message = f"version {mark.began_at} is version {mark.goal} now{change.describe_end(mark)}"
    log_progress(job.table_name, message)
    return ServiceResult(Service.SAVEPOINT, Outcome.COMPLETED, message=message)


def _failed(kind: FailureKind, message: str) -> ServiceResult:
    return ServiceResult(Service.SAVEPOINT, Outcome.FAILED, failure_kind=kind, message=message)


def _load_mark(files: TableFiles) -> UpgradeMark | None:
    if files.size_of(UPGRADE_MARK) is None:
        return None
    return from_json(UpgradeMark, files.read(UPGRADE_MARK).decode())


def _compact(spark: SparkSession, job: JobRequest) -> ServiceResult | None:
    """Merge all log files; return why that did not succeed.

    Hudi would compact by itself, without the metadata table, which it then deletes with all indexes. And a plan of its
    own that a death left would hide rows.
    """
    for _ in range(MAX_COMPACTIONS):
        request = ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, options=UNBOUNDED)
        done = run_compaction(spark, job, request)
        if done.outcome is Outcome.FAILED:
            return replace(done, service=Service.SAVEPOINT)
        if done.outcome is Outcome.NOTHING_TO_DO:
            return None
    return _failed(FailureKind.CONFLICT, "writers write faster than the table is compacted: stop them")


def _leave_mark(spark: SparkSession, job: JobRequest, request: ServiceRequest, goal: int) -> UpgradeMark:
    """Read what readers see, and write the mark. Raises ServiceRefusedError while something is pending."""
    context = open_context(spark, job, request)
    state = context.first_state
    pending = [f"{found.action} {found.requested_time}" for found in list_active(state) if found.state != "COMPLETED"]
    if pending:
        raise ServiceRefusedError(
            f"{', '.join(sorted(pending)[:MAX_NAMED])} is pending, and Hudi would roll it back, or hide rows behind "
            "it: let the services finish it, or roll it back"
        )
    files = TableFiles(spark, job.base_path)
    held = _read(spark, state, uses_metadata=False)
    properties = files.read(PROPERTIES).decode("utf-8", "replace")
    indexes = tuple(sorted(state.metadata_partitions))
    mark = UpgradeMark(state.table_version, goal, _completed(state), held.rows, held.hashes, indexes, properties)
    files.create(UPGRADE_MARK, to_json(mark).encode())
    return mark


def _names_of(files: TableFiles) -> tuple[list[str], list[str]]:
    """Return the names in the folders of both timelines."""
    return files.names_in(META), files.names_in(TIMELINE)


def _mark_half_moved(
    files: TableFiles, state: LoadedTable, goal: int, names: tuple[list[str], list[str]]
) -> UpgradeMark:
    version = state.table_version
    if (goal < MOVED_FROM) is (version < MOVED_FROM):
        way = "an upgrade to version 8 or 9" if version < MOVED_FROM else "a downgrade to version 6"
        raise ServiceRefusedError(f"{way} by another process has moved half of the timeline: finish that first")
    instants = tuple(sorted(frozenset().union(*map(completed_in, names))))
    indexes = tuple(sorted(state.metadata_partitions))
    properties = files.read(PROPERTIES).decode("utf-8", "replace")
    mark = UpgradeMark(version, goal, instants, UNSEEN, 0, indexes, properties)
    files.create(UPGRADE_MARK, to_json(mark).encode())
    return mark


def _completed(state: LoadedTable) -> tuple[str, ...]:
    done = (found for found in list_active(state) if found.state == "COMPLETED")
    return tuple(sorted(f"{found.requested_time}.{found.action}" for found in done))


def _read(spark: SparkSession, state: LoadedTable, *, uses_metadata: bool) -> Fingerprint:
    rows: DataFrame = (
        spark.read.format("hudi").option(METADATA_ENABLE, str(uses_metadata).lower()).load(state.base_path)
    )
    found = fingerprints([rows.withColumn(UNIT, F.lit(0))], compared_fields(state, rows.schema, None))
    return found[0].get(0, NO_ROWS)


class _Change:
    """The change itself; all of it happens under the table's lock."""

    def __init__(self, spark: SparkSession, job: JobRequest, request: ServiceRequest, files: TableFiles) -> None:
        self._spark = spark
        self._job = job
        self._options = {**job.hudi_options, **request.options}
        self._files = files
        self._hudi = spark._jvm.org.apache.hudi
        self._has_new_writes = False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the table's lock."""
        state = self._state()
        take_zone_of_table(self._spark, state)
        settings = service_settings(Service.SAVEPOINT, self._options, state.table_version, ())
        with self._open(settings, ALWAYS) as holder, hold_lock(self._spark, holder):
            yield

    def run(self, mark: UpgradeMark) -> ServiceResult | None:
        """Change the version, and compare; return why the table does not have it now. Raises Py4JJavaError."""
        problem = self._find_conflict(mark)
        if problem:
            return _failed(FailureKind.CONFLICT, problem)
        if not mark.goes_back:
            self._go_to(mark.goal)
            mark = replace(mark, goes_back=self._find_difference(mark))
            if mark.goes_back:
                log_progress(self._job.table_name, f"{mark.goes_back}: back to version {mark.began_at}")
                self._files.create(UPGRADE_MARK, to_json(mark).encode())
        if mark.goes_back:
            self._go_to(mark.began_at)
            still = self._find_difference(mark)
            if still:
                return _failed(FailureKind.REFUSED, f"{mark.goes_back}; the way back did not help: {still}")
        self._files.delete(UPGRADE_MARK)
        if mark.goes_back:
            message = f"{mark.goes_back}; the table has version {mark.began_at} again{self.describe_end(mark)}"
            return _failed(FailureKind.REFUSED, message)
        return None

    def describe_end(self, mark: UpgradeMark) -> str:
        """Return in words what is as it was, and what is not."""
        same = "rows were not compared, because writers have written since"
        if mark.rows == UNSEEN:
            same = "rows were not compared, because half of the timeline had moved already"
        elif not self._has_new_writes:
            same = f"readers see the same {mark.rows} rows as before"
        gone = sorted(set(mark.metadata_partitions) - self._state().metadata_partitions)
        removed = f"; {', '.join(gone)} of the metadata table is gone: build it by lake_reindex" if gone else ""
        return f", and {same}{removed}"

    def _find_conflict(self, mark: UpgradeMark) -> str:
        """Return why the change cannot go on now: a writer lives, or has written since."""
        alive = find_beating(self._spark, self._job.base_path, self._options)
        if alive:
            return f"writer or service {', '.join(alive)} lives: stop it or wait for its end"
        known = {text.partition(".")[0] for text in mark.instants}
        names = _names_of(self._files)
        new = sorted(frozenset().union(*map(times_of, names)) - known)
        if not new:
            return ""
        state = self._state()
        written = f"{', '.join(new[:MAX_NAMED])} was written meanwhile"
        if find_moved(state.table_version, *names):
            return f"{written}, while half of the timeline had moved: stop the writers, and ask the table's owner"
        if state.table_version == mark.target:
            return ""
        if state.table_version < MOVED_FROM:
            self._delete_half_moved_metadata(state)
        self._files.delete(UPGRADE_MARK)
        return f"{written}: the next try begins again"

    def _go_to(self, target: int) -> None:
        """Take each step to a version. Raises Py4JJavaError."""
        for version in steps_to(self._state().table_version, target):
            self._step(version)

    def _find_difference(self, mark: UpgradeMark) -> str:
        """Return how the table differs from what the mark says; empty where it does not."""
        state = self._state()
        if state.table_version != mark.target:
            return f"the table has version {state.table_version} instead of {mark.target}"
        now = _completed(state)
        lost = sorted(set(mark.instants) - set(now))
        if lost:
            return f"{', '.join(lost[:MAX_NAMED])} is gone from the timeline"
        if any(text.rpartition(".")[2] in COMPLETED_WRITE_ACTIONS for text in set(now) - set(mark.instants)):
            self._has_new_writes = True
            return ""
        seen = _read(self._spark, state, uses_metadata=False)
        expected = seen if mark.rows == UNSEEN else Fingerprint(mark.rows, mark.hashes)
        for uses_metadata in (False, True) if state.metadata_partitions else (False,):
            seen = _read(self._spark, state, uses_metadata=True) if uses_metadata else seen
            if seen != expected:
                how = "with" if uses_metadata else "without"
                rows = f"{seen.rows} rows instead of {expected.rows}"
                return f"readers {how} the metadata table see {rows}, or other values"
        return ""

    def _state(self) -> LoadedTable:
        return read_table_state(self._spark, self._job.base_path)

    def _open(self, settings: Mapping[str, str], must_hold: Mapping[str, str]) -> AbstractContextManager[Any]:
        return open_client(self._spark, self._job.base_path, settings, must_hold, is_bare=True)

    def _step(self, version: int) -> None:
        state = self._state()
        log_progress(self._job.table_name, f"version {state.table_version} becomes {version}")
        if version < MOVED_FROM:
            # What a metadata table of version 6 lacks then, no reader would see; the next write builds it again.
            self._delete_metadata(state)
        elif state.table_version < MOVED_FROM:
            self._delete_half_moved_metadata(state)
        state = self._state()
        settings = {
            **service_settings(Service.SAVEPOINT, self._options, version, state.metadata_partitions),
            # Hudi would compact without the metadata table; no log file is left.
            TABLE_SERVICES_ENABLED: "false",
            WRITE_AUTO_UPGRADE: "true",
            WRITE_TABLE_VERSION: str(version),
            LOCK_PROVIDER: IN_PROCESS_LOCK,
        }
        with self._open(settings, {WRITE_TABLE_VERSION: str(version)}) as client:
            upgrade = self._hudi.table.upgrade
            helper = upgrade.SparkUpgradeDowngradeHelper.getInstance()
            config = client.getConfig()
            engine = client.getEngineContext()
            if find_moved(state.table_version, *_names_of(self._files)):
                if version < MOVED_FROM:
                    upgrade.EightToSevenDowngradeHandler().downgrade(config, engine, None, helper)
                else:
                    upgrade.SevenToEightUpgradeHandler().upgrade(config, engine, None, helper)
            if state.table_version < MOVED_FROM:
                # Hudi writes it from the archive of version 6, which stays: twice would be one too many.
                for name in self._files.names_in(HISTORY):
                    self._files.delete(f"{HISTORY}/{name}")
            runner = upgrade.UpgradeDowngrade(self._state().meta_client, config, engine, helper)
            runner.run(self._hudi.common.table.HoodieTableVersion.fromVersionCode(version), None)

    def _delete_half_moved_metadata(self, state: LoadedTable) -> None:
        folder = f"{METADATA_TABLE}/{META}"
        if self._files.size_of(f"{folder}/hoodie.properties") is None:
            return
        metadata = read_table_state(self._spark, f"{self._job.base_path}/{METADATA_TABLE}")
        if metadata.table_version >= MOVED_FROM or times_of(self._files.names_in(f"{folder}/timeline")):
            self._delete_metadata(state)

    def _delete_metadata(self, state: LoadedTable) -> None:
        if not state.metadata_partitions and not self._files.names_in(METADATA_TABLE):
            return
        log_progress(self._job.table_name, f"the metadata table is removed: {', '.join(state.metadata_partitions)}")
        settings = service_settings(Service.SAVEPOINT, self._options, state.table_version, ())
        own_lock = {**settings, LOCK_PROVIDER: IN_PROCESS_LOCK}
        with self._open(own_lock, ALWAYS) as client:
            self._hudi.metadata.HoodieTableMetadataUtil.deleteMetadataTable(
                state.meta_client,
                client.getEngineContext(),
                False,  # noqa: FBT003 - py4j has no keywords
            )

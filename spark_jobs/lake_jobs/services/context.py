"""A request of a table service on its way: the table's first state, the settings of every client, and a client."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    REWRITES,
    TRAITS,
    TTL_COLUMN,
    UPGRADE_MARK,
    JobRequest,
    Mode,
    Service,
    ServiceRequest,
    describe_mark,
    find_lock_problem,
)
from airflow_lake_provider.obstacles import explain_pending_restore
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, MERGE_ON_READ, STREAMING_WRITES
from airflow_lake_provider.table_layout import asks_buckets, find_layout_problem, give_layout, names_buckets
from lake_jobs.driver.files import log_progress
from lake_jobs.hudi.files import TableFiles, find_link_below, find_real_path, refuse_link
from lake_jobs.hudi.layout import key_generator_of, load_layout, read_as_writers
from lake_jobs.hudi.lock_file import find_causes
from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.hudi.owner_classes import find_missing_class
from lake_jobs.hudi.settings import (
    ALWAYS,
    CLIENT_CLASS,
    find_change,
    find_link_problem,
    find_version_problem,
    hold_back,
    service_settings,
    wait_for_lock_without_end,
    write_metadata_as_writers,
)
from lake_jobs.hudi.table import (
    LoadedTable,
    class_of,
    find_behind,
    find_obstacle,
    find_restores,
    find_zone_problem,
    hold_lock,
    instant_time_hours_ago,
    list_timeline,
    open_client,
    read_table_state,
    requested_times,
    take_lock_once,
    take_zone_of_table,
)
from lake_jobs.services.inner_tables import find_inner_problem
from lake_jobs.verify.block import find_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

    from lake_jobs.driver.failure import Cause

IN_PROCESS_LOCK = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"


class TableChangedError(Exception):
    """The settings of a client were derived from a table that has changed since."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """A request that runs: session, job and request, and the settings of every client.

    `first_state` is the table's state from which the settings were derived.
    """

    spark: SparkSession
    job: JobRequest
    request: ServiceRequest
    settings: dict[str, str]
    first_state: LoadedTable
    writers_first: bool = False
    """Its plans may fail living writers, and must not (`writer_rules.asks_writers`)."""

    def read_table_state(self) -> LoadedTable:
        """Read the present state of the table."""
        return read_table_state(self.spark, self.job.base_path)

    def refreshed(self) -> ServiceContext:
        """Return the request with the table's present state and the settings for it; it may change during a wait."""
        state = self.read_table_state()
        return replace(self, settings=derive_settings(self.spark, self.job, self.request, state), first_state=state)

    def refreshed_if_changed(self) -> ServiceContext:
        """Return the request with the table's present state; new settings only where needed, which takes longer."""
        state = self.read_table_state()
        return self.refreshed() if self._find_change(state) else replace(self, first_state=state)

    def require_unchanged(self, state: LoadedTable) -> None:
        """Raise TableChangedError when the settings are not those for a table in this state."""
        change = self._find_change(state) or ("a restore began" if find_restores(state) else "")
        if change:
            raise TableChangedError(
                f"table {self.job.table_name} at {self.job.base_path}: {change} while this run was on its way; nothing "
                "was committed, and the next run takes the table as it is then"
            )

    def _find_change(self, state: LoadedTable) -> str:
        first = self.first_state
        return find_change(
            first.table_version, first.metadata_partitions, state.table_version, state.metadata_partitions
        )

    def find_causes(self, error: Py4JJavaError) -> tuple[Cause, ...]:
        """Return why Hudi failed; where it could not acquire the lock, why its file could not be made."""
        return find_causes(self.spark, self.job.base_path, self.settings, error)

    def log_progress(self, message: str) -> None:
        """Print one line about the table."""
        log_progress(self.job.table_name, message)


def open_context(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceContext:
    """Read the table and derive the settings. Raises ServiceRefusedError, NoTableError, or Py4JJavaError."""
    _require_mode_of_service(job, request)
    is_restore = request.mode is Mode.RESTORE
    options = {**job.hudi_options, **request.options}
    problem = find_lock_problem(options)
    if problem is not None:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    problem = find_link_problem(find_real_path(spark, job.base_path), options)
    if problem is not None:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    link = find_link_below(spark, job.base_path)
    if link:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {refuse_link(link)}")
    require_no_upgrade(spark, job)
    state = read_table_state(spark, job.base_path)
    require_version(spark, job, state)
    take_zone_of_table(spark, state)
    files = list_timeline(spark, state)
    problem = find_zone_problem(spark, state, files)
    # A restore that was interrupted goes on, and may have removed the metadata table already.
    problem = problem or ("" if is_restore else explain_pending_restore(find_restores(state)))
    is_bare = is_restore or request.mode is Mode.WITHDRAW
    problem = problem or ("" if is_bare else find_obstacle(spark, state, request.service, files))
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    behind = None if TRAITS[request.service].is_harmless_to_unseen else find_behind(state)
    if behind is not None:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {behind.refuse()}")
    withdraws = request.mode is Mode.WITHDRAW
    problem = find_block(spark, job.base_path) if request.service in REWRITES and not withdraws else ""
    problem = problem or ("" if withdraws else find_inner_problem(spark, state, request.service))
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    settings = derive_settings(spark, job, request, state)
    handles_rows = request.service in {*REWRITES, Service.TTL} and not is_bare
    problem = find_missing_class(spark, state, settings, handles_rows=handles_rows)
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    return ServiceContext(spark, job, request, settings, state)


def require_no_upgrade(spark: SparkSession, job: JobRequest) -> None:
    """Raise ServiceRefusedError while a change of the table's version is not finished."""
    files = TableFiles(spark, job.base_path)
    if files.size_of(UPGRADE_MARK) is not None:
        found = describe_mark(files.read(UPGRADE_MARK))
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {found}")


def _require_mode_of_service(job: JobRequest, request: ServiceRequest) -> None:
    """Raise ServiceRefusedError for a mode that the service does not have."""
    allowed, what = _MODES.get(request.mode, (frozenset(Service), ""))
    if request.service not in allowed:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {what}")


_MODES: Mapping[Mode, tuple[frozenset[Service], str]] = {
    Mode.WITHDRAW: (
        frozenset({Service.CLUSTERING, Service.COMPACTION, Service.LOGCOMPACTION, Service.METACOMPACTION}),
        f"only plans of {Service.CLUSTERING}, {Service.COMPACTION} and {Service.LOGCOMPACTION}, and a metadata table "
        f"that is lost ({Service.METACOMPACTION}), are withdrawn",
    ),
    Mode.UNDO: (frozenset({Service.ORPHANS}), f"only quarantined files of {Service.ORPHANS} are put back"),
    Mode.RESTORE: (frozenset({Service.SAVEPOINT}), f"only {Service.SAVEPOINT} takes a table back"),
    Mode.ERASE: (frozenset({Service.TTL}), f"only {Service.TTL} erases keys"),
}


def require_version(spark: SparkSession, job: JobRequest, state: LoadedTable) -> None:
    """Raise ServiceRefusedError where this job's Hudi lacks what services need."""
    problem = find_version_problem(class_of(spark, CLIENT_CLASS, state.meta_client))
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")


def derive_settings(
    spark: SparkSession, job: JobRequest, request: ServiceRequest, state: LoadedTable
) -> dict[str, str]:
    """Return the settings of a request's clients for a table in this state: they hold as long as the state does.

    Between reading the table and acting by it may lie an unbounded wait for the lock. Raises ServiceRefusedError,
    Py4JJavaError.
    """
    options = _take_layout(spark, job, request, state, {**job.hudi_options, **request.options})
    completed = requested_times(state.timeline.getCommitsTimeline().filterCompletedInstants())
    options = hold_back(request.service, options, completed, partial(instant_time_hours_ago, spark))
    if state.metadata_partitions and STREAMING_WRITES not in options:
        mode = find_metadata_write_mode(spark, state, without_services=True)
        options = write_metadata_as_writers(options, mode)
    return service_settings(request.service, options, state.table_version, state.metadata_partitions)


def _take_layout(
    spark: SparkSession, job: JobRequest, request: ServiceRequest, state: LoadedTable, options: dict[str, str]
) -> dict[str, str]:
    """Return the options with what else only the table's writers know. Raises ServiceRefusedError, Py4JJavaError."""
    with_buckets = names_buckets(options) or asks_buckets(request.service, request.mode)
    layout = load_layout(spark, state, options, with_buckets=with_buckets)
    problem = find_layout_problem(request.service, request.mode, layout, options)
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    options = give_layout(request.service, options, layout, key_generator_of(state))
    writes_base_files = request.service in REWRITES or TTL_COLUMN in request.options or request.mode is Mode.ERASE
    return read_as_writers(spark, state, options) if writes_base_files else options


def refuse_scheduling(job: JobRequest, why: str) -> ServiceRefusedError:
    """Return the error of a service that leaves no plan on the timeline."""
    return ServiceRefusedError(
        f"table {job.table_name} at {job.base_path}: {why}, there is no plan to schedule; use mode {Mode.EXECUTE} or "
        f"{Mode.SCHEDULE_AND_EXECUTE}"
    )


def require_merge_on_read(context: ServiceContext) -> None:
    """Raise ServiceRefusedError unless the table has log files."""
    if context.first_state.table_type != MERGE_ON_READ:
        raise ServiceRefusedError(
            f"table {context.job.table_name} at {context.job.base_path} is {context.first_state.table_type}; "
            f"only {MERGE_ON_READ} is compacted"
        )


@contextmanager
def open_waiting_client(context: ServiceContext) -> Iterator[Any]:
    """Open a client that waits for the table's lock without end, once a first client has acquired it in the usual time.

    A lock that cannot be acquired fails in that first client, without harm (see `wait_for_lock_without_end`), with a
    Py4JJavaError.
    """
    with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
        take_lock_once(context.spark, client)
    settings = wait_for_lock_without_end(context.settings)
    with open_client(context.spark, context.job.base_path, settings, ALWAYS) as client:
        yield client


@contextmanager
def act_under_lock(context: ServiceContext, holder: Any) -> Iterator[tuple[ServiceContext, Any]]:
    """Hold the table's lock by one client and open another one, which acts; return the context as it is now, and that.

    Hudi's locks cannot be acquired twice, so the client that acts has one that is this process's own. Raises
    Py4JJavaError when the holder's settings do not get the lock.
    """
    with hold_lock(context.spark, holder):
        now = context.refreshed_if_changed()
        own_lock = {**now.settings, LOCK_PROVIDER: IN_PROCESS_LOCK}
        with open_client(context.spark, context.job.base_path, own_lock, ALWAYS) as client:
            yield now, client


@contextmanager
def find_committer(context: ServiceContext, client: Any) -> Iterator[Any]:
    """Return the client that commits what a client has written, by its own settings.

    Raises TableChangedError when these are not the table's any more. Without a metadata table the lock is held from
    that question to the commit, so that no writer switches one on in between: what commits is a client of its own then.
    With one, only the client that has streamed to it can commit.
    """
    if context.first_state.metadata_partitions:
        context.require_unchanged(context.read_table_state())
        yield client
        return
    with act_under_lock(context, client) as (now, committer):
        context.require_unchanged(now.first_state)
        yield committer


def seconds_since(started: float) -> str:
    """Print how long ago a time of the monotonic clock was."""
    return f"{time.monotonic() - started:.1f} s"

"""Writers and sinks of a table: how its writers are set up, and how far its sinks are behind it.

Writers are checked with an evaluation that follows a commit, and for people who ask. A quiet table costs nothing, and a
busy one two listings and up to nine stats in ten minutes. What was proved is kept in the registry, with the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata
from airflow_lake_provider.hudi.properties import load_table_properties, zone_of_jobs
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.instant_clock import instant_age_s
from airflow_lake_provider.job_contract import LAST_VERSION_OF_1_0
from airflow_lake_provider.manager.db.registry import parse_instants
from airflow_lake_provider.manager.health.health import retiring_text
from airflow_lake_provider.manager.read_model import ReportedRequirement
from airflow_lake_provider.metrics import (
    REPLICATION_HELD_BYTES,
    REPLICATION_LAG,
    REPLICATION_LAG_COMMITS,
    REPLICATION_SAFEPOINT_AGE,
)
from airflow_lake_provider.planner.conformance import (
    SERVICE_OPERATIONS,
    Check,
    Conformance,
    Registered,
    Span,
    learnt_to_text,
    parse_learnt,
)
from airflow_lake_provider.planner.writer_rules import check_writers
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import EVERYTHING, from_text
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES, Lag, SourceTimeline, lag_of
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import SinkRow
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.conformance import Learnt, Row
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache
    from airflow_lake_provider.storage.table_storage import Storage


EVERY_MS = 600_000
"""How often the writers of a table with new commits are checked."""
MAX_RUNS = 100
MAX_COMMITS = 3
"""Of how many of the newest commits the updates of the metadata table are examined."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The report on a table's writers. `text` is for the registry; None when nothing was checked again."""

    report: Conformance
    text: str | None = None


class WriterFacts(Protocol):
    """What the registry knows of a table's writers: its row, or the lease of an evaluation."""

    @property
    def table_id(self) -> str:
        """The table's id."""

    @property
    def registered_ms(self) -> int:
        """When the registry got the table, ms since the epoch."""

    @property
    def announced(self) -> str:
        """Commits that a callback announced, as `lake_table` has them."""

    @property
    def served(self) -> str:
        """Instants of the provider's services, likewise."""

    @property
    def conformance(self) -> str | None:
        """What earlier checks proved, as JSON."""


class WriterChecks:
    """Checks tables for the manager's loop, for commands and for pages. `check` may be called from any thread."""

    def __init__(self, registry: Registry, views: TableViewCache, gateway: InstanceGateway) -> None:
        self._registry = registry
        self._views = views
        self._gateway = gateway

    def check_if_changed(self, row: WriterFacts, view: TableView, policy: TablePolicy, now_ms: int) -> Checked:
        """Return the report of the last check, or a new one where a commit or a service was completed since.

        `row` is what the registry knows of the table. Raises StorageError.
        """
        learnt = parse_learnt(row.conformance)
        is_new = learnt.version != view.version and now_ms - learnt.checked_ms >= EVERY_MS
        if learnt.rows and not is_new:
            return Checked(Conformance(learnt.rows))
        now = self._learn(row, view, policy, now_ms, learnt, reads_headers=not learnt.rows)
        return Checked(Conformance(now.rows), learnt_to_text(now))

    def check(self, row: WriterFacts | None, view: TableView, policy: TablePolicy, now_ms: int) -> Conformance:
        """Return a new report, and store nothing; `row` is None for a table that is not registered.

        Raises StorageError.
        """
        learnt = parse_learnt(None if row is None else row.conformance)
        return Conformance(self._learn(row, view, policy, now_ms, learnt, reads_headers=True).rows)

    def _learn(
        self,
        row: WriterFacts | None,
        view: TableView,
        policy: TablePolicy,
        now_ms: int,
        learnt: Learnt,
        *,
        reads_headers: bool,
    ) -> Learnt:
        known = dict(learnt.streamed)
        newest = newest_commits(view)
        signs = self._views.load_signs(
            view,
            [commit for commit in newest if commit.requested_time not in known],
            reads_headers=reads_headers and view.properties.version <= LAST_VERSION_OF_1_0,
        )
        return check_writers(Check(view, policy, signs, self._registered(row), now_ms), learnt)

    def _registered(self, row: WriterFacts | None) -> Registered | None:
        if row is None:
            return None
        with self._registry.transaction() as session:
            runs = self._gateway.list_runs(session, row.table_id, MAX_RUNS)
        return Registered(
            row.registered_ms,
            parse_instants(row.announced),
            parse_instants(row.served),
            tuple(Span(run.service, run.created_ms, run.ended_ms) for run in runs),
        )


def newest_commits(view: TableView) -> list[Instant]:
    """Return the newest completed commits of writers, the newest first; services are left out."""
    commits = []
    for write in reversed(view.timeline.completed_writes):
        metadata = view.commits.get(write.requested_time)
        if metadata is not None and metadata.operation not in SERVICE_OPERATIONS:
            commits.append(write)
        if len(commits) == MAX_COMMITS:
            break
    return commits


def recorded_report(row: WriterFacts) -> tuple[Conformance, int]:
    """Return the report of the last check in the registry, and when it was made (ms since the epoch, 0: never)."""
    learnt = parse_learnt(row.conformance)
    return Conformance(learnt.rows), learnt.checked_ms


def report_requirement(row: Row) -> ReportedRequirement:
    """Return one requirement as commands, pages and the HTTP API print it."""
    return ReportedRequirement(
        requirement=row.requirement.value,
        state=row.state.value,
        evidence=row.evidence,
        endangers=row.endangers,
        settings=tuple(row.settings),
        blocks=tuple(service.value for service in row.blocks),
    )


# --- How far a sink of replication is behind its table, and what it holds back, read from the table's timeline


@dataclass(frozen=True, slots=True)
class SinkState:
    """One sink against its table, at one moment."""

    lag: Lag
    lag_s: float
    """Seconds since the oldest commit completed that the sink does not have."""
    hold_age_s: float
    """Seconds between the hold and now: how much history is kept for this sink. 0 when it holds nothing."""
    held_bytes: int
    """Bytes in files that newer ones have replaced since the hold. The table's own retention may keep some of them."""


def find_changed_time(view: TableView) -> str:
    """Return the newest completed time of a write that changed rows, or of a restore; empty without any.

    A clean, a compaction, a clustering or a rollback of what never completed changes nothing for a sink.
    """
    changes = [instant for instant in view.timeline.completed() if instant.action is Action.RESTORE]
    for write in view.timeline.completed_writes:
        metadata = view.commits.get(write.requested_time)
        # What cannot be read may be a change: a run finds out.
        if metadata is None or metadata.operation not in OPERATIONS_WITHOUT_CHANGES:
            changes.append(write)
    return max((instant.ordering_time for instant in changes), default="")


def _find_lag(checkpoint_text: str, writes: Iterable[Instant], metadata_of: Callable[[Instant], CommitMetadata]) -> Lag:
    """`metadata_of` is called only for writes that the checkpoint does not have."""
    checkpoint = from_text(checkpoint_text) if checkpoint_text else None
    completed = []
    for instant in writes:
        commit = CommitRef(instant.requested_time, instant.completed_time or instant.requested_time)
        if checkpoint is not None and checkpoint.has(commit):
            continue
        if metadata_of(instant).operation not in OPERATIONS_WITHOUT_CHANGES:
            completed.append(commit)
    return lag_of(checkpoint, SourceTimeline(tuple(completed)))


def load_sink_state(
    storage: Storage, checkpoint_text: str, hold: str, now_s: float, spark_conf: Mapping[str, str]
) -> SinkState:
    """Return a sink's state. `hold` is the requested time from which it holds, `0` for everything, empty for nothing.

    `spark_conf` are the Spark settings of the table's services, which name the zone of its instants.

    Reads the metadata of the writes that the sink lacks, of those since the hold, and of earlier ones until the files
    that these replaced are found. Raises what the timeline's reading raises.
    """
    properties = load_table_properties(storage)
    zone = zone_of_jobs(properties.time_zone, spark_conf).zone
    writes = {write.requested_time: write for write in load_timeline(storage, properties).completed_writes}

    @cache
    def metadata_of(requested_time: str) -> CommitMetadata:
        return load_commit_metadata(storage, properties.timeline_path, writes[requested_time])

    lag = _find_lag(checkpoint_text, writes.values(), lambda write: metadata_of(write.requested_time))
    begin = min(writes, default="") if hold == EVERYTHING else hold
    return SinkState(
        lag=lag,
        lag_s=instant_age_s(lag.oldest_completed_time, zone, now_s) if lag.commits else 0.0,
        hold_age_s=instant_age_s(begin, zone, now_s) if begin else 0.0,
        held_bytes=held_bytes(list(writes), metadata_of, hold) if hold else 0,
    )


def held_bytes(writes: Sequence[str], metadata_of: Callable[[str], CommitMetadata], hold: str) -> int:
    """Sum up the files that a write from `hold` on replaced; writes are requested times in the order of completion.

    A reader of the table as of the hold still needs them, so a clean that respects the hold leaves them. Files older
    than the active timeline are unknown and not counted.
    """
    live: dict[tuple[str, str], dict[str, int]] = {}
    held = 0
    for requested, metadata in _find_since(writes, metadata_of, hold):
        for group in {*metadata.replaced_file_groups, *_base_files(metadata)}:
            sizes = live.pop(group, {})
            held += sum(sizes.values()) if requested >= hold else 0
        for stat in metadata.stats:
            live.setdefault((stat.partition, stat.file_id), {})[stat.path] = stat.file_size_bytes
    return held


def _find_since(
    writes: Sequence[str], metadata_of: Callable[[str], CommitMetadata], hold: str
) -> list[tuple[str, CommitMetadata]]:
    """Return the writes from the hold on, and those before that wrote what these replaced, as far as is needed."""
    found: list[tuple[str, CommitMetadata]] = []
    wanted: set[tuple[str, str]] = set()
    for requested in reversed(writes):
        if requested < hold and not wanted:
            continue
        metadata = metadata_of(requested)
        found.append((requested, metadata))
        bases = _base_files(metadata)
        # With its base file a file slice is complete: its log files are of writes that were seen already.
        wanted -= bases.keys()
        if requested >= hold:
            # Of a compaction Hudi does not say whether the file group had log files before its first base file.
            is_new = {group for group, is_new in bases.items() if is_new and metadata.operation != "COMPACT"}
            wanted |= {*metadata.replaced_file_groups, *(bases.keys() - is_new)}
    return found[::-1]


def _base_files(metadata: CommitMetadata) -> dict[tuple[str, str], bool]:
    """Return the file groups of which a write wrote a base file, each with whether it is their first file."""
    return {(stat.partition, stat.file_id): stat.is_new_group for stat in metadata.stats if not stat.is_log}


def state_of(sink: SinkRow, checkpoint: Mapping[str, Any], now_ms: float) -> str:
    """Return the state in one or two words; what an operator must act on comes first."""
    if sink.retire_ms is not None:
        return "unconfigured"
    if sink.paused:
        return "paused"
    if sink.running_until_ms > now_ms:
        return "snapshot runs" if checkpoint.get("snapshot") else "running"
    if sink.needs_snapshot:
        return "needs snapshot"
    if sink.problem:
        return "failing"
    if not checkpoint:
        return "not begun"
    return "within snapshot" if checkpoint["snapshot"] else "waiting"


def problem_of(sink: SinkRow) -> str:
    """Return what is wrong with a sink, for people; empty when nothing is."""
    texts = [retiring_text(sink.retire_ms)] if sink.retire_ms is not None else []
    return "; ".join([*texts, *([sink.problem] if sink.problem else [])])


def hold_of(hold: str, *, needs_snapshot: bool) -> str:
    """Return what a sink holds, as for `load_sink_state`: one that begins with a snapshot holds nothing."""
    return "" if needs_snapshot else hold


def hold_ends_ms(sink: SinkRow) -> int:
    """Return when a sink's hold is released unless it is renewed, ms since the epoch."""
    retire_ms = sink.retire_ms
    lived_ms = sink.renewed_ms + sink.ttl_s * 1000
    return int(lived_ms if retire_ms is None else retire_ms)


def report_state(metrics: Metrics, state: SinkState) -> None:
    """Set the gauges of replication to one sink's state."""
    metrics.gauge(REPLICATION_LAG_COMMITS, state.lag.commits)
    metrics.gauge(REPLICATION_LAG, state.lag_s)
    metrics.gauge(REPLICATION_SAFEPOINT_AGE, state.hold_age_s)
    metrics.gauge(REPLICATION_HELD_BYTES, state.held_bytes)

"""How a table's writers are configured, as far as the table and their notices show it: one report of a table. Pure.

No writer leaves its settings behind. What it leaves are traces: a heartbeat while it writes, the folder that the lock's
file was in, instants of services that no run of the provider made, names in another time zone, an index that is gone.
A row is `broken` only where a trace proves it; what leaves none is `unknown`, and blocks nothing. What an earlier check
proved is kept (`Learnt`), because most traces end with the commit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import was_written
from airflow_lake_provider.job_contract import TRAITS, Service
from airflow_lake_provider.planner.rules import Decision, KeptBy, Verdict
from airflow_lake_provider.planner.write_history import COMPACT_OPERATION, LOG_COMPACT_OPERATION
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_PATH
from airflow_lake_provider.table_layout import CLUSTER_OPERATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.active_writes import WriterSigns
    from airflow_lake_provider.hudi.properties import JobZone
    from airflow_lake_provider.planner.table_view import TableView

# --- The report, as a value


class Requirement(StrEnum):
    """What a table that the provider services requires of its writers."""

    HEARTBEAT = "heartbeat"
    LOCK = "lock"
    SERVICES = "services"
    TIME_ZONE = "time_zone"
    METADATA_WRITES = "metadata_writes"
    INDEXES = "indexes"
    NOTICES = "notices"
    HUDI_VERSION = "hudi_version"
    MERGE = "merge"


class Conformity(StrEnum):
    """Whether the writers meet a requirement."""

    MET = "met"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """Nothing proves either; it blocks nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement of one table."""

    requirement: Requirement
    state: Conformity
    evidence: str
    """What was found: an instant, a file, a figure."""
    settings: tuple[str, ...] = ()
    """What to set in the writers, `key=value`; empty unless broken or in doubt."""
    blocks: tuple[Service, ...] = ()
    """The services that would endanger such a writer, or that it would endanger; empty unless broken."""
    since_ms: int = 0
    """When a check first found this state, ms since the epoch."""

    @property
    def endangers(self) -> str:
        """What a writer that breaks it endangers."""
        return ENDANGERS[self.requirement]


ENDANGERS: Mapping[Requirement, str] = MappingProxyType(
    {
        Requirement.HEARTBEAT: "services in flight: the writer's next commit rolls them back; a killed writer's "
        "commit: nothing proves that it is dead, so nothing may roll it back",
        Requirement.LOCK: "the table: the writer and a service may commit at the same moment, and one of the commits "
        "is lost, or the metadata table is damaged",
        Requirement.SERVICES: "services: the writer executes plans of the provider at the same time, cleans what "
        "replication and the retention of the tables file still need, and commits later",
        Requirement.TIME_ZONE: "readers: rows of commits that sort before a later one are stale or missing",
        Requirement.METADATA_WRITES: "commits: a writer that does not stream rolls back what another one streams",
        Requirement.INDEXES: "readers and upserts that use the index, and the work of building it",
        Requirement.NOTICES: "latency only: a commit is found by a heartbeat, minutes later",
        Requirement.HUDI_VERSION: "index builds: they would miss records of such a writer",
        Requirement.MERGE: "compactions: they merge by the class in the table's properties, and fail without it",
    }
)
GUARDED = tuple(service for service in Service if TRAITS[service].needs_lock and service is not Service.ARCHIVE)
# An archiver takes from the timeline what a writer has read already, whether they share a lock or not.
BLOCKS: Mapping[Requirement, tuple[Service, ...]] = MappingProxyType(
    {
        Requirement.HEARTBEAT: GUARDED,
        Requirement.LOCK: GUARDED,
        Requirement.INDEXES: (Service.INDEXING,),
        Requirement.HUDI_VERSION: (Service.INDEXING,),
    }
)


@dataclass(frozen=True, slots=True)
class Conformance:
    """The report of one table: a row for each requirement, in their order."""

    rows: tuple[Row, ...] = ()

    def broken(self) -> tuple[Row, ...]:
        """Return the rows that are broken."""
        return tuple(row for row in self.rows if row.state is Conformity.BROKEN)

    def row(self, requirement: Requirement) -> Row:
        """Return the row of a requirement."""
        return next(row for row in self.rows if row.requirement is requirement)

    def explain_broken(self) -> str:
        """Return what is broken, each with the settings to change in the writers; empty when nothing is."""
        return "; ".join(f"{row.requirement}: {_with_settings(row)}" for row in self.broken())


def block_unconforming(decisions: Sequence[Decision], report: Conformance, policy: TablePolicy) -> tuple[Decision, ...]:
    """Return the decisions, due ones blocked where the service would endanger a writer as it is configured.

    The time zone blocks by itself, by file times that are read just before (`rules.block_foreign_zone`).
    """
    if policy.conformance != "block":
        return tuple(decisions)
    return tuple(_block(decision, report) for decision in decisions)


def _block(decision: Decision, report: Conformance) -> Decision:
    rows = [row for row in report.broken() if decision.service in row.blocks]
    if decision.verdict is not Verdict.DUE or not rows:
        return decision
    why = "; ".join(dict.fromkeys(_with_settings(row) for row in rows))
    return replace(
        decision,
        verdict=Verdict.BLOCKED,
        reason=f"{decision.reason}, but a writer of the table does not conform: {why} (conformance: report in the "
        "tables file starts services all the same)",
        kept_by=KeptBy.WRITERS,
    )


def _with_settings(row: Row) -> str:
    return f"{row.evidence}; set {', '.join(row.settings)}" if row.settings else row.evidence


# --- What the report is made of besides the view


@dataclass(frozen=True, slots=True)
class Span:
    """When a service or task of the provider ran, ms since the epoch; `ended_ms` is None while it runs."""

    service: str
    began_ms: int
    ended_ms: int | None

    def touches(self, began_ms: int, ended_ms: int) -> bool:
        """Whether it may have run between two moments."""
        end_ms = self.ended_ms if self.ended_ms is not None else ended_ms
        return self.began_ms - CLOCKS_MS <= ended_ms and end_ms + CLOCKS_MS >= began_ms


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry knows of a table; none of it is known of a table that is not registered."""

    registered_ms: int
    announced: frozenset[str] = frozenset()
    """Requested times of the newest commits that a commit callback announced."""
    served: frozenset[str] = frozenset()
    """Requested times of the newest instants that a task of the provider reported as its own."""
    runs: tuple[Span, ...] = ()
    """The newest runs of the provider's services on the table."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What one write proved."""

    instant: str
    holds: bool
    how: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the checks so far proved of a table; the registry keeps it as text."""

    checked_ms: int = 0
    since_ms: int = 0
    """When the first check was made."""
    version: str = ""
    """`TableView.version` of the last check."""
    newest: str = ""
    """When the newest write completed, at the last check."""
    heartbeat: Proof | None = None
    lock: Proof | None = None
    streamed: tuple[tuple[str, bool], ...] = ()
    """The newest writes, each with whether it streamed its update of the metadata table."""
    judged_until: str = ""
    """Services that completed up to then are judged."""
    foreign: tuple[tuple[str, str, str], ...] = ()
    """Service, requested and completed time of instants that no run of the provider made, oldest first."""
    first_write: str = ""
    """Where the active timeline began at the last check."""
    partitions: tuple[str, ...] = ()
    """The metadata table's partitions at the last check."""
    lost: tuple[str, ...] = ()
    """Partitions that vanished with a write."""
    lost_at: str = ""
    """When the newest write completed at the check that found it, or found them back."""
    is_back: bool = False
    unlisted: str = ""
    """The newest commit that the metadata table does not have."""
    unlisted_ms: int = 0
    """When it ended, by the store's clock; a metadata table that was built later has its files."""
    is_of_1_0: bool | None = None
    rows: tuple[Row, ...] = ()


NOTHING_LEARNT = Learnt()
MAX_CHARACTERS = 2000
"""Of what was found for one requirement: some of it is a writer's text."""
CLOCKS_MS = 60_000
"""By how much the clocks of store, database and workers may differ."""
REMEMBERED = 20
"""A proof counts until so many writes of writers are newer."""
AROUND_MS = 1000
AFTER_MS = 30_000
"""How long after a commit's end its writer takes away its heartbeat and its lock."""


def learnt_to_text(learnt: Learnt) -> str:
    """Return it as text, for the registry."""
    return json.dumps(asdict(learnt), separators=(",", ":"))


def parse_learnt(text: str | None) -> Learnt:
    """Return what such a text says; one of another release, or none, counts as nothing."""
    try:
        record = json.loads(text or "{}")
        for name in ("heartbeat", "lock"):
            record[name] = Proof(**record[name]) if record.get(name) else None
        for name in ("streamed", "foreign"):
            record[name] = tuple(tuple(entry) for entry in record.get(name, ()))
        for name in ("partitions", "lost"):
            record[name] = tuple(record.get(name, ()))
        record["rows"] = tuple(_parse_row(row) for row in record.get("rows", ()))
        return Learnt(**record)
    except (ValueError, TypeError, AttributeError, KeyError):
        return NOTHING_LEARNT


def _parse_row(record: Mapping[str, object]) -> Row:
    row = Row(**record)  # type: ignore[arg-type]
    blocks = tuple(Service(service) for service in row.blocks)
    return replace(
        row,
        requirement=Requirement(row.requirement),
        state=Conformity(row.state),
        settings=tuple(row.settings),
        blocks=blocks,
    )


# --- One check: what it finds, and the report of all that is known


@dataclass(frozen=True)
class Check:
    """One table at one moment. `registered` is None for a table that is not in the registry."""

    view: TableView
    policy: TablePolicy
    signs: WriterSigns
    registered: Registered | None
    now_ms: int
    commits: tuple[Instant, ...] = field(init=False)
    """The completed writes of writers, by completion; services are left out."""

    def __post_init__(self) -> None:
        """Leave out the services."""
        writes = self.view.timeline.completed_writes
        object.__setattr__(self, "commits", tuple(write for write in writes if self.service_of(write) is None))

    @property
    def zone(self) -> JobZone:
        """The zone in which the jobs, and so the table's writers, name instants."""
        return zone_of_jobs(self.view.properties.time_zone, self.policy.spark_conf)

    def service_of(self, instant: Instant) -> Service | None:
        """Return the service that made a completed instant; None for a writer's commit and all others."""
        if instant.action is Action.CLEAN:
            return Service.CLEAN
        metadata = self.view.commits.get(instant.requested_time)
        return SERVICE_OPERATIONS.get(metadata.operation) if metadata is not None else None

    def span_of(self, write: Instant) -> tuple[int, int] | None:
        """Return when a write's files on the timeline were made, by the store's clock; None for copied ones."""
        begun = next((s for s in self.signs.stamps if s.instant == write.requested_time and not s.is_completion), None)
        ended_ms = self.signs.made_ms.get(write.file_name)
        if begun is None or ended_ms is None:
            return None
        return (begun.made_ms, ended_ms) if was_written(begun) and ended_ms >= begun.made_ms else None

    def is_of(self, write: Instant, ended_ms: int, changed_ms: int) -> bool:
        """Whether a folder changed at a write's end, and no other instant begun or ended then could have changed it."""
        return changed_ms <= ended_ms + AFTER_MS and not any(
            stamp.instant != write.requested_time and ended_ms - AROUND_MS <= stamp.made_ms <= changed_ms + AROUND_MS
            for stamp in self.signs.stamps
        )

    def is_recent(self, requested_time: str) -> bool:
        """Whether few enough writes are newer than this one for what it proved to count."""
        return sum(write.requested_time > requested_time for write in self.commits) < REMEMBERED


SERVICE_OPERATIONS: Mapping[str, Service] = MappingProxyType(
    {
        COMPACT_OPERATION: Service.COMPACTION,
        LOG_COMPACT_OPERATION: Service.LOGCOMPACTION,
        CLUSTER_OPERATION: Service.CLUSTERING,
    }
)


# --- What the newest writes prove of heartbeats and of the lock

CLOCK_STEP_MS = 20
"""Times of files are those of the last tick of the store's clock."""


def find_heartbeat(check: Check) -> Proof | None:
    """Return whether the newest write that shows it sent a heartbeat; None where none shows it now.

    A write that is pending before and after the heartbeats were listed would have one: `BaseHoodieWriteClient` begins
    it before the instant, and ends it when the commit is complete. Of a completed write, the time of their folder
    shows it, on stores whose folders have times.
    """
    proofs = [proof for proof in (_of_pending(check), _of_completed(check)) if proof is not None]
    return max(proofs, key=lambda proof: proof.instant, default=None)


def _of_pending(check: Check) -> Proof | None:
    pending = {write.requested_time for write in check.view.timeline.pending_writes()} & check.signs.pending
    if not pending:
        return None
    newest = max(pending)
    if newest in check.signs.heartbeats_ms:
        return Proof(newest, holds=True, how=f"write {newest} is in flight with a heartbeat")
    return Proof(newest, holds=False, how=f"write {newest} is in flight without a file in .hoodie/.heartbeat")


def _of_completed(check: Check) -> Proof | None:
    changed_ms = check.signs.heartbeats_changed_ms
    span = check.span_of(check.commits[-1]) if check.commits else None
    if changed_ms is None or span is None:
        return None
    write = check.commits[-1]
    if changed_ms == 0:
        return Proof(write.requested_time, holds=False, how="no writer ever made .hoodie/.heartbeat")
    if write.requested_time in check.signs.heartbeats_ms:
        return None  # it is about to take it away
    # The writer takes its heartbeat away when its commit is complete: the folder is younger than that.
    if changed_ms < span[1] - CLOCK_STEP_MS:
        how = f".hoodie/.heartbeat did not change while {write.action} {write.requested_time} was written"
        return Proof(write.requested_time, holds=False, how=how)
    if check.is_of(write, span[1], changed_ms):
        how = f".hoodie/.heartbeat changed while {write.action} {write.requested_time} was written"
        return Proof(write.requested_time, holds=True, how=how)
    return None


def find_lock(check: Check, heartbeat: Proof | None) -> Proof | None:
    """Return whether the newest write that shows it took the lock of `hudi_options`; None where none shows it now.

    A lock file is made in `.hoodie` and taken away again, at the earliest when the write's last file is there: so that
    folder is younger than the file, or the write took no lock there. From table version 8 on, nothing else of a write
    changes that folder at its end. Other providers leave no trace in the table.
    """
    changed_ms = check.signs.meta_changed_ms
    options = check.policy.hudi_options
    is_lock_file = options.get(LOCK_PROVIDER, "").strip().endswith(".FileSystemBasedLockProvider")
    if changed_ms is None or not is_lock_file or WRITE_LOCK_FILESYSTEM_PATH in options or not check.commits:
        return None
    write = check.commits[-1]
    span = check.span_of(write)
    if span is None or check.view.properties.layout is Layout.V1:
        return None
    named = f"{write.action} {write.requested_time}"
    if changed_ms < span[1] - CLOCK_STEP_MS:
        return Proof(write.requested_time, holds=False, how=f"{named} was completed without .hoodie/lock")
    if check.is_of(write, span[1], changed_ms):
        return Proof(write.requested_time, holds=True, how=f"{named} gave .hoodie/lock back when it was complete")
    return None

"""Which of two instants must give way when both touch one file group; pure.

Source: RFC-56 for writers (the smaller instant survives, so that two never end each other), and what Hudi 1.2 does at
commit for services (`SimpleConcurrentFileWritesConflictResolutionStrategy`, `SparkRejectUpdateStrategy`): a pending
clustering, live or not, makes each update of its file groups fail. Compaction and writers of table version 8 and later
never meet, because file slices are cut by completion time; before, a compaction that was planned after a writer began
makes it fail. A log compaction makes every writer fail on whose file groups it completes meanwhile, in each version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.marker_reader import ActiveInstant, Role
from airflow_lake_provider.hudi.commit_metadata import file_group_key, split_file_group_key
from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE, CONFLICT_RESOLUTION_STRATEGY
from airflow_lake_provider.table_layout import (
    CONFLICTS_BY_BUCKET,
    CONFLICTS_BY_FILE_GROUP,
    INDEX_TYPE,
    STRATEGIES,
    has_bucket_number,
    names_buckets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant

_COMPACT = "COMPACT"
_LOG_COMPACT = "LOG_COMPACT"
_SERVICES = frozenset({_COMPACT, _LOG_COMPACT, "CLUSTER"})
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """The file groups (keys) that a writer or a service touches or is about to rewrite.

    `instant` is its requested time. Instants that completed after `since` (exclusive) have changed what it began with.
    A writer gives way to older writers only, so that two never end each other (RFC-56). With `comes_first` false it
    also gives way to younger writers that wrote their markers first: they found under a lock that no other instant was
    there.
    """

    instant: str
    file_groups: frozenset[bytes]
    role: Role = Role.WRITER
    since: str = ""
    comes_first: bool = True


class ClashKind(StrEnum):
    """How a clash was seen."""

    MARKER = "marker"
    PLAN = "plan"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Clash:
    """One instant that conflicts with an intent, with the file groups (keys) that both touch."""

    instant: str
    action: str
    kind: ClashKind
    file_groups: frozenset[bytes]

    def __str__(self) -> str:
        """Describe it, with at most three of the file groups."""
        what = {
            ClashKind.MARKER: "is writing",
            ClashKind.PLAN: "plans to rewrite",
            ClashKind.COMMIT: "has committed",
        }[self.kind]
        return f"{self.action or 'writer'} {self.instant} {what} {describe_file_groups(self.file_groups)}"


@dataclass(frozen=True, slots=True)
class ClashCheck:
    """What one check of an intent found.

    Only without clashes and with everything read are the file groups free; what is `unread` may hold any of them.
    """

    clashes: tuple[Clash, ...] = ()
    unread: tuple[str, ...] = field(default=())

    @property
    def is_free(self) -> bool:
        """Whether certainly no other instant conflicts."""
        return not self.clashes and not self.unread


# --- Which of Hudi's rules holds for a table's writers, by their Hudi settings

STRATEGY = CONFLICT_RESOLUTION_STRATEGY
_NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"
SIMPLE = CONFLICTS_BY_FILE_GROUP
PREFER_WRITER = f"{STRATEGIES}PreferWriterConflictResolutionStrategy"
BUCKET = CONFLICTS_BY_BUCKET
_BUCKET_DIGITS = 8
"""A bucket's number is the first eight characters of its file ids (`BucketIdentifier.bucketIdStr`)."""


@dataclass(frozen=True, slots=True)
class WriterRule:
    """How Hudi resolves conflicts of a table's writers. `unjudged` says why nothing can be judged; empty: it can."""

    strategy: str = SIMPLE
    unjudged: str = ""
    is_non_blocking: bool = False
    """Hudi lets all writers commit, whatever file groups they share."""
    is_named: bool = False
    """Whether the settings name the strategy or the index; otherwise file ids with bucket numbers show the index."""

    @property
    def strategy_name(self) -> str:
        """The strategy, without Hudi's package."""
        return self.strategy.removeprefix(STRATEGIES)

    @property
    def by_bucket(self) -> bool:
        """Whether two new file groups of one bucket conflict."""
        return self.strategy == BUCKET

    @property
    def prefers_writers(self) -> bool:
        """Whether services in flight give way to writers at their own commit."""
        return self.strategy == PREFER_WRITER

    def comparable(self, keys: frozenset[bytes]) -> frozenset[bytes]:
        """Return what two instants conflict by: file groups, or the buckets that they belong to."""
        if self.is_named and not self.by_bucket:
            return keys
        groups = map(split_file_group_key, keys)
        return frozenset(file_group_key(partition, self._bucket_of(file_id)) for partition, file_id in groups)

    def compares_buckets(self, keys: frozenset[bytes]) -> bool:
        """Whether file groups of these may conflict by their buckets. One is enough: all have numbers, or none."""
        if self.is_named or not keys:
            return self.by_bucket
        return has_bucket_number(split_file_group_key(next(iter(keys)))[1])

    def _bucket_of(self, file_id: str) -> str:
        return file_id[:_BUCKET_DIGITS] if self.by_bucket or has_bucket_number(file_id) else file_id


def find_writer_rule(hudi_options: Mapping[str, str]) -> WriterRule:
    """Return the rule that the writers' Hudi settings select."""
    mode = hudi_options.get(CONCURRENCY_MODE, "").strip().upper()
    if mode == _NON_BLOCKING:
        return WriterRule(unjudged=f"{CONCURRENCY_MODE}={mode}: Hudi lets all writers commit", is_non_blocking=True)
    index = hudi_options.get(INDEX_TYPE, "").strip()
    named = hudi_options.get(STRATEGY, "").strip()
    strategy = named or (BUCKET if names_buckets(hudi_options) else SIMPLE)
    if strategy not in {SIMPLE, PREFER_WRITER, BUCKET}:
        return WriterRule(strategy, f"{STRATEGY}={strategy} is not one of Hudi's own: its rule is unknown")
    return WriterRule(strategy, is_named=bool(named or index))


UNSET = WriterRule()
"""That of Hudi's defaults."""


# --- What an intent meets


def find_active_clashes(
    intent: WriteIntent, actives: Iterable[ActiveInstant], *, compactions_pass: bool = True, rule: WriterRule = UNSET
) -> ClashCheck:
    """Compare an intent with the active instants, by the rule of the table's writers."""
    clashes: list[Clash] = []
    unread: list[str] = []
    for active in actives:
        if not must_yield(intent, active, compactions_pass=compactions_pass, rule=rule):
            continue
        shared = _shared_with(active, intent.file_groups, rule)
        if shared:
            kind = ClashKind.MARKER if _shared_markers(active, shared, rule) else ClashKind.PLAN
            clashes.append(Clash(active.instant, active.action, kind, shared))
        unread += active.unread
    return ClashCheck(tuple(clashes), tuple(unread))


def _shared_with(active: ActiveInstant, mine: frozenset[bytes], rule: WriterRule) -> frozenset[bytes]:
    if not rule.compares_buckets(mine):
        return active.overlap(mine)
    mine = rule.comparable(mine)
    if active.overwritten is None:
        return mine
    overwritten = (key for key in mine if split_file_group_key(key)[0] in (active.overwritten or ()))
    return (rule.comparable(active.markers.file_groups() | active.planned) & mine).union(overwritten)


def _shared_markers(active: ActiveInstant, shared: frozenset[bytes], rule: WriterRule) -> frozenset[bytes]:
    if not rule.compares_buckets(shared):
        return active.markers.overlap(shared)
    return rule.comparable(active.markers.file_groups()) & shared


def must_yield(
    intent: WriteIntent, other: ActiveInstant, *, compactions_pass: bool = True, rule: WriterRule = UNSET
) -> bool:
    """Whether the intent's owner gives way to the other one if they share a file group.

    The guard, the sensor before a write, the watch of a service and the report all ask this.
    """
    if other.instant == intent.instant:
        return False
    if intent.role is Role.WRITER:
        return _must_writer_yield(intent, other, compactions_pass=compactions_pass, rule=rule)
    if intent.role is Role.COMPACTION:
        is_hurt = not compactions_pass and other.role is Role.WRITER and other.instant < intent.instant
        return is_hurt and other.is_live
    if other.role is not Role.WRITER:
        # Two real plans never share a file group.
        return intent.role is Role.CLUSTERING or other.role is not Role.COMPACTION
    # It waits for writers, older and younger: of the two, the writer loses, or under `PreferWriter...` the service.
    return other.is_live


def _must_writer_yield(intent: WriteIntent, other: ActiveInstant, *, compactions_pass: bool, rule: WriterRule) -> bool:
    if other.role is Role.WRITER:
        is_first = other.instant < intent.instant or not intent.comes_first
        return other.is_live and is_first and not rule.is_non_blocking
    if rule.prefers_writers:
        return False
    match other.role:
        case Role.CLUSTERING:
            return True
        case Role.COMPACTION:
            return not compactions_pass and other.instant > intent.instant
        case Role.LOG_COMPACTION:
            # One that is only requested does no harm yet.
            return other.is_live


def find_commit_clashes(
    intent: WriteIntent,
    completed: Iterable[Instant],
    commits: Mapping[str, CommitMetadata],
    *,
    compactions_pass: bool = True,
    rule: WriterRule = UNSET,
) -> tuple[Clash, ...]:
    """Compare an intent with what completed since it began: markers vanish at commit.

    `completed` are completed writes of the timeline, `commits` their metadata by requested time.
    """
    clashes = []
    for instant in completed:
        if instant.requested_time == intent.instant or (instant.completed_time or "") <= intent.since:
            continue
        metadata = commits.get(instant.requested_time)
        if metadata is None or _passes(intent, instant, metadata.operation, compactions_pass=compactions_pass):
            continue
        if rule.is_non_blocking and intent.role is Role.WRITER and metadata.operation not in _SERVICES:
            continue
        shared = rule.comparable(metadata.file_group_keys()) & rule.comparable(intent.file_groups)
        if shared:
            clashes.append(Clash(instant.requested_time, instant.action.value, ClashKind.COMMIT, shared))
    return tuple(clashes)


def _passes(intent: WriteIntent, instant: Instant, operation: str, *, compactions_pass: bool) -> bool:
    """Whether Hudi lets the intent's owner commit after an instant of its file groups has completed."""
    if intent.role is Role.COMPACTION:
        return True
    if operation == _COMPACT:
        return intent.role is not Role.WRITER or compactions_pass or instant.requested_time < intent.instant
    return operation == _LOG_COMPACT and intent.role is not Role.WRITER


def describe_file_groups(keys: frozenset[bytes]) -> str:
    """Print how many file groups, and the first few."""
    names = ["/".join(part for part in split_file_group_key(key) if part) for key in sorted(keys)[:_SHOWN]]
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{len(keys)} file group{'s' if len(keys) != 1 else ''}: {', '.join(names)}{more}"


def partitions_of(keys: Iterable[bytes]) -> frozenset[str]:
    """Return the partitions of file groups."""
    return frozenset(split_file_group_key(key)[0] for key in keys)

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
from airflow_lake_provider.hudi.markers import split_file_group_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant

_COMPACT, _LOG_COMPACT = "COMPACT", "LOG_COMPACT"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """The file groups (keys) that a writer or a service touches or is about to rewrite.

    `instant` is its requested time. Instants that completed after `since` (exclusive) have changed what it began with.
    A writer gives way to older writers only, so that two never end each other (RFC-56); one whose `comes_first` is
    false also to younger ones that marked first, because they found under a lock that no other instant was there.
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
    """One instant that conflicts with a claim, with the file groups (keys) that both touch."""

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
class Verdict:
    """What one check of a claim found.

    Only without clashes and with everything read are the file groups free; what is `unread` may hold any of them.
    """

    clashes: tuple[Clash, ...] = ()
    unread: tuple[str, ...] = field(default=())

    @property
    def is_free(self) -> bool:
        """Whether certainly no other instant conflicts."""
        return not self.clashes and not self.unread


def find_active_clashes(claim: Claim, actives: Iterable[ActiveInstant], *, compactions_pass: bool = True) -> Verdict:
    """Compare a claim with the active instants."""
    clashes: list[Clash] = []
    unread: list[str] = []
    for active in actives:
        if not must_yield(claim, active, compactions_pass=compactions_pass):
            continue
        shared = active.overlap(claim.file_groups)
        if shared:
            kind = ClashKind.MARKER if active.markers.overlap(shared) else ClashKind.PLAN
            clashes.append(Clash(active.instant, active.action, kind, shared))
        unread += active.unread
    return Verdict(tuple(clashes), tuple(unread))


def must_yield(claim: Claim, other: ActiveInstant, *, compactions_pass: bool = True) -> bool:
    """Whether the claim gives way to the other one if they share a file group."""
    if other.instant == claim.instant:
        return False
    if claim.role is Role.WRITER:
        return _must_writer_yield(claim, other, compactions_pass=compactions_pass)
    if claim.role is Role.COMPACTION:
        is_hurt = not compactions_pass and other.role is Role.WRITER and other.instant < claim.instant
        return is_hurt and other.is_live
    if other.role is not Role.WRITER:
        # Two real plans never share a file group.
        return claim.role is Role.CLUSTERING or other.role is not Role.COMPACTION
    # It waits for writers, older and younger: of the two, the writer loses.
    return other.is_live


def _must_writer_yield(claim: Claim, other: ActiveInstant, *, compactions_pass: bool) -> bool:
    match other.role:
        case Role.WRITER:
            return other.is_live and (other.instant < claim.instant or not claim.comes_first)
        case Role.CLUSTERING:
            return True
        case Role.COMPACTION:
            return not compactions_pass and other.instant > claim.instant
        case Role.LOG_COMPACTION:
            return other.is_live  # one that is only requested does no harm yet


def find_commit_clashes(
    claim: Claim, completed: Iterable[Instant], commits: Mapping[str, CommitMetadata], *, compactions_pass: bool = True
) -> tuple[Clash, ...]:
    """Compare a claim with what completed since it began: markers vanish at commit.

    `completed` are completed writes of the timeline, `commits` their metadata by requested time.
    """
    clashes = []
    for instant in completed:
        if instant.requested_time == claim.instant or (instant.completed_time or "") <= claim.since:
            continue
        metadata = commits.get(instant.requested_time)
        if metadata is None or _passes(claim, instant, metadata.operation, compactions_pass=compactions_pass):
            continue
        shared = metadata.file_group_keys() & claim.file_groups
        if shared:
            clashes.append(Clash(instant.requested_time, instant.action.value, ClashKind.COMMIT, shared))
    return tuple(clashes)


def _passes(claim: Claim, instant: Instant, operation: str, *, compactions_pass: bool) -> bool:
    """Whether Hudi lets the claim commit after an instant of its file groups has completed."""
    if claim.role is Role.COMPACTION:
        return True
    if operation == _COMPACT:
        return claim.role is not Role.WRITER or compactions_pass or instant.requested_time < claim.instant
    return operation == _LOG_COMPACT and claim.role is not Role.WRITER


def describe_file_groups(keys: frozenset[bytes]) -> str:
    """Print how many file groups, and the first few."""
    names = ["/".join(part for part in split_file_group_key(key) if part) for key in sorted(keys)[:_SHOWN]]
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{len(keys)} file group{'s' if len(keys) != 1 else ''}: {', '.join(names)}{more}"


def partitions_of(keys: Iterable[bytes]) -> frozenset[str]:
    """Return the partitions of file groups."""
    return frozenset(split_file_group_key(key)[0] for key in keys)

"""When which service of a table is due, and how it may run: the values of the tables file.

A rule of None is off; any rule that holds makes a service due. A combination that Hudi would refuse, or that could lose
data, is refused here.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.maintenance_window import MaintenanceWindow
    from airflow_lake_provider.stuck_shape import Shape


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When compaction is due."""

    enabled: bool = True
    delta_commits: int | None = 5
    """Completed delta commits since the last compaction (Hudi's own default is 5)."""
    log_to_base_ratio: float | None = 0.5
    """Bytes in log files over bytes in the base files below them."""
    min_log_bytes: int = 0
    """The ratio rule looks only at tables that have at least this many bytes in log files."""


@dataclass(frozen=True, slots=True)
class ClusteringPolicy:
    """When clustering is due. Off unless asked for: it rewrites data, and fails writers that update it meanwhile."""

    enabled: bool = False
    commits: int | None = None
    """Completed writes since the last clustering."""
    small_files: int | None = 10
    """Small base files in one partition, as far as the active timeline tells their sizes."""
    small_file_bytes: int = 104_857_600
    """A base file below this size is small (Hudi's `hoodie.parquet.small.file.limit` is 100 MiB)."""


@dataclass(frozen=True, slots=True)
class CleanPolicy:
    """When cleaning is due. Retention is Hudi's KEEP_LATEST_COMMITS."""

    enabled: bool = True
    commits: int = 5
    """Completed writes since the last clean."""
    retained_commits: int = 10
    """`hoodie.clean.commits.retained`: file versions that these commits need are kept."""


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """When archiving is due."""

    enabled: bool = True
    min_commits: int = 20
    """`hoodie.keep.min.commits`: how many completed writes stay on the active timeline."""
    max_commits: int = 30
    """`hoodie.keep.max.commits`: with more than these it is due."""


@dataclass(frozen=True, slots=True)
class DoctorPolicy:
    """Which stuck shapes may be repaired, and from which age on something counts as left behind."""

    repairs: tuple[Shape, ...] = ()
    """Shapes that the doctor may repair; none unless asked for."""
    stuck_after_s: float = 600.0
    """For what a heartbeat would speak if it were alive, and for plans that never began."""
    lock_after_s: float = 1800.0
    """For a lock file beside which no heartbeat lives."""
    unguarded_after_s: float = 21_600.0
    """For what Hudi gives no heartbeat: an index build; a clustering or clean by somebody else."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """What holds for one table."""

    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    clustering: ClusteringPolicy = field(default_factory=ClusteringPolicy)
    clean: CleanPolicy = field(default_factory=CleanPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    doctor: DoctorPolicy = field(default_factory=DoctorPolicy)
    hudi_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Passed to every service of the table; the lock provider must be here."""
    heartbeat_timeout_s: float | None = None
    """Silence after which the table is looked at once without a notice; None follows the table's rhythm."""
    max_runs_per_instant: int = 3
    retry_backoff_s: float = 60.0
    max_active_runs: int = 1
    """Services of the table that may run at once."""
    maintenance_window: MaintenanceWindow | None = None
    """When new plans may be made; None is always. Pending plans hold others up and are executed at any time."""

    def find_problem(self) -> str | None:
        """Say in one sentence which settings contradict each other; None when none do."""
        if self.archive.min_commits <= self.clean.retained_commits:
            return (
                f"archive.min_commits ({self.archive.min_commits}) must be greater than clean.retained_commits "
                f"({self.clean.retained_commits}): Hudi cleans by what is on the active timeline"
            )
        if self.archive.max_commits <= self.archive.min_commits:
            return (
                f"archive.max_commits ({self.archive.max_commits}) must be greater than archive.min_commits "
                f"({self.archive.min_commits})"
            )
        return None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry of the tables file: which tables (glob patterns) and their policy.

    `base_path` without a pattern character registers the table even if it never sends a notice.
    """

    base_path: str
    name: str
    policy: TablePolicy

    @property
    def names_one_table(self) -> bool:
        """Whether the base path is a path, not a pattern."""
        return not any(character in self.base_path for character in "*?[")

    def matches(self, base_path: str, name: str) -> bool:
        """Whether this entry speaks of that table."""
        return _matches(base_path, self.base_path) and _matches(name, self.name)


@dataclass(frozen=True, slots=True)
class TablesConfig:
    """The tables file: the first entry that matches a table wins, else the defaults hold."""

    entries: tuple[TableEntry, ...] = ()
    defaults: TablePolicy = field(default_factory=TablePolicy)

    def policy_for(self, base_path: str, name: str) -> TablePolicy:
        """Return the policy of a table."""
        for entry in self.entries:
            if entry.matches(base_path, name):
                return entry.policy
        return self.defaults


def _matches(value: str, pattern: str) -> bool:
    # A path with brackets in it must still match itself.
    return not pattern or value == pattern or fnmatch.fnmatchcase(value, pattern)

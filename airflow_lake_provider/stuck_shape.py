"""The shapes in which a table's timeline gets stuck, by the names that the tables file and the doctor use."""

from __future__ import annotations

from enum import StrEnum


class Shape(StrEnum):
    """One way to be stuck. Which of them can be repaired, and how, is said by the doctor."""

    ORPHANED_LOCK = "orphaned_lock"
    """The lock file of a writer that was killed."""
    UNREADABLE_FILE = "unreadable_file"
    FOREIGN_TIME_ZONE = "foreign_time_zone"
    """The newest instants were named in another zone than that of the jobs: no service is started."""
    DISORDERED_WRITES = "disordered_writes"
    """Writes that sort before a compaction, or another commit, that was made before them: readers leave them out."""
    FAILED_WRITE = "failed_write"
    """A write without heartbeat that nobody rolled back."""
    DANGLING_REPLACECOMMIT = "dangling_replacecommit"
    """The same, requested only: what `run_ttl` leaves when nothing has expired."""
    PLAN_WITHOUT_EXECUTOR = "plan_without_executor"
    BLOCKING_CLUSTERING = "blocking_clustering"
    """A clustering plan without executor: updates of its file groups are rejected."""
    UNGUARDED_SERVICE = "unguarded_service"
    """A clustering or clean that began and has no heartbeat: it may be at work, or dead."""
    OVERTAKEN_LOG_COMPACTION = "overtaken_log_compaction"
    """A log compaction behind a newer compaction, which Hudi never executes any more."""
    STALE_INDEX_BUILD = "stale_index_build"
    DUPLICATE_INDEX_PLAN = "duplicate_index_plan"
    INDEX_WITHOUT_PLAN = "index_without_plan"
    FROZEN_ARCHIVE = "frozen_archive"
    """Archiving that waits for a compaction of the metadata table."""

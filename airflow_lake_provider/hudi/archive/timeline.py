"""Instants that were moved out of the active timeline, as values, whichever format they were archived in.

Layout 1 keeps log files of Avro records (`archive/log.py`), layout 2 a tree of Parquet files (`archive/lsm.py`). A
table that never archived has an empty archive; what is there and is not understood is an error, or a problem of the
result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, decode, parse_commit_metadata
from airflow_lake_provider.hudi.instant import COMPARABLE_ACTION, COMPLETED_WRITE_ACTIONS, Layout
from airflow_lake_provider.hudi.timeline import TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.hudi.instant import Action
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.storage.table_storage import Storage


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """A range of requested times, `after` exclusive and `until` inclusive; empty is unbounded."""

    after: str = ""
    until: str = ""

    def contains(self, requested_time: str) -> bool:
        """Whether an instant lies in the range."""
        return self.after < requested_time and (not self.until or requested_time <= self.until)

    def overlaps(self, first: str, last: str) -> bool:
        """Whether any instant from `first` to `last`, both inclusive, can lie in the range."""
        return self.after < last and (not self.until or first <= self.until)


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """One completed action that was archived.

    `completed_time` is None where the writer did not archive it (layout 1, before Hudi 0.14). `metadata` and `plan` are
    what `content.decode` reads; None when they were not requested, and when the archive has none.
    """

    requested_time: str
    action: Action
    completed_time: str | None
    file_name: str
    """The archive's file that it was read from."""
    metadata: bytes | None = None
    plan: bytes | None = None

    @property
    def is_write(self) -> bool:
        """Whether it is a commit, deltacommit or replacecommit."""
        return self.action in COMPLETED_WRITE_ACTIONS


@dataclass(frozen=True, slots=True)
class ArchivedTimeline:
    """Archived instants by requested time, none twice.

    What could not be read is a problem: instants may be missing while there are any.
    """

    instants: tuple[ArchivedInstant, ...] = ()
    problems: tuple[TimelineProblem, ...] = ()

    def completed_by_completion(self) -> tuple[ArchivedInstant, ...]:
        """Return all instants in the order in which they completed."""
        return tuple(sorted(self.instants, key=_completion_key))

    def completed_writes_by_completion(self) -> tuple[ArchivedInstant, ...]:
        """Return commits, deltacommits and replacecommits in the order in which they completed."""
        return tuple(instant for instant in self.completed_by_completion() if instant.is_write)


def _completion_key(instant: ArchivedInstant) -> tuple[str, str]:
    # Without a completion time the requested time is the nearest that is known, and what Hudi falls back to.
    return instant.completed_time or instant.requested_time, instant.requested_time


def archived_timeline_of(instants: Iterable[ArchivedInstant], problems: Iterable[TimelineProblem]) -> ArchivedTimeline:
    """Sort instants and drop doubles: one that was archived twice, or lies in a merged file and in its source too."""
    unique: dict[tuple[str, Action], ArchivedInstant] = {}
    found = set(problems)
    for instant in instants:
        key = (instant.requested_time, COMPARABLE_ACTION.get(instant.action, instant.action))
        known = unique.setdefault(key, instant)
        if known.completed_time != instant.completed_time:
            reason = (
                f"says that {instant.requested_time}.{instant.action} completed at {instant.completed_time}, "
                f"but {known.file_name} says {known.completed_time}"
            )
            found.add(TimelineProblem(instant.file_name, reason))
    return ArchivedTimeline(
        tuple(unique[key] for key in sorted(unique)),
        tuple(sorted(found, key=lambda problem: (problem.file_name, problem.reason))),
    )


# --- Load a table's archive: the layout decides on the format

# Upgrading a table of layout 1, Hudi names files after the first and last instant that it happened to read, not after
# the least and greatest, and merging passes the names on. Such a table's files must all be read.
_INITIAL_VERSION = "hoodie.table.initial.version"
_BORN_IN_LAYOUT_2 = frozenset({"8", "9"})


def load_archive(
    storage: Storage,
    properties: TableProperties,
    *,
    after: str = "",
    until: str = "",
    with_content: bool = False,
) -> ArchivedTimeline:
    """Load the archived instants requested after `after` (exclusive) and until `until` (inclusive); empty: unbounded.

    `with_content` also loads metadata and plans. Raises StorageError, DamagedFileError, UnsupportedTableError.
    """
    requested = RequestedRange(after, until)
    # Log blocks and Parquet files build on this module.
    from airflow_lake_provider.hudi.archive.log import load_log_archive

    if properties.layout is Layout.V1:
        return load_log_archive(storage, properties.history_path, requested, with_content=with_content)
    # Every task imports this module to run a service, and hardly any of them reads an archive: Arrow is half a second.
    from airflow_lake_provider.hudi.archive.lsm import load_lsm_archive

    return load_lsm_archive(
        storage,
        properties.history_path,
        requested,
        names_bound=properties.raw.get(_INITIAL_VERSION) in _BORN_IN_LAYOUT_2,
        with_content=with_content,
    )


def load_archived_commit(instant: ArchivedInstant) -> CommitMetadata:
    """Parse the metadata of an archived write, which must have been loaded with content. Raises DamagedFileError."""
    name = f"{instant.file_name}: {instant.requested_time}.{instant.action}"
    return parse_commit_metadata(decode(instant.metadata or b"", name), name)

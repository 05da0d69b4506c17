"""Writes that complete during the build of an index which writers do not update: what can be repeated, and how.

Pure, but for the clock of `wait_for_younger`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import SECONDARY_INDEX_PREFIX
from airflow_lake_provider.shared.actions import Action
from lake_jobs.indexing.rules import CLUSTER, COMPACT, LOG_COMPACT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lake_jobs.indexing.rules import WriteChange


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A write or clean that completed during a build whose index writers do not update; its times are instants."""

    instant: str
    completed: str
    action: str
    change: WriteChange | None
    """None for a clean."""


_PLAIN_WRITES = frozenset(
    {"UPSERT", "UPSERT_PREPPED", "INSERT", "INSERT_PREPPED", "BULK_INSERT", "BULK_INSERT_PREPPED"}
)
_CAUGHT_UP_WITH = _PLAIN_WRITES | {"DELETE", "DELETE_PREPPED", COMPACT, LOG_COMPACT, CLUSTER}
_ENTRY_FOR_EACH_FILE = ("column_stats", "bloom_filters")
MAX_TOGETHER = 50
"""Spark plans a union of thousands one within the other, and fails."""


def find_unrepeatable(late: Iterable[LateWrite]) -> list[LateWrite]:
    """Return the writes whose entries cannot be made once they have completed.

    Hudi takes the keys of file groups that a write replaces from its view of the table, which after the commit has them
    no more (`getRecordIndexReplacedRecords`).
    """
    return [write for write in late if write.change is not None and write.change.operation not in _CAUGHT_UP_WITH]


def has_entries(partition: str, write: LateWrite) -> bool:
    """Whether a write can have entries in an index; it may still turn out to have none."""
    if partition in _ENTRY_FOR_EACH_FILE:
        return True
    if write.change is None:
        # Hudi 1.2.0 would write those of an expression index among the column statistics (docs/limitations.md). No
        # reader asks for the entry of a file that is gone.
        return False
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        # They change no value, and a secondary index has no places.
        return write.change.operation not in {COMPACT, LOG_COMPACT, CLUSTER}
    return partition != "record_index" or write.change.operation not in {COMPACT, LOG_COMPACT}


def find_shown(instants: Sequence[tuple[str, str]], write: LateWrite, *, merges_on_read: bool) -> list[tuple[int, int]]:
    """Return the ranges of a timeline's instants, from and to, that were there when a write was about to complete.

    `instants` are completed times, empty for what is pending, and actions. What completed since is left out, and the
    write with it, except compactions. Hudi counts a log file to the slice of
    the youngest compaction that was requested before it, pending or not, and without that compaction to none. The base
    file of a compaction holds what was committed before it was requested, so it may count as there already.
    """
    ranges: list[tuple[int, int]] = []
    for at, (completed, action) in enumerate(instants):
        is_compaction = merges_on_read and action == Action.COMMIT
        if completed >= write.completed and not is_compaction:
            continue
        if ranges and ranges[-1][1] == at:
            ranges[-1] = (ranges[-1][0], at + 1)
        else:
            ranges.append((at, at + 1))
    return ranges


def gather_late_writes(partition: str, late: Iterable[LateWrite]) -> list[tuple[LateWrite, ...]]:
    """Return late writes in the order of their completion, together where one delta commit can hold their entries.

    Two entries of one key would need an order, which a delta commit does not have. Plain writes that delete nothing add
    each key to the record index once, and to a secondary index if they update nothing either: an update removes an
    entry that an earlier write added. Statistics of columns and bloom filters have an entry for each file; an
    expression index has one for each partition too.
    """
    batches: list[list[LateWrite]] = []
    for write in sorted(late, key=lambda write: write.completed):
        is_open = batches and len(batches[-1]) < MAX_TOGETHER and _adds_keys_once(partition, batches[-1][-1])
        if is_open and _adds_keys_once(partition, write):
            batches[-1].append(write)
        else:
            batches.append([write])
    return [tuple(batch) for batch in batches]


def _adds_keys_once(partition: str, write: LateWrite) -> bool:
    if write.change is None:
        return False
    if partition in _ENTRY_FOR_EACH_FILE:
        return True
    is_plain = write.change.operation in _PLAIN_WRITES and write.change.deletes == 0
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        return is_plain and write.change.updates == 0
    return partition == "record_index" and is_plain


def find_newest_time(timeline: Iterable[str]) -> str:
    """Return the newest of the requested and completed times in the names of a timeline's files; empty for none."""
    return max((time for name in timeline for time in name.split(".")[0].split("_") if time.isdigit()), default="")


def wait_for_younger(newest: str, create_instant: Callable[[], str], patience_s: float, pause_s: float = 0.05) -> str:
    """Return the first created instant that is younger than `newest`; empty when none is within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while (instant := create_instant()) <= newest:
        if time.monotonic() >= deadline:
            return ""
        time.sleep(pause_s)
    return instant

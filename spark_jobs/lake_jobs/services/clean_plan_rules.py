"""What a clean's plan deletes, and what of it readers or pending compactions need. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lake_jobs.verify.sample import files_of_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAMED = 3


class PlanTakesNeededError(Exception):
    """A plan deletes files that readers or a pending compaction need; nothing was deleted."""

    def __init__(self, plan: str, needed: tuple[str, ...], compaction: str = "") -> None:
        more = f" and {len(needed) - MAX_NAMED} more" if len(needed) > MAX_NAMED else ""
        why = (
            f", which the pending {compaction} reads; nothing was deleted. The next clean comes after it"
            if compaction
            else " of the newest file slices, which every reader needs; nothing was deleted. Writers must keep at "
            "least one file version (hoodie.clean.fileversions.retained)"
        )
        super().__init__(f"clean plan {plan} deletes {', '.join(needed[:MAX_NAMED])}{more}{why}")
        self.plan = plan


def list_deleted(plan: str) -> dict[str, frozenset[str]]:
    """Return the names of the files that a clean's plan deletes, by partition; `plan` is Avro's JSON."""
    fields = json.loads(plan)
    found = {
        partition: frozenset(str(file["filePath"]).rpartition("/")[2] for file in files if file.get("filePath"))
        for partition, files in (fields.get("filePathsToBeDeletedPerPartition") or {}).items()
    }
    for partition, names in (fields.get("filesToBeDeletedPerPartition") or {}).items():
        found[partition] = found.get(partition, frozenset()) | frozenset(map(str, names))
    return {partition: names for partition, names in found.items() if names}


def list_whole(plan: str) -> frozenset[str]:
    """Return the partitions that a clean's plan deletes whole; `plan` is Avro's JSON.

    All of their file groups were replaced, so they have no newest slice.
    """
    return frozenset(json.loads(plan).get("partitionsToBeDeleted") or ())


def find_needed(deleted: Mapping[str, frozenset[str]], needed: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return which of the deleted files are among the needed ones, as `partition/file`, sorted."""
    return tuple(
        sorted(
            f"{partition}/{name}" if partition else name
            for partition, names in deleted.items()
            for name in names & needed.get(partition, frozenset())
        )
    )


def list_read(plan: str) -> dict[str, frozenset[str]]:
    """Return the names of the files that a compaction's plan reads, by partition; `plan` is Avro's JSON."""
    read: dict[str, frozenset[str]] = {}
    for (partition, _), paths in files_of_plan(plan).items():
        names = frozenset(path.rpartition("/")[2] for path in paths)
        read[partition] = read.get(partition, frozenset()) | names
    return read

"""Which rewritten rows are compared: all, or a sample that the plan's instant chooses. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SAMPLE_SHARE = 0.05
"""Share of the rewritten bytes that a sample may have; comparing a byte costs less than rewriting it."""
MAX_SAMPLE_BYTES = 1 << 30
"""Maximum size of a sample, in bytes of new files."""


_NAMED = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows that lie in `file_ids` before a rewrite, and in `new_files` after it.

    A compaction has one unit for each file group. A clustering does not say which of its new files has which rows, so
    it has one for each partition.
    """

    partition: str
    file_ids: tuple[str, ...]
    new_files: tuple[str, ...]
    """Paths relative to the base path."""
    size_bytes: int
    """Of the new files."""

    @property
    def name(self) -> str:
        """Partition and file groups, for people."""
        if not self.file_ids:
            return f"partition {self.partition!r}, of which the plan reads nothing"
        groups = ", ".join(self.file_ids[:_NAMED]) + (", ..." if len(self.file_ids) > _NAMED else "")
        return f"partition {self.partition!r}, file group {groups}"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A new file, as the writer's statistics name it: the path is relative to the base path."""

    partition: str
    file_id: str
    path: str
    size_bytes: int


def groups_of_compaction(plan: str) -> list[tuple[str, str]]:
    """Return partition and file id of each file group of a compaction's plan; `plan` is Avro's JSON."""
    operations = json.loads(plan).get("operations") or []
    return [(str(each.get("partitionPath") or ""), str(each["fileId"])) for each in operations]


def groups_of_clustering(plan: str) -> list[tuple[str, str]]:
    """Return partition and file id of each file group that a clustering's plan reads; `plan` is Avro's JSON."""
    groups = json.loads(plan).get("inputGroups") or []
    slices = [found for group in groups for found in group.get("slices") or []]
    return [(str(each.get("partitionPath") or ""), str(each["fileId"])) for each in slices]


def units_of_groups(planned: Iterable[tuple[str, str]], written: Sequence[NewFile]) -> tuple[Unit, ...]:
    """Return one unit for each file group of a compaction: `planned` are partitions and file ids."""
    by_group: dict[tuple[str, str], list[NewFile]] = {group: [] for group in planned}
    for file in written:
        by_group.setdefault((file.partition, file.file_id), []).append(file)
    return tuple(_unit(partition, (file_id,), files) for (partition, file_id), files in sorted(by_group.items()))


def units_of_partitions(planned: Iterable[tuple[str, str]], written: Sequence[NewFile]) -> tuple[Unit, ...]:
    """Return one unit for each partition that a clustering reads from or writes to."""
    groups: dict[str, set[str]] = {}
    for partition, file_id in planned:
        groups.setdefault(partition, set()).add(file_id)
    files: dict[str, list[NewFile]] = {}
    for file in written:
        files.setdefault(file.partition, []).append(file)
    partitions = sorted({*groups, *files})
    return tuple(_unit(each, tuple(sorted(groups.get(each, ()))), files.get(each, [])) for each in partitions)


def _unit(partition: str, file_ids: tuple[str, ...], files: Sequence[NewFile]) -> Unit:
    paths = tuple(sorted(file.path for file in files))
    return Unit(partition, file_ids, paths, sum(file.size_bytes for file in files))


def choose_units(units: Sequence[Unit], verify: Verify, instant: str) -> tuple[Unit, ...]:
    """Return the units to compare, at least one of them for a sample, the same ones in each try of a plan.

    Units come first that have rows on one side only: a file in a partition of which the plan reads nothing, or a file
    group without a new file.
    """
    if verify is Verify.ALL:
        return tuple(units)
    if verify is Verify.OFF:
        return ()
    budget = min(MAX_SAMPLE_BYTES, SAMPLE_SHARE * sum(unit.size_bytes for unit in units))
    chosen: list[Unit] = []
    for unit in sorted(units, key=lambda unit: (bool(unit.new_files and unit.file_ids), _draw(instant, unit))):
        if not chosen or unit.size_bytes <= budget:
            chosen.append(unit)
            budget -= unit.size_bytes
        if budget <= 0 or len(chosen) >= _MAX_SAMPLED:
            break
    return tuple(chosen)


_MAX_SAMPLED = 50
"""Maximum number of units in a sample: each costs a task, however small it is."""


def _draw(instant: str, unit: Unit) -> bytes:
    return hashlib.sha256(f"{instant}/{unit.partition}/{','.join(unit.file_ids)}".encode()).digest()

"""Which rewritten rows are compared: all, or a sample that the plan's instant draws. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Verify

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Group = tuple[str, str]
"""Partition and file id of a file group."""
COMPARED_PER_WRITTEN = 0.5
"""Work of comparing rows for each second of work of writing them; `python -m benchmarks.verify` measures it."""
JOB_S = 1.0
"""Work of a comparison without a row: to plan and start its job, in core seconds."""
PART_S = 0.02
"""Work of a part without a row, in core seconds."""
COMPARED_BYTES_PER_S = 6 << 20
"""Bytes of file slices whose rows one core compares in a second, where Hudi's reader merges both sides."""
MAX_SAMPLE_BYTES = 1 << 30
"""Maximum size of a sample, in bytes of new files."""
MAX_LISTED = 100
"""Maximum number of units of which the files before a rewrite are listed only to know their size."""
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
    def groups(self) -> frozenset[Group]:
        """Its file groups."""
        return frozenset((self.partition, file_id) for file_id in self.file_ids)

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
    rows: int = 0
    """As its writer counted them."""
    deletes: int = 0
    """How many rows of the file before it, or of its log files, it lacks because they are deleted."""


def files_of_plan(plan: str) -> dict[Group, frozenset[str]]:
    """Return the files that a plan of a compaction or clustering reads, below the base path; it is Avro's JSON."""
    content = json.loads(plan)
    slices = [found for group in content.get("inputGroups") or [] for found in group.get("slices") or []]
    files: dict[Group, frozenset[str]] = {}
    for each in (*slices, *(content.get("operations") or [])):
        partition = str(each.get("partitionPath") or "")
        paths = [path for path in (each.get("dataFilePath"), *(each.get("deltaFilePaths") or [])) if path]
        below = frozenset(f"{partition}/{str(path).rpartition('/')[2]}".lstrip("/") for path in paths)
        files[partition, str(each["fileId"])] = below
    return files


def find_gone_groups(planned: Iterable[Group], present: Iterable[str]) -> tuple[Group, ...]:
    """Return the file groups of a plan of which no file is left; `present` are paths below the base path."""
    left = set[Group]()
    for path in present:
        partition, _, name = path.rpartition("/")
        left.add((partition, name.removeprefix(".").partition("_")[0]))
    return tuple(sorted(set(planned) - left))


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


def find_miscounted(
    units: Iterable[Unit],
    planned: Mapping[Group, frozenset[str]],
    written: Iterable[NewFile],
    counts: Mapping[str, int],
) -> frozenset[Group]:
    """Return the file groups of units whose new files have another number of rows than they must have.

    That is the number of their writer; and of a unit without log files that of the files before, too. `counts` are the
    rows of files, by their paths; a file without rows has none.
    """
    by_writer = {file.path: file.rows for file in written}
    suspects: set[Group] = set()
    for unit in units:
        old = [path for group in unit.groups for path in planned.get(group, ())]
        is_odd = any(counts.get(path, 0) != by_writer[path] for path in unit.new_files)
        if not any(".log." in path for path in old):
            rows = sum(counts.get(path, 0) for path in unit.new_files)
            is_odd = is_odd or rows != sum(counts.get(path, 0) for path in old)
        if is_odd:
            suspects |= unit.groups
    return frozenset(suspects)


def choose_units(
    units: Sequence[Unit],
    verify: Verify,
    instant: str,
    costs_s: Mapping[Unit, float],
    left_s: float,
    suspects: Collection[Group] = frozenset(),
) -> tuple[Unit, ...]:
    """Return the units to compare, by the work that each costs and the work that is left for it, in core seconds.

    A sample takes what fits, in an order that the plan's instant draws; what is too much for this run is left to the
    next ones, which have more (`savings.py`). Units that have rows on one side only are always taken: a file in a
    partition of which the plan reads nothing, or a file group without a new file. So are those with one of the
    `suspects`, file groups of which the plan reads other files than readers. A unit without a cost is in no other
    sample.
    """
    if verify is Verify.ALL:
        return tuple(units)
    if verify is Verify.OFF or not units:
        return ()
    chosen = [unit for unit in units if is_on_one_side(unit) or not unit.groups.isdisjoint(suspects)]
    left_s -= JOB_S
    left_bytes = MAX_SAMPLE_BYTES
    for unit in draw_order((unit for unit in costs_s if unit not in chosen), instant):
        if costs_s[unit] > left_s or (chosen and unit.size_bytes > left_bytes):
            break
        chosen.append(unit)
        left_s -= costs_s[unit]
        left_bytes -= unit.size_bytes
    return tuple(chosen)


def is_on_one_side(unit: Unit) -> bool:
    """Whether a unit has rows only before a rewrite, or only after it."""
    return not (unit.new_files and unit.file_ids)


def draw_order(units: Iterable[Unit], instant: str) -> list[Unit]:
    """Return the units that have rows on both sides, in an order that a plan's instant draws."""
    return sorted((unit for unit in units if not is_on_one_side(unit)), key=lambda unit: _draw(instant, unit))


def costs_by_written(units: Sequence[Unit], work_s: float) -> dict[Unit, float]:
    """Return what the comparison of each unit costs, in core seconds, by what it took to write all of them."""
    per_byte_s = COMPARED_PER_WRITTEN * work_s / max(1, sum(unit.size_bytes for unit in units))
    return {unit: PART_S + per_byte_s * unit.size_bytes for unit in units}


def costs_by_read(slice_bytes: Mapping[Unit, int]) -> dict[Unit, float]:
    """Return the same by the bytes of the units' file slices: a log compaction writes less than is read to compare."""
    return {unit: PART_S + count / COMPARED_BYTES_PER_S for unit, count in slice_bytes.items()}


def explain_none(instant: str, costs_s: Mapping[Unit, float], left_s: float) -> str:
    """Return why a sample of a plan is empty."""
    cost_s = costs_s[draw_order(costs_s, instant)[0]]
    return (
        f"a part takes about {JOB_S + cost_s:.0f} s of work to compare, and this table's runs have "
        f"{max(0.0, left_s):.1f} s left for it: one of the next is compared"
    )


def _draw(instant: str, unit: Unit) -> bytes:
    return hashlib.sha256(f"{instant}/{unit.partition}/{','.join(unit.file_ids)}".encode()).digest()

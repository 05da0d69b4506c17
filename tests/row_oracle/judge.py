"""Compares the rows that readers find with those that were written, and the owner's writer with one that works."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.oracle.history import Step
from tests.oracle.judge import Difference
from tests.row_oracle.plain_files import read_format, read_rows
from tests.row_oracle.world import Row, RowWorld

MOST_NAMED = 5


def judge_rows(world: RowWorld, step: Step) -> list[Difference]:
    """Return what differs after a step: rows (by reader), the writer, a stream's position, another's table."""
    expected = sorted(world.expected.values())
    readers = {"listing": world.read(metadata=False), "default": world.read(metadata=True)}
    if world.setup.type == "COW" and not world.setup.is_virtual:
        # A local folder, as all of these histories have.
        readers["pyarrow"] = read_rows(Path(world.path), world.version)
    found = [
        Difference("rows", f"{reader} reader after {step.kind}: {_describe(expected, rows)}")
        for reader, rows in readers.items()
        if rows != expected
    ]
    found += [Difference("writer", f"after {step.kind}: {complaint}") for complaint in world.complaints]
    world.complaints.clear()
    found += [Difference("format", f"after {step.kind}: {text}") for text in _find_other_formats(world)]
    found += [Difference("scope", f"after {step.kind}: {text}") for text in _find_out_of_scope(world)]
    if world.checkpoint and not world.has_on_timeline(world.checkpoint):
        found.append(Difference("checkpoint", f"after {step.kind} no active commit holds {world.checkpoint}"))
        world.checkpoint = ""
    if world.lost_in_other_table:
        lost = world.lost_in_other_table
        found.append(Difference("nested", f"after {step.kind} another table has lost {lost} rows"))
        world.lost_in_other_table = 0
    return found


def judge_integrity(world: RowWorld) -> list[Difference]:
    """Return the false alarms of a check of files and keys, where readers find what was written."""
    return [Difference("integrity", alarm) for alarm in world.check_integrity()]


def _find_other_formats(world: RowWorld) -> list[str]:
    """Return which new base files of a service are not as the owner's writers write them.

    With a bucket index the writers of a merge-on-read table write log files alone, which show no format; with virtual
    keys no file has a bloom filter.
    """
    if world.setup.index != "plain" or world.setup.is_virtual or world.result is None:
        return []
    new = sorted(set(world.list_base_files()) - world.base_files)
    wanted = (world.setup.codec, world.bloom_filter)
    found = {name: read_format(Path(world.path) / name) for name in new}
    return [
        f"{name} has {has}, and the writers' files {wanted}" for name, has in found.items() if has not in (None, wanted)
    ]


def _find_out_of_scope(world: RowWorld) -> list[str]:
    """Return what a clustering wrote into partitions that it was not due for."""
    if not world.partitions_of_plan or world.result is None:
        return []
    new = set(world.list_base_files()) - world.base_files
    return [name for name in sorted(new) if name.split("/")[0] not in world.partitions_of_plan]


def _describe(expected: list[Row], found: list[Row]) -> str:
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    lost = sorted(missing.elements())
    extra = sorted(more.elements())
    return (
        f"{len(found)} rows of {len(expected)}; {len(lost)} not found: {lost[:MOST_NAMED]}; "
        f"{len(extra)} that must not be: {extra[:MOST_NAMED]}"
    )

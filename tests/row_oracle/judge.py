"""Compares the rows that readers find with those that were written, and the owner's writer with one that works."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.oracle.history import Step
from tests.oracle.judge import Difference
from tests.row_oracle.plain_files import read_rows
from tests.row_oracle.world import NESTED, Row, RowWorld

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
    if world.checkpoint and not world.has_on_timeline(world.checkpoint):
        found.append(Difference("checkpoint", f"after {step.kind} no active commit holds {world.checkpoint}"))
        world.checkpoint = ""
    if world.nested_rows and (left := world.count_rows(NESTED)) != world.nested_rows:
        found.append(Difference("nested", f"after {step.kind} another table has {left} of {world.nested_rows} rows"))
        world.nested_rows = 0
    return found


def _describe(expected: list[Row], found: list[Row]) -> str:
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    lost = sorted(missing.elements())
    extra = sorted(more.elements())
    return (
        f"{len(found)} rows of {len(expected)}; {len(lost)} not found: {lost[:MOST_NAMED]}; "
        f"{len(extra)} that must not be: {extra[:MOST_NAMED]}"
    )

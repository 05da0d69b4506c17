"""What a stray file of a write that was rolled back keeps on the active timeline, and how to ask for one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPECIAL = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file below the base path of a write that was rolled back."""

    path: str
    instant: str

    def explain(self) -> str:
        """Return why archiving stops before it, and what to do."""
        return (
            f"{self.path} is left of the write {self.instant}, which was rolled back, and readers without the metadata "
            "table would see its rows once all older writes are archived: delete that file, or let `orphans` find it"
        )


def find_write_before(instant: str, commits: Iterable[str]) -> str:
    """Return the last of the completed writes that is older than an instant; empty when the timeline begins after it.

    As long as it is active, readers know that the instant's write is none.
    """
    return max((commit for commit in commits if commit < instant), default="")


def order_partitions(
    rolled_back: Iterable[tuple[str, Iterable[str]]], all_partitions: Iterable[str]
) -> tuple[str, ...]:
    """Return the partitions to search: those that a rollback names first, of the oldest write first, then the others.

    A rollback names the partitions of the markers that it read. A task of the dead writer may have begun in another
    one since.
    """
    named = [partition for _, partitions in sorted(rolled_back) for partition in partitions]
    return tuple(dict.fromkeys([*named, *all_partitions]))


def pattern_of(base_path: str, partition: str, instants: Iterable[str]) -> str:
    """Return Hadoop's pattern for the files of some writes in a partition, by their names."""
    folder = f"{base_path}/{partition}" if partition else base_path
    return _SPECIAL.sub(r"\\\1", folder) + f"/*{{{','.join(instants)}}}*"

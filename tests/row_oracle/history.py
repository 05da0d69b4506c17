"""Histories of tables as their owners make them: index, keys and codec stand in the writers' settings alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracle.history import History, Setup, Step

LENGTH = 24


@dataclass(frozen=True, slots=True)
class RowSetup(Setup):
    """How the table is made: its index, whether its rows have no key of Hudi's, and the codec of its files."""

    index: str = "plain"
    is_virtual: bool = False
    codec: str = "gzip"

    def __str__(self) -> str:
        mode = "streaming" if self.streaming else "at_commit"
        words = (self.version, self.type, self.metadata, mode, self.index, self.codec)
        return ",".join([*map(str, words), *(["virtual"] if self.is_virtual else [])])

    @classmethod
    def parse(cls, text: str) -> RowSetup:
        version, type, metadata, mode, index, codec, *more = text.split(",")
        return cls(int(version), type, metadata, mode == "streaming", False, index, "virtual" in more, codec)


def parse_history(setup: str, steps: str) -> History:
    """Return the history that a run printed."""
    return History(RowSetup.parse(setup), tuple(map(Step.parse, steps.split())))


PHRASES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (14, ("write",)),
    (5, ("write", "write", "write")),
    (4, ("begin", "finish")),
    (2, ("begin", "begin", "finish", "finish")),
    (3, ("die", "roll_back")),
    (4, ("delete",)),
    (8, ("compact",)),
    (4, ("write", "log_compact")),
    (6, ("cluster", "write")),
    (5, ("clean",)),
    (6, ("archive",)),
    (3, ("write", "write", "archive", "compact")),
    (3, ("overwrite",)),
    (1, ("delete_partition",)),
    (3, ("expire", "write_late")),
    (4, ("index", "write")),
    (2, ("index", "write", "write", "write", "write", "archive", "compact")),
    (2, ("save_point", "write", "restore")),
    (2, ("metadata_compact",)),
    (2, ("switch_metadata", "write")),
    (2, ("checkpoint", "write", "archive")),
    (2, ("resize", "cluster", "write")),
    (2, ("find_orphans",)),
)


def draw_history(seed: int, length: int = LENGTH) -> History:
    """Return the history of a seed."""
    chance = random.Random(seed)
    type = chance.choice(("MOR", "MOR", "COW"))
    index = chance.choice(("plain", "plain", "simple_bucket", "consistent_bucket"))
    setup = RowSetup(
        version=chance.choice((6, 8, 9, 9, 9)),
        type="MOR" if index == "consistent_bucket" else type,
        metadata=chance.choice(("off", "1", "1", "3")),
        streaming=chance.random() < 0.3,
        index=index,
        # Hudi's bucket indexes need its own key column.
        is_virtual=index == "plain" and chance.random() < 0.25,
        codec=chance.choice(("gzip", "zstd", "snappy")),
    )
    possible = [(weight, phrase) for weight, phrase in PHRASES if _is_possible(setup, phrase)]
    weights, phrases = zip(*possible, strict=True)
    steps: list[Step] = []
    while len(steps) < length:
        drawn = chance.choices(phrases, weights)[0]
        steps += [Step(kind, chance.randrange(10_000)) for kind in drawn]
    return History(setup, tuple(steps[:length]))


def _is_possible(setup: RowSetup, phrase: tuple[str, ...]) -> bool:
    rules: tuple[tuple[str, Callable[[RowSetup], bool]], ...] = (
        ("index", lambda setup: setup.metadata != "off" and setup.version >= 8 and not setup.is_virtual),
        ("metadata_compact", lambda setup: setup.metadata != "off"),
        ("compact", lambda setup: setup.type == "MOR"),
        ("log_compact", lambda setup: setup.type == "MOR"),
        ("resize", lambda setup: setup.index == "consistent_bucket"),
        # Hudi writes no insert overwrite into a consistent bucket index's file groups.
        ("overwrite", lambda setup: setup.index != "consistent_bucket"),
        ("delete_partition", lambda setup: setup.index != "consistent_bucket"),
    )
    return all(holds(setup) for kind, holds in rules if kind in phrase)

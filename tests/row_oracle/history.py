"""Histories of tables as their owners make them: index, keys and codec stand in the writers' settings alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracle.history import History, Setup, Step

LENGTH = 24
NAMED = "named"
"""The owner names in `hudi_options` which index and concurrency mode the writers have."""
SIMPLE_BLOOM = "simple_bloom"
"""The writers' bloom filters have another type than Hudi's default."""
MORE_BUCKETS = "more_buckets"
UTC = "utc"
"""The table names instants in UTC, whatever the zone of writers and jobs."""
TOKYO, NEW_YORK = "tokyo", "new_york"
TRAITS = (NAMED, SIMPLE_BLOOM, MORE_BUCKETS, UTC, TOKYO, NEW_YORK)


@dataclass(frozen=True, slots=True)
class RowSetup(Setup):
    """How the table is made: its index, whether its rows have no key of Hudi's, and the codec of its files.

    `traits` are what a printed setup names besides (`TRAITS`).
    """

    index: str = "plain"
    is_virtual: bool = False
    codec: str = "gzip"
    traits: frozenset[str] = frozenset()

    def __str__(self) -> str:
        mode = "streaming" if self.streaming else "at_commit"
        words = (self.version, self.type, self.metadata, mode, self.index, self.codec)
        return ",".join([*map(str, words), *(["virtual"] if self.is_virtual else []), *sorted(self.traits)])

    @classmethod
    def parse(cls, text: str) -> RowSetup:
        version, type, metadata, mode, index, codec, *more = text.split(",")
        traits = frozenset(more) - {"virtual"}
        return cls(int(version), type, metadata, mode == "streaming", False, index, "virtual" in more, codec, traits)


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
    (1, ("delete_metadata", "write")),
    (3, ("cluster_meanwhile", "write")),
    (2, ("compact_meanwhile", "write")),
    (2, ("cluster_spoilt", "write")),
    (2, ("begin", "expire", "finish")),
    (2, ("begin", "roll_back", "finish")),
    (2, ("roll_back_waking",)),
    (2, ("checkpoint", "write", "archive")),
    (2, ("resize", "cluster", "write")),
    (2, ("find_orphans",)),
)
_TRAIT = 0.3

BEHIND_AN_INDEX: tuple[tuple[int, tuple[str, ...]], ...] = (
    (60, ("write", "write", "write", "write", "archive", "compact")),
    (20, ("write", "delete", "write", "write", "archive", "compact")),
)
"""Phrases of a history that begins with an index build, and archives the writes behind it before they are compacted."""

EXPIRING: tuple[tuple[str, ...], ...] = (
    ("expire_rows", "write"),
    ("expire_rows", "write_old", "expire_rows"),
    ("write_old", "expire_rows"),
    ("write", "write_old", "compact", "expire_rows", "write_old"),
    ("begin", "expire_rows", "finish"),
    ("delete", "expire_rows", "write"),
    ("expire_rows", "cluster", "write_old", "clean"),
)
"""What an expiring history has besides: rows that expire by a column, and rows that arrive late."""
_EXPIRING_SEEDS = range(4, 1 << 62, 6)
"""None of them is the seed of a plant: those keep their histories."""
_EXPIRING_PHRASES = 5


def draw_history(seed: int, length: int = LENGTH) -> History:
    """Return the history of a seed."""
    chance = random.Random(seed)
    type = chance.choice(("MOR", "MOR", "COW"))
    index = chance.choice(("plain", "plain", "plain", "simple_bucket", "consistent_bucket", "non_blocking"))
    zone = chance.choice((None, None, None, TOKYO, NEW_YORK))
    drawn_traits = [trait for trait in (NAMED, SIMPLE_BLOOM, MORE_BUCKETS, UTC) if chance.random() < _TRAIT]
    setup = RowSetup(
        version=chance.choice((8, 9, 9) if index == "non_blocking" else (6, 8, 9, 9, 9)),
        type="MOR" if index in {"consistent_bucket", "non_blocking"} else type,
        metadata=chance.choice(("off", "1", "1", "3")),
        streaming=chance.random() < _TRAIT,
        index=index,
        # Hudi's bucket indexes need its own key column.
        is_virtual=index == "plain" and chance.random() < _TRAIT,
        codec=chance.choice(("gzip", "zstd", "snappy")),
        traits=frozenset([*drawn_traits, *([zone] if zone else [])]),
    )
    is_behind = setup.type == "MOR" and _is_possible(setup, ("index",)) and chance.random() < _TRAIT
    possible = [(weight, phrase) for weight, phrase in PHRASES if _is_possible(setup, phrase)]
    possible += BEHIND_AN_INDEX if is_behind else ()
    weights, phrases = zip(*possible, strict=True)
    kinds: list[str] = ["index"] if is_behind else []
    while len(kinds) < length:
        kinds += chance.choices(phrases, weights)[0]
    steps = [Step(kind, chance.randrange(10_000)) for kind in kinds[:length]]
    if seed in _EXPIRING_SEEDS and _is_possible(setup, ("expire_rows",)):
        steps = _with_expiry(chance, setup, steps)
    return History(setup, tuple(steps))


def _with_expiry(chance: random.Random, setup: RowSetup, steps: list[Step]) -> list[Step]:
    possible = [phrase for phrase in EXPIRING if _is_possible(setup, phrase)]
    for _ in range(_EXPIRING_PHRASES):
        at = chance.randrange(2, len(steps))
        phrase = [Step(kind, chance.randrange(10_000)) for kind in chance.choice(possible)]
        steps = [*steps[:at], *phrase, *steps[at:]]
    return steps


def _is_possible(setup: RowSetup, phrase: tuple[str, ...]) -> bool:
    rules: tuple[tuple[str, Callable[[RowSetup], bool]], ...] = (
        ("index", lambda setup: setup.metadata != "off" and setup.version >= 8 and not setup.is_virtual),
        ("metadata_compact", lambda setup: setup.metadata != "off"),
        ("compact", lambda setup: setup.type == "MOR"),
        ("compact_meanwhile", lambda setup: setup.type == "MOR" and setup.index == "plain"),
        # Next to a pending plan of theirs, bucketed rows have no other file group.
        ("cluster_meanwhile", lambda setup: setup.index == "plain"),
        ("cluster_spoilt", lambda setup: setup.index == "plain"),
        ("delete_metadata", lambda setup: setup.metadata != "off"),
        ("log_compact", lambda setup: setup.type == "MOR"),
        ("expire_rows", lambda setup: setup.index in {"plain", "simple_bucket"} and not setup.is_virtual),
        ("resize", lambda setup: setup.index == "consistent_bucket"),
        # Hudi writes into file groups that it has replaced (limitations.md).
        ("overwrite", lambda setup: setup.index not in {"consistent_bucket", "non_blocking"}),
        ("delete_partition", lambda setup: setup.index not in {"consistent_bucket", "non_blocking"}),
    )
    return all(holds(setup) for kind, holds in rules if kind in phrase)

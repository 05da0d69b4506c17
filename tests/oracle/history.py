"""Histories: what happens to one table, as values that are drawn from a seed, printed, replayed and shrunk."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

LENGTH = 26


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens. `draw` decides on the rest, so a step does the same whatever others are left out."""

    kind: str
    draw: int

    def chance(self) -> random.Random:
        return random.Random(self.draw)

    def __str__(self) -> str:
        return f"{self.kind}:{self.draw}"

    @classmethod
    def parse(cls, text: str) -> Step:
        kind, _, draw = text.strip().partition(":")
        return cls(kind, int(draw or 0))


@dataclass(frozen=True, slots=True)
class Setup:
    """How the table is made. `metadata` is `off`, or after how many delta commits the metadata table is compacted.

    `is_announcing`: each commit is announced; otherwise a part of them.
    """

    version: int = 9
    type: str = "MOR"
    metadata: str = "1"
    streaming: bool = False
    is_announcing: bool = False

    def __str__(self) -> str:
        words = [str(self.version), self.type, self.metadata, "streaming" if self.streaming else "at_commit"]
        return ",".join([*words, "announcing"] if self.is_announcing else words)

    @classmethod
    def parse(cls, text: str) -> Setup:
        version, type, metadata, mode, *more = text.split(",")
        return cls(int(version), type, metadata, mode == "streaming", "announcing" in more)


@dataclass(frozen=True, slots=True)
class History:
    setup: Setup
    steps: tuple[Step, ...]

    def command(self) -> str:
        """Return how to run it alone."""
        steps = " ".join(map(str, self.steps))
        return f"python -m tests.oracle --setup {self.setup} --steps '{steps}'"

    @classmethod
    def parse(cls, setup: str, steps: str) -> History:
        return cls(Setup.parse(setup), tuple(map(Step.parse, steps.split())))


# What belongs together is drawn together, with other steps in between: single steps alone would rarely meet.
PHRASES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (14, ("write",)),
    (4, ("write", "write", "write")),
    (5, ("begin", "finish")),
    (2, ("begin", "begin", "finish", "finish")),
    (3, ("die", "roll_back")),
    (2, ("write_alone",)),
    (5, ("schedule_compaction", "execute_compaction")),
    (3, ("delete", "log_compaction")),
    (3, ("schedule_log_compaction", "execute_log_compaction")),
    (3, ("schedule_clustering", "execute_clustering")),
    (4, ("clean",)),
    (7, ("archive",)),
    (2, ("write", "archive", "write", "archive")),
    (2, ("savepoint", "write", "restore")),
    (1, ("savepoint", "write", "delete_savepoint")),
    (1, ("roll_back_last",)),
    (3, ("overwrite",)),
    (1, ("delete_partition",)),
    (1, ("merge_into",)),
    (2, ("evolve",)),
    (4, ("index", "write")),
    (5, ("index", "delete", "log_compaction")),
    (2, ("index", "schedule_clustering", "execute_clustering")),
    (5, ("plan_indexes", "build_indexes")),
    (2, ("plan_indexes", "build_indexes_by_hudi")),
    (2, ("drop_index",)),
    (1, ("write_dropping",)),
    (2, ("upgrade",)),
    (1, ("downgrade",)),
)


@dataclass(frozen=True, slots=True)
class Theme:
    """How a history begins, and phrases that it draws more often; other steps do not separate their words."""

    opening: tuple[str, ...] = ()
    phrases: tuple[tuple[int, tuple[str, ...]], ...] = ()


THEMES = (
    Theme(),
    Theme(),
    # Indexes, planned by others and built, of a table whose writers go on.
    Theme(
        phrases=(
            (30, ("plan_indexes", "write", "build_indexes")),
            (15, ("plan_indexes", "write", "write")),
            (20, ("index", "write")),
        )
    ),
    # Archiving behind an instant that stays: what a cursor has not seen leaves the active timeline.
    Theme(
        opening=("write", "index"),
        phrases=((40, ("write", "write", "archive")), (40, ("write", "write", "write", "archive", "archive"))),
    ),
)
_ANNOUNCING = 0.5


def draw_history(seed: int, length: int = LENGTH) -> History:
    """Return the history of a seed."""
    chance = random.Random(seed)
    setup = Setup(
        version=chance.choice((6, 8, 9, 9, 9)),
        type=chance.choice(("MOR", "MOR", "MOR", "COW")),
        metadata=chance.choice(("off", "1", "1", "1", "1", "3")),
        streaming=chance.random() < 0.3,
        is_announcing=chance.random() < _ANNOUNCING,
    )
    theme = chance.choice(THEMES)
    possible = [(weight, phrase) for weight, phrase in (*PHRASES, *theme.phrases) if _is_possible(setup, phrase)]
    weights, phrases = zip(*possible, strict=True)
    whole = {phrase for _, phrase in theme.phrases}
    opening = theme.opening if _is_possible(setup, theme.opening) else ()
    steps = [Step(kind, chance.randrange(10_000)) for kind in opening]
    waiting: list[list[str]] = []
    while len(steps) < length:
        if len(waiting) < 3:
            drawn = chance.choices(phrases, weights)[0]
            if drawn in whole:
                steps += [Step(kind, chance.randrange(10_000)) for kind in drawn]
                continue
            waiting.append(list(drawn))
        phrase = chance.choice(waiting)
        steps.append(Step(phrase.pop(0), chance.randrange(10_000)))
        if not phrase:
            waiting.remove(phrase)
    return History(setup, tuple(steps[:length]))


def _is_possible(setup: Setup, phrase: tuple[str, ...]) -> bool:
    has_indexes = any("index" in kind for kind in phrase)
    has_log_files = any("compaction" in kind for kind in phrase)
    return not (has_indexes and setup.metadata == "off") and not (has_log_files and setup.type == "COW")


def shrink(history: History, fails: Callable[[History], bool], is_over: Callable[[], bool]) -> History:
    """Leave out steps as long as it still fails (delta debugging); return the shortest history found in time."""
    steps, pieces = history.steps, 2
    while len(steps) > 1 and not is_over():
        size = max(1, len(steps) // pieces)
        for begin in range(0, len(steps), size):
            rest = steps[:begin] + steps[begin + size :]
            if is_over():
                break
            if rest and fails(replace(history, steps=rest)):
                steps, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(len(steps), pieces * 2)
    return replace(history, steps=tuple(steps))


def chosen(history: History, numbers: Sequence[int]) -> History:
    """Return the history with only these of its steps, counted from 0."""
    return replace(history, steps=tuple(history.steps[number] for number in numbers))

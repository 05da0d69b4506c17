"""The options of an entry that are the run's and not its sink's: how changes are read, and what of them leaves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.sink_options.where import EXAMPLE, ColumnComparison, WhereError, parse_where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.sink_options.options import TakenOptions


READER = "reader"
"""How changes are read."""
MAX_TRANSACTION_ROWS = "max_transaction_rows"
"""A commit of more changes is several transactions."""
BUCKETS = "buckets"
"""In how many buckets of keys, at least, Spark's executors send a large commit."""
BUCKETS_FROM_ROWS = "buckets_from_rows"
"""The changes of a commit from which on it is large enough for that."""
SNAPSHOT_SAVEPOINT = "snapshot_savepoint"
"""Whether a snapshot of a table that is cleaned makes a savepoint while it lasts."""
START = "start"
"""Whether a sink that has nothing begins with a snapshot, or with the changes from now on."""
HEARTBEAT_S = "heartbeat_s"
"""Seconds after which a sink of a quiet table gets its position once more, with the time."""
WHERE = "where"
"""Which rows of the table reach the sink."""
SOURCE_OPTIONS = "source.hoodie."
"""What the options begin with that are Hudi's for the table itself: the manager adds the table's `hudi_options`."""
COLUMN_OPTIONS = "column."
"""What the options begin with that say which columns of a row leave the table."""
INCLUDE = "column.include.list"
EXCLUDE = "column.exclude.list"
HASH = "column.mask.hash.SHA-256"
SALT = "column.mask.hash.salt"
"""No part of what a stream means: its position is not kept secret."""
MASK = "column.mask.with.<n>.chars"
_CHARS = re.compile(r"mask\.with\.(\d{1,4})\.chars")
NAMED_OPTIONS = frozenset({"topic", "checkpoint_topic", "dead_letter_topic", "topic.transaction", "path", "table"})
"""The options in which `{database}` and `{table}` stand for the table's own names, so that one entry is for many."""
NAMES = ("database", "table")
PLACE = re.compile(r"\{([^{}]*)\}")
"""Where such a name stands."""


class Reader(StrEnum):
    """How the changes of a commit are read from the table."""

    AUTO = "auto"
    """Whichever is right for the commit, and faster."""
    CDC = "cdc"
    """From Hudi's change data; refused where Hudi 1.2 garbles or lacks it."""
    SLICES = "slices"
    """By comparing the file groups that the commit touched before and after it: any table, whatever it records."""


@dataclass(frozen=True, slots=True)
class ColumnLists:
    """Which columns leave the table, and which of them as a mask."""

    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    salt: str = ""
    masked: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many asterisks stand for a value."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    reader: Reader = Reader.AUTO
    max_transaction_rows: int = 0
    """0: the sink's own bound."""
    buckets: int = 1
    buckets_from_rows: int = 0
    """0: the run's own number."""
    makes_savepoints: bool = True
    starts_now: bool = False
    """A sink that has nothing gets the commits that complete from now on, and no rows of before."""
    heartbeat_s: float = 0.0
    """0: a quiet table's sink gets nothing."""
    where: tuple[ColumnComparison, ...] = ()
    """All of which a row must fit to reach the sink."""
    columns: ColumnLists = field(default_factory=ColumnLists)
    hudi: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Hudi's options for the table, among them its lock provider."""


def take_run(options: TakenOptions) -> RunOptions:
    """Take the options. Raises OptionError."""
    return RunOptions(
        Reader(options.choice(READER, Reader.AUTO, Reader)),
        options.count(MAX_TRANSACTION_ROWS, 0, "rows"),
        options.count(BUCKETS, 1, "buckets"),
        options.count(BUCKETS_FROM_ROWS, 0, "rows"),
        options.choice(SNAPSHOT_SAVEPOINT, "auto", ("auto", "never")) == "auto",
        options.choice(START, "snapshot", ("snapshot", "now")) == "now",
        take_heartbeat(options),
        _take_where(options),
        take_columns(options),
        {f"hoodie.{name}": text for name, text in options.below(SOURCE_OPTIONS).items()},
    )


def find_misfit(sink: str, run: RunOptions) -> tuple[str, str]:
    """Return the option with which a sink cannot run, and why in one sentence; both are empty when it can."""
    if sink == "hudi" and run.starts_now:
        return START, "start is 'now', and the hudi sink makes its table of a snapshot: leave start out"
    if run.where and run.buckets > 1:
        return WHERE, f"where chooses rows in the driver, and buckets is {run.buckets}: leave buckets out"
    if sink in _WITHOUT_HEARTBEAT and run.heartbeat_s:
        why = _WITHOUT_HEARTBEAT[sink]
        return HEARTBEAT_S, f"heartbeat_s is {run.heartbeat_s:g}, and {why}: leave heartbeat_s out"
    return "", ""


_WITHOUT_HEARTBEAT: Mapping[str, str] = MappingProxyType(
    {
        "hudi": "the hudi sink would make a commit of its table each time",
        "noop": "the noop sink keeps no position",
    }
)


def heartbeat_of(options: Mapping[str, str]) -> float:
    """Return `heartbeat_s` of an entry that was checked; 0 without one."""
    return float(options.get(HEARTBEAT_S, 0.0))


def _take_where(options: TakenOptions) -> tuple[ColumnComparison, ...]:
    text = options.text(WHERE)
    if not options.knows(WHERE):
        return ()
    try:
        return parse_where(text)
    except WhereError as error:
        options.refuse(f"has where: {text!r}, in which {error}; write comparisons such as {EXAMPLE}", WHERE)


def take_heartbeat(options: TakenOptions) -> float:
    """Take `heartbeat_s`, which the manager reads as well, so it is no secret. Raises OptionError."""
    if not options.knows(HEARTBEAT_S):
        options.refuse(f"has a reference to a secret as {HEARTBEAT_S}: write the seconds", HEARTBEAT_S)
    return options.seconds(HEARTBEAT_S, 0.0)


def take_columns(options: TakenOptions) -> ColumnLists:
    """Take the rules for columns. Raises OptionError."""
    include, exclude, hashed = (frozenset(options.names(name) or ()) for name in (INCLUDE, EXCLUDE, HASH))
    salt = options.text(SALT)
    masked = dict[str, int]()
    for name, text in options.below(COLUMN_OPTIONS).items():
        if (found := _CHARS.fullmatch(name)) is not None:
            masked |= dict.fromkeys((part.strip() for part in text.split(",") if part.strip()), int(found[1]))
        else:
            known = f"{INCLUDE}, {EXCLUDE}, {HASH} with {SALT}, and {MASK}"
            options.refuse(f"knows no setting {COLUMN_OPTIONS}{name}, allowed: {known}", f"{COLUMN_OPTIONS}{name}")
    if include and exclude:
        options.refuse(f"has both {INCLUDE} and {EXCLUDE}: set one of them", EXCLUDE)
    if hashed and not salt:
        options.refuse(
            f"has {HASH} without {SALT}: a guessed value would be known by its hash; set a salt, for example a "
            "reference to a Variable",
            HASH,
        )
    twice = hashed & masked.keys()
    if twice:
        options.refuse(f"has two masks of column {min(twice)!r}: set one of them", HASH)
    return ColumnLists(include, exclude, hashed, salt, MappingProxyType(masked))


def find_wrong_place(option: str, text: str) -> str:
    """Return in one sentence which `{name}` of an option is no name of a table; empty when none is."""
    wrong = next((name for name in PLACE.findall(text) if name not in NAMES), None)
    if option not in NAMED_OPTIONS or wrong is None:
        return ""
    return f"{option} is {text!r}, and {{{wrong}}} is no name: allowed are {{database}} and {{table}}"

"""The plug points: where changes come from, and where they go.

A sink makes a commit's changes and the checkpoint durable together.

docs/examples/folder_sink.py is a complete custom sink; `sink_contract.py` has the tests that it must pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import ChangeMode, load_json, print_json
from airflow_lake_provider.replication.checkpoint import to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from airflow_lake_provider.replication.change import Batch, Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
    from airflow_lake_provider.replication.feed import SourceTimeline


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings from which a sink is built. `options` are the sink's own settings in the `replication` entry."""

    stream: str
    """`<table id>.<sink>`: names the checkpoint, and the writer, of which only one may exist."""
    table_name: str
    mode: ChangeMode = ChangeMode.CHANGES
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    database: str = ""
    """The table's database, by its own properties; empty where they name none."""


TIMELINE, READ, WRITE, COMMIT = PHASES = ("timeline", "read", "write", "commit")
"""What a run spends its time on: reading the timeline, waiting for rows, handing them to the sink, its commits."""


class ChangeSource(Protocol):
    """A table as the pump reads it."""

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the timeline again. What `known` has need not be distinguished from compactions and the like."""

    def expect(self, commits: Sequence[CommitRef]) -> None:
        """Take a hint: these will be read next, in this order, so some may be read ahead."""

    def read_blocks(self, commit: CommitRef, after: str = "") -> Iterator[Sequence[Change]]:
        """Return the changes of one completed commit alone, in order per key, in blocks of any length.

        With `after` those of keys behind this one, in the order in which `is_by_key` returns them.
        """

    def is_by_key(self, commit: CommitRef) -> bool:
        """Whether a commit's blocks, of which one was read, are in an order of their keys that is always the same.

        Its transaction may then end between any two keys.
        """

    def read_end_s(self, commit: CommitRef) -> float:
        """Return when all of a commit had been read, which may be long before its last block was asked for.

        In seconds of `time.monotonic`.
        """

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        """Return the rows of a snapshot behind `progress.after`, in the order of their keys' texts."""

    def schema_of(self, commit: CommitRef) -> str:
        """Return the table's Avro schema as this commit wrote it."""


@runtime_checkable
class CountedSource(Protocol):
    """A table that says how many rows a snapshot of it has."""

    def count_snapshot(self, progress: SnapshotProgress) -> int | None:
        """Return how many rows the whole snapshot has; None where that is not to be had."""


class Keeper(Protocol):
    """Keeps the files of one stream's snapshots from cleans."""

    def open(self) -> AbstractContextManager[Callable[[str], bool]]:
        """Return what keeps those of an instant, and says whether it does so from now on.

        It does not where the table is not cleaned, or nothing can be kept.
        """

    def let_go(self, instant: str) -> None:
        """Let cleans take what was kept for snapshots of this stream, except for the one at this instant."""


class NoKeeper:
    """Keeps nothing: a clean that takes files of a snapshot makes it begin again."""

    def open(self) -> AbstractContextManager[Callable[[str], bool]]:
        """Return what keeps no instant."""
        return nullcontext(lambda instant: False)

    def let_go(self, instant: str) -> None:
        """Do nothing."""


class Sink(Protocol):
    """One sink of one table. Calls come as: open, then (write*, commit)*, then close."""

    def open(self) -> str | None:
        """Return the text of the durable checkpoint, if any; from now on another process of the stream is a rival.

        Of the rivals that hold the same checkpoint at most one may commit next; the others' `commit` must fail.
        """

    def write(self, batch: Batch) -> None:
        """Accept changes of one commit. Readers must not see them before `commit`."""

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make the writes since the last commit visible and durable, with the checkpoint, or raise and do nothing.

        Raises SinkFencedError when a rival was faster.
        """

    def close(self) -> None:
        """Drop what was not committed, and release resources. Never raises; may be called twice."""


Row: TypeAlias = tuple[str, "Mapping[str, Any] | None"]
"""The canonical text of a row's key, and its values; None for a row that was deleted."""


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose rows can be compared with the table's. It need not be open, and nothing writes to it meanwhile."""

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return what a reader has up to a checkpoint; of a key's entries the last one counts. `key` names its fields.

        Raises SinkUnavailableError, or ConfigError for settings with which rows cannot be read back.
        """

    def as_read(self, change: Change) -> Row:
        """Return how a row of the table is read back once it is in the sink."""


@runtime_checkable
class CountedSink(Protocol):
    """A sink that has each row once, and no earlier versions of it."""

    def count_rows(self) -> int:
        """Return how many rows it has, those of one key counted each."""


@runtime_checkable
class RepairableSink(CountedSink, Protocol):
    """A sink that takes the newest version of a row without the one before."""

    takes_single_rows: bool


def json_row(change: Change) -> Row:
    """Return a row of a sink that stores it as JSON. Its key is compared as it is: a text is no number there."""
    return print_json(load_json(change.key)), load_json(change.after) if change.after is not None else None


def row_of_message(message: Mapping[str, Any], key: Sequence[str], mode: ChangeMode) -> Row:
    """Return the row that a message in JSON leaves, in a sink that has no other place for its key."""
    if mode is ChangeMode.CHANGES:
        return print_json(message["key"]), message["after"]
    if message.get("deleted") is True and message.keys() == {"key", "deleted"}:
        return print_json(message["key"]), None
    return print_json({name: message.get(name) for name in key}), message


SinkFactory: TypeAlias = Callable[[SinkSettings], Sink]


class NoopSink:
    """Only counts, and stores nothing, so each run begins with a snapshot.

    For trying a table's replication, and for measuring the reader alone.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self.stream = settings.stream
        self.rows = 0
        self.checkpoint = ""

    def open(self) -> str | None:
        """Return None: there is never a checkpoint."""
        return None

    def write(self, batch: Batch) -> None:
        """Count."""
        self.rows += len(batch.changes)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Store the last checkpoint for readers of this object."""
        self.checkpoint = to_text(checkpoint)

    def close(self) -> None:
        """Do nothing."""


# --- Sinks by name: the package's own, and those that other packages name in the entry points `lake.sinks`
#
# The package's own are listed here and not as entry points: this folder travels to Spark without package metadata.

GROUP = "lake.sinks"
_OURS = "airflow_lake_provider.replication.sinks"
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "kafka": f"{_OURS}.kafka:KafkaSink",
        "file": f"{_OURS}.file:FileSink",
        "database": f"{_OURS}.database:DatabaseSink",
        # Of the Spark jobs: it writes through the run's own Spark session.
        "hudi": "lake_jobs.replication.hudi_sink:HudiSink",
        "noop": f"{__name__}:NoopSink",
    }
)


def sink_names() -> Mapping[str, str]:
    """Return each known sink's name and where it is. Raises ConfigError when two different sinks claim one name."""
    names = dict(BUILT_IN)
    for entry in _registered(tuple(sys.path)):
        if names.get(entry.name, entry.value) != entry.value:
            raise ConfigError(f"two sinks are named {entry.name!r}: {names[entry.name]} and {entry.value}")
        names[entry.name] = entry.value
    return names


@cache
def _registered(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return what the packages on this path register. All of their metadata are read, and a small commit costs less."""
    del path
    return tuple(entry_points(group=GROUP))


def create_sink(kind: str, settings: SinkSettings) -> Sink:
    """Build a sink; nothing is opened yet. Raises ConfigError for an unknown name or refused settings."""
    names = sink_names()
    if kind not in names:
        raise ConfigError(f"there is no sink {kind!r}; known: {', '.join(sorted(names))} (entry points {GROUP!r})")
    module, _, name = names[kind].partition(":")
    factory = cast("SinkFactory", getattr(import_module(module), name))
    return factory(settings)

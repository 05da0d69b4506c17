"""The request and the result of the replication job, in the form of `job_contract`: files, or a task's answers.

A driver of many streams gets its requests from the task that began it, through a socket that lies in a folder which
only the task's user can enter: requests hold secrets.
"""

import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import FailureKind, Submitter
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.place import put_name
from airflow_lake_provider.replication.sink import SinkSettings
from airflow_lake_provider.replication.transactions import UNBOUNDED, Order
from airflow_lake_provider.sink_options.options import TakenOptions
from airflow_lake_provider.sink_options.run import (
    BUCKETS,
    BUCKETS_FROM_ROWS,
    COLUMN_OPTIONS,
    HEARTBEAT_S,
    MAX_TRANSACTION_ROWS,
    NAMED_OPTIONS,
    PLACE,
    READER,
    SALT,
    SNAPSHOT_SAVEPOINT,
    SOURCE_OPTIONS,
    START,
    WHERE,
    RunOptions,
    find_wrong_place,
    take_run,
)

CHANNEL = "lake.work.channel"
"""The option of a driver that serves many streams: the socket of the task that hands them out."""
_MAX_ROWS: Mapping[str, int] = MappingProxyType({"kafka": 1_000_000})
"""Unless the entry says otherwise: a broker ends a transaction after some minutes. Other sinks take a commit whole."""
_MIN_SPREAD_ROWS = 500_000
"""Unless the entry says otherwise. One process sends as many in the time that it takes to begin and end the buckets."""
_RUNS = frozenset(
    {READER, MAX_TRANSACTION_ROWS, BUCKETS, BUCKETS_FROM_ROWS, SNAPSHOT_SAVEPOINT, START, HEARTBEAT_S, WHERE}
)


def as_source_options(hudi_options: Mapping[str, str]) -> dict[str, str]:
    """Return a table's `hudi_options` as options of its sinks; `RunOptions.hudi` is the inverse."""
    return {f"source.{key}": text for key, text in hudi_options.items() if f"source.{key}".startswith(SOURCE_OPTIONS)}


@dataclass(frozen=True, slots=True)
class ReplicationRequest:
    """One run: which table, which sink, and what to do. `options` may hold secrets: the file is removed afterwards."""

    base_path: str
    table_name: str
    kind: str
    """The sink's name in the registry, for example `kafka`."""
    order: Order
    result_path: str
    mode: ChangeMode = ChangeMode.CHANGES
    key: tuple[str, ...] = ()
    """Fields of the record key; empty takes the table's own."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    submitter: Submitter | None = None
    """The driver ends itself when this process has ended."""
    is_verification: bool = False
    """Bring the sink up to date, and compare its rows with the table's."""
    is_repair: bool = False
    """A verification that sends the rows that differ again, and compares once more."""
    rows: str = ""
    """Comparisons, as in `where`: bring the sink up to date, and send it the rows that fit once more."""
    database: str = ""
    """The table's database, by its own properties; empty where they name none."""

    @property
    def sink_settings(self) -> SinkSettings:
        """The settings from which the sink is built, the table's names in their place. Raises ConfigError."""
        begins = (COLUMN_OPTIONS, SOURCE_OPTIONS)
        own = {key: text for key, text in self.options.items() if not (key in _RUNS or key.startswith(begins))}
        named = {key: self._named(key, text) if key in NAMED_OPTIONS else text for key, text in own.items()}
        return SinkSettings(self.order.stream, self.table_name, self.mode, named, self.database)

    def meaning(self, key: Sequence[str]) -> Mapping[str, str]:
        """Return what the stream writes of rows with this key; where that changes, it begins with a snapshot."""
        rules = [
            f"{name}={text}"
            for name, text in sorted(self.options.items())
            if name in {"columns", WHERE} or (name.startswith(COLUMN_OPTIONS) and name != SALT)
        ]
        return {
            "key": ", ".join(key),
            "mode": self.mode.value,
            "format": self.options.get("format", "json"),
            "columns": "; ".join(rules) or "all",
        }

    def _named(self, option: str, text: str) -> str:
        """Return an option's text with the names of the table in the place of `{table}` and `{database}`.

        Raises ConfigError for an unknown name, one that the table does not have, and one that would leave its place.
        """
        names = {"table": self.table_name, "database": self.database}
        if wrong := find_wrong_place(option, text):
            raise ConfigError(wrong)
        for name in PLACE.findall(text):
            if not names[name]:
                raise ConfigError(
                    f"{option} is {text!r}, and table {self.base_path} has no {name} (hoodie.{name}.name): write the "
                    "name instead, in an entry of its own"
                )
        return PLACE.sub(lambda found: put_name(option, found[1], names[found[1]], self.base_path), text)

    @property
    def run_options(self) -> RunOptions:
        """The options that are the run's own. Raises ConfigError."""
        return take_run(TakenOptions(self.options, f"the {self.kind} sink of {self.table_name}"))

    @property
    def max_transaction_rows(self) -> int:
        """The changes of a commit from which on it is more than one transaction."""
        return self.run_options.max_transaction_rows or _MAX_ROWS.get(self.kind, UNBOUNDED)

    @property
    def buckets_from_rows(self) -> int:
        """The changes of a commit from which on it is sent in buckets."""
        options = self.run_options
        return (options.buckets_from_rows or _MIN_SPREAD_ROWS) if options.buckets > 1 else UNBOUNDED


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """The result of a run; while it lasts the same file shows its progress (`ended` is false then)."""

    stream: str
    ended: bool
    checkpoint: str = ""
    """The durable checkpoint's text; empty when there is none."""
    commits: int = 0
    rows: int = 0
    snapshot_reason: str = ""
    failure_kind: FailureKind | None = None
    """What a failed run needs; None when it did not fail."""
    message: str = ""
    """Why it failed; empty when it did not."""
    bytes: int = 0
    """Of the changes as JSON."""
    seconds: float = 0.0
    """Spent reading and writing, without the driver's start."""
    readers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many commits were read in which way: the reader and the reason, in words."""
    waits_for: str = ""
    """Why a due snapshot could not begin yet; the run has not failed then, and the sink does not have all."""
    verified: str = ""
    """What a comparison found that both have alike; differences are the `message` of a failure."""
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds by phase: `timeline`, `read` (waiting for rows), `write` (handing them over), `commit`."""
    memory: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of one that has not succeeded: Spark's settings of memory that were in force; those not made are missing."""

    @property
    def has_failed(self) -> bool:
        """Whether the run ended with an error."""
        return self.failure_kind is not None


class Channel:
    """The task's end of the socket: answers the questions of one driver, in a thread of its own, until it has ended.

    `answer` takes and returns JSON's values; what it raises ends the conversation, and with it the driver.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._answer = answer
        # Made with mode 0700. Not below the work folder: the name of a socket may have some hundred characters only.
        self._folder = Path(tempfile.mkdtemp(prefix="lake-streams-"))
        self.path = str(self._folder / "task")
        """The name of the socket."""
        self._listener = Listener(self.path, family="AF_UNIX")
        self._connection: Connection | None = None
        self._guard = threading.Lock()
        self._is_closed = False
        self.error: Exception | None = None
        """What `answer` raised."""
        self._thread = threading.Thread(target=self._serve, name="lake-streams-channel", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End the conversation: the driver ends itself when it asks the next time."""
        with self._guard:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
            else:
                # Closing does not wake the thread that waits for a driver.
                with contextlib.suppress(OSError):
                    Client(self.path, family="AF_UNIX").close()
        self._listener.close()

    def _serve(self) -> None:
        try:
            accepted = self._listener.accept()
        except OSError:
            return  # closed before a driver came
        with self._guard:
            self._connection = accepted
            if self._is_closed:
                accepted.close()
                return
        try:
            while True:
                question = dict(json.loads(accepted.recv_bytes()))
                accepted.send_bytes(json.dumps(self._answer(question)).encode())
        except (EOFError, OSError):
            return  # the driver has ended
        except Exception as error:  # noqa: BLE001 - the task raises it
            self.error = error
            self.close()

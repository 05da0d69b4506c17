"""How rows come from Spark to this process, and how they come before they are asked for.

A commit of few rows is collected by one job; that of many arrives partition by partition, so that memory holds no more
than one of them, whatever the commit's size.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

FEW_ROWS = 100_000
_READ_AHEAD_BATCHES = 8
_BATCH_ROWS = 5_000
_PATIENCE_S, _STOP_S = 0.2, 10.0

_T = TypeVar("_T")


def transfer(rows: DataFrame, expected: int) -> Iterator[tuple[Any, ...]]:
    """Return rows in the order of their partitions; `expected` is about how many there are.

    Few are collected as Arrow's batches where its package is there: unpickling a row takes as long as all else here.
    """
    if expected <= FEW_ROWS and _has_arrow():
        return _collected(rows)
    return iter(rows.toLocalIterator(prefetchPartitions=True))


def _has_arrow() -> bool:
    try:
        import pyarrow  # noqa: F401 - the driver may lack it
    except ModuleNotFoundError:
        return False
    return True


def _collected(rows: DataFrame) -> Iterator[tuple[Any, ...]]:
    collect: Any = rows._collect_as_arrow
    for batch in collect():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _Ordered(Protocol):
    """What is asked for by its requested time."""

    @property
    def requested_time(self) -> str:
        """The instant time."""


_Commit = TypeVar("_Commit", bound=_Ordered)


class ReadAhead(Generic[_Commit, _T]):
    """Reads the next commits in a thread while earlier ones are written; a bounded number of rows at a time.

    `read` runs in that thread. An error of it is raised where its commit is asked for.
    """

    def __init__(self, read: Callable[[_Commit], Iterator[_T]]) -> None:
        self._read = read
        self._run: _Run[_Commit, _T] | None = None

    def expect(self, commits: Sequence[_Commit]) -> None:
        """Begin to read these, unless a thread does already; nothing more is read without any."""
        expected = [commit.requested_time for commit in commits]
        waiting = self._run.waiting if self._run is not None else []
        if expected and waiting and expected[: len(waiting)] == waiting:
            return
        self.stop()
        if len(expected) > 1:
            self._run = _Run(self._read, list(commits))

    def read(self, commit: _Commit) -> Iterator[_T]:
        """Return the rows of a commit: those that were read ahead, or read now."""
        if self._run is None or self._run.waiting[:1] != [commit.requested_time]:
            self.stop()
            return self._read(commit)
        return self._run.take()

    def stop(self) -> None:
        """End the thread, and drop what it has read."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()


class _Run(Generic[_Commit, _T]):
    """One thread that reads some commits in their order."""

    def __init__(self, read: Callable[[_Commit], Iterator[_T]], commits: list[_Commit]) -> None:
        self._read, self._commits = read, commits
        self.waiting = [commit.requested_time for commit in commits]
        """Requested times of the commits that were not taken yet."""
        self._batches: queue.Queue[list[_T] | BaseException | None] = queue.Queue(_READ_AHEAD_BATCHES)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lake-read-ahead", daemon=True)
        self._thread.start()

    def take(self) -> Iterator[_T]:
        """Return the rows of the first commit that was not taken; they must be read to the end."""
        self.waiting.pop(0)
        while (found := self._batches.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield from found

    def stop(self) -> None:
        """End the thread, whatever it waits for."""
        self._is_over.set()
        # It may be in the middle of a long job, whose rows nothing takes any more.
        self._thread.join(_STOP_S)

    def _loop(self) -> None:
        for commit in self._commits:
            try:
                batch: list[_T] = []
                for row in self._read(commit):
                    batch.append(row)
                    if len(batch) >= _BATCH_ROWS:
                        self._put(batch)
                        batch = []
                        if self._is_over.is_set():
                            return
                self._put(batch)
                self._put(None)
            except BaseException as error:  # noqa: BLE001 - raised where the rows are taken
                self._put(error)
                return
            if self._is_over.is_set():
                return

    def _put(self, item: list[_T] | BaseException | None) -> None:
        while not self._is_over.is_set():
            try:
                self._batches.put(item, timeout=_PATIENCE_S)
            except queue.Full:
                continue
            else:
                return

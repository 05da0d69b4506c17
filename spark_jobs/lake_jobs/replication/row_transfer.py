"""How rows come from Spark to this process, and how they come before they are asked for.

A commit of few rows is collected by one job; that of many arrives partition by partition, so that memory holds no more
than one of them, whatever the commit's size.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

BLOCK_ROWS = 5_000
BLOCK_BYTES = 16 * 2**20
READ_AHEAD_BYTES = 64 * 2**20
READ_AHEAD_ITEMS = 64
_STOP_S = 10.0
_TURN_S = 0.0005
"""How long one thread computes while another waits to. With Python's own 5 ms a thread that calls Java waits as long
after each answer, while the other one hands rows to the sink: most of a commit's time."""

_T = TypeVar("_T")


def collect_batches(rows: DataFrame) -> list[Any] | None:
    """Return few rows as Arrow's record batches, by one job; None where Arrow's package is not there.

    Unpickling a row takes as long as all else that is done with it.
    """
    try:
        import pyarrow  # noqa: F401 - the driver may lack it
    except ModuleNotFoundError:
        return None
    collect: Any = rows._collect_as_arrow
    found: list[Any] = collect()
    return found


def cut_batches(batches: Sequence[Any]) -> Iterator[Any]:
    """Return the rows of Arrow's record batches in blocks of some thousand rows, or of fewer where they are large."""
    import pyarrow as pa

    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    table = pa.Table.from_batches(filled)
    rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * table.num_rows // max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield from table.slice(start, rows).combine_chunks().to_batches()


def iterate_blocks(rows: DataFrame) -> Iterator[list[Any]]:
    """Return many rows in the order of their partitions, some thousand at a time."""
    found = iter(rows.toLocalIterator(prefetchPartitions=True))
    while block := list(islice(found, BLOCK_ROWS)):
        yield block


class _Ordered(Protocol):
    """What is asked for by its requested time."""

    @property
    def requested_time(self) -> str:
        """The instant time."""


_Commit = TypeVar("_Commit", bound=_Ordered)


class ReadAhead(Generic[_Commit, _T]):
    """Reads the next commits in a thread while earlier ones are written; a bounded number of bytes at a time.

    `read` runs in that thread and returns the blocks of each commit in turn, `weigh` says how many bytes one has. An
    error of `read` is raised where its commit is asked for.
    """

    def __init__(self, read: Callable[[Sequence[_Commit]], Iterator[Iterator[_T]]], weigh: Callable[[_T], int]) -> None:
        self._read = read
        self._weigh = weigh
        self._run: _Run[_Commit, _T] | None = None

    def expect(self, commits: Sequence[_Commit]) -> None:
        """Begin to read these, unless a thread does already; nothing more is read without any."""
        expected = [commit.requested_time for commit in commits]
        waiting = self._run.waiting if self._run is not None else []
        if expected and waiting and expected[: len(waiting)] == waiting:
            return
        self.stop()
        if len(expected) > 1:
            sys.setswitchinterval(min(_TURN_S, sys.getswitchinterval()))
            self._run = _Run(self._read, self._weigh, list(commits))

    def read(self, commit: _Commit) -> Iterator[_T]:
        """Return the blocks of a commit: those that were read ahead, or read now."""
        if self._run is None or self._run.waiting[:1] != [commit.requested_time]:
            self.stop()
            return next(self._read([commit]))
        return self._run.take()

    def stop(self) -> None:
        """End the thread, and drop what it has read."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()


class _Run(Generic[_Commit, _T]):
    """One thread that reads some commits in their order."""

    def __init__(
        self,
        read: Callable[[Sequence[_Commit]], Iterator[Iterator[_T]]],
        weigh: Callable[[_T], int],
        commits: Sequence[_Commit],
    ) -> None:
        self._read = read
        self._weigh = weigh
        self._commits = commits
        self.waiting = [commit.requested_time for commit in commits]
        """Requested times of the commits that were not taken yet."""
        self._buffer = _Buffer[tuple[_T | None, BaseException | None]](READ_AHEAD_BYTES, READ_AHEAD_ITEMS)
        self._thread = threading.Thread(target=self._loop, name="lake-read-ahead", daemon=True)
        self._thread.start()

    def take(self) -> Iterator[_T]:
        """Return the blocks of the first commit that was not taken; they must be read to the end."""
        self.waiting.pop(0)
        while True:
            block, error = self._buffer.take()
            if error is not None:
                raise error
            if block is None:
                return
            yield block

    def stop(self) -> None:
        """End the thread, whatever it waits for."""
        self._buffer.close()
        # It may be in the middle of a long job, whose rows nothing takes any more.
        self._thread.join(_STOP_S)

    def _loop(self) -> None:
        try:
            for blocks in self._read(self._commits):
                for block in blocks:
                    if not self._buffer.put((block, None), self._weigh(block)):
                        return
                if not self._buffer.put((None, None), 0):
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the blocks are taken
            self._buffer.put((None, error), 0)


class _Buffer(Generic[_T]):
    """A queue with limits of bytes and items; one item has room however large it is."""

    def __init__(self, most_bytes: int, most_items: int) -> None:
        self._most_bytes = most_bytes
        self._most_items = most_items
        self._items: deque[tuple[_T, int]] = deque()
        self._bytes = 0
        self._is_open = True
        self._changed = threading.Condition()

    def put(self, item: _T, size_bytes: int) -> bool:
        """Wait for room, and append; return False when the buffer was closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or self._has_room(size_bytes))
            if self._is_open:
                self._items.append((item, size_bytes))
                self._bytes += size_bytes
                self._changed.notify_all()
            return self._is_open

    def take(self) -> _T:
        """Wait for the first item, and remove it."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            item, size_bytes = self._items.popleft()
            self._bytes -= size_bytes
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """End all waits, and drop what is held."""
        with self._changed:
            self._is_open = False
            self._items.clear()
            self._changed.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        fits = self._bytes + size_bytes <= self._most_bytes and len(self._items) < self._most_items
        return fits or not self._items

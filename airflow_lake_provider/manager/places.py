"""Places of requests that read a table's store, which may hang: a few at the same time, and fewer of one caller."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import PagesBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Places:
    """The places of one kind of requests. Safe to call from many threads; no request waits for a place."""

    def __init__(self, what: str, caller: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._caller = caller
        self._most = most
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold a place for a caller. Raises PagesBusyError when all, or those of one caller, are taken."""
        with self._lock:
            of_one = self._held[name]
            of_all = self._held.total()
            if of_one >= self._most_of_one or of_all >= self._most:
                whose = f"{of_one} {self._what} of {self._caller} {name!r}"
                whose = whose if of_one >= self._most_of_one else f"{of_all} {self._what}"
                raise PagesBusyError(f"{whose} are being read, maybe from a store or a database that does not answer")
            self._held[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[name] -= 1
                self._held += Counter()

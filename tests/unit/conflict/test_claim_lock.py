"""The lock on file groups: of all that claim one at the same time exactly one gets it, however their steps interleave.

`LAKE_INTERLEAVINGS` sets how many interleavings are tried; each step is one call to the store.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_lake_provider.conflict import claims
from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.claims import LOCK_FOLDER, ClaimLock, Reservation, ReservedError
from airflow_lake_provider.conflict.contention import ClashCheck, WriteIntent
from airflow_lake_provider.conflict.strategies import StrategySettings, make_strategy
from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.storage.store import MAX_FILE_BYTES, FileEntry
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.unit.conflict.fake_table import BASE, FakeStore, FakeTable, keys

INTERLEAVINGS = int(os.environ.get("LAKE_INTERLEAVINGS", "500")) // 5
W1, W2, W3, W4 = (f"2026112110000000{n}" for n in range(1, 5))
OSLO, BONN, CORK = ("Oslo", "f1-0"), ("Bonn", "f2-0"), ("Cork", "f3-0")
CLAIMS = {W1: [OSLO, CORK], W2: [OSLO, BONN], W3: [BONN, OSLO], W4: [OSLO]}
ENDLESS = HeartbeatRule(interval_ms=10**12)


class Steps:
    """Lets one of several threads at a time go on to its next step, in an order that is drawn."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._arrived = threading.Semaphore(0)
        self._me = threading.local()
        self._turns: dict[str, threading.Semaphore] = {}

    def __call__(self, *_: object) -> None:
        """Wait for one's turn."""
        self._arrived.release()
        self._me.turn.acquire()

    def run(self, tasks: dict[str, Callable[[], ClashCheck]]) -> dict[str, ClashCheck]:
        self._turns = {name: threading.Semaphore(0) for name in tasks}
        left = list(tasks)

        def play(name: str) -> ClashCheck:
            self._me.turn = self._turns[name]
            self()
            try:
                return tasks[name]()
            finally:
                left.remove(name)
                self._arrived.release()

        with ThreadPoolExecutor(len(tasks)) as pool:
            futures = {name: pool.submit(play, name) for name in tasks}
            for _ in tasks:
                self._arrived.acquire()
            while left:
                self._turns[self._draw.choice(left)].release()
                self._arrived.acquire()
            return {name: future.result() for name, future in futures.items()}


@dataclass
class SteppedStore(FakeStore):
    """A store in memory; each call is one step, and takes a moment or much longer than a lock lives."""

    lists_at_once: ClassVar[bool] = True
    step: Callable[[], None] = lambda: None
    draw: random.Random = field(default_factory=random.Random)
    now_ms: int = 1_800_000_000_000

    def _begin(self) -> None:
        self.step()
        self.now_ms += self.draw.choice((0, 1, 1, 1, 1, 1, 2 * claims.EXPIRES_MS))

    def list_entries(self, path: str) -> list[FileEntry]:
        self._begin()
        return super().list_entries(path)

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        self._begin()
        return super().read_bytes(path, limit_bytes)

    def stat(self, path: str) -> FileEntry:
        self._begin()
        return super().stat(path)

    def write(self, path: str, content: bytes) -> None:
        self._begin()
        self.files[path] = (content, self.now_ms)

    create = write

    def remove(self, path: str) -> None:
        self._begin()
        for name in [name for name in self.files if name == path or name.startswith(f"{path}/")]:
            del self.files[name]


def claim_until_asked(table: ConflictTable, storage: Storage, instant: str, now_ms: Callable[[], int]) -> ClashCheck:
    """Ask until the answer is certain, as every caller does."""
    settings = StrategySettings(reserve=lambda name: Reservation(storage, name))
    strategy = make_strategy("SimpleTransactionDirectMarkerBased", settings)
    intent = WriteIntent(instant, keys(CLAIMS[instant]), since=instant)
    while True:
        verdict = strategy.check(table, intent, now_ms())
        if verdict.is_free or verdict.clashes:
            return verdict


def play(seed: int) -> str:
    """Let four claims interleave; return whose file group it is."""
    draw = random.Random(seed)
    steps = Steps(draw)
    store = SteppedStore(step=steps, draw=draw)
    fake, storage = FakeTable(), Storage(BASE, store, BASE)

    def claimant(instant: str) -> Callable[[], ClashCheck]:
        table = ConflictTable(storage, fake.snapshot, ENDLESS)
        return lambda: claim_until_asked(table, storage, instant, lambda: store.now_ms)

    verdicts = steps.run({instant: claimant(instant) for instant in CLAIMS})
    (winner,) = [instant for instant, verdict in verdicts.items() if verdict.is_free]
    # A loser may have met the markers of one that was taken for dead, withdrew them and asked again.
    assert all(verdicts[name].clashes for name in CLAIMS if name != winner)
    assert not any(LOCK_FOLDER in name for name in store.files), "every entry is taken away"
    return winner


def test_one_of_four_claims_wins_however_they_interleave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAUSE_S", 0)
    winners = set()
    for seed in range(INTERLEAVINGS):
        try:
            winners.add(play(seed))
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert winners == set(CLAIMS), "the first one wins, not always the same"


def test_older_claim_outlasts_a_younger_one_and_the_younger_does_not_wait(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    younger = ClaimLock(storage, W2, keys([OSLO]))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            younger.__exit__(None, None, None)

    younger.__enter__()
    with pytest.raises(ReservedError, match="another claim"), ClaimLock(storage, W3, keys([OSLO]), pause=pauses.append):
        pass
    assert pauses == []
    with ClaimLock(storage, W1, keys([OSLO, BONN]), pause=pause) as older:
        assert (older.is_held(), len(pauses)) == (True, 3)
    with younger, pytest.raises(ReservedError), ClaimLock(storage, W1, keys([OSLO]), pause=lambda _: None):
        pass
    assert os.listdir(tmp_path / LOCK_FOLDER) == []


def test_dead_owner_is_passed_by_and_finds_out(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with ClaimLock(storage, W1, keys([OSLO])) as dead:
        (entry,) = (tmp_path / LOCK_FOLDER).iterdir()
        with pytest.raises(ReservedError), ClaimLock(storage, W3, keys([OSLO])):
            pass
        os.utime(entry, (1, 1))
        with ClaimLock(storage, W3, keys([OSLO])) as taken:
            assert (dead.is_held(), taken.is_held()) == (False, True)


def test_foreign_files_among_the_entries_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / LOCK_FOLDER
    folder.mkdir(parents=True)
    (folder / "20261121100000000-0.unfinished").write_bytes(b"\xff")
    (folder / "folder").mkdir()
    with ClaimLock(open_storage(str(tmp_path)), W1, [b"a b\n\xff/f1-0"]) as lock:
        assert lock.is_held()

"""Bounded memory of many tables: packed snapshots of the most recently used, unpacked ones of the hottest."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.view.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.look import Known


class TableMemory:
    """Slots by base path. A slot that nobody needs goes with its snapshot; others keep version and schedule."""

    def __init__(self, max_tables: int, hot_tables: int, open_table: Callable[[str], Storage]) -> None:
        self.lock = threading.Lock()
        self.evictions = 0
        self._max_tables = max_tables
        self._hot_tables = hot_tables
        self._open_table = open_table
        self._slots: dict[str, Slot] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._hot: OrderedDict[str, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def kept(self) -> int:
        """How many snapshots are kept."""
        return len(self._kept)

    def kept_bytes(self) -> int:
        """Return the size of the packed snapshots."""
        return sum(len(slot.packed or b"") for _, slot in self.kept_slots())

    def kept_slots(self) -> list[tuple[str, Slot]]:
        """Return the tables whose snapshots are kept."""
        with self.lock:
            return [(path, slot) for path in self._kept if (slot := self._slots.get(path)) is not None]

    def slots(self) -> list[Slot]:
        """Return all slots."""
        with self.lock:
            return list(self._slots.values())

    def open(self, base_path: str) -> Storage:
        """Open a table's storage without keeping anything."""
        return self._open_table(base_path)

    def find(self, base_path: str) -> Slot | None:
        """Return a table's slot; None when there is none."""
        return self._slots.get(base_path)

    def get(self, base_path: str) -> Slot:
        """Return a table's slot, made when there is none; its storage is not opened yet."""
        slot = self._slots.get(base_path)
        if slot is None:
            made = Slot(lambda: self._open_table(base_path))
            with self.lock:
                slot = self._slots.setdefault(base_path, made)
        return slot

    def known(self, base_path: str, slot: Slot) -> Known | None:
        """Return what the last look left, from the hot ones or unpacked; None when it was evicted."""
        with self.lock:
            hot = self._hot.get(base_path)
            if hot is not None:
                self._hot.move_to_end(base_path)
            if base_path in self._kept:
                self._kept.move_to_end(base_path)
        if hot is not None and hot.snapshot.version == slot.version and slot.packed is not None:
            if hot.snapshot.as_of_ms == slot.as_of_ms:
                return hot
            return replace(hot, snapshot=replace(hot.snapshot, as_of_ms=slot.as_of_ms))
        return slot.known()

    def keep(self, base_path: str, slot: Slot, known: Known | None, now_ms: int) -> list[str]:
        """Say that a slot has a new snapshot; return the tables that nobody needs and that are gone for it."""
        gone = []
        with self.lock:
            self._slots.setdefault(base_path, slot)
            self._kept[base_path] = None
            self._kept.move_to_end(base_path)
            if known is not None:
                self._hot[base_path] = known
                self._hot.move_to_end(base_path)
            while len(self._hot) > self._hot_tables:
                self._hot.popitem(last=False)
            while len(self._kept) > self._max_tables:
                evicted, _ = self._kept.popitem(last=False)
                self._hot.pop(evicted, None)
                self.evictions += 1
                other = self._slots.get(evicted)
                if other is not None:
                    other.evict()
                    if not other.is_needed(now_ms):
                        del self._slots[evicted]
                        gone.append(evicted)
        return gone

    def forget(self, base_path: str) -> None:
        """Drop a table altogether."""
        with self.lock:
            for memory in (self._slots, self._kept, self._hot):
                memory.pop(base_path, None)

    def pick_gated(self) -> str | None:
        """Return one table at random whose folder's time is believed; None when there is none."""
        gated = [path for path, slot in self.kept_slots() if slot.folder_ms]
        return random.choice(gated) if gated else None

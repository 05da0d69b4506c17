"""A sink that keeps what it gets and dies when it is wanted to."""

from __future__ import annotations

import json

from airflow_lake_provider.replication.change import Batch, Change, CommitRef
from airflow_lake_provider.replication.checkpoint import (
    Checkpoint,
    to_text,
)
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.transactions import Order, Report
from tests.unit.replication.table_model import ModelTable


class Died(Exception):
    """The process of a run is gone."""


class FakeSink:
    """Keeps committed records; `dies_at` counts its calls down to a crash before or after the call took effect."""

    def __init__(self) -> None:
        self.records: list[tuple[CommitRef, int, Change]] = []
        self.text: str | None = None
        self.sequence = 0
        self.dies_at = -1
        self.dies_after = False
        self._staged: list[tuple[CommitRef, int, Change]] = []

    def open(self) -> str | None:
        self._call()
        self._staged = []
        return self.text

    def write(self, batch: Batch) -> None:
        self._call()
        self._staged += [(batch.commit, batch.generation, change) for change in batch.changes]

    def commit(self, checkpoint: Checkpoint) -> None:
        dies = self._call(before=not self.dies_after)
        assert checkpoint.sequence == self.sequence + 1
        self.records += self._staged
        self._staged, self.text, self.sequence = [], to_text(checkpoint), checkpoint.sequence
        if dies:
            raise Died

    def close(self) -> None:
        self._staged = []

    def _call(self, before: bool = True) -> bool:
        self.dies_at -= 1
        if self.dies_at == 0 and before:
            raise Died
        return self.dies_at == 0


def run(table: ModelTable, sink: FakeSink, **order: object) -> Report:
    return Pump(table, sink, Order("t.sink", **order), keeper=table).run()  # type: ignore[arg-type]


def replica(sink: FakeSink) -> dict[int, int]:
    """What a reader makes of the newest generation's records, in their order."""
    newest = max((generation for _, generation, _ in sink.records), default=0)
    rows: dict[int, int] = {}
    for _, generation, change in sink.records:
        if generation == newest:
            key = json.loads(change.key)["id"]
            if change.after is None:
                rows.pop(key, None)
            else:
                rows[key] = json.loads(change.after)["value"]
    return rows

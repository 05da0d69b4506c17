"""What evaluations write to the log of the API server: what changed, and nothing for an evaluation alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from tests.support.tables import HandMadeTable


def test_a_commit_makes_two_lines_at_most_and_what_stays_as_it_was_none(
    registry: Registry, make_loop: Callable[[], ManagerLoop], lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = HandMadeTable.create(lake / "orders")
    caplog.set_level(logging.INFO)
    loop = make_loop()
    lines = []
    for second in range(1, 10):
        time = table.commit(second)
        caplog.clear()
        registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, (time,)))
        loop.drain()
        registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
        loop.drain()
        lines.append([record.getMessage() for record in caplog.records if record.levelno >= logging.INFO])
    assert max(map(len, lines)) <= 2
    assert sum(map(len, lines)) <= 5, lines
    assert any("starts compaction (" in line and "3 delta commits" in line for found in lines for line in found)

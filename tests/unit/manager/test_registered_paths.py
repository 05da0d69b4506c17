"""A table in whose folder the registry knows another one gets no run; a quiet table asks nothing for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.health.health import parse_decisions
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.registered_paths import MAX_BELOW, REFRESH_MS, RegisteredPaths
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeRunGateway

QUESTION = "SELECT lake_search.identity"


def announce(registry: Registry, path: Path | str) -> str:
    return registry.mark_dirty(Notice(str(path), "orders", Source.COMMIT_CALLBACK)).table_id


def test_an_outer_table_gets_no_run_until_the_inner_one_is_moved(
    registry: Registry, engine: Engine, make_loop: Callable[[], ManagerLoop], gateway: FakeRunGateway, lake: Path
) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    outer = HandMadeTable.create(lake / "orders")
    inner = HandMadeTable.create(outer.path / "old" / "orders")
    announce(registry, inner.path)
    table_id = announce(registry, outer.path)
    loop = make_loop()
    assert loop.drain() == 2
    assert not [statement for statement in asked if statement.startswith(QUESTION)]

    for second in (1, 2, 3):
        outer.commit(second)
    announce(registry, outer.path)
    assert loop.drain() == 1
    assert gateway.runs == []
    blocked = [found for found in parse_decisions(registry.get(table_id).decisions) if found["verdict"] == "blocked"]
    assert [found["service"] for found in blocked] == ["compaction"]
    assert "another Hudi table lies in old/orders below the base path" in blocked[0]["reason"]
    assert len([statement for statement in asked if statement.startswith(QUESTION)]) == 1

    shutil.move(inner.path, lake / "moved")
    announce(registry, outer.path)
    assert loop.drain() == 1
    assert len(gateway.runs) == 1


@pytest.mark.parametrize(
    ("base_path", "below"),
    [
        ("/lake/orders", ("old/a", "old/b")),
        ("/lake/orders/old", ("a", "b")),
        ("/lake/orders/old/a", ()),
        ("/lake/ord", ()),
        ("s3a://Lake/t", ("inner",)),
    ],
)
def test_only_paths_below_count(registry: Registry, base_path: str, below: tuple[str, ...]) -> None:
    for path in ("/lake/orders/old/b", "/lake/orders", "/lake/orders/old/a", "/lake/orders2/x", "s3://lake/t/inner"):
        announce(registry, path)
    assert RegisteredPaths(registry).list_below(base_path) == below


def test_the_paths_are_read_once_a_minute_and_bounded(registry: Registry, clock: FakeClock) -> None:
    paths = RegisteredPaths(registry)
    assert paths.list_below("/lake") == ()
    for number in range(MAX_BELOW + 1):
        announce(registry, f"/lake/t{number:02}")
    assert paths.list_below("/lake") == ()
    clock.advance(REFRESH_MS / 1000)
    assert len(paths.list_below("/lake")) == MAX_BELOW

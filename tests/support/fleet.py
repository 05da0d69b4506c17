"""Many tables that were all evaluated, and one manager."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from benchmarks.bench_store import write_commit
from benchmarks.scale import NAME, Sent, make_tables, recorded
from tests.unit.manager.conftest import FakeClock, FakeInstanceGateway

NOW_S = 1_795_000_000.0


class Fleet:
    """Tables that were all evaluated, and one manager."""

    def __init__(
        self, registry: Registry, engine: Engine, clock: FakeClock, lake: Path, loop: ManagerLoop, tables: TablesConfig
    ) -> None:
        self.registry, self.engine, self.clock, self.lake, self.loop = registry, engine, clock, lake, loop
        self.feed = RegistryFeed(registry, lambda: tables)
        self.sweep = DeadlineSweep(registry, FakeInstanceGateway(), load_tables=lambda: tables)
        self.paths: list[Path] = []

    def grow(self, tables: int) -> None:
        new = make_tables(self.lake / f"of-{tables}", tables)
        for path in new:
            self.registry.mark_dirty(Notice(str(path), NAME, Source.COMMIT_CALLBACK))
        assert self.loop.drain(10 * tables) >= tables
        list(self.feed.poll())
        self.clock.advance(60)
        self.paths += new

    def rest(self) -> Sent:
        with recorded(self.engine) as sent:
            assert self.loop.drain() == 0
            list(self.feed.poll())
            self.sweep.sweep()
        return sent

    def commit(self, path: Path, number: int) -> Sent:
        write_commit(path, number, NOW_S + number)
        with recorded(self.engine) as sent:
            self.registry.mark_dirty(Notice(str(path), NAME, Source.COMMIT_CALLBACK))
            assert self.loop.drain() == 1
        return sent

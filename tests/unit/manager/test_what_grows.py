"""What a cycle of the manager and a commit cost must not grow with the number of tables: counts, never times."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Engine

from airflow_lake_provider.config.service_policies import CleanPolicy, CompactionPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.planner.table_view import MIN_FILES, CommitMemory, TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from benchmarks.scale import COMMITS
from tests.support.fleet import Fleet
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeRunGateway

PACKAGE = "/airflow_lake_provider/"


@pytest.fixture
def fleet(
    registry: Registry,
    engine: Engine,
    clock: FakeClock,
    lake: Path,
    make_loop: Callable[[], ManagerLoop],
    tables: TablesConfig,
) -> Fleet:
    return Fleet(registry, engine, clock, lake, make_loop(), tables)


def test_quiet_cycle_and_commit_send_as_many_statements_with_ten_times_the_tables(fleet: Fleet) -> None:
    fleet.grow(6)
    fleet.rest()  # the first sweep of a process does what is done now and then
    few_at_rest, few = fleet.rest(), fleet.commit(fleet.paths[0], COMMITS)
    fleet.clock.advance(60)
    fleet.grow(60)
    many_at_rest, many = fleet.rest(), fleet.commit(fleet.paths[10], COMMITS)
    assert many_at_rest.statements == few_at_rest.statements
    assert (many.statements, many.rows) == (few.statements, few.rows)


def test_quiet_table_takes_little_memory(
    registry: Registry, engine: Engine, clock: FakeClock, lake: Path, settings: LakeSettings, tables: TablesConfig
) -> None:
    """What this package allocates for each table that nothing happens to, but for a few that are kept unpacked."""
    clock.now = datetime.now(UTC)  # commits ahead of the clock would be blocked, each with a sentence of its own
    policy = tables.defaults.replace(compaction=CompactionPolicy(delta_commits=30, log_to_base_ratio=None))
    tables = replace(tables, defaults=policy.replace(clean=CleanPolicy(commits=30)))
    timelines = SharedTimelines(SharedLimits(hot_tables=4), now_ms=registry.now_ms)
    server = TimelineServer(timelines, ServerOptions((str(lake),), (SERVICE_TOKEN,)))
    views = TableViewCache(timelines, CommitMemory(4 * MIN_FILES, 10**7))
    gateway = FakeRunGateway()
    loop = ManagerLoop(settings, registry, TimelineServerGateway(server), views, gateway, lambda: tables)
    fleet = Fleet(registry, engine, clock, lake, loop, tables)

    def take_snapshot() -> tracemalloc.Snapshot:
        fleet.feed.poll()
        gc.collect()
        return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*{PACKAGE}*")])

    taken = []
    tracemalloc.start()
    try:
        # The first ones with what is loaded once, and the few that are kept unpacked. A dict grows behind 85 and 170.
        for number in (90, 36, 37):
            fleet.grow(number)
            taken.append(take_snapshot())
    finally:
        tracemalloc.stop()
    assert not gateway.runs, "a table with a service that is due is not quiet"
    grown = [after.compare_to(before, "lineno") for before, after in pairwise(taken)]
    least = min(grown, key=lambda lines: sum(line.size_diff for line in lines))
    # docs/deployment.md says 1 KiB of an API server. Views as objects would take 12,000.
    assert 400 < sum(line.size_diff for line in least) / 37 <= 1024, "\n".join(map(str, least[:10]))


def test_feed_of_marks_keeps_nothing_of_quiet_tables(fleet: Fleet) -> None:
    fleet.grow(20)
    fleet.commit(fleet.paths[0], COMMITS)
    assert [feed.base_path for feed in fleet.feed.poll()] == [str(fleet.paths[0])]
    assert list(fleet.feed.poll()) == [], "what it has said it says no more, though the query returns it again"
    assert list(fleet.feed._seen) == [table_id_of(str(fleet.paths[0]))]
    fleet.clock.advance(120)
    fleet.commit(fleet.paths[3], COMMITS)
    assert [feed.base_path for feed in fleet.feed.poll()] == [str(fleet.paths[3])]

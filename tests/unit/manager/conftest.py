"""A manager on a SQLite file, with Airflow's side of the gateway played by a fake."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.operations import RunHour
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.runs.airflow_runs import (
    SERVICE_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
    RunFacts,
    RunState,
    ServiceRun,
)
from airflow_lake_provider.manager.runs.run_ids import is_run_of, parse_run_id
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.tables import HandMadeTable
from tests.support.team_tokens import RIGHTS, TOKENS

CALLBACK_TOKEN = "callback-secret"
SERVICE_TOKEN = "service-secret"
LOCK_OPTIONS = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


@dataclass
class FakeClock:
    """A clock that moves when asked."""

    now: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


WORKING_DAGS = LakeDags(
    MappingProxyType(dict.fromkeys((SERVICE_DAG_ID, WATCH_DAG_ID), DagState.ACTIVE)), swept_ms=10**15
)


def is_of(run_id: str, table_id: str) -> bool:
    """Whether a fake gateway has the run for a table; empty: for any."""
    return not table_id or is_run_of(run_id, table_id)


def table_of(run: ServiceRun) -> str:
    """Return the table of a run that the manager created."""
    found = parse_run_id(run.run_id)
    assert found is not None, run.run_id
    return found.table_id


@dataclass
class FakeRunGateway:
    """Keeps DAG runs in a list; `fails_with` makes the next creation fail."""

    runs: list[ServiceRun] = field(default_factory=list)
    confs: list[dict[str, Any]] = field(default_factory=list)
    fails_with: Exception | None = None
    dags: LakeDags = WORKING_DAGS

    def find_lake_dags(self, session: Session) -> LakeDags:
        return self.dags

    def find_active_runs(self, session: Session, table_id: str = "") -> Sequence[ServiceRun]:
        return [run for run in self.runs if run.active and is_of(run.run_id, table_id)]

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        return [run for run in self.runs if run.run_id in run_ids]

    def create_run(self, session: Session, run_id: str, conf: dict[str, Any], note: str, *, user: str = "") -> None:
        if self.fails_with is not None:
            error, self.fails_with = self.fails_with, None
            raise error
        assert run_id not in {run.run_id for run in self.runs}
        self.runs.append(
            ServiceRun(run_id, RunState.QUEUED, pool=str(conf.get("pool", "")), queue=str(conf.get("queue", "")))
        )
        self.confs.append(conf)

    def end(self, run_id: str, state: RunState, ended_ms: int) -> None:
        self.runs = [ServiceRun(run_id, state, ended_ms) if run.run_id == run_id else run for run in self.runs]


@dataclass
class FakeInstanceGateway:
    """Keeps runs with their tasks in a list."""

    runs: list[RunFacts] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)

    def raise_priority(self, session: Session, run_ids: Sequence[str], weight: int) -> int:
        self.raised |= dict.fromkeys(run_ids, weight)
        return len(run_ids)

    def is_of_other_tables(self, session: Session, run_id: str, base_path: str) -> bool:
        found = next((run for run in self.runs if run.run_id == run_id), None)
        return found is not None and found.params.get("base_path", base_path) != base_path

    def list_runs(self, session: Session, table_id: str, most_ended: int) -> Sequence[RunFacts]:
        found = [run for run in self.runs if is_of(run.run_id, table_id)]
        return [run for run in found if run.is_active] + [run for run in found if not run.is_active][:most_ended]

    def count_runs(self, session: Session, since_ms: int, audience: object) -> Sequence[RunHour]:
        return []

    def complete_run(self, session: Session, run_id: str, reason: str) -> bool:
        found = [run for run in self.runs if run.run_id == run_id and run.is_active]
        self.runs = [replace(run, state=RunState.SUCCESS, note=reason) if run in found else run for run in self.runs]
        return bool(found)

    def end_run(self, session: Session, run_id: str, reason: str) -> bool:
        found = [run for run in self.runs if run.run_id == run_id and run.is_active]
        self.runs = [replace(run, state=RunState.FAILED) if run in found else run for run in self.runs]
        self.ended |= {run.run_id: reason for run in found}
        return bool(found)


_opened: list[Callable[[], ManagerServices]] = []


@cache
def _app() -> FastAPI:
    return create_app(lambda: _opened[0]())


def serve(open_services: Callable[[], ManagerServices]) -> FastAPI:
    """Return the manager's app, for one test at a time: to build its routes takes longer than most tests."""
    _opened[:] = [open_services]
    return _app()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the manager's tables: to copy it is a tenth of the work of making it."""
    path = tmp_path_factory.mktemp("empty") / "airflow.db"
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def engine(tmp_path: Path, empty_database: Path) -> Iterator[Engine]:
    path = shutil.copyfile(empty_database, tmp_path / "airflow.db")
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})
    yield engine
    engine.dispose()


@pytest.fixture
def registry(engine: Engine, clock: FakeClock) -> Registry:
    return Registry(sessionmaker(engine), ProcessClock(clock))


@pytest.fixture
def gateway() -> FakeRunGateway:
    return FakeRunGateway()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(lake: Path) -> LakeSettings:
    return LakeSettings(
        callback_tokens=("old-callback-secret", CALLBACK_TOKEN),
        service_tokens=(SERVICE_TOKEN,),
        allowed_roots=(str(lake),),
        max_notice_bytes=1_000_000,
    )


@pytest.fixture
def tables() -> TablesConfig:
    policy = TablePolicy(compaction=CompactionPolicy(delta_commits=3), hudi_options=LOCK_OPTIONS, retry_backoff_s=60)
    return TablesConfig(defaults=policy)


@pytest.fixture
def make_loop(
    settings: LakeSettings,
    registry: Registry,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    tables: TablesConfig,
) -> Callable[[], ManagerLoop]:
    """Build loops that share database and gateway, as loops of several API servers do."""
    views = TableViewCache(timeline_server.timelines)
    return lambda: ManagerLoop(
        settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: tables
    )


@pytest.fixture
def timeline_server(settings: LakeSettings, registry: Registry) -> TimelineServer:
    options = ServerOptions(allowed_roots=settings.allowed_roots, service_tokens=settings.service_tokens)
    return TimelineServer(SharedTimelines(now_ms=registry.now_ms), options)


@pytest.fixture
def services(
    settings: LakeSettings,
    registry: Registry,
    make_loop: Callable[[], ManagerLoop],
    timeline_server: TimelineServer,
) -> ManagerServices:
    executors = Executors(registry, lease_s=60)
    views, instances = TableViewCache(timeline_server.timelines), FakeInstanceGateway()
    return ManagerServices(
        settings,
        registry,
        executors,
        make_loop(),
        timeline_server,
        TablesSource(""),
        views,
        instances,
        DeadlineSweep(registry, instances),
        RepairRound(registry, TablesConfig, open_storage),
    )


@pytest.fixture
def orders(services: ManagerServices, lake: Path) -> str:
    """A table with three delta commits, for which the loop has started a compaction."""
    table = HandMadeTable.create(lake / "orders")
    for number in range(1, 4):
        table.commit(number)
    services.loop.notify(Notice(str(lake / "orders"), "orders", Source.COMMIT_CALLBACK, (), "sales", "shop"))
    services.loop.drain()
    return table_id_of(str(lake / "orders"))


@pytest.fixture
def manager(services: ManagerServices, lake: Path, tmp_path: Path) -> ManagerServices:
    """The manager's services with the tokens of a team whose root is `shop`."""
    file = tmp_path / "tokens.yaml"
    file.write_text(
        "tokens:\n"
        + "".join(
            f"  - {{name: shop-{role}, roots: ['{lake}/shop'], rights: [{RIGHTS[role]}], "
            f"sha256: ['{hashlib.sha256(token.encode()).hexdigest()}']}}\n"
            for role, token in TOKENS.items()
        )
    )
    settings = services.settings.replace(tokens_file=str(file))
    options = ServerOptions(settings.allowed_roots, settings.service_tokens, tokens_file=str(file))
    server = TimelineServer(services.timeline_server.timelines, options)
    return replace(services, settings=settings, timeline_server=server)

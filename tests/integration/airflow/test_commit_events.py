"""Commits as events of assets, on Airflow's real tables: whom they reach, and what a run gets."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.hooks.commit_ranges import find_ranges
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.event_emitter import CommitEvents
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeRunGateway

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.metadata_database import open_session

    session = open_session()
    yield session
    session.rollback()
    session.close()


def make_loop() -> ManagerLoop:
    """Return a manager's loop on Airflow's database, for tables whose commits become events."""
    from airflow_lake_provider.plugins.asset_events import AirflowAssetGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    registry = open_registry()
    timelines = SharedTimelines(now_ms=registry.now_ms)
    server = TimelineServer(timelines, ServerOptions(allowed_roots=("/",), service_tokens=()))
    policy = TablePolicy(asset_events="both", mode="observe")
    events = CommitEvents(registry, AirflowAssetGateway())
    return ManagerLoop(
        LakeSettings(),
        registry,
        TimelineServerGateway(server),
        TableViewCache(timelines),
        FakeRunGateway(),
        lambda: TablesConfig(defaults=policy),
        events=events,
    )


def add(session: Session, base_path: str, *bodies: dict[str, Any]) -> None:
    from airflow_lake_provider.plugins.asset_events import AirflowAssetGateway

    AirflowAssetGateway().add_events(session, base_path, bodies)()


def find_dags(session: Session, base_path: str) -> list[str]:
    from airflow.models.asset import AssetDagRunQueue, AssetModel

    mine = select(AssetModel.id).where(AssetModel.uri == f"file://{base_path}")
    rows = session.scalars(select(AssetDagRunQueue.target_dag_id).where(AssetDagRunQueue.asset_id.in_(mine)))
    return sorted(rows)


@pytest.fixture
def table(session: Session) -> str:
    """A base path with DAGs on its asset, on an asset of another name with its URI, and on all tables of the Lake."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.sdk import DAG, Asset, AssetAlias
    from airflow.utils.session import create_session

    name = uuid.uuid4().hex[:8]
    uri = f"file:///lake/{name}"
    schedules = {"own": [Asset(uri)], "alias": [AssetAlias("lake_tables")], "other": [Asset("file:///lake/other")]}
    if name < "8":
        schedules["own"] = [Asset(name=f"named-{name}", uri=uri)]
    bag = DagBag(dag_folder="/dev/null")
    for kind, schedule in schedules.items():
        bag.bag_dag(DAG(f"{kind}_{name}", schedule=schedule, is_paused_upon_creation=False))
    with create_session() as own:
        if not own.get(DagBundleModel, "testing"):
            own.add(DagBundleModel(name="testing"))
    sync_bag_to_db(bag, "testing", None)
    return f"/lake/{name}"


def test_an_event_reaches_the_dags_of_the_table_and_of_all_tables(session: Session, table: str) -> None:
    from airflow.models.asset import AssetEvent, AssetModel

    add(session, table, {"kind": "commits", "until": "2"})
    name = table.removeprefix("/lake/")
    assert set(find_dags(session, table)) >= {f"alias_{name}", f"own_{name}"}
    assert f"other_{name}" not in find_dags(session, table)
    extras = session.scalars(
        select(AssetEvent.extra)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(AssetModel.uri == f"file://{table}")
    ).all()
    assert list(extras) == [{"kind": "commits", "until": "2"}]


def test_a_table_whose_asset_nothing_names_gets_one(session: Session) -> None:
    from airflow.models.asset import AssetEvent, AssetModel

    table = f"/lake/new-{uuid.uuid4().hex[:8]}"
    for n in (1, 2):
        add(session, table, {"n": n})
    found = session.execute(select(AssetModel.name, AssetModel.extra).where(AssetModel.uri == f"file://{table}")).one()
    assert (found.name, list(found.extra)) == (f"file://{table}", ["table_id"])
    count = select(func.count(AssetEvent.id)).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
    assert session.scalar(count.where(AssetModel.uri == f"file://{table}")) == 2


def test_commits_wait_for_the_scheduler_but_not_for_a_dag_that_is_paused_or_waits_long(
    session: Session, table: str
) -> None:
    from airflow.models.asset import AssetDagRunQueue
    from airflow.models.dag import DagModel

    from airflow_lake_provider.plugins.asset_events import AirflowAssetGateway

    gateway = AirflowAssetGateway()
    assert not gateway.waits_for_runs(session, table)
    add(session, table, {"n": 1})
    assert gateway.waits_for_runs(session, table)
    assert not gateway.waits_for_runs(session, f"{table}x")
    dags = find_dags(session, table)
    session.execute(update(DagModel).where(DagModel.dag_id.in_(dags)).values(is_paused=True))
    assert not gateway.waits_for_runs(session, table)
    session.execute(update(DagModel).where(DagModel.dag_id.in_(dags)).values(is_paused=False))
    old = datetime.now(UTC) - timedelta(seconds=31)
    mine = AssetDagRunQueue.target_dag_id.in_(dags)
    session.execute(update(AssetDagRunQueue).where(mine).values(created_at=old))
    assert not gateway.waits_for_runs(session, table)
    # An event that is added all the same is in the run that Airflow makes of the waiting one.
    add(session, table, {"n": 2})
    newest = session.scalar(select(func.min(AssetDagRunQueue.created_at)).where(mine))
    assert newest is not None
    assert newest > old + timedelta(seconds=30)


def test_an_event_that_is_rolled_back_leaves_nothing(session: Session, table: str) -> None:
    from airflow_lake_provider.plugins.asset_events import AirflowAssetGateway

    AirflowAssetGateway().add_events(session, table, [{"n": 1}])
    session.rollback()
    assert find_dags(session, table) == []


def test_the_documented_dag_reads_the_range_of_its_events() -> None:
    from types import SimpleNamespace

    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import Asset

    from airflow_lake_provider.manager.loop.commit_events import CommitEvent

    bag = DagBag(dag_folder=str(EXAMPLES / "new_rows.py"))
    assert bag.import_errors == {}
    dag = bag.dags["new_rows"]
    find = dag.get_task("find").python_callable
    asset = Asset("file:///lake/orders")
    events = [
        SimpleNamespace(extra=CommitEvent(after, until, until, 1).to_extra("/lake/orders", "orders"))
        for after, until in (("2", "3"), ("1", "2"))
    ]
    assert find({asset: events}) == [["/lake/orders", "1", "3", "/lake/copies/orders"]]
    assert find({}) == []
    application = Path(dag.get_task("copy").partial_kwargs["application"])
    assert application == EXAMPLES / "rows_between.py"
    assert application.exists()


@pytest.mark.parametrize("seed", [1, 2])
def test_airflows_scheduler_gives_each_commit_to_one_run_and_leaves_none_behind(
    session: Session, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The manager's loop, Airflow's own scheduler and its limit of active runs, in any order."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Asset
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    from airflow_lake_provider.plugins import asset_events
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    monkeypatch.setattr(asset_events, "WAITS_FOR_RUNS_S", 0.5)
    real = HandMadeTable.create(tmp_path / "orders")
    # The registry has other tests' tables, whose events are not this one's.
    own_asset, table_asset = Asset(f"file://{table}"), asset_events.table_asset
    monkeypatch.setattr(
        asset_events, "table_asset", lambda path: own_asset if path == str(real.path) else table_asset(path)
    )
    loop, registry, dag_id = make_loop(), open_registry(), f"own_{table.removeprefix('/lake/')}"
    job = Job()
    with create_session() as own:
        own.add(job)
        own.flush()
        own.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(max_active_runs=1))
    runner = SchedulerJobRunner(job)

    def schedule() -> None:
        with create_session() as own:
            found, triggered = DagModel.dags_needing_dagruns(own)
            models = [model for model in found if model.dag_id in triggered and model.dag_id == dag_id]
            runner._create_dag_runs_asset_triggered(dag_models=models, session=own)

    def end_runs() -> None:
        with create_session() as own:
            own.execute(update(DagRun).where(DagRun.dag_id == dag_id).values(state=DagRunState.SUCCESS))

    def evaluate() -> None:
        registry.mark_dirty(Notice(str(real.path), "orders", Source.COMMIT_CALLBACK))
        loop.drain()

    rng = random.Random(seed)
    real.commit(1)
    evaluate()
    made = []
    for second in range(2, 40):
        made.append(real.commit(second))
        for step in rng.sample((evaluate, schedule, end_runs), rng.randint(0, 3)):
            step()
        time.sleep(rng.choice((0, 0, 0.2)))
    # No further commit comes, and the loop evaluates again what had to wait.
    for _ in range(10):
        evaluate()
        end_runs()
        schedule()
        time.sleep(0.2)
    with create_session() as own:
        runs = own.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.run_after)).all()
        given = [event.extra["instants"] for run in runs for event in run.consumed_asset_events]
        ranges = [find_ranges(run.consumed_asset_events) for run in runs]
    assert sorted(instant for instants in given for instant in instants) == made
    assert [len(found) for found in ranges] == [1] * len(runs)
    assert [found.until for (found,) in ranges[:-1]] == [found.after for (found,) in ranges[1:]]
    assert 2 < len(runs) < len(made)

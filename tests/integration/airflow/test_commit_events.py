"""Commits as events of assets, on Airflow's real tables: whom they reach, and what a run gets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

pytestmark = pytest.mark.integration


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.metadata_database import open_session

    session = open_session()
    yield session
    session.rollback()
    session.close()


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

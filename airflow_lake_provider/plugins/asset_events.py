"""The manager's gateway to Airflow's assets: adds events without a task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.assets.manager import asset_manager
from airflow.models.asset import AssetDagRunQueue, AssetModel
from airflow.models.dag import DagModel
from sqlalchemy import select, update

from airflow_lake_provider.execution.reporting import TABLE_ASSETS, table_asset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

WAITS_FOR_RUNS_S = 30.0
"""How long new commits wait for the scheduler. A DAG may wait for other assets, or for an end of its active runs."""


class AirflowAssetGateway:
    """Implements `manager.event_emitter.AssetGateway` on Airflow's tables."""

    def waits_for_runs(self, session: Session, base_path: str) -> bool:
        """Whether the scheduler has still to make runs of an event of the last 30 seconds."""
        queue = AssetDagRunQueue
        waiting = (
            select(queue.asset_id)
            .join(AssetModel, AssetModel.id == queue.asset_id)
            .join(DagModel, DagModel.dag_id == queue.target_dag_id)
            .where(AssetModel.uri == table_asset(base_path).uri, ~DagModel.is_paused, ~DagModel.is_stale)
            .where(queue.created_at > datetime.now(UTC) - timedelta(seconds=WAITS_FOR_RUNS_S))
            .limit(1)
        )
        return session.execute(waiting).first() is not None

    def add_events(self, session: Session, base_path: str, extras: Sequence[dict[str, Any]]) -> Callable[[], None]:
        """Add events to each asset with the table's URI, whatever its name; without one, create it."""
        asset = table_asset(base_path)
        models = session.scalars(select(AssetModel).where(AssetModel.uri == asset.uri)).all()
        if not models:
            models = [AssetModel(name=asset.name, uri=asset.uri, group=asset.group, extra=dict(asset.extra))]
            session.add_all(models)
            session.flush()
        announcements: list[Callable[[], None]] = []
        for model in models:
            mine = AssetDagRunQueue.asset_id == model.id
            # A scheduler that makes runs of an older event has locked these rows, and deletes them: this waits for it.
            session.execute(select(AssetDagRunQueue.asset_id).where(mine).with_for_update()).all()
            for extra in extras:
                asset_manager.register_asset_change(
                    asset=model,
                    extra=extra,
                    source_alias_names=[TABLE_ASSETS.name],
                    session=session,
                    callback_sink=announcements,
                )
            session.flush()
            # Airflow leaves the time of the first event here, and gives a run no later one.
            session.execute(update(AssetDagRunQueue).where(mine).values(created_at=datetime.now(UTC)))
        return lambda: _call_all(announcements)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()

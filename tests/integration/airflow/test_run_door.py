"""The manager's door to Airflow's DAG runs, on Airflow's real tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

pytestmark = pytest.mark.integration

CONF = {"base_path": "/lake/orders", "reason": "3 delta commits"}


@pytest.fixture
def session() -> Iterator[Session]:
    from airflow_lake_provider.plugins.lake_plugin import _open_session

    session = _open_session()
    yield session
    session.rollback()
    session.close()


def test_create_run_is_found_by_its_prefix_and_refused_twice(session: Session) -> None:
    from airflow.exceptions import DagRunAlreadyExists

    from airflow_lake_provider.manager.scheduling import RunState, ServiceRun
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor

    door, table_id = AirflowRunDoor(), f"or_ders-{uuid.uuid4().hex[:16]}"
    run_id = f"{table_id}.compaction.20261121120001000"
    door.create_run(session, run_id, CONF, note="why")
    session.commit()
    found = door.find_runs(session, f"{table_id}.compaction.")
    assert [(run.run_id, run.state) for run in found] == [(run_id, RunState.QUEUED)]
    assert door.find_active_runs(session, f"{table_id}.") == found
    assert door.find_runs_by_id(session, [run_id, f"{run_id}.r2"]) == [ServiceRun(run_id, RunState.QUEUED)]
    # An underscore is no wildcard: another table whose id differs there must not be found.
    assert door.find_runs(session, f"{table_id.replace('or_ders', 'orXders')}.compaction.") == []
    with pytest.raises(DagRunAlreadyExists):
        door.create_run(session, run_id, CONF, note="why")


def test_create_run_that_is_rolled_back_leaves_nothing(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor

    door, prefix = AirflowRunDoor(), f"t-{uuid.uuid4().hex[:16]}.compaction."
    door.create_run(session, f"{prefix}20261121120001000", CONF, note="why")
    session.rollback()
    assert door.find_runs(session, prefix) == []


def test_create_run_with_wrong_params_is_refused(session: Session) -> None:
    from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor

    with pytest.raises(ValueError, match="base_path"):
        AirflowRunDoor().create_run(session, f"t-{uuid.uuid4().hex}.compaction.1", {"base_path": ""}, note="")

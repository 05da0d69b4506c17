"""DAGs of which some are paused."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from airflow_lake_provider.manager.runs.airflow_runs import DagState, LakeDags
from tests.unit.manager.conftest import WORKING_DAGS

ON = {"lake_table_service": DagState.ACTIVE, "lake_watch": DagState.ACTIVE}


def paused(*dag_ids: str) -> LakeDags:
    return replace(WORKING_DAGS, states=MappingProxyType({**ON, **dict.fromkeys(dag_ids, DagState.PAUSED)}))

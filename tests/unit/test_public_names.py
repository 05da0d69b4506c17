"""Names that users' DAGs and Airflow's database store: where triggers are, and that type checkers read the package."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from airflow_lake_provider.get_provider_info import get_provider_info

PACKAGE = Path(__file__).parents[2] / "airflow_lake_provider"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("backpressure", "BackpressureTrigger"),
        ("commits", "HudiCommitTrigger"),
        ("conflict", "ConflictTrigger"),
        ("indexing", "IndexReadyTrigger"),
        ("replication_lag", "ReplicationLagTrigger"),
        ("timeline", "TimelineTrigger"),
        ("work", "WorkTrigger"),
    ],
)
def test_trigger_is_stored_under_its_public_path_with_all_its_arguments(module: str, name: str) -> None:
    path = f"airflow_lake_provider.triggers.{module}"
    kind = getattr(importlib.import_module(path), name)
    arguments = {parameter: [parameter] for parameter in inspect.signature(kind).parameters}
    assert kind(**arguments).serialize() == (f"{path}.{name}", arguments)


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_every_module_is_listed_for_airflow(kind: str) -> None:
    (listed,) = get_provider_info()[kind]
    found = {f"airflow_lake_provider.{kind}.{path.stem}" for path in (PACKAGE / kind).glob("[a-z]*.py")}
    assert set(listed["python-modules"]) == found


def test_package_has_type_information() -> None:
    assert (PACKAGE / "py.typed").is_file()

"""Names that users' DAGs and Airflow's database store: where triggers are, and that type checkers read the package."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from airflow_lake_provider.get_provider_info import get_provider_info

PACKAGE = Path(__file__).parents[2] / "airflow_lake_provider"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("conflict", "ConflictTrigger"),
        ("indexing", "IndexReadyTrigger"),
        ("timeline", "TimelineTrigger"),
        ("work", "WorkTrigger"),
    ],
)
def test_trigger_is_where_airflows_database_says(module: str, name: str) -> None:
    path = f"airflow_lake_provider.triggers.{module}"
    trigger = getattr(importlib.import_module(path), name)
    assert f'"{path}.{name}"' in Path(importlib.import_module(path).__file__ or "").read_text(encoding="utf-8")
    assert trigger.__module__ == path


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_every_module_is_listed_for_airflow(kind: str) -> None:
    (listed,) = get_provider_info()[kind]
    found = {f"airflow_lake_provider.{kind}.{path.stem}" for path in (PACKAGE / kind).glob("[a-z]*.py")}
    assert set(listed["python-modules"]) == found


def test_package_has_type_information() -> None:
    assert (PACKAGE / "py.typed").is_file()

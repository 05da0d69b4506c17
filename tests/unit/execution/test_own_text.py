"""No operator and no sensor of this package renders what `expand_kwargs` takes from a task."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

import airflow_lake_provider
from airflow_lake_provider.execution.rendering import RendersOwnText

ROOT = Path(airflow_lake_provider.__file__).parent


def operators() -> Iterator[type[BaseOperator]]:
    for folder in ("operators", "sensors"):
        for path in sorted((ROOT / folder).glob("*.py")):
            module = import_module(f"airflow_lake_provider.{folder}.{path.stem}")
            for value in vars(module).values():
                is_own = isinstance(value, type) and value.__module__ == module.__name__
                if is_own and issubclass(value, BaseOperator) and value.template_fields:
                    yield value


@pytest.mark.parametrize("operator", [pytest.param(one, id=one.__name__) for one in operators()])
def test_operator_with_templates_renders_its_own_text_alone(operator: type[BaseOperator]) -> None:
    assert issubclass(operator, RendersOwnText)


def test_operators_are_found() -> None:
    names = {one.__name__ for one in operators()}
    assert names > {"HudiTableServiceOperator", "LakeHoldOperator", "LakeReleaseOperator", "HudiCommitSensor"}

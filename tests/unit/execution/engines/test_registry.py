from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import GROUP, create_engine
from tests.support.engine_jobs import FakeEngine

THEIRS = EntryPoint("fake", "tests.support.engine_jobs:FakeEngine", GROUP)


def test_engine_of_another_package_is_found_by_its_name() -> None:
    assert isinstance(create_engine("fake", [THEIRS]), FakeEngine)


def test_unknown_engine_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'emr' is not registered.*: fake, flink, in-process, spark-submit"):
        create_engine("emr", [THEIRS])


def test_name_that_two_packages_claim_is_refused() -> None:
    other = EntryPoint("in-process", "other:Engine", GROUP)
    with pytest.raises(ConfigError, match=r"registered more than once: airflow_lake_provider.*other:Engine"):
        create_engine("in-process", [other])


def test_engine_that_cannot_be_imported_says_so_and_harms_no_other() -> None:
    broken = EntryPoint("broken", "no.such.module:Engine", GROUP)
    with pytest.raises(ConfigError, match=r"'broken'.*cannot be imported"):
        create_engine("broken", [broken, THEIRS])
    assert isinstance(create_engine("fake", [broken, THEIRS]), FakeEngine)

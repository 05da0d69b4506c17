"""A home for Airflow, should no other conftest have given it one, and one YARN for all tests that need it.

Airflow itself is imported by tests, not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from local_stack.writer_process import StandingWriter
from tests.support.airflow_home import require_home

if TYPE_CHECKING:
    from tests.integration.engines.yarn_stage import YarnStage

require_home()
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[YarnStage]:
    """Files whose tests have another stage override it."""
    from tests.integration.engines.yarn_stage import yarn_stage

    # The test that `make test` has does with one NodeManager.
    nodes = 2 if any(item.get_closest_marker("soak") for item in request.session.items) else 1
    with yarn_stage(tmp_path_factory, nodes) as stage:
        yield stage


@pytest.fixture(scope="package")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    """A reader in a process of its own, with Hudi's own code."""
    with StandingWriter(tmp_path_factory.mktemp("reader")) as reader:
        yield reader

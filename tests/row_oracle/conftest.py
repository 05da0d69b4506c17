"""One warm JVM with real Hudi for all histories of rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from local_stack import hudi_bundle  # noqa: E402
from tests.oracle.hudi_answers import Hudi  # noqa: E402
from tests.oracle.places import Place  # noqa: E402
from tests.support.hudi_tables import mark_integration, prepare_pytest  # noqa: E402
from tests.support.spark_session import open_test_session  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    prepare_pytest(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_integration(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def hudi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    if not hudi_bundle.JAR.exists():
        pytest.skip(f"{hudi_bundle.JAR} is missing: run `make install`")
    folder = tmp_path_factory.mktemp("session")
    session = open_test_session(folder)
    yield Hudi(session, Place("local", folder))
    session.stop()

"""One warm JVM with real Hudi for all histories."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from lake_jobs.driver.java_names import prepare_java_names  # noqa: E402
from local_stack import hudi_bundle  # noqa: E402
from tests.oracle.hudi_answers import Hudi  # noqa: E402
from tests.oracle.places import open_place  # noqa: E402
from tests.support.spark_session import open_test_session  # noqa: E402

STORE = os.environ.get("LAKE_ORACLE_STORE", "local")
"""Where the tables of histories lie: `local`, `hdfs` or `s3`."""


def pytest_configure(config: pytest.Config) -> None:
    prepare_java_names()
    # py4j and DataFrame.collect leave their loopback sockets to the garbage collector.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def hudi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    if not hudi_bundle.JAR.exists():
        pytest.skip(f"{hudi_bundle.JAR} is missing: run `make install`")
    folder = tmp_path_factory.mktemp("session")
    with open_place(STORE, folder) as place:
        session = open_test_session(folder, place.spark_conf)
        yield Hudi(session, place)
        session.stop()

"""A home for Airflow, which tests of clusters import later."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from local_stack.writer_process import StandingWriter

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="lake-clusters-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    """A reader in a process of its own, with Hudi's own code."""
    with StandingWriter(tmp_path_factory.mktemp("reader")) as reader:
        yield reader

"""A home for Airflow, which tests of clusters import later, and one Kubernetes for all that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from local_stack import hudi_bundle
from local_stack.kubernetes_build import ClusterMissingError
from local_stack.writer_process import StandingWriter
from tests.support.airflow_home import require_home

if TYPE_CHECKING:
    from tests.clusters.kubernetes_stage import KubernetesStage

require_home()
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    """A reader in a process of its own, with Hudi's own code."""
    with StandingWriter(tmp_path_factory.mktemp("reader")) as reader:
        yield reader


@pytest.fixture(scope="package")
def stage() -> Iterator[KubernetesStage]:
    from tests.clusters.kubernetes_stage import kubernetes_stage

    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    try:
        with kubernetes_stage() as stage:
            yield stage
    except ClusterMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def engine_access(stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process submit as the workers' account does."""
    from tests.integration.engines.kubernetes_client import kubernetes_client

    for name, value in stage.env().items():
        monkeypatch.setenv(name, value)
    with kubernetes_client():
        yield

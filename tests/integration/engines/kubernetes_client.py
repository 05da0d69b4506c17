"""Kubernetes' client, which is not among the test's own packages: `make kubernetes-packages` puts it into a folder.

Wherever it is installed, Spark's provider imports it in each task, for three seconds of CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import airflow
import pytest

PACKAGES = Path(__file__).resolve().parents[3] / ".work" / "kubernetes"


@contextmanager
def kubernetes_client() -> Iterator[None]:
    """Let tasks find the client inside."""
    if not PACKAGES.is_dir():
        pytest.skip("`make kubernetes-packages` was not run")
    with pytest.MonkeyPatch.context() as patch:
        # Behind the others: they are pinned. Airflow's folders are listed once, when it is imported.
        patch.setattr(sys, "path", [*sys.path, str(PACKAGES)])
        patch.setattr(airflow, "__path__", [*airflow.__path__, str(PACKAGES / "airflow")])
        client = import_module("airflow.providers.cncf.kubernetes.kube_client")
        for kind in ("hooks", "operators"):
            # It may have been imported without.
            module = import_module(f"airflow.providers.apache.spark.{kind}.spark_submit")
            patch.setattr(module, "kube_client", client, raising=False)
        yield

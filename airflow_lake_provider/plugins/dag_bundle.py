"""The shipped DAGs as a DAG bundle: its class names it, wherever pip has installed the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

BUNDLE_NAME = "lake"
BUNDLE_CLASS = "airflow_lake_provider.plugins.dag_bundle.LakeDagBundle"


class LakeDagBundle(LocalDagBundle):
    """`{"name": "lake", "classpath": "airflow_lake_provider.plugins.dag_bundle.LakeDagBundle", "kwargs": {}}`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"path": str(find_dags_folder()), **kwargs})


def find_dags_folder() -> Path:
    """Return the folder of the shipped DAGs: of the installed package, or of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_shipped" / "dags"
    return installed if installed.is_dir() else package.parent / "dags"


def with_lake_bundle(bundles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the configured bundles with the lake bundle; others stay, and it replaces one of its name."""
    others = [bundle for bundle in bundles if bundle.get("name") != BUNDLE_NAME]
    return [*others, {"name": BUNDLE_NAME, "classpath": BUNDLE_CLASS, "kwargs": {}}]

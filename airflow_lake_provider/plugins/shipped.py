"""What the package ships and Airflow loads by class name: its tables' migrations, and its DAGs as a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle
from airflow.utils.db_manager import BaseDBManager

from airflow_lake_provider.manager.db import schema

_DB_FOLDER = Path(schema.__file__).parent


class LakeDBManager(BaseDBManager):
    """Airflow's DB manager for the tables of `manager.db.schema`."""

    metadata = schema.metadata
    version_table_name = schema.VERSION_TABLE
    migration_dir = str(_DB_FOLDER / "migrations")
    alembic_file = str(_DB_FOLDER / "alembic.ini")
    supports_table_dropping = True
    revision_heads_map: dict[str, str] = {"0.1.0": "0001_lake"}  # noqa: RUF012 - Airflow's attribute


# --- The DAG bundle: its class names the shipped DAGs, wherever pip has installed the package


BUNDLE_NAME = "lake"
BUNDLE_CLASS = "airflow_lake_provider.plugins.shipped.LakeDagBundle"


class LakeDagBundle(LocalDagBundle):
    """`{"name": "lake", "classpath": "airflow_lake_provider.plugins.shipped.LakeDagBundle", "kwargs": {}}`."""

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

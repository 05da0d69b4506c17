"""Lets `airflow db migrate` create and upgrade the provider's tables (provider entry `db-managers`)."""

from __future__ import annotations

from pathlib import Path

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

"""Alembic environment of the provider's tables; run by `airflow db migrate` through Airflow's DB manager."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import create_engine, pool

from airflow_lake_provider.manager.db.schema import VERSION_TABLE, metadata

OUR_TABLES = frozenset(metadata.tables)


def include_object(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """Exclude Airflow's tables from Alembic's comparison."""
    return kind != "table" or name in OUR_TABLES


def run_migrations() -> None:
    """Apply the migrations to the database that Airflow names, or print their SQL."""
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        raise RuntimeError("sqlalchemy.url is not set; run `airflow db migrate`")
    options: dict[str, Any] = {
        "target_metadata": metadata,
        "version_table": VERSION_TABLE,
        "include_object": include_object,
        "render_as_batch": True,
    }
    if context.is_offline_mode():
        context.configure(url=url, literal_binds=True, **options)
        with context.begin_transaction():
            context.run_migrations()
        return
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()


run_migrations()

"""Our tables in Airflow's metadata database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

pytestmark = pytest.mark.integration


def test_db_migrate_creates_our_tables_beside_airflows() -> None:
    from airflow import settings

    from airflow_lake_provider.manager.schema import VERSION_TABLE, metadata

    tables = set(inspect(settings.engine).get_table_names())
    assert tables >= {*metadata.tables, VERSION_TABLE, "dag_run"}


def test_migrations_build_what_the_code_expects(tmp_path: Path) -> None:
    """The migration files and the table definitions are two texts: they must say the same."""
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext

    from airflow_lake_provider.manager.schema import VERSION_TABLE, metadata
    from airflow_lake_provider.plugins.db_manager import LakeDBManager

    url = f"sqlite:///{tmp_path}/ours.db"
    config = Config(LakeDBManager.alembic_file)
    config.set_main_option("script_location", LakeDBManager.migration_dir)
    config.set_main_option("sqlalchemy.url", url)
    command.upgrade(config, "head")
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        differences = compare_metadata(context, metadata)
        assert context.get_current_revision() == LakeDBManager.revision_heads_map["0.1.0"]
    engine.dispose()
    assert differences == []

"""Our tables in Airflow's metadata database."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

pytestmark = pytest.mark.integration


def test_db_migrate_creates_the_providers_tables_next_to_airflows() -> None:
    from airflow import settings

    from airflow_lake_provider.manager.db.schema import VERSION_TABLE, metadata

    tables = set(inspect(settings.engine).get_table_names())
    assert tables >= {*metadata.tables, VERSION_TABLE, "dag_run"}


def test_migrations_build_what_the_code_expects(tmp_path: Path) -> None:
    """The migration files and the table definitions are two texts: they must say the same."""
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext

    from airflow_lake_provider.manager.db.schema import VERSION_TABLE, metadata
    from airflow_lake_provider.plugins.shipped import LakeDBManager

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


def test_of_runs_that_ask_for_a_sink_at_once_one_has_it() -> None:
    from airflow_lake_provider.errors import SinkBusyError
    from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    barrier, claimed, begun = threading.Barrier(6), list[str](), list[str]()

    def ask(run_id: str) -> None:
        sinks = Sinks(open_registry())
        for number in range(10):
            barrier.wait(60)
            if sinks.claim("orders-1", f"claimed-{number}", run_id):
                claimed.append(f"claimed-{number}")
            try:
                sinks.begin_run("orders-1", f"begun-{number}", 60, run_id)
            except SinkBusyError:
                continue
            begun.append(f"begun-{number}")

    sinks = Sinks(open_registry())
    sinks.configure("orders-1", {f"claimed-{number}": 60 for number in range(10)})
    threads = [threading.Thread(target=ask, args=(f"run-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(set(claimed))
    assert (len(claimed), len(set(begun)), len(begun)) == (10, 10, 10)
    # It is free again when its run has ended.
    sinks.record_progress("orders-1", "begun-0", RunProgress(sinks.get("orders-1", "begun-0").run_id, ended=True))
    assert sinks.claim("orders-1", "begun-0", "another")
    for sink in sinks.list_sinks("orders-1"):
        sinks.forget("orders-1", sink.sink)

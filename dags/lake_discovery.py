"""Search the roots of the tables file for tables without notices; without such roots it does nothing."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import discover_tables
from airflow_lake_provider.hudi.metastore import discover_in_metastore

log = logging.getLogger(__name__)

SETTINGS = LakeSettings.from_conf(conf)
NOTHING = {"root": "", "depth": 0, "metastore": "", "databases": [], "problem": ""}
"""The root of a run that has none to search."""

DOC = """
### Find tables below a root

For each entry `discover: <root>` of the tables file it lists the root's folders, down to `discover_depth` levels, or
asks the metastore of `discover_metastore`, and registers the tables that are new to the registry. A table that no
longer exists leaves the registry after a week.

* `roots` reads the roots from the manager; without any, nothing is searched.
* `search` lists one root. Its log and XCom name folders that cannot be read; it registers the other tables all the
  same. A root outside `[lake] allowed_roots` fails.
"""

with DAG(
    dag_id="lake_discovery",
    description="Registers tables that lie below the roots of the tables file",
    schedule=timedelta(seconds=SETTINGS.discovery_interval_s),
    # A backfill would run for times that mean nothing here.
    allowed_run_types=["scheduled", "manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi"],
    doc_md=DOC,
    dagrun_timeout=timedelta(hours=6),
    default_args={
        "owner": "lake",
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2.0,
        "execution_timeout": timedelta(hours=6),
    },
) as dag:

    @task
    def roots() -> list[dict[str, Any]]:
        """Return the roots with their depths."""
        # Of an empty list Airflow would leave a skipped task each hour.
        return LakeHook().list_discovery_roots() or [dict(NOTHING)]

    @task(map_index_template="{{ root['root'] or 'no root is configured' }}", max_active_tis_per_dagrun=2)
    def search(root: dict[str, Any]) -> dict[str, Any]:
        """Register the tables below one root."""
        if not root["root"]:
            return {}
        if root["problem"]:
            raise AirflowFailException(root["problem"])
        open_table = table_opener(None)
        if root["metastore"]:
            found = discover_in_metastore(root["metastore"], root["databases"], root["root"], open_table)
        else:
            found = discover_tables(root["root"], open_table, root["depth"])
        for problem in found.problems:
            log.warning("not read: %s", problem)
        tables = [{"base_path": table.base_path, "table_name": table.name} for table in found.tables]
        registered = LakeHook().register_tables(tables)
        return {
            "tables": len(tables),
            "registered": registered,
            "folders": found.folders,
            "complete": found.is_complete,
            "problems": list(found.problems),
        }

    search.expand(root=roots())

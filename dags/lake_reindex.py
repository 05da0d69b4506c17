"""Build, or rebuild, indexes of one table or of many: started from its form, the command line, or the REST API."""

from __future__ import annotations

import fnmatch
import json
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.service_policies import MaintenanceWindow
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_file import parse_window
from airflow_lake_provider.execution.arguments import step_retries, with_draft
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.operators.indexing import HudiMappedIndexOperator

SETTINGS = LakeSettings.from_conf(conf)

# Sections of the form: the fields above them are what a run needs.
WAITING = "Writers, window and check"
OVER = "Instead of the table's settings"

MODE_WORDS = {
    "schedule_and_execute": "Plan and build",
    "schedule": "Only plan",
    "execute": "Only build what is planned",
}
"""What the form shows in place of a value."""

OF_THE_FORM = (
    *("indexes", "mode", "drop_first", "drop", "check", "wait_s", "check_timeout_s", "no_writer", "window"),
    *("hudi_options", "spark_conf"),
)
"""Params that are the operator's arguments of the same name."""

DOC = """
### Build indexes of Hudi tables (RFC-45)

Give a table's base path, or a pattern of base paths that the registry knows, and the indexes.

* **Running it twice is harmless**: it leaves a complete index alone, executes a pending plan, and finishes or cleans up
  what a dead builder left. With *Rebuild* it drops the index and builds it again.
* **Writers continue** where they have `hoodie.metadata.streaming.write.enabled=false`; otherwise the build waits for a
  moment without a writer in flight, and names the writers that it waits for.
* **In its window**: with a *window*, each try begins inside it; outside, the task is deferred, without a worker slot,
  and its log shows until when.
* **Verified**: each build is compared with the metadata table's log, with check `full` also with the data files.

    airflow dags trigger lake_reindex -c '{"base_path": "/lake/orders", "indexes": ["record_index"]}'
"""


with DAG(
    dag_id="lake_reindex",
    description="Builds indexes of Hudi tables concurrently with their writers",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=16,
    max_active_tasks=16,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "indexing"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "base_path": Param(
                type="string",
                minLength=1,
                title="Table",
                description="Base path, as its page in Lake shows it, or a pattern (/lake/*)",
            ),
            "indexes": Param(
                ["record_index"],
                type="array",
                items={"type": "string"},
                title="Indexes",
                description="files, column_stats:amount,ts, partition_stats, bloom_filters, record_index, "
                "secondary_index:city, expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd",
            ),
            "mode": Param(
                "schedule_and_execute",
                type="string",
                enum=list(MODE_WORDS),
                values_display=MODE_WORDS,
                title="What to do",
            ),
            "drop_first": Param(
                default=False,
                type="boolean",
                title="Rebuild",
                description="Drop the indexes first; else only what is missing is built",
            ),
            "drop": Param(
                default=False, type="boolean", title="Only drop", description="Drop the indexes and build none"
            ),
            "dry_run": Param(
                default=False,
                type="boolean",
                title="Dry run",
                description="Only show what would be submitted, in the task's log",
            ),
            "check": Param(
                "cheap",
                type="string",
                enum=["cheap", "full"],
                section=WAITING,
                title="Check of the index",
                description="full also reads the data files",
            ),
            "wait_s": Param(
                300,
                type="number",
                minimum=0,
                section=WAITING,
                title="Wait for writers",
                description="Seconds, for a moment without a writer that would be missing in the index",
            ),
            "check_timeout_s": Param(
                900,
                type="integer",
                minimum=1,
                section=WAITING,
                title="Wait after the build",
                description="Seconds, for writers that began before they knew of the index",
            ),
            "no_writer": Param(
                default=False,
                type="boolean",
                section=WAITING,
                title="No writer runs",
                description="Then no lock provider is needed",
            ),
            "window": Param(
                {},
                **MaintenanceWindow.model_json_schema()
                | {
                    "type": ["object", "null"],
                    "section": WAITING,
                    "title": "Window",
                    "description": "When a build may begin; empty: now. "
                    '{"days": ["sat", "sun"], "begin": "22:00", "end": "06:00", "time_zone": "Europe/Berlin"}',
                },
            ),
            "hudi_options": Param(
                {}, type="object", section=OVER, title="Hudi options", description="Over those of the tables file"
            ),
            "spark_conf": Param({}, type="object", section=OVER, title="Spark conf"),
        }
    ),
) as dag:

    @task(execution_timeout=timedelta(minutes=15))
    def choose_tables() -> list[dict[str, Any]]:
        """Return the operator's arguments for each chosen table."""
        params = get_current_context()["params"]
        parse_window(json.dumps(params["window"]), "window")  # a wrong time zone fails now, not when the window opens
        pattern = str(params["base_path"]).rstrip("/")
        found = [(pattern, pattern.rsplit("/", 1)[-1])]
        if any(character in pattern for character in "*?["):
            rows, after = [], ""
            while page := LakeHook().list_tables(after):
                rows += page
                after = page[-1]["table_id"]
            found = [
                (row["base_path"], row["table_name"]) for row in rows if fnmatch.fnmatchcase(row["base_path"], pattern)
            ]
            if not found:
                raise AirflowFailException(
                    f"base_path {pattern}: none of the {len(rows)} tables of the registry matches it "
                    "(`airflow lake tables` lists them)"
                )
        common = {key: params[key] for key in OF_THE_FORM} | {"is_dry_run": params["dry_run"]}
        return [{"base_path": base_path, "table_name": name, **common} for base_path, name in found]

    HudiMappedIndexOperator.partial(
        task_id="build_indexes",
        map_index_template="{{ task.base_path }}",
        **step_retries(SETTINGS.retry_delay_s),
    ).expand_kwargs(choose_tables())

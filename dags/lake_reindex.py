"""Build, or build anew, indexes of one table or of many: started from its form, the command line, or the REST API."""

from __future__ import annotations

import fnmatch
import json
from datetime import timedelta

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.tables_file import WINDOW, parse_window
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.operators.indexing import HudiIndexOperator

DOC = """
### Build indexes of Hudi tables (RFC-45)

Give a table's base path, or a pattern of base paths that the registry knows, and the indexes.

* **Running it twice is harmless**: a complete index is left alone, a pending plan is executed, and what a dead builder
  left is finished or cleaned up. With *drop first* the index is built anew.
* **Writers go on** where they have `hoodie.metadata.streaming.write.enabled=false`; else the build waits for a moment
  without a writer in flight, and says whom it waits for.
* **In its window**: with a *window*, each try begins inside it; outside, the task is deferred, without a worker slot,
  and its log says until when.
* **Verified**: each build is compared with the metadata table's log, with check `full` also with the data files.

    airflow dags trigger lake_reindex -c '{"base_path": "/lake/orders", "indexes": ["record_index"]}'
"""


with DAG(
    dag_id="lake_reindex",
    description="Builds indexes of Hudi tables beside their writers",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    tags=["lake", "hudi", "indexing"],
    doc_md=DOC,
    params={
        "base_path": Param(type="string", minLength=1, title="Table", description="Base path, or pattern (/lake/*)"),
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
            enum=["schedule_and_execute", "schedule", "execute"],
            title="Mode",
            description="schedule only writes the plans",
        ),
        "drop_first": Param(default=False, type="boolean", title="Drop first", description="Or build what is missing"),
        "check": Param("cheap", type="string", enum=["cheap", "full"], title="Check"),
        "wait_s": Param(300, type="number", minimum=0, title="Wait", description="Seconds, for a quiet moment"),
        "check_timeout_s": Param(
            900, type="integer", minimum=1, title="Wait after the build", description="Seconds, for writers"
        ),
        "no_writer": Param(
            default=False, type="boolean", title="No writer runs", description="Then no lock provider is needed"
        ),
        "window": Param(
            {},
            **{**WINDOW.kind.schema(), "type": ["object", "null"]},
            title="Window",
            description="When a build may begin; empty: now. "
            '{"days": ["sat", "sun"], "begin": "22:00", "end": "06:00", "time_zone": "Europe/Berlin"}',
        ),
        "dry_run": Param(default=False, type="boolean", title="Dry run", description="Show what would be submitted"),
        "hudi_options": Param({}, type="object", title="Hudi options", description="Over those of the tables file"),
        "spark_conf": Param({}, type="object", title="Spark conf"),
    },
) as dag:

    @task
    def choose_tables() -> list[dict[str, str]]:
        """Return base path, name and Hudi options of each table that is meant."""
        params = get_current_context()["params"]
        parse_window(json.dumps(params["window"]), "window")  # a wrong time zone is said now, not when it opens
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
                    f"base_path {pattern}: none of the {len(rows)} tables that the manager knows matches it "
                    "(`airflow lake tables` lists them)"
                )
        return [
            {
                "base_path": base_path,
                "table_name": name,
                "hudi_options": json.dumps(dict(params["hudi_options"])),
            }
            for base_path, name in found
        ]

    HudiIndexOperator.partial(
        task_id="build_indexes",
        indexes="{{ params.indexes | tojson }}",
        mode="{{ params.mode }}",
        drop_first="{{ params.drop_first }}",
        check="{{ params.check }}",
        wait_s="{{ params.wait_s }}",
        check_timeout_s="{{ params.check_timeout_s }}",
        no_writer="{{ params.no_writer }}",
        window="{{ params.window | tojson }}",
        is_dry_run="{{ params.dry_run }}",
        spark_conf="{{ params.spark_conf | tojson }}",
        retries=4,
        retry_delay=timedelta(seconds=conf.getint("lake", "retry_delay_s", fallback=30)),
        retry_exponential_backoff=2.0,
        max_retry_delay=timedelta(minutes=30),
        execution_timeout=timedelta(hours=12),
        map_index_template="{{ task.base_path }}",
    ).expand_kwargs(choose_tables())

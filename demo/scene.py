"""The material of the demo: three tables, their writers, and the tables file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from local_stack.airflow import HUDI_JAR, LocalAirflow, scratch_env
from local_stack.hudi_bundle import SPARK_PYTHON, spark_env
from local_stack.processes import ServerProcess, start

ROOT = Path(__file__).resolve().parent.parent

LOCK_OPTIONS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
    "hoodie.write.lock.client.num_retries": "480",
}

# A killed driver's heartbeat ends after twice this time; writers and services must agree on it.
DEMO_OPTIONS = LOCK_OPTIONS | {
    "hoodie.client.heartbeat.interval_in_ms": "10000",
    # So that writers go on while an index is built.
    "hoodie.metadata.streaming.write.enabled": "false",
}

DROPPED_TABLE = "payments"
"""Its last notice is dropped, and only with that commit compaction is due; no writer works while it runs."""
BUSY_TABLE = "orders"
"""Written until the story's parts have been played; gets an index, and the driver of its compaction is killed."""
CHANGES_TABLE = "customers"
CHANGES_TOPIC = "customers.changes"


@dataclass(frozen=True, slots=True)
class DemoTable:
    """One table of the demo. `dropped` is the commit whose notice is not sent; `commits` is the most it gets."""

    name: str
    type: str
    version: int
    commits: int
    dropped: int | None = None
    keys: int = 4000
    rows: int = 400
    first_commit: int = 0
    is_changes_kept: bool = False
    pause_s: float = 1.0
    """Between two commits."""


INDEX = "record_index"
COMPACTION_RULE = 6
"""Delta commits."""
MAX_COMMITS = 200
_CUSTOMERS = DemoTable(CHANGES_TABLE, "COW", 9, 4, keys=1000, rows=100, is_changes_kept=True)
# More commits would make a second compaction due while the first one's run recovers.
FIRST_WRITER = (DemoTable(BUSY_TABLE, "MOR", 9, MAX_COMMITS, pause_s=4.0),)
SECOND_WRITER = (
    DemoTable(DROPPED_TABLE, "MOR", 6, COMPACTION_RULE, dropped=COMPACTION_RULE - 1, keys=40_000, rows=4000),
    replace(_CUSTOMERS, commits=2),
)
LATE_WRITER = (replace(_CUSTOMERS, commits=2, first_commit=2),)
TABLES = (*FIRST_WRITER, SECOND_WRITER[0], _CUSTOMERS)


def early_commits() -> int:
    """Return how many commits the table whose changes go to Kafka has before the snapshot is taken."""
    return SECOND_WRITER[1].commits


def write_tables_file(path: Path, lake: Path, kafka: str) -> None:
    """Write the tables file of the demo's lake; `kafka` is the broker's address, empty when there is none."""
    options = "\n".join(f"    {key}: '{value}'" for key, value in DEMO_OPTIONS.items())
    path.write_text(
        f"""# What is due when, table by table. The first entry that matches wins; else the defaults hold.
defaults:
  compaction:
    delta_commits: {COMPACTION_RULE}
    log_to_base_ratio: null
  hudi_options:
{options}
tables:
  - base_path: '{lake / BUSY_TABLE}'
    name: {BUSY_TABLE}
    # The provider builds it while the writer goes on.
    indexing:
      indexes: [{INDEX}]
  - base_path: '{lake / DROPPED_TABLE}'
    name: {DROPPED_TABLE}
    # After this silence the manager evaluates the table without a notice.
    heartbeat_timeout_s: 15
{_kafka_entry(lake, kafka) if kafka else ""}""",
        encoding="utf-8",
    )


def _kafka_entry(lake: Path, kafka: str) -> str:
    return f"""\
  - base_path: '{lake / CHANGES_TABLE}'
    name: {CHANGES_TABLE}
    # Each commit's changes, with the rows before and after, exactly once for consumers that read committed.
    replication:
      - {{sink: kafka, topic: {CHANGES_TOPIC}, bootstrap_servers: '{kafka}', create_topics: true}}
"""


def start_writer(
    name: str, tables: tuple[DemoTable, ...], lake: Path, airflow: LocalAirflow, stop_file: Path | None = None
) -> ServerProcess:
    """Start a stock PySpark Hudi writer; its commits are JSON lines in its log. It ends when `stop_file` exists."""
    settings: dict[str, Any] = {
        "tables": [
            {
                "name": table.name,
                "base_path": str(lake / table.name),
                "type": table.type,
                "version": table.version,
                "commits": table.commits,
                "first_commit": table.first_commit,
                "keys": table.keys,
                "rows": table.rows,
                "pause_s": table.pause_s,
                "drop_notices": [] if table.dropped is None else [table.dropped],
                "hudi_options": {"hoodie.table.cdc.enabled": "true"} if table.is_changes_kept else {},
            }
            for table in tables
        ],
        "callback": {
            "url": airflow.callback_url,
            "token": airflow.callback_token,
            "headers": {"X-Lake-Database": "shop", "X-Lake-Owner": "demo"},
        },
        "hudi_options": DEMO_OPTIONS,
        "stop_file": str(stop_file or ""),
        "spark_conf": {"spark.jars": str(HUDI_JAR)},
    }
    settings_path = airflow.home / f"{name}.json"
    settings_path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return start(
        name,
        [str(SPARK_PYTHON), str(ROOT / "local_stack" / "lake_writer.py"), str(settings_path)],
        airflow.home / "logs" / f"{name}.log",
        env=spark_env() | scratch_env(airflow.home / "tmp"),
        cwd=airflow.home,
    )


def commits_of(writer: ServerProcess) -> list[dict[str, Any]]:
    """Return the commits that a writer has reported, oldest first."""
    if not writer.log_path.exists():
        return []
    lines = writer.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"table"')]

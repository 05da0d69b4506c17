"""Rules of the tables file that only a job reads, on a whole Airflow: expiry of rows, checks of keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.job_contract import DamageKind
from local_stack.airflow import LocalAirflow
from local_stack.writer_process import StandingWriter
from tests.support.whole_airflow import run_to_success
from tests.system.conftest import LOCK_OPTIONS, make_airflow

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/integration/spark/test_row_expiry_on_hudi.py"),
]

DAY_MS = 86_400_000
AGING = "aging"
RULES = f"""\
  - name: {AGING}
    ttl: {{column: seen, column_days: 30, column_unit: ms}}
    integrity: {{enabled: true, keys: table}}
"""
SERVICE = "lake_table_service"


@pytest.fixture(scope="module")
def airflow() -> Iterator[LocalAirflow]:
    airflow = make_airflow("rules", more_tables=RULES)
    airflow.settings |= {"AIRFLOW__LAKE__RETRY_DELAY_S": "3"}
    try:
        airflow.start()
        airflow.wait_for_dags()
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture(scope="module")
def writer(airflow: LocalAirflow) -> Iterator[StandingWriter]:
    with StandingWriter(airflow.home) as writer:
        yield writer


def put(airflow: LocalAirflow, writer: StandingWriter, name: str, rows: list[tuple[int, str, int, int]]) -> None:
    """Write rows (id, city, seen, ts) as one commit, with a notice."""
    options = LOCK_OPTIONS | {
        "hoodie.table.name": name,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "city",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.write.table.version": "9",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.table.services.enabled": "false",
        "hoodie.embed.timeline.server": "false",
        "hoodie.write.markers.type": "DIRECT",
        "hoodie.metadata.index.column.stats.enable": "false",
        "hoodie.upsert.shuffle.parallelism": "1",
        "hoodie.write.commit.callback.on": "true",
        "hoodie.write.commit.callback.http.url": airflow.callback_url,
        "hoodie.write.commit.callback.http.api.key": airflow.callback_token,
    }
    schema = "id long, city string, seen long, ts long"
    path = str(airflow.allowed_roots[0] / name)
    writer.order({"do": "put", "base_path": path, "rows": rows, "schema": schema, "hudi_options": options})


def rows_of(table: Path) -> dict[tuple[str, int], int | None]:
    """Return `seen` of each row of a copy-on-write table, from the newest base files; without Hudi."""
    newest: dict[str, Path] = {}
    for path in sorted(table.glob("[!.]*/*.parquet"), key=lambda path: path.stem.rpartition("_")[2]):
        newest[path.name.partition("_")[0]] = path
    read = (row for path in newest.values() for row in pq.ParquetFile(path).read().to_pylist())
    return {(row["city"], row["id"]): row["seen"] for row in read}


def has_succeeded(airflow: LocalAirflow, name: str, service: str) -> bool:
    runs = [run for run in airflow.service_runs() if run["conf"].get("table_name") == name]
    return any(run["conf"]["service"] == service and run["state"] == "success" for run in runs)


def test_rows_expire_by_a_column_and_keys_are_compared_in_the_whole_table(
    airflow: LocalAirflow, writer: StandingWriter
) -> None:
    table = airflow.allowed_roots[0] / AGING
    now_ms = int(time.time() * 1000)
    old, new = now_ms - 40 * DAY_MS, now_ms - DAY_MS
    kept = {("Bonn", 1): new, ("Bonn", 2): None, ("Cork", 3): new}
    gone = {("Bonn", 4): old, ("Cork", 5): old, ("Cork", 6): old}
    put(airflow, writer, AGING, [(id, city, seen, 0) for (city, id), seen in {**kept, **gone}.items()])
    for service in ("ttl", "integrity"):
        airflow.wait_until(lambda service=service: has_succeeded(airflow, AGING, service), 300, f"a run of {service}")
    assert rows_of(table) == kept
    assert not list(table.rglob(f"{DamageKind.DUPLICATE_KEYS}.json"))

    # By hand as well: one row expires, and a key is in two partitions, which without the rule is none too many.
    put(airflow, writer, AGING, [(1, "Bonn", old, 1), (2, "Cork", new, 1)])
    del kept[("Bonn", 1)]
    kept[("Cork", 2)] = new
    run_to_success(airflow, "by_hand", SERVICE, base_path=str(table), service="ttl")
    assert rows_of(table) == kept
    run_to_success(airflow, "compared", SERVICE, base_path=str(table), service="integrity")
    found = json.loads((table / DamageKind.DUPLICATE_KEYS.place).read_text(encoding="utf-8"))["found"]
    assert [sorted(each["partitions"]) for each in found] == [["Bonn", "Cork"]], found
    assert rows_of(table) == kept

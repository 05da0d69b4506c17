"""OpenLineage events of a service, through the real provider and its file transport."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.planner.verdict import RunVerdict
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

T = "20261121120005000"


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders")
    stat = {"partitionPath": "p", "totalWriteBytes": 720, "numWrites": 9, "prevBaseFile": "a.parquet"}
    body = {"operationType": "COMPACT", "partitionToWriteStats": {"p": [stat]}}
    (table.path / ".hoodie" / "timeline" / f"{T}_20261121120006000.commit").write_text(json.dumps(body))
    (table.path / "p").mkdir()
    (table.path / "p" / "a.parquet").write_bytes(b"x" * 700)
    return table


def operator_of(base_path: str) -> Any:
    from airflow.sdk import DAG

    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    with DAG("lineage"):
        return HudiTableServiceOperator(
            task_id="run_service", base_path=base_path, service="compaction", table_name="orders"
        )


def emit(operator: Any, state: Any, events: Path) -> dict[str, Any]:
    """Extract and emit as the provider's listener does; return the event as it was written."""
    from airflow.providers.openlineage.extractors import ExtractorManager
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.file import FileConfig, FileTransport

    run, instance = SimpleNamespace(run_id="t.compaction.1"), SimpleNamespace(try_number=1)
    lineage = ExtractorManager().extract_metadata(run, operator, state, instance)
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(events), append=True)))
    OpenLineageAdapter(client).complete_task(
        run_id="01941f29-7c00-7087-8906-40e512c257bd",
        job_name="lake_table_service.run_service",
        end_time="2026-11-21T12:00:10+00:00",
        task=lineage,
        nominal_start_time=None,
        nominal_end_time=None,
        owners=None,
        tags=None,
        job_description=None,
    )
    written: dict[str, Any] = json.loads(events.read_text().splitlines()[-1])
    return written


def test_completed_service_reads_and_writes_its_table_with_its_numbers(table: HandMadeTable, tmp_path: Path) -> None:
    from airflow.utils.state import TaskInstanceState

    from airflow_lake_provider.execution.reporting import measure_service
    from airflow_lake_provider.metrics import NoMetrics
    from airflow_lake_provider.planner.verdict import TableReader
    from airflow_lake_provider.storage.table_storage import open_storage

    operator = operator_of(str(table.path))
    verdict = RunVerdict(Outcome.COMPLETED, "compaction is completed on the timeline", (T,))
    reader = TableReader(str(table.path), open_storage)
    operator.keep_lineage(verdict, measure_service(NoMetrics(), reader, Service.COMPACTION, verdict, 1.0))
    event = emit(operator, TaskInstanceState.SUCCESS, tmp_path / "events.jsonl")

    (source,), (target,) = event["inputs"], event["outputs"]
    assert {(d["namespace"], d["name"]) for d in (source, target)} == {("file", str(table.path))}
    assert source["facets"]["symlinks"]["identifiers"] == [{"namespace": "file", "name": "orders", "type": "TABLE"}]
    assert (source["inputFacets"]["inputStatistics"]["size"], target["facets"]["version"]["datasetVersion"]) == (700, T)
    written = target["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["size"], written["fileCount"]) == (9, 720, 1)
    run = event["run"]["facets"]["hudi_tableService"]
    assert (run["service"], run["outcome"], run["completedInstants"]) == ("compaction", "completed", [T])
    assert event["job"]["facets"]["hudi_tableService"]["mode"] == "schedule_and_execute"


@pytest.mark.parametrize("state", ["running", "failed"])
def test_service_that_has_not_ended_well_names_its_table_only(state: str, tmp_path: Path) -> None:
    from airflow.utils.state import TaskInstanceState

    event = emit(operator_of("s3a://bucket/lake/orders"), TaskInstanceState(state), tmp_path / "events.jsonl")
    (target,) = event["outputs"]
    assert (target["namespace"], target["name"]) == ("s3://bucket", "lake/orders")
    assert target.get("outputFacets") in (None, {})
    assert event["run"]["facets"]["hudi_tableService"].get("outcome") == ("failed" if state == "failed" else None)

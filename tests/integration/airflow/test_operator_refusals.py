"""What the operator refuses before anything is submitted, on tables on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import HandMadeTable
from tests.support.task_context import as_its_file_says, task_instance

pytestmark = pytest.mark.integration

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
# The manager's own run: it was given all that the table's policy says.
CONTEXT: Any = {"run_id": "orders.compaction.20261121120000000.1a", "ti": task_instance()}


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    return table


def operator(table: HandMadeTable, **arguments: Any) -> Any:
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    given = {"service": "compaction", "hudi_options": LOCK, **arguments}
    return as_its_file_says(HudiTableServiceOperator(task_id="run_service", base_path=str(table.path), **given))


def begin_write(table: HandMadeTable, *, with_heartbeat: bool) -> str:
    requested = "20261121120009000"
    (table.path / ".hoodie" / "timeline" / f"{requested}.deltacommit.inflight").write_bytes(b"")
    if with_heartbeat:
        (table.path / ".hoodie" / ".heartbeat").mkdir()
        (table.path / ".hoodie" / ".heartbeat" / requested).write_bytes(b"")
    return requested


def test_service_next_to_a_writer_without_heartbeat_is_refused_and_retried(table: HandMadeTable) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    requested = begin_write(table, with_heartbeat=False)
    with pytest.raises(AirflowException, match=f"write {requested} is in flight without a heartbeat") as raised:
        operator(table).execute(CONTEXT)
    assert not isinstance(raised.value, AirflowFailException)


def test_service_next_to_a_writer_with_heartbeat_goes_on_to_the_lease(table: HandMadeTable) -> None:
    from airflow.sdk.exceptions import AirflowException

    begin_write(table, with_heartbeat=True)
    with pytest.raises(AirflowException, match="manager"):  # no server serves it here
        operator(table).execute(CONTEXT)


def test_service_that_writes_nothing_to_the_table_needs_no_lock_and_no_heartbeats(table: HandMadeTable) -> None:
    from airflow.sdk.exceptions import AirflowException

    begin_write(table, with_heartbeat=False)
    with pytest.raises(AirflowException, match="manager"):  # no server serves it here
        operator(table, service="sync", mode="execute", hudi_options={}).execute(CONTEXT)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param({"hudi_options": {}}, "no hoodie.write.lock.provider is configured", id="no-lock"),
        pytest.param({"service": "vacuum"}, "allowed services: compaction", id="unknown-service"),
        pytest.param({"mode": "later"}, "modes: schedule", id="unknown-mode"),
        pytest.param({"hudi_options": "{"}, "hudi_options is not JSON", id="broken-options"),
    ],
)
def test_service_that_cannot_be_right_fails_for_good(
    table: HandMadeTable, arguments: dict[str, Any], says: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=says):
        operator(table, **arguments).execute(CONTEXT)


def test_compaction_of_a_copy_on_write_table_fails_for_good(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    table = HandMadeTable.create(tmp_path / "cow", table_type="COPY_ON_WRITE")
    with pytest.raises(AirflowFailException, match="only merge-on-read is compacted"):
        operator(table).execute(CONTEXT)

"""Services on an HDFS that takes no client without a ticket: keytab and principal come from Airflow's connections."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from local_stack.kerberos import with_another_key
from local_stack.processes import PATIENCE, ServerProcess
from tests.integration.engines.realm_stage import TICKET_S, RealmStage, realm_stage
from tests.integration.engines.stage import OPTIONS

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/storage/test_kerberos.py")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealmStage]:
    with realm_stage(tmp_path_factory) as stage:
        yield stage


def wait_for_driver(stage: RealmStage, task: ServerProcess) -> None:
    """Wait until a task's driver waits for the lock."""
    stage.wait_until(
        lambda: "as soon as the table's lock is free" in stage.log_of(task) or not task.alive(), "the driver"
    )
    assert task.alive(), task.log_tail(60)


def require_refusal(stage: RealmStage, task: ServerProcess, error: str, says: str) -> None:
    """Require that a task ended with one error, which Airflow retries if it is `EngineAwayError` and the like."""
    task.process.wait(timeout=240 * PATIENCE)
    log = stage.log_of(task)
    assert "RETURNED {" not in log
    raised = [
        line for line in log.splitlines() if line.startswith(("airflow_lake_provider.errors.", "airflow.sdk.exc"))
    ]
    assert raised, log[-4000:]
    assert raised[0].startswith(f"airflow_lake_provider.errors.{error}: "), raised
    assert says in raised[0], raised


def test_compaction_runs_with_the_keytab_of_the_spark_connection_beyond_a_tickets_lifetime(stage: RealmStage) -> None:
    path = stage.copy_table("orders")
    with stage.held_lock("orders"):
        task = stage.start_task("whole", base_path=path, table_name="orders")
        wait_for_driver(stage, task)
        time.sleep(TICKET_S + 5)
    stage.require_completed("orders", task)
    stage.require_executed_once("orders")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("old-keys", "; the principal's keys have changed since: put its new keytab there"),
        ("empty", "the keytab cannot be read, or holds no key of the principal: correct one of them"),
    ],
)
def test_wrong_keytab_is_one_clear_error_that_is_not_retried(stage: RealmStage, wrong: str, says: str) -> None:
    path, right = stage.copy_table(wrong), stage.kerberos.keytab
    before = stage.instants(wrong)
    stage.keytab = stage.folder / f"{wrong}.keytab"
    if wrong == "empty":
        stage.keytab.write_bytes(right.read_bytes()[:2])
    else:
        with_another_key(right, stage.keytab)
    try:
        task = stage.start_task(wrong, base_path=path, table_name=wrong)
        require_refusal(stage, task, "ServiceRefusedError", says)
    finally:
        stage.keytab = right
    place = "`principal` and `keytab` in the extra of connection 'spark_default'"
    assert f"Spark cannot log in to Kerberos as {stage.kerberos.client} with keytab " in stage.log_of(task)
    assert place in stage.log_of(task)
    assert stage.instants(wrong) == before
    # Airflow fails the task for good.
    assert "AirflowFailException" in stage.log_of(task)


def test_ticket_that_has_expired_is_one_clear_error_that_is_waited_for(stage: RealmStage) -> None:
    path, right = stage.copy_table("expired"), stage.keytab
    before = stage.instants("expired")
    stage.keytab = None
    try:
        time.sleep(max(0.0, stage.renew_ticket(5) - time.monotonic()) + 2)
        task = stage.start_task("expired", base_path=path, table_name="expired")
        require_refusal(stage, task, "ServiceFailedError", "there is no valid ticket: set `principal` and `keytab`")
        assert "AirflowRescheduleException" in stage.log_of(task)
        assert stage.instants("expired") == before

        stage.renew_ticket(600)
        task = stage.start_task("expired", base_path=path, table_name="expired")
        stage.require_completed("expired", task)
    finally:
        stage.keytab = right
    stage.require_executed_once("expired")


def test_ticket_that_ends_while_a_job_waits_for_the_lock_is_named_and_not_the_lock(stage: RealmStage) -> None:
    path, right = stage.copy_table("waiting"), stage.keytab
    before = stage.instants("waiting")
    # Hadoop's client closes a connection after ten seconds without a call, and a new one needs a ticket.
    options = {
        "hoodie.write.lock.client.wait_time_ms_between_retry": "15000",
        "hoodie.write.lock.client.num_retries": "8",
    }
    stage.keytab = None
    try:
        ends = stage.renew_ticket(60)
        with stage.held_lock("waiting"):
            task = stage.start_task(
                "waiting", base_path=path, table_name="waiting", hudi_options={**OPTIONS, **options}
            )
            wait_for_driver(stage, task)
            time.sleep(max(0.0, ends - time.monotonic()) + 2)
        # From here on the lock is free, and only the ticket is missing.
        require_refusal(stage, task, "ServiceFailedError", "there is no valid ticket: set `principal` and `keytab`")
    finally:
        stage.keytab = right
    assert "AirflowRescheduleException" in stage.log_of(task)
    assert stage.instants("waiting") == before

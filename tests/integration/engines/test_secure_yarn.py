"""A service inside a YARN that takes no client without a ticket, on an HDFS that takes none either."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from local_stack.kerberos import with_another_key
from local_stack.processes import PATIENCE
from tests.integration.engines.realm_stage import SecureYarnStage, realm_stage

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_tickets.py")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureYarnStage]:
    with realm_stage(tmp_path_factory, has_yarn=True) as stage:
        yield stage


@pytest.mark.parametrize("place", ["connection", "spark_conf"])
def test_compaction_runs_inside_a_yarn_with_kerberos_by_the_jobs_keytab(
    stage: SecureYarnStage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(stage, "is_in_spark_conf", place == "spark_conf")
    path = stage.copy_table(f"orders-{place}")
    known = {app["id"] for app in stage.yarn.applications(active=False)}
    task = stage.start_task(f"whole-{place}", base_path=path, table_name=place)
    stage.require_completed(f"orders-{place}", task)
    stage.require_executed_once(f"orders-{place}")
    (app,) = [app for app in stage.yarn.applications(active=False) if app["id"] not in known]
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    # Not this process's user: whose ticket it was.
    assert app["user"] == "lake"
    log = stage.log_of(task)
    assert app["amContainerLogs"] in log
    # What the driver printed, from a NodeManager that wants a ticket as well.
    (commit,) = stage.commits(f"orders-{place}")
    assert f"lake: {place}: scheduled {commit.split('_')[0]} in" in log


def test_compaction_in_client_mode_on_a_yarn_with_kerberos(
    stage: SecureYarnStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "deploy_mode", "client")
    path = stage.copy_table("users")
    known = {app["id"] for app in stage.yarn.applications(active=False)}
    task = stage.start_task("client", base_path=path, table_name="users")
    stage.require_completed("users", task)
    stage.require_executed_once("users")
    (app,) = [app for app in stage.yarn.applications(active=False) if app["id"] not in known]
    assert (app["finalStatus"], app["user"]) == ("SUCCEEDED", "lake")


def test_run_that_is_cleared_has_its_application_ended_and_the_next_try_executes_the_plan(
    stage: SecureYarnStage,
) -> None:
    path = stage.copy_table("cleared")
    with stage.held_lock("cleared"):
        first = stage.start_task("cleared", base_path=path, table_name="cleared")
        stage.wait_until(
            lambda: "as soon as the table's lock is free" in stage.log_of(first) or not first.alive(), "the driver"
        )
        assert first.alive(), first.log_tail(60)
        (app,) = stage.yarn.applications()
        os.kill(first.process.pid, signal.SIGTERM)
        first.process.wait(timeout=120 * PATIENCE)
        assert stage.yarn.applications() == []
    (ended,) = [known for known in stage.yarn.applications(active=False) if known["id"] == app["id"]]
    # On one machine the task reaches the driver's process as well, and YARN then calls it failed.
    assert ended["state"] in {"KILLED", "FAILED"}
    assert ended["user"] == "lake"
    stage.require_completed("cleared", stage.start_task("cleared", 2, base_path=path, table_name="cleared"))
    stage.require_executed_once("cleared")


@pytest.mark.parametrize("place", ["connection", "spark_conf"])
def test_wrong_keytab_is_refused_before_yarn_has_an_application(
    stage: SecureYarnStage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    name = f"clicks-{place}"
    path = stage.copy_table(name)
    before = stage.instants(name)
    known = len(stage.yarn.applications(active=False))
    monkeypatch.setattr(stage, "is_in_spark_conf", place == "spark_conf")
    monkeypatch.setattr(stage, "keytab", with_another_key(stage.kerberos.keytab, stage.folder / "old.keytab"))
    task = stage.start_task(f"old-keys-{place}", base_path=path, table_name=name)
    task.process.wait(timeout=240 * PATIENCE)
    log = stage.log_of(task)
    assert "ServiceRefusedError" in log
    said = {
        "connection": "(`principal` and `keytab` in the extra of connection 'spark_default')",
        "spark_conf": "(spark.kerberos.principal and spark.kerberos.keytab in spark_conf)",
    }
    assert f"cannot log in to Kerberos as {stage.kerberos.client} with keytab " in log
    assert said[place] in log
    assert "put its new keytab there" in log
    assert stage.instants(name) == before
    assert len(stage.yarn.applications(active=False)) == known


def test_ticket_that_has_expired_is_waited_for_before_yarn_has_an_application(
    stage: SecureYarnStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stage.copy_table("expired")
    before, known = stage.instants("expired"), len(stage.yarn.applications(active=False))
    monkeypatch.setattr(stage, "keytab", None)
    time.sleep(max(0.0, stage.renew_ticket(5) - time.monotonic()) + 2)
    task = stage.start_task("expired", base_path=path, table_name="expired")
    task.process.wait(timeout=240 * PATIENCE)
    log = stage.log_of(task)
    assert "RETURNED {" not in log
    assert "EngineAwayError" in log, log[-3000:]
    assert "there is no valid ticket: set `principal` and `keytab`" in log, log[-3000:]
    assert "AirflowRescheduleException" in log
    assert stage.instants("expired") == before
    assert len(stage.yarn.applications(active=False)) == known

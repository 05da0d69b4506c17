"""A service inside a YARN that takes no client without a ticket, on an HDFS that takes none either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local_stack.kerberos import with_another_key
from tests.integration.engines.realm_stage import SecureYarnStage, realm_stage

pytestmark = [pytest.mark.integration, pytest.mark.soak]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureYarnStage]:
    with realm_stage(tmp_path_factory, has_yarn=True) as stage:
        yield stage


def test_compaction_runs_inside_a_yarn_with_kerberos_by_the_jobs_keytab(stage: SecureYarnStage) -> None:
    path = stage.upload("orders")
    task = stage.start_task("whole", base_path=path, table_name="orders")
    stage.require_completed("orders", task)
    stage.require_executed_once("orders")
    (app,) = stage.yarn.applications(active=False)
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    # Not this process's user: whose ticket it was.
    assert app["user"] == "lake"
    log = stage.log_of(task)
    assert app["amContainerLogs"] in log


def test_wrong_keytab_is_refused_before_yarn_has_an_application(stage: SecureYarnStage) -> None:
    path, right = stage.upload("clicks"), stage.keytab
    before = stage.instants("clicks")
    known = len(stage.yarn.applications(active=False))
    stage.keytab = with_another_key(stage.kerberos.keytab, stage.folder / "old.keytab")
    try:
        task = stage.start_task("old-keys", base_path=path, table_name="clicks")
        task.process.wait(timeout=240)
    finally:
        stage.keytab = right
    log = stage.log_of(task)
    assert "ServiceRefusedError" in log
    assert (
        f"with keytab {stage.folder}/old.keytab (spark.kerberos.principal and spark.kerberos.keytab in spark_conf)"
        in log
    )
    assert stage.instants("clicks") == before
    assert len(stage.yarn.applications(active=False)) == known

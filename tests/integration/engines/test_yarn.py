"""A service on a real YARN and a real HDFS: the ResourceManager and the table's timeline judge."""

from __future__ import annotations

import pytest

from tests.integration.engines.yarn_stage import YarnStage

pytestmark = pytest.mark.integration


def test_compaction_runs_inside_yarn_and_its_output_is_in_the_tasks_log(stage: YarnStage) -> None:
    path = stage.copy_table("orders")
    task = stage.start_task("whole", base_path=path, table_name="orders")
    stage.require_completed("orders", task)

    (app,) = stage.stack.yarn.applications(active=False)
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    assert stage.result("whole").spark_application_id == app["id"]
    # What the driver printed in its container, and where the rest is: YARN may take the last lines away.
    log = stage.log_of(task)
    (commit,) = stage.commits("orders")
    assert f"lake: orders: scheduled {commit.split('_')[0]} in" in log
    assert app["amContainerLogs"] in log
    assert not stage.containers(app["id"])


@pytest.mark.soak
def test_compaction_in_client_mode_has_its_containers_in_yarn_and_names_their_logs(stage: YarnStage) -> None:
    path = stage.copy_table("clicks")
    stage.deploy_mode = "client"
    try:
        task = stage.start_task("client", base_path=path, table_name="clicks")
        stage.require_completed("clicks", task)
    finally:
        stage.deploy_mode = "cluster"

    application_id = stage.result("client").spark_application_id
    (app,) = [app for app in stage.stack.yarn.applications(active=False) if app["id"] == application_id]
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    log = stage.log_of(task)
    (commit,) = stage.commits("clicks")
    assert f"lake: clicks: scheduled {commit.split('_')[0]} in" in log
    assert f"yarn logs -applicationId {application_id}" in log
    assert not stage.containers(application_id)

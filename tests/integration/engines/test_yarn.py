"""A service on a real YARN and a real HDFS: the ResourceManager and the table's timeline judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.engines.yarn_stage import YarnStage, yarn_stage

pytestmark = pytest.mark.integration


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnStage]:
    with yarn_stage(tmp_path_factory) as stage:
        yield stage


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

"""A service on a real YARN and a real HDFS: the ResourceManager and the table's timeline judge."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decide import service_options
from local_stack.writer_process import StandingWriter
from tests.integration.engines.stage import OPTIONS
from tests.integration.engines.yarn_stage import YarnStage

pytestmark = pytest.mark.integration


def test_compaction_runs_inside_yarn_and_its_output_is_in_the_tasks_log(stage: YarnStage) -> None:
    path = stage.copy_table("orders")
    task = stage.start_task("whole", base_path=path, table_name="orders")
    stage.require_completed("orders", task)

    (app,) = stage.yarn.applications(active=False)
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
    (app,) = [app for app in stage.yarn.applications(active=False) if app["id"] == application_id]
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    log = stage.log_of(task)
    (commit,) = stage.commits("clicks")
    assert f"lake: clicks: scheduled {commit.split('_')[0]} in" in log
    assert f"yarn logs -applicationId {application_id}" in log
    assert not stage.containers(application_id)


@pytest.mark.soak
def test_services_of_one_table_run_inside_yarn_one_after_the_other(
    stage: YarnStage, reader: StandingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stage.copy_table("served")
    before = reader.read(path)
    written = {base.partition("_")[0] for base in stage.base_files("served")}
    deltas = {entry for entry in stage.instants("served") if entry.endswith(".deltacommit")}
    # A merge-on-read table keeps as many delta commits as the compaction trigger counts.
    own = {**OPTIONS, "hoodie.compact.inline.max.delta.commits": "1"}
    policy = TablePolicy(
        clean=CleanPolicy(policy="versions", retained_versions=1),
        archive=ArchivePolicy(min_commits=1, max_commits=2),
    )

    def serve(service: Service, mode: str = "schedule_and_execute") -> None:
        options = {**own, **service_options(service, policy)}
        # As the manager answers: retention is the tables file's, no run's own.
        monkeypatch.setitem(stage.leases.policy, "hudi_options", options)
        # Or clustering would wait for the writer, which wrote a moment ago.
        asked = {"service": service, "mode": mode, "conflict": {"enabled": False}}
        task = stage.start_task(f"served-{service}", base_path=path, table_name="served", **asked)
        assert stage.wait_for_task(task)["outcome"] == "completed", task.log_tail(80)
        application_id = stage.result(f"served-{service}").spark_application_id
        (app,) = [app for app in stage.yarn.applications(active=False) if app["id"] == application_id]
        assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
        assert app["amContainerLogs"] in stage.log_of(task)

    def has(ending: str) -> bool:
        return any(entry.endswith(ending) for entry in stage.instants("served"))

    serve(Service.COMPACTION)
    stage.require_executed_once("served")
    serve(Service.CLUSTERING)
    assert has(".replacecommit")
    clustered = {base.partition("_")[0] for base in stage.base_files("served")} - written
    assert clustered
    serve(Service.CLEAN)
    assert has(".clean")
    # Only the files that the clustering wrote are left.
    assert {base.partition("_")[0] for base in stage.base_files("served")} == clustered
    serve(Service.METACOMPACTION, "execute")
    serve(Service.ARCHIVE, "execute")
    assert not deltas <= stage.instants("served")
    assert {**reader.read(path), "seconds": 0} == {**before, "seconds": 0}

"""A real YARN that takes no application: one clear error, and a table that nothing has touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import pytest

from local_stack.processes import PATIENCE
from local_stack.yarn import MAX_APPLICATIONS
from tests.integration.engines.yarn_stage import HASTY, YarnStage

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_clusters.py")]


@contextmanager
def full_queue(stage: YarnStage) -> Iterator[None]:
    yarn = stage.yarn
    sleeping = [yarn.submit_sleep() for _ in range(MAX_APPLICATIONS)]
    try:
        yield
    finally:
        for application_id in sleeping:
            yarn.kill_application(application_id)


@contextmanager
def dead_manager(stage: YarnStage) -> Iterator[None]:
    yarn = stage.yarn
    yarn.daemons.kill("resourcemanager")
    try:
        yield
    finally:
        yarn.start_resource_manager()
        yarn.wait_for_nodes(yarn.nodes)


PROBLEMS: Mapping[str, Callable[[YarnStage], AbstractContextManager[None]]] = {
    "full-queue": full_queue,
    "dead-resource-manager": dead_manager,
}
SAYS = {
    ("full-queue", "cluster"): "EngineAwayError: YARN's queue is full",
    ("full-queue", "client"): "lake: YARN's queue is full",
    ("dead-resource-manager", "cluster"): "EngineAwayError: YARN's ResourceManager does not report what it runs",
    ("dead-resource-manager", "client"): "lake: Spark's cluster does not answer",
}


@pytest.mark.parametrize(("problem", "mode"), SAYS)
def test_what_keeps_an_application_out_is_named_and_costs_no_try(
    stage: YarnStage, monkeypatch: pytest.MonkeyPatch, problem: str, mode: str
) -> None:
    name = f"{problem}-{mode}"
    path = stage.copy_table(name)
    before = stage.instants(name)
    known = {app["id"] for app in stage.yarn.applications(active=False)}
    monkeypatch.setattr(stage, "deploy_mode", mode)
    with PROBLEMS[problem](stage):
        task = stage.start_task(name, base_path=path, table_name=name, spark_conf=HASTY)
        task.process.wait(timeout=300 * PATIENCE)
    log = stage.log_of(task)
    assert SAYS[problem, mode] in log, log[-4000:]
    # The retry policy waits, and starts the same try again (test_retry_policy.py).
    assert "airflow_lake_provider.errors.EngineAwayError" in log
    assert "RETURNED {" not in log
    assert stage.instants(name) == before
    left = [app for app in stage.yarn.applications(active=False) if app["id"] not in known]
    assert [app for app in left if app["name"] != "sleep" and app["state"] not in {"FAILED", "KILLED"}] == []


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_queue_that_does_not_exist_is_named_and_is_a_failed_try(
    stage: YarnStage, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """YARN answers, so it would refuse again."""
    name = f"queue-{mode}"
    path = stage.copy_table(name)
    before = stage.instants(name)
    monkeypatch.setattr(stage, "deploy_mode", mode)
    task = stage.start_task(name, base_path=path, table_name=name, spark_conf={"spark.yarn.queue": "nowhere"})
    task.process.wait(timeout=300 * PATIENCE)
    log = stage.log_of(task)
    assert "to unknown queue: nowhere" in log, log[-4000:]
    assert "RETURNED {" not in log
    raised = [line for line in log.splitlines() if line.startswith("airflow_lake_provider.errors.")]
    assert raised, log[-4000:]
    assert not raised[0].startswith("airflow_lake_provider.errors.EngineAwayError"), raised
    assert stage.instants(name) == before
    assert stage.yarn.applications() == []

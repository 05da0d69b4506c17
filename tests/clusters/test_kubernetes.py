"""Drivers on a real Kubernetes: whatever dies, a compaction is done once, and what keeps a driver out has its name.

Nothing is left in the namespace. Of failures only those that the cluster itself shows are made; what spark-submit and
the API say then is recorded (tests/recordings/kubernetes), and played in tests/integration/engines/test_clusters.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import create_engine
from airflow_lake_provider.job_contract import FailureKind
from local_stack.processes import PATIENCE, ServerProcess
from local_stack.writer_process import StandingWriter
from tests.clusters.kubernetes_stage import LEASE_S, NAMESPACE, KubernetesStage, held_lock
from tests.integration.engines.kubernetes_client import kubernetes_client

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/engines/test_clusters.py")]

MODULE = "airflow_lake_provider.execution.engines.kubernetes"


@pytest.fixture(autouse=True)
def nothing_is_left(stage: KubernetesStage) -> Iterator[None]:
    yield
    # The garbage collector removes what belonged to a driver's pod a moment later.
    stage.wait_until(lambda: stage.left() == [], f"an empty namespace, which has {stage.left()}", 60)


def test_compaction_in_a_pod_is_followed_to_its_end(stage: KubernetesStage, reader: StandingWriter) -> None:
    path = stage.copy_table("plain")
    before = reader.read(path)
    task = stage.start("plain")
    assert stage.wait_for_task(task)["outcome"] == "completed", task.log_tail(60)
    log = stage.log_of(task)
    assert "lake: plain: compaction" in log, "the driver's output is in the task's log"
    assert len(re.findall(r"lake: plain: compaction completed", log)) == 1
    stage.require_compacted_once("plain")
    assert {**reader.read(path), "seconds": 0} == {**before, "seconds": 0}


def kill_worker(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    time.sleep(LEASE_S)
    return True


def delete_driver_pod(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    stage.cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    first.process.wait(timeout=240 * PATIENCE)
    return True


def kill_driver_process(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    for process in stage.cluster.processes_of(pod["metadata"]["uid"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                process.kill()
    first.process.wait(timeout=240 * PATIENCE)
    assert "exit code 137, Error" in stage.log_of(first), first.log_tail(60)
    return True


def kill_executor(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    for executor in stage.pods("executor"):
        stage.cluster.kubectl("-n", NAMESPACE, "delete", "pod", executor["metadata"]["name"], "--wait=false")
    return False


def restart_api_server(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    stage.cluster.kill_server("apiserver")
    stage.wait_until(lambda: "Kubernetes does not report the state" in stage.log_of(first), "a refused connection", 60)
    stage.cluster.start_api_server()
    return False


def restart_kubelet(stage: KubernetesStage, first: ServerProcess, pod: dict[str, Any]) -> bool:
    stage.cluster.kill_server("kubelet")
    time.sleep(5)
    stage.cluster.start_kubelet()
    return False


@pytest.mark.parametrize(
    "blow",
    [kill_worker, delete_driver_pod, kill_driver_process, kill_executor, restart_api_server, restart_kubelet],
    ids=lambda blow: str(blow.__name__),
)
def test_compaction_is_done_once_whatever_dies(
    stage: KubernetesStage,
    reader: StandingWriter,
    blow: Callable[[KubernetesStage, ServerProcess, dict[str, Any]], bool],
) -> None:
    """What returns True ends the try: then the next one follows the driver, or completes the plan."""
    name = blow.__name__
    path = stage.copy_table(name)
    before = reader.read(path)
    with held_lock(path):
        task = stage.start(name)
        pod = stage.wait_for_driver(task)
        needs_another_try = blow(stage, task, pod)
        if needs_another_try:
            task = stage.start(name, try_number=2)
            if blow is kill_worker:
                stage.wait_until(lambda: "this try follows" in stage.log_of(task) or not task.alive(), "the next try")
                assert [each["metadata"]["uid"] for each in stage.pods()] == [pod["metadata"]["uid"]]
    assert stage.wait_for_task(task, 400)["outcome"] == "completed", task.log_tail(60)
    stage.require_compacted_once(name)
    assert {**reader.read(path), "seconds": 0} == {**before, "seconds": 0}


def submission_error(stage: KubernetesStage, name: str, **conf: str) -> EngineError:
    with pytest.raises(EngineError) as raised:
        create_engine("spark-submit").start(stage.job(name, **conf))
    return raised.value


@pytest.mark.usefixtures("engine_access")
def test_quota_that_is_used_up_costs_no_try(stage: KubernetesStage) -> None:
    stage.cluster.kubectl("-n", NAMESPACE, "create", "quota", "none", "--hard=pods=0")
    stage.wait_until(lambda: "used" in str(stage.cluster.items("quota", NAMESPACE)[0].get("status")), "the quota")
    try:
        error = submission_error(stage, "quota")
    finally:
        stage.cluster.kubectl("-n", NAMESPACE, "delete", "quota", "none")
    assert isinstance(error, EngineAwayError)
    assert "the quota of the namespace is used up: exceeded quota: none, requested: pods=1" in str(error)


@pytest.mark.usefixtures("engine_access")
def test_api_server_that_is_away_at_the_submission_costs_no_try(stage: KubernetesStage) -> None:
    stage.cluster.kill_server("apiserver")
    try:
        error = submission_error(stage, "away")
    finally:
        stage.cluster.start_api_server()
    assert isinstance(error, EngineAwayError)


def test_account_that_may_create_no_pods_is_a_failed_try_with_the_reason(
    stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "account", "default")
    for name, value in stage.env().items():
        monkeypatch.setenv(name, value)
    with kubernetes_client():
        error = submission_error(stage, "roles")
    assert not isinstance(error, EngineAwayError)
    assert 'User "system:serviceaccount:lake:default" cannot' in str(error) or "Forbidden" in str(error), error


@pytest.mark.usefixtures("engine_access")
def test_image_that_is_not_there_is_a_failed_try_with_the_reason(
    stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.REFUSED_PATIENCE_S", 3.0)
    engine = create_engine("spark-submit")
    job = stage.job("image", spark__kubernetes__container__image="docker.io/lake/none:1")
    death = engine.wait(engine.start(job))
    assert death is not None
    assert death.failure_kind is FailureKind.OTHER
    assert "did not start within 3 s: ErrImageNeverPull" in death.reason


@pytest.mark.usefixtures("engine_access")
def test_driver_without_a_role_fails_with_its_last_exception(stage: KubernetesStage) -> None:
    engine = create_engine("spark-submit")
    key = "spark.kubernetes.authenticate.driver.serviceAccountName".replace(".", "__")
    death = engine.wait(engine.start(stage.job("driver-role", **{key: "default"})))
    assert death is not None
    assert "exit code" in death.reason
    assert "serviceaccount:lake:default" in death.reason, death


@pytest.mark.usefixtures("engine_access")
def test_driver_that_is_killed_for_its_memory_is_out_of_memory(
    stage: KubernetesStage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine("spark-submit")
    options = "-Xms600m -XX:+AlwaysPreTouch -XX:+UseSerialGC"
    job = stage.job("memory", spark__driver__memoryOverhead="1m", spark__driver__extraJavaOptions=options)
    with caplog.at_level(logging.INFO):
        death = engine.wait(engine.start(job))
    assert death is not None
    assert death.failure_kind is FailureKind.OUT_OF_MEMORY, death
    assert "exit code 137, OOMKilled" in death.reason


@pytest.mark.usefixtures("engine_access")
def test_driver_that_no_node_has_room_for_waits_and_can_be_ended(
    stage: KubernetesStage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine("spark-submit")
    handle = engine.start(stage.job("room", spark__kubernetes__driver__request__cores="999"))
    (pod,) = stage.pods()
    assert pod["status"]["phase"] == "Pending"
    engine.stop(handle)
    assert Path(handle.job.request_path).exists()

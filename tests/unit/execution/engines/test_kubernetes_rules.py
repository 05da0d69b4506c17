"""How drivers in pods differ: settings that are missing, clusters that are away, pods that cannot start."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.kubernetes import (
    REFUSED_PATIENCE_S,
    START_PATIENCE_S,
    death_of,
    find_away,
    find_limit_s,
    find_message,
    find_obstacles,
    require_settings,
)

RECORDINGS = Path(__file__).resolve().parents[3] / "recordings" / "kubernetes"
IMAGE = {"spark.kubernetes.container.image": "lake-spark:1"}
UPLOADS = {"spark.kubernetes.file.upload.path": "s3a://lake/uploads"}
IN_IMAGE = {"spark.lake.jobs": "local:///opt/lake"}
WORKERS_JAR = "/opt/jars/hudi.jar"
IMAGES_JAR = "local:///opt/jars/hudi.jar"


@pytest.mark.parametrize(
    ("conf", "jars", "names"),
    [
        pytest.param(UPLOADS, "", "spark.kubernetes.container.image", id="no-image"),
        pytest.param(IMAGE, "", "spark.lake.jobs .* or set spark.kubernetes.file.upload.path", id="no-jobs"),
        pytest.param(IMAGE | IN_IMAGE, WORKERS_JAR, f"spark_jars .*{WORKERS_JAR}", id="jar-of-the-worker"),
    ],
)
def test_setting_without_which_nothing_can_be_submitted_is_named(conf: dict[str, str], jars: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        require_settings(conf, jars, "")


@pytest.mark.parametrize(
    ("conf", "jars", "defaults"),
    [
        pytest.param(IMAGE | UPLOADS, WORKERS_JAR, "", id="uploads"),
        pytest.param(IMAGE | IN_IMAGE, IMAGES_JAR, "", id="in-the-image"),
        pytest.param({"spark.kubernetes.driver.container.image": "i"} | IN_IMAGE, "", "", id="image-of-drivers"),
        pytest.param(
            {},
            WORKERS_JAR,
            "# ours\nspark.kubernetes.container.image  i\n  spark.kubernetes.file.upload.path=s3a://lake/uploads\n",
            id="spark-defaults",
        ),
    ],
)
def test_settings_that_suffice(conf: dict[str, str], jars: str, defaults: str) -> None:
    require_settings(conf, jars, defaults)


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        ("refused_connection", "Kubernetes does not answer: ConnectException: Failed to connect to /127.0.0.1:6443"),
        ("timeout", "Kubernetes does not answer: InterruptedIOException: timeout"),
        ("unavailable", "Kubernetes does not answer: Message: etcdserver: no leader"),
        ("quota", "the quota of the namespace is used up: exceeded quota: none, requested: pods=1, used: pods=0"),
        ("forbidden", ""),
        ("unauthorised", ""),
        ("no_upload_path", ""),
        ("no_image", ""),
        ("accepted", ""),
    ],
)
def test_cluster_that_is_away_or_full_is_known_by_what_the_real_spark_submit_prints(recording: str, says: str) -> None:
    found = find_away((RECORDINGS / f"submission_{recording}.txt").read_text(encoding="utf-8").splitlines())
    assert found.startswith(says), found
    assert bool(found) == bool(says), found


def pod(phase: str, *, node: str | None = "n1", waiting: str = "", ended: tuple[int, str] | None = None) -> Any:
    state = SimpleNamespace(
        waiting=SimpleNamespace(reason=waiting, message="") if waiting else None,
        terminated=SimpleNamespace(exit_code=ended[0], reason=ended[1]) if ended else None,
    )
    status = SimpleNamespace(
        phase=phase,
        reason=None,
        message=None,
        container_statuses=[SimpleNamespace(state=state)] if waiting or ended else None,
    )
    return SimpleNamespace(status=status, spec=SimpleNamespace(node_name=node))


@pytest.mark.parametrize(
    ("found", "limit_s"),
    [
        pytest.param(pod("Pending", node=None), math.inf, id="no-node-has-room"),
        pytest.param(pod("Running"), math.inf, id="at-work"),
        pytest.param(pod("Pending"), START_PATIENCE_S, id="given-to-a-node"),
        pytest.param(pod("Pending", waiting="ContainerCreating"), START_PATIENCE_S, id="image-or-volume"),
        pytest.param(pod("Pending", waiting="ImagePullBackOff"), REFUSED_PATIENCE_S, id="image-refused"),
        pytest.param(pod("Pending", waiting="CreateContainerConfigError"), REFUSED_PATIENCE_S, id="secret-missing"),
    ],
)
def test_pod_that_cannot_start_is_given_up_and_one_that_waits_for_room_is_not(found: Any, limit_s: float) -> None:
    assert find_limit_s(found) == limit_s


def test_death_has_exit_code_reason_and_the_last_exception() -> None:
    death = death_of(pod("Failed", ended=(1, "Error")), "lake/p", "SparkException: no executors")
    assert death is not None
    assert death.reason == "driver pod lake/p failed: exit code 1, Error; SparkException: no executors"
    assert death_of(pod("Succeeded"), "lake/p", "ValueError: caught and printed") is None


def test_image_that_cannot_be_pulled_is_all_that_keeps_a_pod() -> None:
    """The status is what Kubernetes 1.36 wrote of such a pod."""
    not_ready = "containers with unready status: [spark-kubernetes-driver]"
    conditions = [
        SimpleNamespace(type=kind, status="False", reason="ContainersNotReady", message=not_ready)
        for kind in ("Ready", "ContainersReady")
    ]
    found = pod("Pending", waiting="ErrImagePull")
    found.status.conditions = conditions
    found.status.container_statuses[0].state.waiting.message = "dial tcp 127.0.0.1:1: connect: connection refused"
    assert find_obstacles(found) == ["ErrImagePull: dial tcp 127.0.0.1:1: connect: connection refused"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"kind": "Status", "message": "pods \\"p\\" is forbidden", "code": 403}', 'pods "p" is forbidden'),
        ("<html>502</html>", "HTTP response headers: ..."),
        (None, "HTTP response headers: ..."),
        ('{"code": 403}', "HTTP response headers: ..."),
    ],
)
def test_refusal_says_what_the_api_server_says(body: str | None, says: str) -> None:
    error = RuntimeError("HTTP response headers: ...")
    error.body = body  # type: ignore[attr-defined]
    assert find_message(error) == says
    assert find_message(ConnectionError("refused")) == "refused"

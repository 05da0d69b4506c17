"""Drivers that outlive their task, with the cluster's API played: what no real cluster shows when it is asked to.

Of Kubernetes all is played: spark-submit's lines are recorded from the real one (tests/recordings/kubernetes). YARN is
real in test_yarn.py, test_yarn_kills.py, test_yarn_refusals.py and test_secure_yarn.py; played are only: an application
that does not end although it was killed, a ResourceManager that answers 401, 403, 429 or 5xx, the second in which it
has not loaded its applications, a KDC that dies between the task's login and spark-submit's, and a keytab that is out
of date only once the driver is in its container.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle, create_engine
from airflow_lake_provider.execution.engines.job_files import find_text
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Submitter, from_json
from airflow_lake_provider.replication.job import ReplicationRequest
from tests.integration.engines.fake_api import Answer, install_program, serve
from tests.integration.engines.kubernetes_client import kubernetes_client
from tests.support.engine_jobs import engine_job, replication_job

pytestmark = pytest.mark.integration

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings" / "kubernetes"
"""What the real spark-submit printed, as `python -m tests.recordings.record_kubernetes` wrote it down."""
RECORDED_POD = "lake-0123456789abcdef0123456789abcdef-driver"


def recorded(name: str) -> str:
    return (RECORDINGS / f"submission_{name}.txt").read_text(encoding="utf-8")


@dataclass
class Cluster:
    """What YARN or Kubernetes runs, by the name that finds it: YARN's tag, or the pod's name; with its state."""

    running: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    state_at_start: str = "RUNNING"
    obeys: bool = True
    submit_code: int = 0
    prints: str = ""
    """What spark-submit prints more."""
    answers: int = 200
    """What the API answers everything with, unless 200."""
    logs_at_info: bool = True

    def conf(self, key: str) -> str:
        """Return a Spark setting of the last submission."""
        return next(entry.removeprefix(f"{key}=") for entry in self.argv if entry.startswith(f"{key}="))

    def submitted(self, name_key: str, body: dict[str, Any], output: str) -> Answer:
        self.argv = body["argv"]
        self.running[self.conf(name_key)] = self.state_at_start
        return 200, {"output": f"{output}\n{self.prints}", "code": self.submit_code}


@dataclass
class Yarn(Cluster):
    """The ResourceManager. Ids are `application_1_<number>`."""

    diagnostics: str = ""
    is_recovered: bool = True
    """Until then it answers as a real one does in the second after its start: it knows no application."""

    def route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if self.answers != 200:
            return self.answers, {"output": "the cluster does not answer", "code": 1}
        if path == "/submitted":
            return self.submitted("spark.yarn.tags", body, f"Submitted application {self.id_of(len(self.running))}")
        apps = [self.app(tag) for tag in self.running]
        if path == "/ws/v1/cluster/info":
            return 200, {"clusterInfo": {"haState": "ACTIVE" if self.is_recovered else "INITIALIZING"}}
        if not self.is_recovered:
            return (200, {"apps": None}) if path == "/ws/v1/cluster/apps" else (404, {"RemoteException": {}})
        if path == "/ws/v1/cluster/apps":
            found = [app for app in apps if app["applicationTags"] == query["applicationTags"]]
            return 200, {"apps": {"app": found} if found else None}
        (app,) = [app for app in apps if app["id"] == path.split("/")[5]]
        if method == "PUT" and self.obeys:
            self.running[app["applicationTags"]] = body["state"]
        return 200, {"app": app}

    def app(self, tag: str) -> dict[str, str]:
        state = self.running[tag]
        final = {"FINISHED": "SUCCEEDED", "FAILED": "FAILED", "KILLED": "KILLED"}.get(state, "UNDEFINED")
        return {"id": self.id_of(list(self.running).index(tag)), "state": state, "finalStatus": final} | {
            "applicationTags": tag,
            "diagnostics": self.diagnostics,
        }

    @staticmethod
    def id_of(number: int) -> str:
        return f"application_1_{number:04}"


@dataclass
class Kubernetes(Cluster):
    """The API server, with pods of the namespace `lake`."""

    status: dict[str, Any] = field(default_factory=dict)
    """What each pod's status has besides its phase."""
    printed: list[str] = field(default_factory=list)
    """What the driver has printed, each line behind its time."""
    may_read_output: bool = True
    may_read: bool = True
    node: str | None = "n1"

    def route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if self.answers != 200:
            return self.answers, {"output": "the cluster does not answer", "code": 1}
        if path == "/submitted":
            status, answer = self.submitted("spark.kubernetes.driver.pod.name", body, "")
            pod = self.conf("spark.kubernetes.driver.pod.name")
            said = recorded("accepted").replace(RECORDED_POD, pod) if self.logs_at_info else ""
            return status, answer | {"output": self.prints or said}
        name, _, rest = path.removeprefix("/api/v1/namespaces/lake/pods/").partition("/")
        if not self.may_read:
            said = f'pods "{name}" is forbidden: User "lake:default" cannot get resource "pods"'
            return 403, {"kind": "Status", "message": said, "reason": "Forbidden", "code": 403}
        if name not in self.running:
            return 404, {"kind": "Status", "code": 404}
        if rest == "log":
            return (200, {"text": "\n".join(self.printed)}) if self.may_read_output else (403, {"code": 403})
        phase = self.running[name]
        if method == "DELETE" and self.obeys:
            del self.running[name]
        spec = {"containers": [], "nodeName": self.node}
        return 200, {"kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": {"phase": phase, **self.status}}


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster, and a job whose connection points at it. `name` is the job's on the cluster."""

    cluster: Cluster
    job: EngineJob
    name: str
    ends_well: str
    ends_badly: str


@pytest.fixture(params=["yarn", "kubernetes"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    cluster: Yarn | Kubernetes = Yarn() if request.param == "yarn" else Kubernetes()
    with kubernetes_client() if request.param == "kubernetes" else nullcontext(), serve(cluster.route) as port:
        install_program(tmp_path / "bin", "spark-submit", port)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
        module = f"airflow_lake_provider.execution.engines.{request.param}"
        monkeypatch.setattr(f"{module}.PAUSE_S", 0.05)
        extra: dict[str, str] = {"deploy-mode": "cluster"}
        if request.param == "yarn":
            host, extra["yarn_resourcemanager_webapp_address"] = "yarn", f"http://127.0.0.1:{port}"
        else:
            host, extra["namespace"] = f"k8s://http://127.0.0.1:{port}", "lake"
            monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
            monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(kube_config(tmp_path, port)))
        monkeypatch.setenv(
            "AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": host, "extra": json.dumps(extra)})
        )
        conf = IN_PODS if request.param == "kubernetes" else {}
        job = engine_job(tmp_path, engine="spark-submit", conn_id="cluster", conf=conf)
        name = job.tag if request.param == "yarn" else f"{job.tag}-driver"
        ends = ("FINISHED", "FAILED") if request.param == "yarn" else ("Succeeded", "Failed")
        yield Stage(cluster, job, name, *ends)


IN_PODS = {"spark.kubernetes.container.image": "lake-spark:1", "spark.lake.jobs": "local:///opt/lake"}
KEYTAB = {"principal": "lake@R", "keytab": base64.b64encode(b"\x05\x02").decode()}
# A real YARN says the same of itself.
kubernetes_alone = pytest.mark.parametrize("stage", ["kubernetes"], indirect=True)


def kube_config(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {}}]
    config = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "x"}
    path.write_text(json.dumps(config | {"apiVersion": "v1", "kind": "Config"}), encoding="utf-8")
    return path


@kubernetes_alone
def test_driver_gets_a_name_of_its_own_and_an_id_and_watches_no_submitter(stage: Stage) -> None:
    job = replace(stage.job, request=replace(stage.job.request, submitter=Submitter("here", 1, 2)))
    handle = create_engine("spark-submit").start(job)
    assert handle.external_id
    assert list(stage.cluster.running) == [stage.name]
    assert "cluster" in stage.cluster.argv
    waits = [entry for entry in stage.cluster.argv if "waitAppCompletion" in entry]
    assert waits
    assert all(entry.endswith("=false") for entry in waits)
    assert from_json(JobRequest, find_text(job.request_path) or "") == stage.job.request


@kubernetes_alone
def test_driver_of_replication_gets_its_own_application_and_its_secrets_by_its_request(
    stage: Stage, tmp_path: Path
) -> None:
    job = replace(replication_job(tmp_path, conf=stage.job.conf), conn_id="cluster")
    handle = create_engine("spark-submit").start(job)
    assert list(stage.cluster.running) == [f"{job.tag}-driver"]
    assert stage.cluster.argv[-2].endswith("/replicate.py")
    assert stage.cluster.argv[-1] == job.request_path
    assert not [argument for argument in stage.cluster.argv if "hunter2" in argument]
    sent = from_json(ReplicationRequest, find_text(job.request_path) or "")
    assert job.replication is not None
    assert sent == replace(job.replication, submitter=None)
    create_engine("spark-submit").stop(Handle(handle.job))
    assert not stage.cluster.running


@kubernetes_alone
def test_driver_is_found_although_spark_submit_prints_nothing(stage: Stage) -> None:
    """Its logging may be set above INFO."""
    stage.cluster.logs_at_info = False
    assert create_engine("spark-submit").start(stage.job).external_id == f"lake:{stage.name}"


@kubernetes_alone
def test_api_server_that_refuses_connections_is_away(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.AWAY_PATIENCE_S", 0.0)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.POLL_S", 0.05)
    handle = create_engine("spark-submit").start(stage.job)
    with serve(stage.cluster.route) as port:
        pass
    kube_config(tmp_path, port)
    for call in (create_engine("spark-submit").wait, create_engine("spark-submit").stop):
        with pytest.raises(EngineAwayError, match="refused"):
            call(handle)


@kubernetes_alone
def test_api_server_that_is_away_for_a_moment_costs_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one that starts again answers 403 until it has read who may do what."""
    cluster = stage.cluster
    handle = create_engine("spark-submit").start(stage.job)
    phases = iter([503, 503, 403, 200])

    def next_phase(_pause_s: float) -> None:
        cluster.answers = next(phases)
        if cluster.answers == 200:
            cluster.running[stage.name] = "Succeeded"

    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.time.sleep", next_phase)
    assert create_engine("spark-submit").wait(handle) is None
    assert list(phases) == []


@kubernetes_alone
def test_right_that_is_taken_away_fails_the_try_in_the_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(stage.cluster, Kubernetes)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.AWAY_PATIENCE_S", 0.1)
    handle = create_engine("spark-submit").start(stage.job)

    def take_away(_pause_s: float) -> None:
        stage.cluster.may_read = False  # type: ignore[attr-defined]

    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.time.sleep", take_away)
    with pytest.raises(EngineError, match=r'cannot be followed: .* cannot get resource "pods"$') as raised:
        create_engine("spark-submit").wait(handle)
    assert not isinstance(raised.value, EngineAwayError)


def terminated(reason: str, exit_code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": exit_code, "reason": reason}}
    named = {"name": "spark-kubernetes-driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    return {"containerStatuses": [named | {"state": state}]}


@kubernetes_alone
@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        pytest.param(terminated("OOMKilled", 137), FailureKind.OUT_OF_MEMORY, "exit code 137, OOMKilled", id="memory"),
        pytest.param(terminated("Error", 2), FailureKind.OTHER, "exit code 2, Error", id="error"),
        pytest.param(
            {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            FailureKind.OTHER,
            "Evicted; The node was low on resource: ephemeral-storage",
            id="evicted",
        ),
    ],
)
def test_driver_that_failed_is_a_death_with_its_reason_and_its_output_is_kept(
    stage: Stage, status: dict[str, Any], kind: FailureKind, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(stage.cluster, Kubernetes)
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.running[stage.name] = "Failed"
    stage.cluster.status = status
    stage.cluster.printed = ["2026-11-26T23:57:39.000000001Z lake: no usable request at /share/request.json"]
    with caplog.at_level("INFO"):
        death = create_engine("spark-submit").wait(handle)
    assert death is not None
    assert (death.failure_kind, says in death.reason) == (kind, True), death
    assert "lake: no usable request at /share/request.json" in caplog.text
    assert stage.name not in stage.cluster.running, "its output is in the task's log, and pods that ended pile up"


@kubernetes_alone
def test_each_line_of_a_driver_is_in_the_tasks_log_once_and_so_is_why_it_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = stage.cluster
    assert isinstance(cluster, Kubernetes)
    handle = create_engine("spark-submit").start(stage.job)
    cluster.running[stage.name] = "Pending"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.status = {"conditions": [scheduled | {"message": "0/3 nodes are available: 3 Insufficient memory."}]}
    lines = [f"2026-11-26T23:57:{second}.000000000Z line {second}\u2028~ a text of a table" for second in range(10, 14)]
    steps = iter([("Running", 1), ("Running", 1), ("Running", 3), ("Succeeded", 4)])

    def go_on(_pause_s: float) -> None:
        cluster.running[stage.name], shown = next(steps)
        cluster.status, cluster.printed = {}, lines[:shown]

    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.time.sleep", go_on)
    with caplog.at_level("INFO"):
        assert create_engine("spark-submit").wait(handle) is None
    shown = [text for text in caplog.messages if text.startswith("line")]
    assert shown == [f"line {n}\u2028~ a text of a table" for n in range(10, 14)]
    assert "Unschedulable: 0/3 nodes are available" in caplog.text
    assert f"kubectl logs -n lake {stage.name}" in caplog.text


@kubernetes_alone
def test_pod_that_cannot_start_is_removed_and_fails_the_try_with_the_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stage.cluster
    assert isinstance(cluster, Kubernetes)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.REFUSED_PATIENCE_S", 0.1)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.kubernetes.POLL_S", 0.05)
    handle = create_engine("spark-submit").start(stage.job)
    cluster.running[stage.name] = "Pending"
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "lake-spark:1"'}}
    cluster.status = {"containerStatuses": [{**terminated("", 0)["containerStatuses"][0], "state": waiting}]}
    death = create_engine("spark-submit").wait(handle)
    assert death is not None
    assert 'did not start within 0 s: ImagePullBackOff: Back-off pulling image "lake-spark:1"' in death.reason
    assert cluster.running == {}


@kubernetes_alone
def test_pod_whose_output_may_not_be_read_is_kept(stage: Stage) -> None:
    assert isinstance(stage.cluster, Kubernetes)
    stage.cluster.may_read_output = False
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.running[stage.name] = "Failed"
    assert create_engine("spark-submit").wait(handle) is not None
    assert stage.cluster.running == {stage.name: "Failed"}


@kubernetes_alone
@pytest.mark.parametrize("end", ["ends_well", "ends_badly"])
def test_driver_is_followed_by_another_process_to_its_end_whatever_it_is(stage: Stage, end: str) -> None:
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.running[stage.name] = getattr(stage, end)
    create_engine("spark-submit").wait(Handle(stage.job, handle.external_id))


def test_driver_that_got_no_ticket_inside_yarn_is_refused(stage: Stage) -> None:
    if not isinstance(stage.cluster, Yarn):
        pytest.skip("Kubernetes' API does not say why a driver ended")
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.running[stage.name] = "FAILED"
    stage.cluster.diagnostics = (
        "KerberosAuthException: failure to login: for principal: lake@R from keytab /k LoginException: Checksum failed"
    )
    death = create_engine("spark-submit").wait(handle)
    assert death is not None
    assert (death.failure_kind, "with keytab /k" in death.reason) == (FailureKind.REFUSED, True)


@pytest.mark.parametrize(
    "says",
    [
        "Container [pid=7,containerID=container_1] is running 9B beyond the 'PHYSICAL' memory limit. Current usage: 1",
        "Container [pid=7,containerID=container_1] is running beyond physical memory limits. Current usage: 1 GB",
        "User application exited with status 1: java.lang.OutOfMemoryError: Java heap space",
    ],
    ids=["hadoop-3", "hadoop-2", "heap"],
)
def test_driver_that_yarn_ended_for_its_memory_gets_more(stage: Stage, says: str) -> None:
    if isinstance(stage.cluster, Kubernetes):
        pytest.skip("a pod's end says it itself")
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.running[stage.name] = "FAILED"
    stage.cluster.diagnostics = f"Application application_1 failed 1 times. {says}"
    death = create_engine("spark-submit").wait(handle)
    assert death is not None
    assert death.failure_kind is FailureKind.OUT_OF_MEMORY


@kubernetes_alone
def test_driver_is_ended_without_its_id_and_a_strangers_is_left_alone(stage: Stage) -> None:
    create_engine("spark-submit").start(stage.job)
    stage.cluster.running["stranger"] = "RUNNING"
    create_engine("spark-submit").stop(Handle(stage.job))
    assert stage.cluster.running["stranger"] == "RUNNING"
    assert stage.cluster.running.get(stage.name) in {"KILLED", None}
    create_engine("spark-submit").stop(Handle(stage.job))


def test_driver_that_does_not_end_lets_nothing_begin(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("yarn", "kubernetes"):
        monkeypatch.setattr(f"airflow_lake_provider.execution.engines.{module}.END_PATIENCE_S", 1.0)
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.obeys = False
    with pytest.raises(EngineError, match="does not end"):
        create_engine("spark-submit").stop(handle)


@kubernetes_alone
def test_submission_without_any_right_says_first_which_one_is_missing_for_it(stage: Stage) -> None:
    assert isinstance(stage.cluster, Kubernetes)
    stage.cluster.submit_code = 1
    stage.cluster.prints = recorded("forbidden")
    stage.cluster.may_read = False
    with pytest.raises(EngineError) as raised:
        create_engine("spark-submit").start(stage.job)
    submission, _, kept = str(raised.value).partition("; what there is of it could not be ended: ")
    assert "could not be submitted" in submission
    assert 'cannot create resource "pods"' in submission
    assert kept.endswith('cannot get resource "pods"')


@kubernetes_alone
def test_submission_that_fails_leaves_no_driver(stage: Stage) -> None:
    stage.cluster.submit_code = 1
    with pytest.raises(EngineError, match="could not be submitted"):
        create_engine("spark-submit").start(stage.job)
    assert stage.cluster.running.get(stage.name) in {"KILLED", None}


@pytest.mark.parametrize(
    ("said", "error"), [("Checksum failed", ServiceRefusedError), ("Connection refused", EngineAwayError)]
)
def test_submission_without_a_ticket_is_refused_or_waits_for_the_kdc(
    stage: Stage, said: str, error: type[Exception]
) -> None:
    stage.cluster.submit_code = 1
    stage.cluster.prints = (
        "Exception in thread main org.apache.hadoop.security.KerberosAuthException: failure to login: for principal: "
        f"lake@R from keytab /etc/lake.keytab javax.security.auth.login.LoginException: {said}"
    )
    with pytest.raises(error, match=r"as lake@R with keytab /etc/lake.keytab \(spark.kerberos.principal and"):
        create_engine("spark-submit").start(stage.job)
    assert stage.cluster.running.get(stage.name) in {"KILLED", None}


@pytest.mark.parametrize(("status", "is_away"), [(503, True), (500, True), (429, True), (403, False), (401, False)])
def test_cluster_that_is_away_is_distinguished_from_one_that_refuses(
    stage: Stage, status: int, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is away is waited for without a try; what refuses would refuse again, so it is a failed try."""
    for module in ("yarn", "kubernetes"):
        monkeypatch.setattr(f"airflow_lake_provider.execution.engines.{module}.AWAY_PATIENCE_S", 0.0)
        monkeypatch.setattr(f"airflow_lake_provider.execution.engines.{module}.POLL_S", 0.05)
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.answers = status
    for call in (create_engine("spark-submit").wait, create_engine("spark-submit").stop):
        with pytest.raises(EngineError) as raised:
            call(handle)
        assert isinstance(raised.value, EngineAwayError) is is_away, raised.value
    with pytest.raises(EngineError) as raised:
        create_engine("spark-submit").start(replace(stage.job, request_path=f"{stage.job.request_path}.2"))
    assert isinstance(raised.value, EngineAwayError) is is_away, raised.value


def test_resource_manager_that_loads_its_applications_proves_no_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(stage.cluster, Yarn):
        pytest.skip("only YARN's ResourceManager answers before it knows what runs")
    monkeypatch.setattr("airflow_lake_provider.execution.engines.yarn.AWAY_PATIENCE_S", 0.0)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.yarn.POLL_S", 0.05)
    handle = create_engine("spark-submit").start(stage.job)
    stage.cluster.is_recovered = False
    again = replace(stage.job, request_path=f"{stage.job.request_path}.2")
    for call in (
        lambda: create_engine("spark-submit").wait(handle),
        lambda: create_engine("spark-submit").stop(handle),
        lambda: create_engine("spark-submit").start(again),
    ):
        with pytest.raises(EngineAwayError, match="has not loaded its applications yet"):
            call()
    assert list(stage.cluster.running.values()) == ["RUNNING"]


@kubernetes_alone
def test_application_that_is_rejected_while_the_cluster_answers_is_a_failed_try(stage: Stage) -> None:
    stage.cluster.submit_code = 1
    with pytest.raises(EngineError) as raised:
        create_engine("spark-submit").start(stage.job)
    assert not isinstance(raised.value, EngineAwayError)


@kubernetes_alone
@pytest.mark.parametrize(
    ("recording", "error", "says"),
    [
        pytest.param(
            "refused_connection",
            EngineAwayError,
            "Kubernetes does not answer: ConnectException: Failed to connect",
            id="refused-connection",
        ),
        pytest.param("forbidden", EngineError, 'cannot create resource "pods"', id="forbidden"),
        pytest.param("unauthorised", EngineError, "Token may have expired", id="expired-token"),
    ],
)
def test_submission_that_fails_says_why_as_a_real_spark_submit_does(
    stage: Stage, recording: str, error: type[EngineError], says: str
) -> None:
    stage.cluster.submit_code = 1
    stage.cluster.prints = recorded(recording)
    with pytest.raises(EngineError, match=re.escape(says)) as raised:
        create_engine("spark-submit").start(stage.job)
    assert type(raised.value) is error
    assert stage.cluster.running == {}


def test_cluster_that_does_not_answer_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connection(monkeypatch, "yarn", {"yarn_resourcemanager_webapp_address": "http://127.0.0.1:9"})
    with pytest.raises(EngineAwayError, match="ResourceManager does not report"):
        create_engine("spark-submit").stop(Handle(engine_job(tmp_path, conn_id="cluster")))


@pytest.mark.parametrize(
    ("login", "says", "error"),
    [
        pytest.param({}, "a ticket cache, because it has no keytab: No Kerberos", EngineAwayError, id="no-ticket"),
        pytest.param(KEYTAB, "with keytab .* the keytab cannot be read", ServiceRefusedError, id="empty-keytab"),
    ],
)
def test_api_that_wants_a_ticket_is_asked_with_the_jobs_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: dict[str, str], says: str, error: type[Exception]
) -> None:
    """Without a KDC there is none. With one: test_secure_yarn.py."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{tmp_path}/none")
    (tmp_path / "krb5.conf").write_text("[libdefaults]\n default_realm = R\n", encoding="utf-8")
    with serve(lambda *_: (401, {"wants": "Negotiate"})) as port:
        address = {"yarn_resourcemanager_webapp_address": f"http://localhost:{port}"}
        set_connection(monkeypatch, "yarn", address | login)
        with pytest.raises(error, match=says):
            create_engine("spark-submit").start(engine_job(tmp_path, conn_id="cluster"))


@pytest.mark.parametrize(
    ("host", "says"),
    [
        pytest.param("yarn", "runs drivers inside YARN, so an old one must be found", id="yarn-without-rest"),
        pytest.param("spark://master:7077", "Spark runs no Python driver", id="standalone"),
    ],
)
def test_cluster_mode_that_could_not_be_fenced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, says: str
) -> None:
    set_connection(monkeypatch, host, {})
    with pytest.raises(ConfigError, match=says):
        create_engine("spark-submit").start(engine_job(tmp_path, conn_id="cluster"))


def set_connection(monkeypatch: pytest.MonkeyPatch, host: str, extra: dict[str, str]) -> None:
    connection = {"conn_type": "spark", "host": host, "extra": json.dumps({"deploy-mode": "cluster", **extra})}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))

"""Airflow inside a real Kubernetes by its official chart with docker/helm: each task is a pod, whatever dies.

The image is a stand-in with the packages that docker/ pins; this checkout is mounted, as its build would install it.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from local_stack.airflow_chart import IMAGE, IMAGE_ARCHIVE, USER, VALUES, ChartRelease, build, install_provider
from local_stack.kubernetes import GATEWAY
from local_stack.kubernetes_build import ClusterMissingError
from local_stack.postgres import LocalPostgres, find_programs
from local_stack.processes import PATIENCE, NotReadyError, free_port
from local_stack.writer_process import StandingWriter
from tests.clusters.kubernetes_stage import KubernetesStage, held_lock
from tests.integration.engines.stage import OPTIONS
from tests.system.writers import notice_body

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/unit/docker/test_helm.py"),
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL: run `python -m local_stack.postgres`"),
]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "airflow"
COMPONENTS = ("api-server", "scheduler", "triggerer", "dag-processor")
FILES = "airflow-lake"
"""The claim and the Secret of docker/helm."""
LEASE_S = 20
QUICK = {**OPTIONS, "hoodie.client.heartbeat.interval_in_ms": f"{2000 * PATIENCE:.0f}"}
"""A writer that is kept waiting for so long by a busy machine counts as dead."""
LOCKED = "as soon as the table's lock is free"


@dataclass
class AirflowInPods:
    """A release of the chart, with its tables on a disk that its pods mount."""

    release: ChartRelease
    folder: Path
    writer: StandingWriter
    tokens: Mapping[str, str]
    port: int

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def logs(self) -> Path:
        return self.folder / "files" / "logs"

    def prepare(self, database_url: str) -> None:
        """Make what docs/deployment.md lists: the database's address, secrets, and the claim."""
        cluster = self.release.cluster
        cluster.kubectl("create", "namespace", NAMESPACE)
        values = {
            **self.tokens,
            "connection": database_url,
            "fernet-key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "api-secret-key": secrets.token_hex(32),
            "jwt-secret": secrets.token_hex(32),
        }
        literals = [f"--from-literal={key}={value}" for key, value in values.items()]
        cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", FILES, *literals)
        for path in (self.lake, self.folder / "files", self.logs, self.folder / "files" / "work"):
            path.mkdir(parents=True)
            os.chown(path, USER, 0)
        size = {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": FILES},
            "spec": {**common, "capacity": size, "hostPath": {"path": str(self.folder / "files")}},
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": FILES},
            "spec": {**common, "volumeName": FILES, "resources": {"requests": size}},
        }
        for each in (volume, claim):
            cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", given=json.dumps(each))
        install_provider(self.folder / "provider")

    def values(self) -> dict[str, Any]:
        """Return docker/helm's values with what is of this machine."""
        values: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
        repository, tag = IMAGE.rsplit(":", 1)
        values["images"]["airflow"] = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
        mounts = {
            "lake": (self.lake, self.lake),
            "provider": (self.folder / "provider", Path("/opt/provider")),
            "dags": (ROOT / "dags", Path("/opt/lake/dags")),
        }
        for name, (here, there) in mounts.items():
            values["volumes"].append({"name": name, "hostPath": {"path": str(here)}})
            values["volumeMounts"].append({"name": name, "mountPath": str(there)})
        values["env"].append({"name": "PYTHONPATH", "value": "/opt/provider"})
        # The API's service has a name in this cluster, and no address of its own.
        values["env"].append({"name": "KUBERNETES_SERVICE_HOST", "value": "kubernetes.default.svc"})
        tables = {"defaults": {"compaction": {"delta_commits": 3, "log_to_base_ratio": None}, "hudi_options": QUICK}}
        files = {"tables.yaml": json.dumps(tables), "spark-defaults.conf": "spark.driver.memory 1g\n"}
        values["extraConfigMaps"]["lake-settings"]["data"] = yaml.safe_dump(files)
        values["config"]["lake"] |= {
            "allowed_roots": str(self.lake),
            "executor_lease_s": int(LEASE_S * PATIENCE),
            "retry_delay_s": 3,
        }
        # Airflow notices a task that died after this, here sooner than in production.
        values["config"]["scheduler"] = {"task_instance_heartbeat_timeout": int(30 * PATIENCE)}
        values["ports"] = {"apiServer": self.port}
        values["workers"]["kubernetes"]["resources"] = {"requests": {"cpu": "50m", "memory": "1Gi"}}
        slow = {"timeoutSeconds": 120, "periodSeconds": 120}
        for name in ("apiServer", "scheduler", "triggerer", "dagProcessor"):
            values[name]["resources"] = {"requests": {"cpu": "50m", "memory": "256Mi"}}
            values[name]["livenessProbe"] = slow
            # The stand-in has no script of the official image that deletes old logs.
            values[name]["logGroomerSidecar"] = {"enabled": False}
        values["scheduler"]["startupProbe"] |= {"timeoutSeconds": 120}
        del values["apiServer"]["logGroomerSidecar"]
        return values

    def is_ready(self) -> bool:
        """Whether a pod of each component is ready, and the manager answers."""
        ready = [each for name in COMPONENTS for each in self.release.pods(name) if is_pod_ready(each)]
        return len(ready) == len(COMPONENTS) and self.get("/health").get("status") == "ok"

    def url(self) -> str:
        """Return the manager's address: that of the API server's pod."""
        addresses = [pod["status"].get("podIP") for pod in self.release.pods("api-server")]
        return f"http://{addresses[0] if addresses else GATEWAY}:{self.port}/v1/hoodie"

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Return the manager's answer; empty while there is none."""
        headers = {"Authorization": f"Bearer {self.tokens['service-tokens']}"}
        with suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(self.url() + path, params=params, headers=headers, timeout=30)
            return dict(answer.json()) if answer.is_success else {}
        return {}

    def write(self, name: str) -> dict[str, Any]:
        """Write three commits of a table that belongs to Airflow's user; return its rows."""
        path = self.lake / name
        table = {"name": name, "type": "MOR", "version": 9, "keys": 500, "rows": 100, "base_path": str(path)}
        for commit in range(3):
            self.writer.write(table, commit, hudi_options=QUICK)
        for each in (path, *path.rglob("*")):
            os.chown(each, USER, 0)
        return self.read(name)

    def notify(self, name: str) -> None:
        """Send the notice of a table's last commit."""
        instant = max(each for each in self.instants(name) if each.endswith(".deltacommit")).partition("_")[0]
        headers = {"HUDI-CALLBACK-KEY": self.tokens["callback-tokens"]}
        body = notice_body(self.lake / name, instant)
        assert httpx.post(f"{self.url()}/callback", json=body, headers=headers, timeout=60).is_success

    def read(self, name: str) -> dict[str, Any]:
        return {**self.writer.read(self.lake / name), "seconds": 0}

    def instants(self, name: str) -> set[str]:
        return {path.name for path in (self.lake / name / ".hoodie" / "timeline").iterdir()}

    def compaction(self, name: str) -> dict[str, Any]:
        """Return the manager's line of a table's compaction; empty before it is known."""
        ids = [found["table_id"] for found in self.get("/tables").get("tables", []) if found["table_name"] == name]
        known = self.get(f"/tables/{ids[0]}/instances", ended=50).get("instances", []) if ids else []
        return next((found for found in known if found["service"] == "compaction"), {})

    def log(self, name: str) -> str:
        """Return the logs of tasks that name a table."""
        texts = [
            path.read_text(encoding="utf-8") for path in sorted(self.logs.glob("dag_id=lake_table_service/**/*.log"))
        ]
        return "\n".join(text for text in texts if f"lake: {name}: " in text)

    def wait_until(self, ready: Any, timeout_s: float, what: str) -> None:
        """Wait for a condition. Raises NotReadyError with the pods and the last lines of each."""
        deadline_s = time.monotonic() + timeout_s * PATIENCE
        while not ready():
            if time.monotonic() > deadline_s:
                raise NotReadyError(f"no {what} after {timeout_s * PATIENCE:.0f} s\n{self.describe()}")
            time.sleep(1)

    def describe(self) -> str:
        cluster = self.release.cluster
        lines = [cluster.kubectl("-n", NAMESPACE, "get", "pods,events", "-o", "wide")]
        for pod in self.release.pods():
            name = pod["metadata"]["name"]
            with suppress(RuntimeError):
                log = cluster.kubectl("-n", NAMESPACE, "logs", name, "--all-containers", "--tail=25")
                lines.append(f"--- {name}\n{log}")
        return "\n".join(lines)

    def require_compacted_once(self, name: str, before: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end of a table's compaction; require one plan, one commit and the same rows."""
        self.wait_until(lambda: self.compaction(name).get("state") == "done", 400, f"compaction of {name}")
        instants = self.instants(name)
        assert len([each for each in instants if each.endswith(".compaction.requested")]) == 1, instants
        assert len([each for each in instants if each.endswith(".commit")]) == 1, instants
        assert self.read(name) == before
        self.wait_until(lambda: not self.release.pods("worker"), 120, "end of the tasks' pods")
        return self.compaction(name)


def is_pod_ready(pod: Mapping[str, Any]) -> bool:
    return any((each["type"], each["status"]) == ("Ready", "True") for each in pod["status"].get("conditions", []))


@pytest.fixture(scope="module")
def airflow(stage: KubernetesStage, reader: StandingWriter) -> Iterator[AirflowInPods]:
    try:
        build()
    except ClusterMissingError as error:
        pytest.skip(str(error))
    stage.cluster.import_image(IMAGE, IMAGE_ARCHIVE)
    server = LocalPostgres(network=f"{GATEWAY}/24")
    server.start()
    tokens = {"service-tokens": secrets.token_hex(16), "callback-tokens": secrets.token_hex(16)}
    release = ChartRelease(stage.cluster, NAMESPACE, "lake")
    own = AirflowInPods(release, stage.folder / "chart", reader, tokens, free_port())
    try:
        password = secrets.token_hex(8)
        server.query(f"alter role airflow password '{password}'")
        own.prepare(f"postgresql+psycopg2://airflow:{password}@{GATEWAY}:{server.port}/airflow")
        own.release.install(own.values(), own.folder)
        own.wait_until(own.is_ready, 400, "Airflow")
        yield own
    finally:
        with suppress(RuntimeError):
            stage.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        server.stop()


def test_compaction_runs_in_the_pod_of_its_task(airflow: AirflowInPods) -> None:
    before = airflow.write("plain")
    airflow.notify("plain")
    assert airflow.require_compacted_once("plain", before)["tries"] == 1
    assert "lake: plain: compaction completed" in airflow.log("plain"), "logs outlive the pods"


def kill_scheduler(airflow: AirflowInPods) -> int:
    """Kill the scheduler's pod; the next one adopts the task's pod."""
    (pod,) = airflow.release.pods("scheduler")
    airflow.release.kill(pod)
    airflow.wait_until(
        lambda: (
            airflow.is_ready() and airflow.release.pods("scheduler")[0]["metadata"]["uid"] != pod["metadata"]["uid"]
        ),
        300,
        "a new scheduler",
    )
    return 1


def kill_task(airflow: AirflowInPods) -> int:
    """Kill the pod of the task; the next try resumes the plan."""
    for pod in airflow.release.pods("worker"):
        airflow.release.kill(pod)
    return 2


@pytest.mark.parametrize("blow", [kill_scheduler, kill_task], ids=lambda blow: str(blow.__name__))
def test_compaction_is_done_once_whatever_pod_dies(airflow: AirflowInPods, blow: Any) -> None:
    name = blow.__name__
    before = airflow.write(name)
    with held_lock(airflow.lake / name):
        airflow.notify(name)
        airflow.wait_until(lambda: LOCKED in airflow.log(name), 300, "the driver")
        tries = blow(airflow)
    done = airflow.require_compacted_once(name, before)
    assert done["tries"] >= tries
    assert (done["tries"] == 1) == (tries == 1)

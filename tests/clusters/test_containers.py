"""The stack of docker/ built and run: a stock writer, services, crashes of each part, a restart, an upgrade.

Base images are stand-ins out of Debian's packages unless `LAKE_BASE_IMAGES=official` lets Docker pull those that
docker/ names. Needs root. The first run builds everything, which takes half an hour on two cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local_stack import stand_ins
from local_stack.compose_stack import ROOT, ComposeStack
from local_stack.docker_engine import LocalDocker

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/unit/docker/test_compose.py")]

WORK = (ROOT / ".work" / "containers").resolve()
READER = Path(__file__).parent / "rows_of_a_table.py"
ONCE = ("migrate", "create-admin", "make-bucket")
SERVICES = (
    "postgres",
    "object-store",
    "zookeeper",
    "spark-master",
    "spark-worker",
    "timeline-server",
    "api-server",
    "scheduler",
    "dag-processor",
    "triggerer",
)
"""What `up` starts and leaves running."""
LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider",
    "hoodie.write.lock.zookeeper.url": "zookeeper:2181",
}
TABLES = json.dumps(
    {
        "defaults": {"heartbeat_timeout_s": 30, "compaction": {"delta_commits": 5}, "hudi_options": LOCK},
        "tables": [
            {
                "name": "served",
                "indexing": {"indexes": ["record_index"]},
                "replication": [{"sink": "hudi", "path": "s3a://lake/copies/served", **LOCK}],
            }
        ],
    },
    indent=1,
)
BASES = ("PYTHON_IMAGE", "AIRFLOW_IMAGE", "LAKE_MAVEN_REPOSITORY")
"""The build arguments of docker/Dockerfile."""
IN_A_POD = """
import json, os, pathlib, shutil
from airflow.executors.executor_loader import ExecutorLoader
import airflow_lake_provider.execution.engines.kubernetes
executor, _ = ExecutorLoader.import_executor_cls(ExecutorLoader.get_default_executor_name())
jars = list(pathlib.Path(os.environ["SPARK_HOME"], "jars").glob("hudi-spark*.jar"))
print(json.dumps({"executor": executor.__name__, "hudi": len(jars), "submits": bool(shutil.which("spark-submit"))}))
"""
"""What a pod needs of the image."""
COMMITS = 6
"""Of each run of the stock writer; a compaction is due after the fifth."""


@pytest.fixture(scope="module")
def docker() -> Iterator[LocalDocker]:
    docker = LocalDocker(WORK)
    try:
        docker.start()
        yield docker
    finally:
        docker.stop()


@pytest.fixture(scope="module")
def images(docker: LocalDocker) -> Mapping[str, str]:
    """Build arguments and variables with the names of the base images."""
    if os.environ.get("LAKE_BASE_IMAGES") == "official":
        return {}
    stand_ins.build_all(docker)
    return stand_ins.VARIABLES


@pytest.fixture(scope="module")
def stack(docker: LocalDocker, images: Mapping[str, str]) -> Iterator[ComposeStack]:
    stack = ComposeStack(docker, WORK / "stack", images, TABLES)
    stack.prepare()
    stack.remove()
    try:
        stack.compose("build", timeout_s=3600)
        stack.compose("up", "--detach", timeout_s=1800)
        wait_for_health(stack)
        yield stack
    finally:
        logs = stack.compose("logs", "--no-color", "--tail", "2000")
        (stack.folder / "logs.txt").write_text(logs, encoding="utf-8")
        stack.remove()


def wait_for_health(stack: ComposeStack, services: tuple[str, ...] = SERVICES, timeout_s: float = 600) -> None:
    stack.wait_until(lambda: not stack.unhealthy(services), timeout_s, f"health of {', '.join(services)}")


def states_of(stack: ComposeStack, table: str, service: str) -> list[str]:
    return [found["state"] for found in stack.instances(table) if found["service"] == service]


def wait_for_service(stack: ComposeStack, table: str, service: str, timeout_s: float = 900) -> None:
    stack.wait_until(lambda: "done" in states_of(stack, table, service), timeout_s, f"{service} of {table}")


def assert_rows(stack: ComposeStack, table: str, folder: str = "tables") -> None:
    """Plain Spark sees each order once, as its last commit wrote it, with the metadata table and without."""
    ts = COMMITS - 1
    printed = stack.run_job(READER, f"s3a://lake/{folder}/{table}")
    (line,) = [line for line in printed.splitlines() if line.startswith('{"rows"')]
    assert json.loads(line)["rows"] == [[1000, 1000, sum(range(1000)) * ts, ts, ts]] * 2


def test_image_for_pods_of_airflow_runs_as_the_chart_runs_it(docker: LocalDocker, images: Mapping[str, str]) -> None:
    """The executor loads, next to the provider and Spark with Hudi's jar, on a read-only root, by the chart's words."""
    tag = f"lake-airflow-kubernetes:{'stand-in' if images else 'official'}"
    values = {"LAKE_MAVEN_REPOSITORY": os.environ.get("LAKE_MAVEN_REPOSITORY", ""), **images}
    bases = [word for name, value in values.items() if name in BASES for word in ("--build-arg", f"{name}={value}")]
    file = ("--file", str(ROOT / "docker" / "Dockerfile"), "--target", "airflow-kubernetes")
    docker.build(ROOT, tag, *file, *bases, timeout_s=3600)
    rights = ("--read-only", "--cap-drop", "ALL", "--user", "50000:0", "--network", "none")
    folders = ("--tmpfs", "/tmp:mode=1777,exec", "--tmpfs", "/opt/airflow/logs:mode=1777")
    executor = ("--env", "AIRFLOW__CORE__EXECUTOR=KubernetesExecutor")
    words = ("bash", "-c", f"exec python -c '{IN_A_POD}'")
    printed = docker.run("run", "--rm", *rights, *folders, *executor, tag, *words, timeout_s=600)
    assert json.loads(printed.splitlines()[-1]) == {"executor": "KubernetesExecutor", "hudi": 1, "submits": True}


def test_containers_have_few_rights_and_their_limits(stack: ComposeStack) -> None:
    states = stack.states()
    assert {name: states[name]["ExitCode"] for name in ONCE} == dict.fromkeys(ONCE, 0)
    assert set(states) == {*ONCE, *SERVICES}
    for name in SERVICES:
        found = stack.inspect(name)
        host: dict[str, Any] = found["HostConfig"]
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert int(found["Config"]["User"].partition(":")[0]) > 0, name
        assert min(host["NanoCpus"], host["Memory"], host["PidsLimit"]) > 0, name
        status = Path(f"/proc/{found['State']['Pid']}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert (int(fields["CapEff"], 16), fields["NoNewPrivs"]) == (0, "1"), name
    published = [name for name in SERVICES if any(port["PublishedPort"] for port in states[name]["Publishers"] or [])]
    assert published == ["api-server"]
    with pytest.raises(RuntimeError, match="Read-only file system"):
        stack.compose("exec", "-T", "scheduler", "touch", "/opt/lake/new")


def test_stock_writers_commits_are_compacted_indexed_and_copied(stack: ComposeStack) -> None:
    stack.write("served", COMMITS)
    wait_for_service(stack, "served", "compaction")
    wait_for_service(stack, "served", "indexing")
    assert_rows(stack, "served")
    stack.compose("exec", "-T", "api-server", "airflow", "dags", "unpause", "--yes", "lake_replication")
    stack.wait_until(lambda: is_copied(stack, "served"), 600, "replication of served")
    assert_rows(stack, "served", "copies")


def is_copied(stack: ComposeStack, table: str) -> bool:
    (found,) = [found for found in stack.get("/tables")["tables"] if found["table_name"] == table]
    sinks = stack.get(f"/tables/{found['table_id']}/sinks").get("sinks", [])
    return bool(sinks) and all(sink["checkpoint"] for sink in sinks)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_comes_back_after_a_crash(stack: ComposeStack, service: str) -> None:
    before = stack.inspect(service)["State"]["Pid"]
    stack.crash(service)
    stack.wait_until(lambda: stack.inspect(service)["State"]["Pid"] not in (0, before), 120, f"new {service}")
    wait_for_health(stack, (service,))


def test_services_go_on_after_the_crashes(stack: ComposeStack) -> None:
    wait_for_health(stack)
    stack.write("after_crashes", COMMITS)
    wait_for_service(stack, "after_crashes", "compaction")
    assert_rows(stack, "after_crashes")
    assert_rows(stack, "served")


def test_stack_keeps_everything_over_a_restart(stack: ComposeStack) -> None:
    tables = {found["table_name"] for found in stack.get("/tables")["tables"]}
    stack.compose("down")
    stack.compose("up", "--detach", timeout_s=1800)
    wait_for_health(stack)
    assert {found["table_name"] for found in stack.get("/tables")["tables"]} == tables
    assert_rows(stack, "served")


def test_run_in_flight_survives_an_upgrade(stack: ComposeStack) -> None:
    """The steps are those of docs/deployment.md, and the images those of another version."""
    old = stack.inspect("scheduler")["Image"]
    stack.use_version("0.1.1")
    stack.compose("build", timeout_s=3600)
    stack.use_version("0.1.0")
    stack.write("upgraded", COMMITS)
    stack.wait_until(lambda: "running" in states_of(stack, "upgraded", "compaction"), 900, "compaction in flight")
    assert "lake_" in stack.compose("exec", "-T", "postgres", "pg_dump", "-U", "airflow", "airflow")
    stack.use_version("0.1.1")
    stack.compose("stop", "scheduler", "triggerer", "dag-processor", "api-server", "timeline-server")
    stack.compose("up", "--detach", timeout_s=1800)
    wait_for_health(stack)
    assert stack.inspect("scheduler")["Image"] != old
    wait_for_service(stack, "upgraded", "compaction")
    (done,) = [found for found in stack.instances("upgraded") if found["service"] == "compaction"]
    assert done["tries"] > 1
    assert_rows(stack, "upgraded")

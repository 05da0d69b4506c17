"""Writes down what the real spark-submit prints on Kubernetes, for the fake of tests/integration/engines.

`python -m tests.recordings.record_kubernetes` runs this checkout's Spark against an API server that accepts a driver,
refuses it as Kubernetes does, does not answer, or is not there. The API's answers are Kubernetes' own (`Status`
objects, of API servers 1.36); spark-submit's lines are real. Times, ports and folders are replaced, so that a second
recording differs where Spark does.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from local_stack.hudi_bundle import find_spark_home, spark_env
from tests.integration.engines.fake_api import Answer, serve

FOLDER = Path(__file__).parent / "kubernetes"
POD = "lake-0123456789abcdef0123456789abcdef-driver"
TIMEOUT_S = 300
FORBIDDEN = (
    f'pods "{POD}" is forbidden: User "system:serviceaccount:lake:default" cannot create resource "pods" in API group '
    '"" in the namespace "lake"'
)
QUOTA = f'pods "{POD}" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0'


def status(code: int, reason: str, message: str) -> Answer:
    """Return a refusal as an API server gives it."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, body | {"message": message, "reason": reason, "code": code}


def accept(method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
    """Answer as an API server that makes everything."""
    if method == "GET":
        return status(404, "NotFound", f"{path} not found")
    made = {**body, "metadata": {**body.get("metadata", {}), "uid": "6b1f", "resourceVersion": "1"}}
    return 201, made


def refuse(answer: Answer, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
    """Answer everything with a refusal."""
    return answer


@contextmanager
def silent() -> Iterator[int]:
    """Accept connections, and say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def absent() -> Iterator[int]:
    """Yield a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


APIS: Mapping[str, Callable[[], Any]] = {
    "accepted": partial(serve, accept),
    "refused_connection": absent,
    "timeout": silent,
    "unauthorised": partial(serve, partial(refuse, status(401, "Unauthorized", "Unauthorized"))),
    "forbidden": partial(serve, partial(refuse, status(403, "Forbidden", FORBIDDEN))),
    "quota": partial(serve, partial(refuse, status(403, "Forbidden", QUOTA))),
    "unavailable": partial(serve, partial(refuse, status(503, "ServiceUnavailable", "etcdserver: no leader"))),
}
CONFIGS: Mapping[str, Mapping[str, str]] = {
    "no_upload_path": {},
    "no_image": {"spark.kubernetes.container.image": ""},
}


def submit(port: int, conf: Mapping[str, str], application: str) -> str:
    """Return what spark-submit prints."""
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        parts = {"clusters": {"cluster": {"server": address}}, "users": {"user": {}}}
        contexts = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
        named = {kind: [{"name": "x", **what}] for kind, what in parts.items()}
        whole = {"apiVersion": "v1", "kind": "Config", **named, "contexts": contexts, "current-context": "x"}
        config.write_text(json.dumps(whole), encoding="utf-8")
        settings = {
            "spark.kubernetes.namespace": "lake",
            "spark.kubernetes.container.image": "lake-spark:1",
            "spark.kubernetes.driver.pod.name": POD,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.submission.requestTimeout": "5000",
            **conf,
        }
        options = [part for key, value in settings.items() if value for part in ("--conf", f"{key}={value}")]
        command = [str(find_spark_home() / "bin" / "spark-submit"), "--master", f"k8s://{address}"]
        command += ["--deploy-mode", "cluster", "--name", "lake-compaction-t", *options, application]
        env = {**spark_env(), "KUBECONFIG": str(config), "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    return clean(done.stdout, port)


def clean(printed: str, port: int) -> str:
    """Return a recording without what differs from run to run."""
    for pattern, text in (
        (r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d", "26/11/27 12:00:00"),
        (rf"\b{port}\b", "6443"),
        (r"/tmp/[\w.-]+", "/tmp/spark"),
        (r"spark-[0-9a-f]{32}", "spark-0123456789abcdef0123456789abcdef"),
    ):
        printed = re.sub(pattern, text, printed)
    return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("\tat "))


def main() -> int:
    application = "local:///opt/lake/run_services.py"
    for name, open_api in APIS.items():
        with open_api() as port:
            (FOLDER / f"submission_{name}.txt").write_text(submit(port, {}, application), encoding="utf-8")
    with absent() as port:
        for name, conf in CONFIGS.items():
            path = application if conf else __file__
            (FOLDER / f"submission_{name}.txt").write_text(submit(port, conf, path), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

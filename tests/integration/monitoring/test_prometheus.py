"""A real Prometheus reads a running manager by the documented files, and its own tool checks and tests the rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import uvicorn
import yaml
from fastapi import FastAPI

from airflow_lake_provider.manager.api.app import create_app
from local_stack.processes import PATIENCE, free_port
from local_stack.prometheus import fetch
from tests.support.dashboard_expressions import expressions
from tests.support.lake_pages import RecordedRuns, create_services, fill

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak(covered_by="tests/unit/manager/test_lake_metrics.py"),
]
FILES = Path(__file__).parents[3] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def programs() -> Path:
    return fetch()


@pytest.mark.parametrize("words", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")])
def test_rules_are_right_by_prometheus_own_tool(programs: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run([programs / "promtool", *words], cwd=FILES, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("lake")
    runs = RecordedRuns()
    services = create_services(folder, runs)
    fill(services.registry, folder, 300, int(time.time() * 1000), runs)
    app, port = FastAPI(), free_port()
    app.mount("/v1/hoodie", create_app(lambda: services))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield port
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def prometheus(programs: Path, manager: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server with the documented configuration; only the address and the pause are this test's."""
    folder = tmp_path_factory.mktemp("prometheus")
    conf = yaml.safe_load((FILES / "prometheus.yml").read_text())
    conf["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    conf["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{manager}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(conf))
    (folder / "lake_token").write_text("service-token\n")
    shutil.copy(FILES / "rules.yml", folder)
    port = free_port()
    command = [
        programs / "prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, path: str, **query: str) -> dict[str, object]:
    with urlopen(f"{url}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
        found: dict[str, object] = json.load(answer)["data"]
    return found


def wait_for(url: str, expression: str) -> list[object]:
    ends_s = time.monotonic() + 60 * PATIENCE
    while time.monotonic() < ends_s:
        try:
            result = ask(url, "query", query=expression)["result"]
        except OSError:
            result = []
        if isinstance(result, list) and result:
            return result
        time.sleep(0.5)
    raise AssertionError(f"no answer to {expression}")


def test_prometheus_reads_a_running_manager(prometheus: str) -> None:
    wait_for(prometheus, 'up{job="lake"} == 1')
    assert len(wait_for(prometheus, "lake_table_severity")) == 50
    (target,) = ask(prometheus, "targets")["activeTargets"]  # type: ignore[misc]
    assert target["lastError"] == ""


def test_every_expression_of_rules_and_dashboard_is_answered(prometheus: str) -> None:
    wait_for(prometheus, "lake_tables")
    for where, expression in expressions():
        if expression.startswith("label_values"):
            continue
        answer = ask(prometheus, "query", query=expression.replace("$owner", ".*"))
        assert answer["resultType"] in {"vector", "scalar"}, where
    rules = ask(prometheus, "rules")["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}  # type: ignore[attr-defined]

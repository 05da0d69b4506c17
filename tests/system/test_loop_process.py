"""The loop's own process: it evaluates tables, comes back when it is killed, and never outlives its API server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from airflow_lake_provider.plugins.loop_main import NICENESS
from local_stack.airflow import LocalAirflow
from tests.support.tables import HandMadeTable
from tests.system.writers import send_notice

pytestmark = pytest.mark.system

MODULE = "airflow_lake_provider.plugins.loop_main"


def loops_of(airflow: LocalAirflow) -> list[psutil.Process]:
    """Return the loop's processes of this Airflow, those included that lost their parent."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if MODULE in (process.info["cmdline"] or ()) and process.environ()["AIRFLOW_HOME"] == str(airflow.home):
                found.append(process)
        except (psutil.Error, KeyError):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def wait_for_run(airflow: LocalAirflow, name: str) -> None:
    table = HandMadeTable.create(airflow.allowed_roots[0] / name, name=name)
    instant = [table.commit(second) for second in (1, 2, 3)][-1]
    assert send_notice(airflow, table.path, instant).status_code == 200
    airflow.wait_until(lambda: name in {run["conf"]["table_name"] for run in airflow.service_runs()}, 60, f"run {name}")


def problems(airflow: LocalAirflow) -> str:
    answer = airflow.get("/v1/hoodie/health")
    return "" if answer is None else "; ".join(answer["problems"])


def is_reporting(airflow: LocalAirflow) -> bool:
    return bool(loops_of(airflow)) and "process of the manager's loop" not in problems(airflow)


def test_notice_is_evaluated_in_a_process_of_its_own(airflow: LocalAirflow) -> None:
    wait_for_run(airflow, "apart")
    (loop,) = loops_of(airflow)
    server = psutil.Process(airflow.servers["api-server"].process.pid)
    assert loop.ppid() == server.pid
    assert loop.nice() == min(19, server.nice() + NICENESS)
    assert not Path(f"/proc/{loop.pid}/fd/0").is_char_device()
    assert problems(airflow).find("process of the manager's loop") == -1


def test_killed_loop_is_reported_and_comes_back(airflow: LocalAirflow) -> None:
    (loop,) = loops_of(airflow)
    os.kill(loop.pid, signal.SIGKILL)
    airflow.wait_until(lambda: "it ended with SIGKILL" in problems(airflow), 20, "the problem")
    wait_for_run(airflow, "killed")
    (again,) = loops_of(airflow)
    assert again.pid != loop.pid
    airflow.wait_until(lambda: is_reporting(airflow), 60, "the end of the problem")


def test_loop_ends_with_a_killed_api_server(airflow: LocalAirflow) -> None:
    airflow.wait_until(lambda: is_reporting(airflow), 60, "the loop")
    server = airflow.servers.pop("api-server")
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    airflow.wait_until(lambda: not loops_of(airflow), 30, "the loop's end")
    airflow.start(("api-server",))
    wait_for_run(airflow, "after")


def test_loop_ends_with_a_stopped_api_server(airflow: LocalAirflow) -> None:
    airflow.wait_until(lambda: is_reporting(airflow), 60, "the loop")
    server = airflow.servers.pop("api-server")
    os.kill(server.process.pid, signal.SIGTERM)
    airflow.wait_until(lambda: not server.alive(), 60, "the server's end")
    assert not loops_of(airflow)

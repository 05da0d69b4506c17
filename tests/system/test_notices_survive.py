"""G1 and G2 on real processes: API servers killed, doubled and in company; no scheduler is needed to create runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import httpx
import psutil
import pytest

from local_stack.airflow import LocalAirflow
from local_stack.processes import PATIENCE, free_port, pause, resume
from tests.support.tables import HandMadeTable
from tests.system.conftest import ROOT
from tests.system.writers import send_notice

pytestmark = pytest.mark.system

# `make soak` raises it, and runs all of this on PostgreSQL as well: there test_production_shape.py kills API servers.
KILLS = int(os.environ.get("LAKE_KILLS", "1"))


def due_table(airflow: LocalAirflow, name: str, commits: int = 3) -> tuple[HandMadeTable, str]:
    table = HandMadeTable.create(airflow.allowed_roots[0] / name, name=name)
    instant = ""
    for second in range(1, commits + 1):
        instant = table.commit(second)
    return table, instant


def runs_of(airflow: LocalAirflow, *names: str) -> Counter[str]:
    return Counter(run["conf"]["table_name"] for run in airflow.service_runs() if run["conf"]["table_name"] in names)


def wait_for_runs(airflow: LocalAirflow, *names: str) -> None:
    airflow.wait_until(lambda: set(runs_of(airflow, *names)) == set(names), 30, f"runs of {names}")


def test_notice_doubled_ten_times_makes_one_run(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "doubled")
    assert {send_notice(airflow, table.path, instant).status_code for _ in range(10)} == {200}
    wait_for_runs(airflow, "doubled")
    time.sleep(2)
    assert runs_of(airflow, "doubled") == {"doubled": 1}


def test_notice_passes_no_access_log_of_airflows_and_a_refused_one_is_counted(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "unlogged", commits=1)
    assert send_notice(airflow, table.path, instant).status_code == 200
    assert httpx.post(airflow.callback_url, headers={"HUDI-CALLBACK-KEY": "wrong"}, timeout=10).status_code == 401
    health = airflow.get("/v1/hoodie/health")
    log = (airflow.home / "logs" / "api-server.log").read_text()
    assert "/v1/hoodie/health" in log
    assert "/v1/hoodie/callback" not in log
    assert health is not None
    assert any("refused with 401" in problem for problem in health["problems"])


def test_hundred_notices_that_make_nothing_due_make_no_run(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "quiet", commits=2)
    for _ in range(100):
        assert send_notice(airflow, table.path, instant).status_code == 200
    quiet = airflow.get("/v1/hoodie/tables")
    airflow.wait_until(lambda: _is_clean(airflow, "quiet"), 30, "the last evaluation")
    assert quiet is not None
    assert runs_of(airflow, "quiet") == {}


def test_body_of_10_mb_is_taken_and_one_of_1_gb_refused_before_it_is_sent(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "large", commits=1)
    stat = {"fileId": "f", "path": "p/f.parquet", "totalWriteBytes": 1, "padding": "x" * 1000}
    response = send_notice(airflow, table.path, instant, stats=[stat] * 10_000)
    assert response.status_code == 200
    head = (
        f"POST /v1/hoodie/callback HTTP/1.1\r\nHost: localhost\r\nHUDI-CALLBACK-KEY: {airflow.callback_token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {2**30}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", airflow.port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_burst_of_six_notices_for_two_tables_leaves_neither_behind(airflow: LocalAirflow) -> None:
    """The burst that strands plain asset events."""
    tables = [due_table(airflow, name) for name in ("burst-a", "burst-b")]
    began = time.monotonic()
    for _ in range(3):
        for table, instant in tables:
            assert send_notice(airflow, table.path, instant).status_code == 200
    assert time.monotonic() - began < 1.0 * PATIENCE
    wait_for_runs(airflow, "burst-a", "burst-b")
    assert set(runs_of(airflow, "burst-a", "burst-b").values()) == {1}


def test_table_without_lock_provider_is_refused_with_the_setting(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "unlocked")
    send_notice(airflow, table.path, instant)
    airflow.wait_until(lambda: _is_clean(airflow, "unlocked"), 30, "the evaluation")
    decisions = {decision["service"]: decision for decision in _table(airflow, "unlocked")["decisions"]}
    decision = decisions["compaction"]
    assert decision["verdict"] == "blocked"
    assert "no hoodie.write.lock.provider is configured" in decision["reason"]
    assert runs_of(airflow, "unlocked") == {}


def test_loop_killed_between_lease_and_run_leaves_nothing_behind(airflow: LocalAirflow) -> None:
    table, instant = due_table(airflow, "orphaned-claim")
    # Claims what the notice marks before the server's own loop does, then dies as by kill -9.
    code = (
        "import os, signal, time\n"
        "from airflow_lake_provider.manager.db.rows import Notice, Source\n"
        "from airflow_lake_provider.plugins.lake_plugin import open_services\n"
        "registry = open_services().registry\n"
        f"notice = Notice({str(table.path)!r}, 'orphaned-claim', Source.COMMIT_CALLBACK, ({instant!r},))\n"
        "mark, claims = registry.mark_dirty, []\n"
        "while not claims:\n"
        "    mark(notice)\n"
        "    claims = [c for c in registry.acquire(10, 5) if c.table_name == 'orphaned-claim']\n"
        "print('claimed', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The server's own loop pauses, in its process, so that the claim is surely this process's.
    server = psutil.Process(airflow.servers["api-server"].process.pid)
    paused = [server.pid, *(child.pid for child in server.children(recursive=True))]
    for pid in paused:
        pause(pid)
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], env=airflow.env(), cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        for pid in paused:
            resume(pid)
    assert "claimed" in result.stdout, result.stderr[-2000:]
    assert result.returncode == -signal.SIGKILL
    wait_for_runs(airflow, "orphaned-claim")
    assert runs_of(airflow, "orphaned-claim") == {"orphaned-claim": 1}


@pytest.mark.soak(
    covered_by="tests/system/test_production_shape.py"
)  # test_production_shape.py sends each notice to two API servers
def test_two_api_servers_at_once_make_one_run_each(airflow: LocalAirflow) -> None:
    second = LocalAirflow(
        airflow.home,
        airflow.allowed_roots,
        tables_file=airflow.tables_file,
        database_url=airflow.database_url,
        settings=airflow.settings,
        port=free_port(),
        callback_token=airflow.callback_token,
        service_token=airflow.service_token,
    )
    names = [f"pair-{number}" for number in range(8)]
    tables = [due_table(airflow, name) for name in names]
    try:
        second.start(("api-server",))
        for table, instant in tables:
            for server in (airflow, second):
                assert send_notice(server, table.path, instant).status_code == 200
        wait_for_runs(airflow, *names)
    finally:
        second.stop()
    time.sleep(1)
    assert set(runs_of(airflow, *names).values()) == {1}


@pytest.mark.parametrize("kill", range(KILLS))
def test_kill_of_the_api_server_right_after_the_answer_loses_nothing(airflow: LocalAirflow, kill: int) -> None:
    names = [f"killed-{kill}-{number}" for number in range(5)]
    tables = [due_table(airflow, name) for name in names]
    for table, instant in tables:
        assert send_notice(airflow, table.path, instant).status_code == 200
    airflow.servers["api-server"].kill()
    airflow.start_component("api-server")
    airflow.wait_for_manager()
    wait_for_runs(airflow, *names)
    assert set(runs_of(airflow, *names).values()) == {1}


@pytest.mark.soak(covered_by="tests/system/test_end_to_end.py")
def test_commits_made_while_airflow_was_away_are_found_after_its_return(airflow: LocalAirflow) -> None:
    """The writer's notice finds no server; only the third commit makes a compaction due, and none announces it."""
    table, instant = due_table(airflow, "away", commits=2)
    assert send_notice(airflow, table.path, instant).status_code == 200
    airflow.wait_until(lambda: _is_clean(airflow, "away"), 30, "the evaluation")
    airflow.servers["api-server"].kill()
    with pytest.raises(httpx.ConnectError):
        send_notice(airflow, table.path, table.commit(3))
    airflow.start_component("api-server")
    airflow.wait_for_manager()
    # A restarted server loads the tables that it knows over a minute.
    airflow.wait_until(lambda: runs_of(airflow, "away") == {"away": 1}, 120, "the run")


def _table(airflow: LocalAirflow, name: str) -> dict[str, Any]:
    return next(table for table in airflow.tables() if table["table_name"] == name)


def _is_clean(airflow: LocalAirflow, name: str) -> bool:
    return any(t["table_name"] == name and not t["dirty"] and t["evaluated_ms"] for t in airflow.tables())

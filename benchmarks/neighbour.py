"""Do Airflow's own requests notice the provider?

Four of Airflow's routes get requests at fixed rates (open loop, as in `benchmarks.notice`): an asset event, the list of
DAG runs, the heartbeat of a running task and an XCom of it, once in an Airflow in which the provider is not installed
(`absent`, the peer), once with it and no table (`idle`), and once while writers send notices (`noticed`). Then clients
that give up after a second send more asset events than any server answers (`overload`), and the time until the list of
DAG runs answers as before is `recovered_s`. `most_per_s` is how many requests of these routes eight clients get
answered, each sending upon the last answer, while notices arrive as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil

from benchmarks.notice import (
    ROOT,
    TABLES,
    Load,
    Send,
    asset_sender,
    count_answers,
    find_peer_asset,
    notice_sender,
    run_load,
    say,
)
from local_stack.airflow import LocalAirflow
from local_stack.airflow_alone import AirflowAlone, make_environment
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from tests.support.tables import HandMadeTable

PEER_DAGS = {"peer": ROOT / "benchmarks" / "peer_dags"}
OVERLOAD_PER_S = 200.0
CALM_S = 8.0
"""After the start, so that no run is measured with what a server does once."""


@dataclass(frozen=True)
class StandingTask:
    """The task instance whose heartbeats the benchmark sends, and the token of its requests."""

    id: str
    run_id: str
    hostname: str
    pid: int
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True)
class Measured:
    """Each route's load, the notices' if any were sent, and the server's CPU time of one request of Airflow's."""

    routes: dict[str, Load]
    cpu_ms_per_request: float
    notices: Load | None = None
    recovered_s: float = field(default=0.0)
    most_per_s: float = field(default=0.0)


def start_task(airflow: LocalAirflow, secret: str) -> StandingTask:
    """Trigger the standing task and return it once it runs."""
    url = f"{airflow.url}/api/v2/dags/standing_task/dagRuns"
    wait_until(lambda: airflow.airflow_get("/api/v2/dags/standing_task") is not None, 120, "the DAG standing_task")
    httpx.post(url, json={"logical_date": None}, timeout=30).raise_for_status()
    found: list[dict[str, Any]] = []

    def is_running() -> bool:
        answer = airflow.airflow_get("/api/v2/dags/standing_task/dagRuns/~/taskInstances") or {"task_instances": []}
        found[:] = [task for task in answer["task_instances"] if task["state"] == "running" and task["pid"]]
        return bool(found)

    wait_until(is_running, 120, "the standing task", list(airflow.servers.values()))
    now_s = int(datetime.now(tz=UTC).timestamp())
    claims = {
        "sub": found[0]["id"],
        "scope": "execution",
        "aud": "urn:airflow.apache.org:task",
        "iat": now_s,
        "nbf": now_s,
        "exp": now_s + 3600,
        "jti": secrets.token_hex(8),
    }
    token = jwt.encode(claims, secret, algorithm="HS512")
    return StandingTask(found[0]["id"], found[0]["dag_run_id"], found[0]["hostname"], found[0]["pid"], token)


def senders(airflow: LocalAirflow, task: StandingTask) -> dict[str, Send]:
    """Return what sends one request of each route; a good answer counts as 200."""
    execution = f"{airflow.url}/execution"
    heartbeat = {"hostname": task.hostname, "pid": task.pid}

    async def list_runs(client: httpx.AsyncClient, _number: int) -> int:
        return (await client.get(f"{airflow.url}/api/v2/dags/~/dagRuns", params={"limit": 50})).status_code

    async def beat(client: httpx.AsyncClient, _number: int) -> int:
        url = f"{execution}/task-instances/{task.id}/heartbeat"
        return _as_200(await client.put(url, json=heartbeat, headers=task.headers))

    async def push(client: httpx.AsyncClient, number: int) -> int:
        url = f"{execution}/xcoms/standing_task/{task.run_id}/stand/key_{number % 100}"
        return _as_200(await client.post(url, json=number, headers=task.headers))

    return {
        "asset_event": asset_sender(airflow, find_peer_asset(airflow)),
        "dag_runs": list_runs,
        "heartbeat": beat,
        "xcom": push,
    }


def _as_200(answer: httpx.Response) -> int:
    return httpx.codes.OK if answer.is_success else answer.status_code


async def run_all(
    routes: dict[str, Send], rate_per_s: float, seconds: float, notices: Send | None, notices_per_s: float
) -> tuple[dict[str, Load], Load | None]:
    """Send all routes' requests at the same time, and notices if there are any to send."""
    loads = [run_load(send, rate_per_s, seconds) for send in routes.values()]
    if notices is not None:
        loads.append(run_load(notices, notices_per_s, seconds))
    done = await asyncio.gather(*loads)
    return dict(zip(routes, done, strict=False)), done[-1] if notices is not None else None


async def find_most(routes: dict[str, Send], seconds: float, notices: Send | None, notices_per_s: float) -> float:
    """Return how many requests a second are answered at most."""
    sending = None if notices is None else asyncio.create_task(run_load(notices, notices_per_s, seconds))
    most_per_s = await count_answers(list(routes.values()), seconds)
    if sending is not None:
        await sending
    return most_per_s


async def overload(send: Send, seconds: float) -> None:
    """Send more than is answered, by clients that give up after a second."""
    async with httpx.AsyncClient(timeout=1.0, limits=httpx.Limits(max_connections=500)) as client:
        began, tasks = time.perf_counter(), []
        for number in range(int(OVERLOAD_PER_S * seconds)):
            await asyncio.sleep(max(0.0, began + number / OVERLOAD_PER_S - time.perf_counter()))
            tasks.append(asyncio.create_task(send(client, number)))
        await asyncio.gather(*tasks, return_exceptions=True)


def recovery_s(airflow: LocalAirflow, usual_ms: float) -> float:
    """Return the seconds until the list of DAG runs answers three times in a row within three times its usual time."""
    began_s, good = time.perf_counter(), 0
    while good < 3 and time.perf_counter() - began_s < 120:
        asked_s = time.perf_counter()
        answer = airflow.airflow_get("/api/v2/dags/~/dagRuns", limit=50)
        took_ms = (time.perf_counter() - asked_s) * 1000
        good = good + 1 if answer is not None and took_ms <= max(100.0, 3 * usual_ms) else 0
    return round(time.perf_counter() - began_s, 1)


def measure(make: Callable[[Path, str], LocalAirflow], name: str, database_url: str, options: Any) -> Measured:
    """Start an Airflow, send the loads, stop it."""
    home = ROOT / ".work" / "bench-neighbour" / name
    shutil.rmtree(home, ignore_errors=True)
    lake = home / "lake"
    lake.mkdir(parents=True)
    for number in range(TABLES):
        HandMadeTable.create(lake / f"table-{number}").commit(1)
    airflow, secret = make(home, database_url), secrets.token_urlsafe(64)
    airflow.settings |= {"AIRFLOW__API_AUTH__JWT_SECRET": secret}
    try:
        airflow.migrate()
        airflow.start(("api-server", "scheduler", "dag-processor"))
        routes = senders(airflow, start_task(airflow, secret))
        notices = notice_sender(airflow) if "noticed" in name else None
        asyncio.run(run_all(routes, options.rate, 3, notices, options.notices))
        time.sleep(CALM_S)
        server = psutil.Process(airflow.servers["api-server"].process.pid)
        before_s = _cpu_s(server)
        loads, noticed = asyncio.run(run_all(routes, options.rate, options.seconds, notices, options.notices))
        requests = sum(load.answered for load in loads.values())
        cpu_ms = (_cpu_s(server) - before_s) * 1000 / max(1, requests)
        most_per_s = asyncio.run(find_most(routes, options.seconds / 2, notices, options.notices))
        recovered_s = 0.0
        if options.overload:
            asyncio.run(overload(routes["asset_event"], options.overload))
            recovered_s = recovery_s(airflow, loads["dag_runs"].p50_ms)
    finally:
        stop_whole(airflow)
    measured = Measured(loads, round(cpu_ms, 1), noticed, recovered_s, most_per_s)
    say(f"{name}: {measured}")
    return measured


def stop_whole(airflow: LocalAirflow) -> None:
    """Stop an Airflow and the standing task, whose process has a session of its own."""
    scheduler = airflow.servers.get("scheduler")
    workers = psutil.Process(scheduler.process.pid).children(recursive=True) if scheduler and scheduler.alive() else []
    airflow.stop()
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()


def _cpu_s(server: psutil.Process) -> float:
    processes = [server, *server.children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def make_with_provider(home: Path, database_url: str) -> LocalAirflow:
    """Return an Airflow with the provider."""
    return LocalAirflow(home / "airflow", (home / "lake",), database_url=database_url, more_dags=PEER_DAGS)


def make_alone(home: Path, database_url: str) -> LocalAirflow:
    """Return an Airflow without the provider."""
    programs = make_environment(home / "environment")
    airflow = AirflowAlone(home / "airflow", (home / "lake",), database_url=database_url, more_dags=PEER_DAGS)
    airflow.programs = programs
    return airflow


STATES = {"absent": make_alone, "idle": make_with_provider, "noticed": make_with_provider}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=8.0, help="requests of each of the four routes per second")
    parser.add_argument("--notices", type=float, default=40.0, help="notices per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each load")
    parser.add_argument("--overload", type=float, default=20.0, help="length of the overload, seconds; 0: none")
    parser.add_argument("--states", nargs="+", choices=tuple(STATES), default=tuple(STATES))
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgres"), default=("sqlite", "postgres"))
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for database in options.databases:
        postgres = LocalPostgres() if database == "postgres" else None
        try:
            if postgres is not None:
                postgres.start()
            for state in options.states:
                url = "" if postgres is None else postgres.create_database(f"neighbour_{state}")
                found = measure(STATES[state], f"{database}-{state}", url, options)
                result.setdefault(database, {})[state] = asdict(found)
        finally:
            if postgres is not None:
                postgres.stop()
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

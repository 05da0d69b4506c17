"""How fast and how surely does a running API server accept commit notices?

Sends notices at a fixed rate (open loop: a slow answer does not slow the next notice down, and its wait counts), with
write statistics of ten files each, to an Airflow on SQLite and to one on PostgreSQL; scheduler and DAG processor run as
well. `lost` counts notices that were answered 200 and are not in the registry afterwards. The peer is Airflow's own
`POST /api/v2/assets/events` at the same rate, in the same server, for a third of the time; it is printed, not part of
the result. `most_per_s` and `peer_per_s` are what eight clients get answered, each sending upon the last answer: a
token may send 200 notices a second on average, and 2,000 at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from tests.support.tables import HandMadeTable

ROOT = Path(__file__).resolve().parent.parent
TABLES = 50
FILES_PER_COMMIT = 10
TIMEOUT_S = 15.0

Send = Callable[[httpx.AsyncClient, int], Awaitable[int]]


@dataclass(frozen=True)
class Load:
    """What one load showed. `answered` counts 200s."""

    rate_per_s: float
    p50_ms: float
    p99_ms: float
    answered: int
    refused: int


async def run_load(send: Send, rate_per_s: float, seconds: float) -> Load:
    """Send at a fixed rate and measure from the moment at which each request was due."""
    latencies_ms: list[float] = []
    answered = refused = 0

    async def one(client: httpx.AsyncClient, number: int, due: float) -> None:
        nonlocal answered, refused
        try:
            good = await send(client, number) == httpx.codes.OK
        except httpx.HTTPError:
            good = False
        latencies_ms.append((time.perf_counter() - due) * 1000)
        answered, refused = answered + good, refused + (not good)

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=200)) as client:
        began = time.perf_counter()
        tasks = []
        for number in range(int(rate_per_s * seconds)):
            due = began + number / rate_per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(client, number, due)))
        await asyncio.gather(*tasks)
        took_s = time.perf_counter() - began
    cuts = statistics.quantiles(latencies_ms, n=100)
    return Load(round(answered / took_s, 1), round(cuts[49], 2), round(cuts[98], 2), answered, refused)


async def count_answers(sends: Sequence[Send], seconds: float, clients: int = 8) -> float:
    """Return how many requests a second are answered when each client sends its next one upon an answer."""
    answered = 0
    until_s = time.perf_counter() + seconds

    async def one(client: httpx.AsyncClient, first: int) -> None:
        nonlocal answered
        number = first
        while time.perf_counter() < until_s:
            with suppress(httpx.HTTPError):
                status = await sends[number % len(sends)](client, number)
                answered += status == httpx.codes.OK  # not in one line: `+=` reads before it awaits
            number += clients + 1  # each client sends to all in turn

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=200)) as client:
        await asyncio.gather(*(one(client, first) for first in range(clients)))
    return round(answered / seconds, 1)


def notice_sender(airflow: LocalAirflow) -> Send:
    """Return what sends the notice of one commit of one of the tables."""
    stats = [
        {
            "fileId": f"{number:08d}-0000-4000-8000-000000000000-0",
            "path": f"city=Cork/.{number:08d}_20261121120001000.log.1_0-12-34",
            "totalWriteBytes": 4096,
            "runtimeStats": {"totalScanTime": 0, "totalUpsertTime": 12, "totalCreateTime": 0},
            "padding": "x" * 700,
        }
        for number in range(FILES_PER_COMMIT)
    ]
    headers = {"HUDI-CALLBACK-KEY": airflow.callback_token, "X-Lake-Database": "bench"}

    async def send(client: httpx.AsyncClient, number: int) -> int:
        path = airflow.allowed_roots[0] / f"table-{number % TABLES}"
        body = {
            "commitTime": f"20261121{120000000 + number:09d}",
            "tableName": path.name,
            "basePath": str(path),
            "hoodieWriteStat": stats,
        }
        return (await client.post(airflow.callback_url, json=body, headers=headers)).status_code

    return send


def asset_sender(airflow: LocalAirflow, asset_id: int) -> Send:
    """Return what sends one asset event through Airflow's REST API."""

    async def send(client: httpx.AsyncClient, number: int) -> int:
        body = {"asset_id": asset_id, "extra": {"number": number}}
        return (await client.post(f"{airflow.url}/api/v2/assets/events", json=body)).status_code

    return send


def measure(name: str, database_url: str, rate_per_s: float, seconds: float) -> dict[str, Any]:
    """Start an Airflow on one database, load it, count what is missing, stop it."""
    home = ROOT / ".work" / "bench-notice" / name
    shutil.rmtree(home, ignore_errors=True)
    lake = home / "lake"
    lake.mkdir(parents=True)
    for number in range(TABLES):
        HandMadeTable.create(lake / f"table-{number}").commit(1)
    peer_dags = {"peer": ROOT / "benchmarks" / "peer_dags"}
    airflow = LocalAirflow(home / "airflow", (lake,), database_url=database_url, more_dags=peer_dags)
    try:
        airflow.migrate()
        airflow.start(("api-server", "scheduler", "dag-processor"))
        airflow.wait_for_dags()
        asset_id = find_peer_asset(airflow)
        asyncio.run(run_load(notice_sender(airflow), rate_per_s, 3))
        before = count_notices(airflow)
        say(f"{name}: {rate_per_s:.0f} notices/s for {seconds:.0f} s")
        load = asyncio.run(run_load(notice_sender(airflow), rate_per_s, seconds))
        wait_until(lambda: not any(table["dirty"] for table in airflow.tables()), 60, "the last evaluation", [])
        lost = load.answered - (count_notices(airflow) - before)
        say(f"{name}: {load}, lost {lost}")
        peer = asyncio.run(run_load(asset_sender(airflow, asset_id), rate_per_s, seconds / 3))
        say(f"{name}: peer, Airflow's asset events over REST: {peer}")
        most_per_s = asyncio.run(count_answers([notice_sender(airflow)], seconds / 6))
        peer_per_s = asyncio.run(count_answers([asset_sender(airflow, asset_id)], seconds / 6))
        say(f"{name}: at most {most_per_s} notices/s, {peer_per_s} asset events/s, of 8 clients")
    finally:
        airflow.stop()
    result = {"rate_per_s": load.rate_per_s, "p50_ms": load.p50_ms, "p99_ms": load.p99_ms}
    return result | {"lost": lost + load.refused, "most_per_s": most_per_s, "peer_per_s": peer_per_s}


def find_peer_asset(airflow: LocalAirflow) -> int:
    found: list[int] = []

    def there() -> bool:
        answer = airflow.airflow_get("/api/v2/assets", name_pattern="lake_peer")
        found.extend(asset["id"] for asset in (answer or {"assets": []})["assets"])
        return bool(found)

    wait_until(there, 120, "the peer's asset", list(airflow.servers.values()))
    return found[0]


def count_notices(airflow: LocalAirflow) -> int:
    return sum(table["notices"] for table in airflow.tables())


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=40.0, help="notices per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each load")
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgres"), default=("sqlite", "postgres"))
    options = parser.parse_args()
    result = {}
    if "sqlite" in options.databases:
        result["sqlite"] = measure("sqlite", "", options.rate, options.seconds)
    if "postgres" in options.databases:
        postgres = LocalPostgres()
        try:
            postgres.start()
            result["postgres"] = measure("postgres", postgres.url, options.rate, options.seconds)
        finally:
            postgres.stop()
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""More requests of Airflow's own than its pool has connections: the API server answers them all, and goes on.

Without the bound of `plugins/airflow_requests.py` the server blocks itself: its event loop waits for a connection that
requests hold which need the loop to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from local_stack.airflow import LocalAirflow
from tests.system.conftest import started_api_server

pytestmark = pytest.mark.system

AT_A_TIME = 60
SMALL_POOL = {
    "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "2",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "1",
}
"""Each request then meets what only bursts meet with Airflow's fifteen connections."""


@pytest.fixture(scope="module", params=["postgres", pytest.param("sqlite", marks=pytest.mark.soak)])
def airflow(request: pytest.FixtureRequest) -> Iterator[LocalAirflow]:
    with started_api_server("overload", request, SMALL_POOL) as airflow:
        yield airflow


def test_burst_of_airflows_own_requests_is_answered_whole(airflow: LocalAirflow) -> None:
    async def send_all() -> list[int]:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=AT_A_TIME)) as client:
            return await asyncio.gather(*(send(client, number) for number in range(AT_A_TIME)))

    async def send(client: httpx.AsyncClient, number: int) -> int:
        body = {"key": f"burst_{number}", "value": "x"}
        return (await client.post(f"{airflow.url}/api/v2/variables", json=body)).status_code

    assert asyncio.run(send_all()) == [201] * AT_A_TIME


def test_server_forgets_callers_that_gave_up(airflow: LocalAirflow) -> None:
    async def give_up() -> int:
        async with httpx.AsyncClient(timeout=1, limits=httpx.Limits(max_connections=400)) as client:
            answers = await asyncio.gather(*(send(client, number) for number in range(400)), return_exceptions=True)
        return sum(isinstance(answer, httpx.TimeoutException) for answer in answers)

    async def send(client: httpx.AsyncClient, number: int) -> None:
        await client.post(f"{airflow.url}/api/v2/variables", json={"key": f"left_{number}", "value": "x"})

    gave_up = asyncio.run(give_up())
    asked_s = time.monotonic()
    assert httpx.get(f"{airflow.url}/api/v2/dags", timeout=60).status_code == 200
    assert time.monotonic() - asked_s < 20  # of callers that stay, 400 took far longer than those at work
    written = httpx.get(f"{airflow.url}/api/v2/variables", params={"variable_key_pattern": "left_"}, timeout=60).json()
    # What the server had begun when its caller left is done, and where the callers' own loop is slow, some hang up
    # long after they gave up. A server that forgets no caller writes all.
    assert written["total_entries"] <= 400 - gave_up // 2 + AT_A_TIME

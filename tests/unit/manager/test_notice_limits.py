"""A flood of notices of one token: it is refused, and the notices of all others arrive."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
import pytest

from airflow_lake_provider.errors import TooManyNoticesError
from airflow_lake_provider.http import read_body
from airflow_lake_provider.manager.api import services as routes
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import BURST_S, UNIT_BYTES, ManagerServices, NoticeLimits
from airflow_lake_provider.manager.db.rows import Mark, Notice
from tests.support.patience import patient
from tests.unit.manager.conftest import CALLBACK_TOKEN

FLOOD, OTHER = {"HUDI-CALLBACK-KEY": "old-callback-secret"}, {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN}


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Loop:
    """Stands for the manager's loop: notices of the table `slow` wait for `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.accepted: Counter[str] = Counter()

    def notify(self, notice: Notice, **_: Any) -> Mark:
        if notice.table_name == "slow":
            assert self.go.wait(20)
        self.accepted[notice.table_name] += 1
        return Mark(notice.table_name, 1, notice.base_path)


@pytest.fixture
def loop(services: ManagerServices) -> Loop:
    loop = Loop()
    object.__setattr__(services, "loop", loop)
    return loop


def bound(services: ManagerServices, limits: NoticeLimits) -> httpx.AsyncClient:
    object.__setattr__(services, "limits", limits)
    transport = httpx.ASGITransport(create_app(lambda: services), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://manager")


def notice(services: ManagerServices, name: str = "quick") -> dict[str, str]:
    path = f"{services.settings.allowed_roots[0]}/{name}"
    return {"commitTime": "20261121024807033", "tableName": name, "basePath": path}


@in_loop
async def test_token_above_its_rate_gets_429_with_retry_after_and_no_other_token_does(
    services: ManagerServices, loop: Loop
) -> None:
    clock = Clock()
    async with bound(services, NoticeLimits(per_s=2, at_once=8, monotonic_s=clock)) as client:
        burst = int(2 * BURST_S)
        for _ in range(burst):
            assert (await client.post("/callback", json=notice(services), headers=FLOOD)).status_code == 200
        for _ in range(100):
            refused = await client.post("/callback", json=notice(services), headers=FLOOD)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "[lake] notices_per_s" in refused.json()["detail"]
        path = services.settings.allowed_roots[0]
        asked = {"basepath": f"{path}/x", "table_name": "x", "extra_params": "token=old-callback-secret"}
        assert (await client.get("/service/clean", params=asked)).status_code == 429
        for _ in range(burst):
            assert (await client.post("/callback", json=notice(services), headers=OTHER)).status_code == 200
        clock.now_s += 1.0
        answers = [await client.post("/callback", json=notice(services), headers=FLOOD) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert loop.accepted["quick"] == 2 * burst + 2
    assert any("refused with 429" in problem for problem in services.refusals.find_problems())


@in_loop
async def test_slow_notices_of_one_token_leave_places_for_the_others(services: ManagerServices, loop: Loop) -> None:
    wait_s = patient(0.5)
    async with bound(services, NoticeLimits(per_s=10_000, at_once=4, wait_s=wait_s)) as client:
        slow = notice(services, "slow")
        flood = [asyncio.create_task(client.post("/callback", json=slow, headers=FLOOD)) for _ in range(50)]
        await asyncio.sleep(0.2)
        for _ in range(20):
            answer = await asyncio.wait_for(
                client.post("/callback", json=notice(services), headers=OTHER), 0.8 * wait_s
            )
            assert answer.status_code == 200
        # Two go on until they are let go.
        async with asyncio.timeout(patient(20)):
            while len(refused := [task for task in flood if task.done()]) < 48:  # noqa: ASYNC110 - of other tasks
                await asyncio.sleep(0.02)
        assert {task.result().status_code for task in refused} == {429}
        assert {task.result().headers["retry-after"] for task in refused} == {"5"}
        loop.go.set()
        assert [(await task).status_code for task in flood if task not in refused] == [200, 200]
        assert (await client.post("/callback", json=slow, headers=FLOOD)).status_code == 200, "every place came back"


@in_loop
async def test_slow_notices_of_two_tokens_leave_places_for_a_third_one() -> None:
    """A team may have a token for each of its programs."""
    limits = NoticeLimits(per_s=10_000, at_once=32, wait_s=0.1)
    async with AsyncExitStack() as held:
        for name in ("shop-1", "shop-2"):
            with suppress(TooManyNoticesError):
                for _ in range(20):
                    await held.enter_async_context(limits.admit(name))
        for _ in range(100):
            async with limits.admit("bank"):
                pass


@in_loop
async def test_burst_of_commits_waits_and_loses_nothing(services: ManagerServices, loop: Loop) -> None:
    loop.go.set()
    async with bound(services, NoticeLimits(per_s=10_000, at_once=2)) as client:
        answers = await asyncio.gather(
            *(client.post("/callback", json=notice(services, "slow"), headers=FLOOD) for _ in range(100))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert loop.accepted["slow"] == 100


@in_loop
async def test_places_are_never_more_than_allowed_and_all_come_back_whatever_ends_a_notice() -> None:
    limits, rng = NoticeLimits(per_s=1e9, at_once=8, wait_s=0.02), random.Random(7)
    in_work: Counter[str] = Counter()
    refused = 0

    async def send(name: str, units: int) -> None:
        nonlocal refused
        try:
            async with limits.admit(name, (units - 1) * UNIT_BYTES):
                in_work[name] += min(units, 4)
                try:
                    assert in_work.total() <= 8
                    assert in_work[name] <= 4
                    await asyncio.sleep(rng.random() / 100)
                finally:
                    in_work[name] -= min(units, 4)
        except TooManyNoticesError:
            refused += 1

    tasks = [asyncio.create_task(send(rng.choice("abc"), rng.randint(1, 6))) for _ in range(400)]
    for task in rng.sample(tasks, 100):
        await asyncio.sleep(0.0005)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [result for result in results if isinstance(result, AssertionError)]
    assert refused > 0
    assert limits._used.total() == 0
    assert not limits._waiting


@in_loop
async def test_large_body_takes_more_than_one_place() -> None:
    limits = NoticeLimits(per_s=100, at_once=8, wait_s=0.01)
    async with limits.admit("a", 3 * UNIT_BYTES), limits.admit("b"):
        with pytest.raises(TooManyNoticesError, match="notices_at_once"):
            async with limits.admit("a"):
                pytest.fail("the body of `a` fills its half")


@in_loop
async def test_body_that_stops_half_way_is_408_and_gives_its_place_back() -> None:
    class Request:
        headers = {"content-length": "100"}  # noqa: RUF012

        async def stream(self) -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(60)

    with pytest.raises(Exception, match="did not arrive") as raised:
        await read_body(Request(), 1000, timeout_s=0.05)  # type: ignore[arg-type]
    assert raised.value.http_status == 408  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", ["9" * 5000, "1000001"])
@in_loop
async def test_announced_length_above_the_limit_is_413(services: ManagerServices, length: str) -> None:
    async with bound(services, services.limits) as client:
        answer = await client.post("/callback", content=b"{}", headers=OTHER | {"content-length": length})
    assert answer.status_code == 413


@in_loop
async def test_flood_of_made_up_tables_leaves_the_registered_ones_and_the_other_tokens_alone(
    services: ManagerServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "NEW_BURST", 5.0)
    clock = Clock()
    async with bound(services, NoticeLimits(per_s=10_000, at_once=8, monotonic_s=clock)) as client:

        async def send(name: str, headers: dict[str, str]) -> int:
            return (await client.post("/callback", json=notice(services, name), headers=headers)).status_code

        flood = [await send(f"made-up-{number}", FLOOD) for number in range(40)]
        assert flood == [200] * 5 + [429] * 35
        assert len(services.registry.list_tables()) == 5
        assert await send("made-up-1", FLOOD) == 200, "it is registered"
        assert await send("orders", OTHER) == 200
        clock.now_s += 1.0
        assert [await send(f"later-{number}", FLOOD) for number in range(6)] == [200] * 5 + [429]

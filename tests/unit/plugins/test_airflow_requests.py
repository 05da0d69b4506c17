"""Airflow's requests wait for a place, one that needs none passes, and one whose caller left gives up its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_lake_provider.plugins import airflow_requests
from airflow_lake_provider.plugins.airflow_requests import BoundedRequests, RequestBounds, bounds_of

Message = dict[str, Any]
TWO = RequestBounds(all=2, writing=None)


class Server:
    """An app that answers a request when `may_end` is set, and counts those at work."""

    def __init__(self, bounds: RequestBounds) -> None:
        self.guarded = BoundedRequests(self.app, lambda: bounds)
        self.at_work: list[str] = []
        self.answers: dict[str, int] = {}
        self.bodies: dict[str, bytes] = {}
        self.may_end = asyncio.Event()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"]
        self.at_work.append(name)
        body = b""
        while message := await receive():
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies[name] = body
        await self.may_end.wait()
        self.at_work.remove(name)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def request(self, path: str, method: str = "GET", body: bytes = b"") -> Request:
        return Request(self, path, method, body)

    def stopped(self, path: str, sent: bytes) -> Request:
        """Send a part of a body."""
        return Request(self, path, "POST", sent, [(b"content-length", b"9999999")])


class Request:
    """One request and its connection."""

    def __init__(self, server: Server, path: str, method: str, body: bytes, announced: Any = None) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": announced is not None})
        self._server, self._path = server, path
        sizes = [(b"content-length", str(len(body)).encode())] if announced is None else announced
        scope = {"type": "http", "path": path, "root_path": "", "method": method, "headers": sizes}
        self.task = asyncio.ensure_future(server.guarded(scope, self._messages.get, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._server.answers[self._path] = message["status"]

    def go_on(self, body: bytes, *, more_body: bool = False) -> None:
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more_body})

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 10))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_third_request_waits_until_one_of_two_is_answered() -> None:
    async def story() -> None:
        server = Server(TWO)
        requests = [server.request(f"/api/v2/{number}", body=b"text") for number in range(3)]
        await settle()
        assert server.at_work == ["/api/v2/0", "/api/v2/1"]
        server.may_end.set()
        await asyncio.gather(*(request.task for request in requests))
        assert list(server.answers.values()) == [200, 200, 200]
        assert set(server.bodies.values()) == {b"text"}

    run(story)


@pytest.mark.parametrize("path", ["/v1/hoodie/callback", "/lake/api/tables", "/static/x.js", "/api/v2/monitor/health"])
def test_requests_that_need_no_place_pass(path: str) -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=0, writing=0))
        server.request(path, "POST")
        await settle()
        assert server.at_work == [path]

    run(story)


def test_neighbouring_path_is_no_route_of_the_managers() -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=0, writing=None))
        server.request("/lakehouse")
        await settle()
        assert server.at_work == []

    run(story)


def test_caller_that_leaves_gives_its_turn_to_the_next() -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=1, writing=None))
        first, second = server.request("/first"), server.request("/second")
        await settle()
        second.leave()
        await second.task
        third = server.request("/third")
        server.may_end.set()
        await asyncio.gather(first.task, third.task)
        assert server.answers == {"/first": 200, "/second": 400, "/third": 200}

    run(story)


def test_request_that_is_cancelled_while_it_waits_costs_no_place() -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=1, writing=None))
        first, second = server.request("/first"), server.request("/second")
        await settle()
        second.task.cancel()
        server.may_end.set()
        await asyncio.gather(second.task, return_exceptions=True)
        await asyncio.gather(first.task, server.request("/third").task)
        assert server.answers == {"/first": 200, "/third": 200}

    run(story)


def test_one_writes_at_a_time_where_the_database_has_one_lock_while_others_read() -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=3, writing=1))
        for number in range(3):
            server.request(f"/write/{number}", "POST")
        server.request("/read")
        await settle()
        assert server.at_work == ["/write/0", "/read"]

    run(story)


@pytest.mark.parametrize("size_bytes", [1, airflow_requests.MAX_HEARD_BYTES + 1])
@pytest.mark.parametrize("bounds", [RequestBounds(all=1, writing=None), RequestBounds(all=5, writing=1)])
def test_body_that_does_not_arrive_holds_no_place(bounds: RequestBounds, size_bytes: int) -> None:
    async def story() -> None:
        server = Server(bounds)
        server.may_end.set()
        first = b"x" * size_bytes
        stopped = [server.stopped(f"/stopped/{number}", first) for number in range(3)]
        await settle()
        await asyncio.gather(*(server.request(f"/{number}", "POST", b"{}").task for number in range(3)))
        assert server.answers == {f"/{number}": 200 for number in range(3)}
        for number, request in enumerate(stopped[:2]):
            request.go_on(b"y", more_body=True)
            request.go_on(b"z")
            await request.task
            assert server.answers[f"/stopped/{number}"] == 200
            assert server.bodies[f"/stopped/{number}"] == first + b"yz"
        stopped[2].leave()
        await settle()
        assert "/stopped/2" in server.answers, "a middleware around this one fails without an answer"

    run(story)


def test_large_body_waits_for_a_place_when_it_is_there() -> None:
    async def story() -> None:
        server = Server(RequestBounds(all=1, writing=None))
        server.request("/first")
        large = server.stopped("/large", b"x" * (airflow_requests.MAX_HEARD_BYTES + 1))
        await settle()
        large.go_on(b"")
        await settle()
        assert "/large" not in server.bodies
        server.may_end.set()
        await large.task
        assert server.answers == {"/first": 200, "/large": 200}

    run(story)


def test_request_that_waited_too_long_is_answered_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_requests, "MAX_WAIT_S", 0.05)

    async def story() -> None:
        server = Server(RequestBounds(all=1, writing=None))
        server.request("/first")
        await server.request("/second").task
        assert server.answers == {"/second": 503}

    run(story)


def test_app_that_fails_gives_its_place_back() -> None:
    async def fail(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("no answer")

    async def story() -> None:
        server = Server(RequestBounds(all=1, writing=None))
        app, server.guarded._app = server.guarded._app, fail
        with pytest.raises(RuntimeError):
            await server.request("/fails").task
        server.guarded._app = app
        server.may_end.set()
        await server.request("/next").task
        assert server.answers == {"/next": 200}

    run(story)


@pytest.mark.parametrize(
    ("pool_size", "max_overflow", "is_sqlite", "bounds"),
    [
        (5, 10, False, RequestBounds(10, None)),
        (5, 10, True, RequestBounds(10, 1)),
        (1, 0, False, RequestBounds(1, None)),
        (5, -1, False, RequestBounds(None, None)),
        (None, 10, False, RequestBounds(None, None)),
    ],
)
def test_a_third_of_the_pool_stays_free(
    pool_size: int | None, max_overflow: int, is_sqlite: bool, bounds: RequestBounds
) -> None:
    assert bounds_of(pool_size, max_overflow, is_sqlite=is_sqlite) == bounds

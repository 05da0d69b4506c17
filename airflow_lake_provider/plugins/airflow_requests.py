"""Keeps Airflow's API server from blocking itself: bounds how many of Airflow's own requests it works on at a time.

Airflow 3.3 writes its audit log on the server's event loop. A request keeps its database connection until the loop ends
it, so once all connections of the pool are in use, the loop waits for one that only the loop could give back. The
server then answers none until the pool's time-out (30 s), and falls into the same state with the next request: 100
asset events a second for ten seconds do that to an Airflow without this provider, and so may any moment in which it is
slow (https://github.com/apache/airflow/issues/65237). With fewer requests at work than the pool has connections it
cannot happen; the others wait in the order of their arrival, without a connection. On SQLite the same happens with the
one lock for writing, so there one request at a time may write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.http import MOUNT_PATH, PAGES_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

MAX_WAIT_S = 30.0
"""Maximum wait of a request (seconds): after as long the pool of connections ends one with an error, too."""
MAX_HEARD_BYTES = 65_536
"""Maximum part of a body that is read before its request has a place (bytes)."""
UNBOUNDED_PREFIXES = (MOUNT_PATH, PAGES_PATH, "/static", "/api/v2/monitor")
"""What uses no connection of Airflow's pool on the loop: the manager's routes, its pages and files, probes."""
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """How many of Airflow's requests one server process works on at a time; None: any number."""

    all: int | None
    writing: int | None


def bounds_of(pool_size: int | None, max_overflow: int, *, is_sqlite: bool) -> RequestBounds:
    """Return the bounds for a pool; `pool_size` is None without one, `max_overflow` below 0 means no limit.

    A third of the connections stays free for what Airflow opens besides a request's own session.
    """
    writing = 1 if is_sqlite else None
    if pool_size is None or max_overflow < 0:
        return RequestBounds(None, writing)
    return RequestBounds(max(1, (pool_size + max_overflow) * 2 // 3), writing)


class BoundedRequests:
    """ASGI middleware of Airflow's root app. A request has its place until its answer begins.

    Airflow's session ends before that, so a stream (a log, a run that is waited for) does not keep the place. A body
    has arrived before its request takes one: a caller without a login that stops in the middle of it holds up no other.
    """

    def __init__(self, app: ASGIApp, read_bounds: Callable[[], RequestBounds]) -> None:
        self._app = app
        self._read_bounds = read_bounds
        self._places: tuple[_Places, ...] | None = None
        self._logged_s = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of Airflow's within a place, everything else at once."""
        if scope["type"] != "http" or _is_unbounded(scope):
            await self._app(scope, receive, send)
            return
        caller = _Caller(receive)
        held: list[_Places] = []
        is_writing = scope["method"] not in READING_METHODS
        try:
            if not is_writing or not _has_body(scope) or await caller.hear_body():
                await self._enter(caller, held, is_writing=is_writing)
                receive = caller.receive
            else:
                # The app reads a large body, and the request takes its place at the end of it.
                receive = self._receive_and_enter(caller, held)
        except TimeoutError:
            self._report()
            await _answer(send, 503, b'{"detail": "the server is overloaded: try again in some seconds"}')
            return
        except _CallerLeftError:
            # It cannot be delivered. Without an answer Airflow's middlewares fail, and log two tracebacks for each.
            await _answer(send, 400, b'{"detail": "the caller has left"}')
            return

        async def send_and_leave(message: Message) -> None:
            _leave(held)
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            _leave(held)

    def _receive_and_enter(self, caller: _Caller, held: list[_Places]) -> Receive:
        async def receive() -> Message:
            message = await caller.receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                try:
                    await self._enter(caller, held, is_writing=True)
                except (TimeoutError, _CallerLeftError):
                    return {"type": "http.disconnect"}
            return message

        return receive

    async def _enter(self, caller: _Caller, held: list[_Places], *, is_writing: bool) -> None:
        """Wait for the places, and add them. Raises TimeoutError, and _CallerLeftError when its caller has left."""
        everyone, writers = self._places or self._make_places()
        try:
            # Writers first: one that waits for the others must not keep a place from readers.
            for places in (writers, everyone) if is_writing else (everyone,):
                if not places.take():
                    async with asyncio.timeout(MAX_WAIT_S):
                        await caller.wait_for(places)
                held.append(places)
        except BaseException:
            _leave(held)
            raise

    def _make_places(self) -> tuple[_Places, _Places]:
        # On the first request: the engine is there then, and so is the loop.
        bounds = self._read_bounds()
        self._places = _Places(bounds.all), _Places(bounds.writing)
        return self._places

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= 60:
            self._logged_s = now_s
            log.warning(
                "a request to Airflow waited %.0f s for others and was answered 503: the API server or its database "
                "is overloaded (more [api] workers, or a larger [database] sql_alchemy_pool_size)",
                MAX_WAIT_S,
            )


class _Places:
    """Places of one event loop, given in the order of arrival; None: any number."""

    def __init__(self, count: int | None) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place if one is free."""
        if self._free is None:
            return True
        if not self._free:
            return False
        self._free -= 1
        return True

    def queue(self) -> asyncio.Future[None]:
        """Return what is done once the caller has a place. One that is cancelled before gets none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    def leave(self) -> None:
        """Give a place to the next one that still waits."""
        if self._free is None:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _CallerLeftError(Exception):
    """The connection was closed before the request had a place."""


class _Caller:
    """A request's connection. What arrives while the request waits is kept for the app."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._heard: deque[Message] = deque()

    async def receive(self) -> Message:
        """Return the next message of the connection, as ASGI's `receive`."""
        return self._heard.popleft() if self._heard else await self._receive()

    async def hear_body(self) -> bool:
        """Wait for the body; false once there is more of it than may be kept. Raises _CallerLeftError."""
        size_bytes = 0
        while size_bytes <= MAX_HEARD_BYTES:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _CallerLeftError
            self._heard.append(message)
            if not message.get("more_body", False):
                return True
            size_bytes += len(message.get("body", b""))
        return False

    async def wait_for(self, places: _Places) -> None:
        """Wait for a place. Raises _CallerLeftError."""
        turn = places.queue()
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait((turn, listening), return_when=asyncio.FIRST_COMPLETED)
            if not turn.done() and await listening:
                raise _CallerLeftError
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                places.leave()  # it got its place just now
            turn.cancel()
            raise
        finally:
            listening.cancel()
            await asyncio.wait((listening,))  # the app receives next, and only one may

    async def _listen(self) -> bool:
        """Return whether the caller left; False once more of the body is there than may be kept."""
        size_bytes = 0
        while size_bytes <= MAX_HEARD_BYTES:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return True
            self._heard.append(message)
            size_bytes += len(message.get("body", b""))
        return False


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"retry-after", b"5")] if status == 503 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _leave(held: list[_Places]) -> None:
    while held:
        held.pop().leave()


def _has_body(scope: Scope) -> bool:
    """Whether a body follows the head of a request."""
    sizes = {name.lower(): value.strip() for name, value in scope["headers"]}
    return b"transfer-encoding" in sizes or sizes.get(b"content-length", b"0") != b"0"


def _is_unbounded(scope: Scope) -> bool:
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in UNBOUNDED_PREFIXES)

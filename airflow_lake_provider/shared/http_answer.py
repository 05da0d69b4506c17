"""One question by HTTP with the standard library alone: its answer has a limit in time and in bytes, and leads nowhere.

Python's own opener repeats all headers of a question, a login among them, at whatever address a redirect names, and its
time-out begins again with each byte.
"""

from __future__ import annotations

import http.client
import queue
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a server answered, whatever the status."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


def ask(
    request: urllib.request.Request,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
    limit_bytes: int = MAX_ANSWER_BYTES,
) -> ServerAnswer:
    """Return the answer. Raises OSError where there is no whole one in time, a larger one, or a redirect."""
    if not request.full_url.lower().startswith(("http://", "https://")):
        raise OSError("its address does not begin with http:// or https://")
    opener = urllib.request.build_opener(_NoRedirect(), urllib.request.HTTPSHandler(context=context))
    try:
        answer = within(timeout_s, lambda: _exchange(opener, request, timeout_s, limit_bytes))
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    if 300 <= answer.status < 400:
        raise OSError(
            f"it redirects ({answer.status}), and a login is not sent elsewhere: set the address that answers"
        )
    return answer


def within(timeout_s: float, exchange: Callable[[], T]) -> T:
    """Return what an exchange with a server returns, or raise what it raises; TimeoutError when it takes longer.

    In a thread of its own, for a server that sends a byte now and then is never silent.
    """
    found: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((exchange(), None))
        except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
            found.put((None, error))

    threading.Thread(target=run, name="lake-http", daemon=True).start()
    try:
        answer, error = found.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no whole answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return cast("T", answer)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: its status is the answer."""


def _exchange(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float, limit_bytes: int
) -> ServerAnswer:
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return ServerAnswer(int(response.status), _read(response, limit_bytes))
    except urllib.error.HTTPError as error:
        with error:
            return ServerAnswer(error.code, _read(error, limit_bytes))


def _read(response: Any, limit_bytes: int) -> bytes:
    content: bytes = response.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(f"an answer of more than {limit_bytes:,} bytes")
    return content

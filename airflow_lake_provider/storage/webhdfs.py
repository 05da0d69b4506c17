"""What a WebHDFS server may lead fsspec's client to: its NameNode names the address of each file's content, and the
client sends its login there and reads all that it gets.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from airflow_lake_provider.storage.store import MAX_FILE_BYTES

TIMEOUT_S = 60.0
"""How long a server may send nothing, and how long an answer may take."""
MAX_ANSWER_BYTES = 4 * MAX_FILE_BYTES
"""Of a listing as well, whose entries are JSON."""
_CHUNK_BYTES = 1 << 20


def bound_answers(fs: Any) -> None:
    """Keep a client's login at its NameNode, and bound each answer in time and in bytes. Does so once for each."""
    session = fs.session
    if _read_at_most in session.hooks["response"]:
        return
    session.request = partial(session.request, timeout=TIMEOUT_S)
    session.hooks["response"].append(_read_at_most)
    if fs.password is not None:
        session.auth = _OfItsServer(session.auth, fs.url)


class _OfItsServer:
    """A login for the requests to one server."""

    def __init__(self, login: Any, url: str) -> None:
        self._login = login
        self._server = _server_of(url)

    def __call__(self, request: Any) -> Any:
        return self._login(request) if _server_of(request.url) == self._server else request


def _server_of(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _read_at_most(response: Any, **_: Any) -> None:
    # Before requests reads it, whatever its size.
    content = bytearray()
    began_s = time.monotonic()
    for chunk in response.iter_content(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            response.close()
            raise OSError(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
        if time.monotonic() - began_s > TIMEOUT_S:
            response.close()
            raise OSError(f"no whole answer within {TIMEOUT_S:g} s")
    response._content = bytes(content)

"""Notices of many megabytes: what they hold costs the API server little, whatever it is."""

from __future__ import annotations

import asyncio
import json
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.http import has_escaped_nul
from airflow_lake_provider.manager.api import callback
from local_stack.processes import PATIENCE

NOTICE = b'{"commitTime":"20261121120003000","tableName":"orders","basePath":"/lake/orders","stats":%s}'
SIZE = 16 << 20


def parse(content: bytes) -> callback.CommitCallbackBody:
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace()))
    return asyncio.run(callback.parse_notice(request, content))


@pytest.mark.parametrize(
    ("stats", "refusal"),
    [
        pytest.param(b'"%s"' % (b"a" * SIZE), "", id="one-text"),
        pytest.param(b'"%s"' % (rb"\\u0000" * (SIZE // 7)), "", id="backslashes"),
        pytest.param(b"[%s1]" % (b"[]," * (SIZE // 3)), "", id="millions-of-lists"),
        pytest.param(b"[" * SIZE, "body: Invalid JSON", id="deep"),
        pytest.param(b'"%s' % (b"\xff" * SIZE), "body: Invalid JSON", id="no-text"),
    ],
)
def test_large_notice_costs_the_server_little(stats: bytes, refusal: str) -> None:
    content = NOTICE % stats
    before_s = time.process_time()
    if refusal:
        with pytest.raises(MalformedRequestError, match=refusal):
            parse(content)
    else:
        assert parse(content).basePath == "/lake/orders"
    # By the server itself it takes 0.27 s; on a busy machine a second of the processor does less.
    assert time.process_time() - before_s < 0.1 * max(1.0, PATIENCE / 2)


def test_large_notice_says_what_the_same_small_one_says() -> None:
    stats = [{"fileId": f"ä{number}", "path": "d=1/\u2028x", "numWrites": number} for number in range(30_000)]
    content = NOTICE % json.dumps({"d=1": stats}).encode()
    assert len(content) > callback.LARGE_NOTICE_BYTES
    assert parse(content) == parse(NOTICE % b"{}")
    for wrong in (b'{"commitTime": 5, "x": "%s"}', b'["%s"]', b'{"commitTime": "\\ud800", "x": "%s"}'):
        with pytest.raises(MalformedRequestError, match=r"body|commitTime"):
            parse(wrong % (b"a" * callback.LARGE_NOTICE_BYTES))


def test_escaped_nul_is_found_as_a_parser_finds_it() -> None:
    chosen = random.Random(1)
    for _ in range(20_000):
        text = "".join(chosen.choice(["\\\\", "\\u0000", "u0000", "a", "\\n", "-"]) for _ in range(chosen.randrange(8)))
        assert has_escaped_nul(f'"{text}"'.encode()) == ("\0" in json.loads(f'"{text}"')), text

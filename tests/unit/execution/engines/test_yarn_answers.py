"""A server at the ResourceManager's address that is none: each answer ends in time, and is one error of ours."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines import yarn
from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.execution.engines.yarn import YarnDriver
from tests.support.engine_jobs import engine_job
from tests.support.patience import patient

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing goes to the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def say(content: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), text)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "60000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.1)


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65_536)


BOMB = gzip.compress(b" " * 4_000_000)
NONE = {"state": "RUNNING"}


@pytest.mark.parametrize(
    "answer",
    [
        drip,
        flood,
        say(BOMB, Content_Encoding="gzip"),
        say(b"[" * 200_000),
        say(b"<html>"),
        say(b"7"),
        *(say(json.dumps(one).encode()) for one in ([1], {}, {"app": 7}, {"app": NONE}, {"apps": [], "app": []})),
    ],
)
def test_answer_that_is_none_is_one_error_in_time(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn, "HTTP_TIMEOUT_S", 1.0)
    monkeypatch.setattr(yarn, "MAX_ANSWER_BYTES", 1_000_000)
    monkeypatch.setattr(yarn, "AWAY_PATIENCE_S", 0.0)
    with serve(answer) as address:
        extra = json.dumps({"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address})
        spark = json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_OF_OTHERS", spark)
        job = engine_job(tmp_path, conn_id="spark_of_others")
        for ask in (YarnDriver().wait, YarnDriver().stop):
            began_s = time.monotonic()
            with pytest.raises(EngineError) as raised:
                ask(Handle(job, "application_1_1"))
            assert isinstance(raised.value, EngineAwayError)
            assert len(str(raised.value)) < 1000
            assert time.monotonic() - began_s < patient(5)

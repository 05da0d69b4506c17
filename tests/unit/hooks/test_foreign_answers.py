"""What answers in the manager's place, as a proxy during maintenance does, costs no try, no item and no lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from airflow_lake_provider.errors import ManagerUnreachableError
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import Service
from lake_jobs.driver.standing import WORK_KEY, WORK_LEASE, WORK_TOKEN, WORK_URL, JobResult, WorkSource

PAGES = (
    (200, "text/html", b"<html>We are back soon</html>"),
    (200, "application/json", b'{"status": "maintenance"}'),
    (200, "application/json", b"{}"),
    (200, "application/json", b"[]"),
    (200, "application/json", b'{"items": null, "requests": [], "cancel": "no"}'),
    (200, "text/html", b"\xff\xfe\x00<"),
    (302, "text/html", b"<html>Sign in</html>"),
    (502, "text/html", b"<html>Bad gateway</html>"),
)
CALLS: tuple[Callable[[LakeHook], object], ...] = (
    lambda hook: hook.ask_work([{"item_id": "one"}]),
    lambda hook: hook.acquire_executor("t", Service.CLEAN, "run", 1),
    lambda hook: hook.renew_executor("t", Service.CLEAN, "token"),
    lambda hook: hook.submit_work("t", {"item_id": "one"}),
    lambda hook: hook.list_tables(),
    lambda hook: hook.find_safepoint("t"),
    lambda hook: hook.claim_due_sinks("run"),
    lambda hook: hook.sweep(),
)


@pytest.mark.parametrize(("status", "kind", "content"), PAGES)
@pytest.mark.parametrize("call", CALLS)
def test_task_takes_no_foreign_answer_for_the_managers(
    call: Callable[[LakeHook], object], status: int, kind: str, content: bytes
) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        headers = {"content-type": kind, "location": "https://sign-in/"}
        return httpx.Response(status, headers=headers, content=content)

    hook = LakeHook()
    hook._client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://manager/v1/hoodie")
    with pytest.raises(ManagerUnreachableError, match="answer"):
        call(hook)
    hook._client.close()


@pytest.fixture
def page() -> Iterator[dict[str, object]]:
    """A server on a free port that answers everything with one page; the test sets the page, and reads the address."""
    found: dict[str, object] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, kind, content = found["page"]  # type: ignore[misc]
            self.send_response(200 if status == 302 else status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found["url"] = f"http://127.0.0.1:{server.server_address[1]}/v1/hoodie"
        yield found
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("number", range(len(PAGES)))
def test_standing_application_takes_no_foreign_answer_for_the_managers(page: dict[str, object], number: int) -> None:
    page["page"] = PAGES[number]
    options = {WORK_URL: str(page["url"]), WORK_TOKEN: "t", WORK_KEY: "k", WORK_LEASE: "l"}
    source = WorkSource(options)
    with pytest.raises(ManagerUnreachableError):
        source.pull(1, {}, [])
    with pytest.raises(ManagerUnreachableError):
        source.finish("one", JobResult("one", ()), [], takes_next=True)


def test_standing_application_takes_the_managers_own_answers(page: dict[str, object]) -> None:
    page["page"] = (
        200,
        "application/json",
        json.dumps({"requests": {"one": "{}"}, "cancel": {"two": "gone"}}).encode(),
    )
    source = WorkSource({WORK_URL: str(page["url"]), WORK_TOKEN: "t", WORK_KEY: "k", WORK_LEASE: "l"})
    assert source.pull(1, {}, []) == ({"one": "{}"}, {"two": "gone"})
    assert source.finish("one", JobResult("one", ()), [], takes_next=True) == {"one": "{}"}

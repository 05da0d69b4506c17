"""Notifiers with the real Airflow, against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import re
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from email import message_from_string
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from local_stack.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.patience import patient

pytestmark = pytest.mark.integration

HEARD: list[dict[str, Any]] = []


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookReceiver]:
    with webhook_receiver() as server:
        connection = server.connection(password="s3cret-token", extra={"headers": {"X-Team": "lake"}})
        monkeypatch.setenv("AIRFLOW_CONN_LAKE_WEBHOOK", connection)
        yield server


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    HEARD.clear()
    yield HEARD
    HEARD.clear()


def remember(event: Any) -> None:
    HEARD.append(event.to_dict())


def refuse(event: Any) -> None:
    raise RuntimeError("the pager is broken")


def failed_context() -> dict[str, Any]:
    params = {"base_path": "/lake/orders", "table_name": "orders", "service": "compaction"}
    return {"params": params, "run_id": "t.compaction.1", "exception": ValueError("no disk")}


def test_webhook_posts_the_event_with_the_connections_credentials(receiver: WebhookReceiver) -> None:
    from airflow_lake_provider.notifications.dispatch import load_notifiers, notify_all
    from airflow_lake_provider.notifications.event import event_of_failure

    notifiers = load_notifiers(["airflow_lake_provider.notifications.webhook.LakeWebhookNotifier"])
    notify_all(notifiers, event_of_failure(failed_context(), "now"), failed_context())
    ((path, headers, body),) = receiver.posts
    assert path == "/"
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer s3cret-token", "lake")
    assert (body["event"], body["text"]) == ("lake.service.failed", "compaction of orders failed: no disk")


def test_webhook_of_any_dag_renders_its_message_and_runs_in_the_triggerer_as_well(receiver: WebhookReceiver) -> None:
    from airflow_lake_provider.notifications.webhook import LakeWebhookNotifier

    notifier = LakeWebhookNotifier(endpoint="/hooks/{{ run_id }}", message="{{ run_id }} is late")
    notifier({"run_id": "r1"})

    async def wait() -> None:
        await LakeWebhookNotifier(message="late", context={"run_id": "r2"})

    asyncio.run(wait())
    (first_path, _, first), (second_path, _, second) = receiver.posts
    assert (first_path, first["text"], second_path, second["text"]) == ("/hooks/r1", "r1 is late", "/", "late")


def test_webhook_that_refuses_is_named_and_logged_but_stops_no_other_notifier(
    receiver: WebhookReceiver, heard: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    from airflow_lake_provider.errors import NotificationFailedError
    from airflow_lake_provider.notifications.dispatch import load_notifiers, notify_all
    from airflow_lake_provider.notifications.event import event_of_failure
    from airflow_lake_provider.notifications.webhook import LakeWebhookNotifier

    receiver.status = 503
    with pytest.raises(NotificationFailedError, match="answered 503"):
        LakeWebhookNotifier()({"run_id": "r1"})
    paths = ["airflow_lake_provider.notifications.webhook.LakeWebhookNotifier", f"{__name__}.refuse"]
    notify_all(load_notifiers([*paths, f"{__name__}.remember"]), event_of_failure(failed_context(), "now"), {})
    assert [event["kind"] for event in heard] == ["failed"]
    assert caplog.text.count("a notifier failed to send: compaction of orders failed: no disk") == 2


@pytest.mark.parametrize(
    ("sent", "again", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"x", "did not answer in 2 s"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\n\x1b[2J\r\n", r"answered 500: \\x1b\[2J"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\nfine\r\n", ""),
    ],
    ids=["headers", "refusal", "success"],
)
def test_webhook_whose_answer_never_ends_keeps_no_other_notification_waiting(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, again: bytes, said: str
) -> None:
    from airflow_lake_provider.errors import NotificationFailedError
    from airflow_lake_provider.notifications import webhook

    class Endless(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(sent)
            with suppress(OSError):
                while not time.sleep(0.1):  # type: ignore[func-returns-value]
                    self.request.sendall(again)

    monkeypatch.setattr(webhook, "ANSWER_TIMEOUT_S", 2.0)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AIRFLOW_CONN_LAKE_WEBHOOK", f"http://127.0.0.1:{server.server_address[1]}")
        began_s = time.monotonic()
        refused = pytest.raises(NotificationFailedError, match=said) if said else nullcontext()
        with refused:
            webhook.LakeWebhookNotifier()({"run_id": "r1"})
        assert time.monotonic() - began_s < patient(15)
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module.notifier", "cannot be imported"),
        (f"{__name__}.nothing", "cannot be imported"),
        (f"{__name__}.HEARD", "neither a notifier nor a function"),
        ("plain", "cannot be imported"),
    ],
)
def test_wrong_notifier_is_named_with_its_option(path: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lake_provider.errors import ConfigError
    from airflow_lake_provider.notifications.dispatch import configured_notifiers, notify_failure

    monkeypatch.setenv("AIRFLOW__LAKE__NOTIFIERS", path)
    with pytest.raises(ConfigError, match=rf"\[lake\] notifiers = .*{says}"):
        configured_notifiers()
    notify_failure(failed_context())  # a task that failed is not failed twice


@pytest.mark.parametrize(
    ("answer", "notified"),
    [({"silenced_services": ["compaction"]}, 0), ({"silenced_services": ["clean"]}, 1), ({}, 1), (None, 1)],
)
def test_failure_that_a_person_has_snoozed_is_not_notified_and_one_without_an_answer_is(
    answer: dict[str, Any] | None, notified: int, monkeypatch: pytest.MonkeyPatch, heard: list[dict[str, Any]]
) -> None:
    from airflow_lake_provider.errors import ManagerUnreachableError
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.notifications.dispatch import notify_failure

    def get_table(_hook: LakeHook, table_id: str) -> dict[str, Any]:
        assert table_id.startswith("orders-")
        if answer is None:
            raise ManagerUnreachableError("no answer")
        return answer

    monkeypatch.setattr(LakeHook, "get_table", get_table)
    monkeypatch.setenv("AIRFLOW__LAKE__NOTIFIERS", f"{__name__}.remember")
    notify_failure(failed_context())
    assert len(heard) == notified


def test_deadline_and_stuck_are_notified_in_the_background(heard: list[dict[str, Any]]) -> None:
    from airflow_lake_provider.manager.supervision.instances import Instance, InstanceState
    from airflow_lake_provider.metrics import NoMetrics
    from airflow_lake_provider.notifications.dispatch import BackgroundNotifier, load_notifiers

    notifier = BackgroundNotifier(load_notifiers([f"{__name__}.remember"]), NoMetrics())
    instance = Instance("clean", InstanceState.RUNNING, "worker", "has not ended", "run-1")
    notifier.deadline("/lake/orders", instance)
    reported: list[str] = []
    notifier.stuck("/lake/orders", instance, lambda: reported.append("stuck"))
    notifier.drain()
    assert reported == ["stuck"]
    assert [event["kind"] for event in heard] == ["deadline", "stuck"]


def test_failed_run_of_the_service_dag_calls_the_configured_notifiers(
    heard: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    from tests.integration.airflow.conftest import ROOT

    monkeypatch.setenv("AIRFLOW__LAKE__NOTIFIERS", f"{__name__}.remember")
    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
    (task,) = [task for task in dag.tasks if task.on_failure_callback]
    callbacks = task.on_failure_callback
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        callback(failed_context())
    assert [event["run_id"] for event in heard] == ["t.compaction.1"]


class MailServer:
    """An SMTP server on a free port that keeps what it gets."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 mail\r\n")
                for line in self.rfile:
                    word = line.strip().upper()[:4]
                    if word == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        lines = iter(lambda: self.rfile.readline(), b".\r\n")
                        server.mails.append(b"".join(lines).decode())
                    self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                    if word == b"QUIT":
                        return

        self.tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    server = MailServer()
    thread = threading.Thread(target=server.tcp.serve_forever, daemon=True)
    thread.start()
    connection = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": server.tcp.server_address[1],
        "extra": {"disable_tls": True, "disable_ssl": True},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    yield server
    server.tcp.shutdown()
    server.tcp.server_close()


def test_documented_routes_send_mails_of_their_owners_and_kinds(
    mail_server: MailServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow_lake_provider.manager.health.health import FoundBy, TableState
    from airflow_lake_provider.manager.health.table_problems import TableProblem
    from airflow_lake_provider.manager.supervision.notifications import Digest
    from airflow_lake_provider.metrics import NoMetrics
    from airflow_lake_provider.notifications.dispatch import BackgroundNotifier, load_notifiers
    from tests.integration.airflow.conftest import ROOT

    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(# my_routes.py.*?)```", page, re.DOTALL)
    (tmp_path / "my_routes.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = [f"my_routes.{name}" for name in ("oncall", "payments", "morning")]
    notifier = BackgroundNotifier(load_notifiers(paths), NoMetrics())
    subject = ("compaction", "set <lock>")
    mine, others = (
        TableProblem("t", "/lake/t", "t", owner, FoundBy.SERVICE, state, *subject, 0)
        for owner, state in (("payments", TableState.BLOCKED), ("data-eng", TableState.STUCK))
    )
    notifier.problem(mine, lambda: None)
    notifier.problem(others, lambda: None)
    notifier.resolved(mine, lambda: None)
    notifier.digest(Digest(9, 2, [others, mine]), lambda: None)
    notifier.drain()
    begun, critical, ended, digest = (message_from_string(mail, policy=default) for mail in mail_server.mails)
    assert (critical["To"], critical["Subject"]) == (
        "oncall@example.com",
        "compaction of t is stuck: set \u2039lock\u203a",
    )
    assert begun["To"] == ended["To"] == "payments@example.com"
    assert begun["Subject"] == "compaction of t is stuck: set \u2039lock\u203a"
    assert ended["Subject"] == "compaction of t has this problem no longer: set \u2039lock\u203a"
    assert (digest["To"], digest["Subject"]) == ("data@example.com", "The lake today")
    text = digest.get_body(("html",)).get_content()
    assert "2 of 9 tables need a person" in text
    assert "stuck: t (data-eng): set \u2039lock\u203a" in text
    assert "payments" not in text

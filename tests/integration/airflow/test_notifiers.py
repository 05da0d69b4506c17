"""Notifiers with the real Airflow, against a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from local_stack.webhook_receiver import WebhookReceiver, webhook_receiver

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
    from airflow_lake_provider.notifications.dispatch import event_of_failure, load_notifiers, notify_all

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
    from airflow_lake_provider.notifications.dispatch import event_of_failure, load_notifiers, notify_all
    from airflow_lake_provider.notifications.webhook import LakeWebhookNotifier

    receiver.status = 503
    with pytest.raises(NotificationFailedError, match="answered 503"):
        LakeWebhookNotifier()({"run_id": "r1"})
    paths = ["airflow_lake_provider.notifications.webhook.LakeWebhookNotifier", f"{__name__}.refuse"]
    notify_all(load_notifiers([*paths, f"{__name__}.remember"]), event_of_failure(failed_context(), "now"), {})
    assert [event["kind"] for event in heard] == ["failed"]
    assert caplog.text.count("a notifier failed to send: compaction of orders failed: no disk") == 2


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


def test_deadline_and_stuck_are_notified_in_the_background(heard: list[dict[str, Any]]) -> None:
    from airflow_lake_provider.manager.instances import Instance, InstanceState
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

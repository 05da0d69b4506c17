from __future__ import annotations

from email.mime.multipart import MIMEMultipart
from types import SimpleNamespace

from airflow_lake_provider.manager.health.sink_events import SinkEvent, SinkEventKind
from airflow_lake_provider.manager.supervision.instances import Instance, InstanceState
from airflow_lake_provider.notifications.event import (
    DigestLine,
    EventKind,
    LakeEvent,
    event_of_failure,
    event_of_instance,
    event_of_sink,
)

AT = "2026-11-21T12:00:00+00:00"


def test_event_of_a_failed_task_says_what_and_why() -> None:
    context = {
        "params": {"base_path": "/lake/orders", "table_name": "orders", "service": "clean", "instants": ["1"]},
        "ti": SimpleNamespace(try_number=5, log_url="http://airflow/log"),
        "run_id": "t.clean.1",
        "exception": ValueError("no disk"),
    }
    event = event_of_failure(context, AT)
    assert event.to_dict() == {
        "event": "lake.service.failed",
        "kind": "failed",
        "base_path": "/lake/orders",
        "service": "clean",
        "reason": "no disk",
        "at": AT,
        "table": "orders",
        "run_id": "t.clean.1",
        "instants": ["1"],
        "state": "failed",
        "owner": "",
        "try_number": 5,
        "log_url": "http://airflow/log",
        "sink": "",
        "table_owner": "",
        "severity": "warning",
        "lines": [],
        "text": "clean of orders failed: no disk",
    }


def test_event_of_a_bare_context_names_nothing_but_does_not_fail() -> None:
    event = event_of_failure({}, AT)
    assert (event.kind, event.reason, event.run_id) == (EventKind.FAILED, "no reason was given", "")


def test_event_of_an_instance_names_who_has_to_act() -> None:
    instance = Instance(
        "compaction", InstanceState.SCHEDULED, "scheduler", "waits for a slot", "run-1", ("1",), 0, 0, 2
    )
    event = event_of_instance(EventKind.STUCK, "s3://b/orders", instance, AT)
    assert (event.table, event.owner, event.try_number) == ("orders", "scheduler", 2)
    assert event.text == "compaction of orders is stuck: waits for a slot"


def test_event_of_a_sink_names_it_and_each_kind_has_words() -> None:
    texts = []
    for kind in SinkEventKind:
        event = event_of_sink(SinkEvent(kind, "s3://b/orders", "mirror", "the broker is away", 7), AT)
        assert event.to_dict()["event"] == f"lake.service.{kind.value}"
        texts.append(event.text)
    assert texts[0] == "replication of orders to mirror fails: the broker is away"
    assert len(set(texts)) == len(SinkEventKind)


def test_text_holds_no_link_and_no_call_of_a_chat_program() -> None:
    """A writer chooses its table's name, and Slack takes `<https://...|text>` for a link, `<!channel>` for a call."""
    name = "<!channel> <https://evil.example|Log in> [again](https://evil.example)"
    context = {"params": {"base_path": "/lake/orders", "table_name": name, "service": "clean"}}
    lines = (DigestLine(name, name, "/lake/orders", "stuck", name),)
    digest = LakeEvent(EventKind.DIGEST, "", "", "today", AT, lines=lines)
    for event in (event_of_failure({**context, "exception": ValueError(name)}, AT), digest):
        assert "Log in" in event.text
        assert not any(sign in event.text for sign in ("<", ">", "]("))
        assert name in str(event.to_dict())


def test_text_is_one_line_whatever_a_program_said() -> None:
    said = "Job aborted\r\nBcc: all@example.org\n\njava.lang.IllegalStateException: \x1b[31mno\n\tat x.Y"
    event = event_of_failure({"params": {"table_name": "orders"}, "exception": RuntimeError(said)}, AT)
    assert event.reason == said
    mail = MIMEMultipart()
    mail["Subject"] = event.text
    assert "subject: " in mail.as_string().lower()
    assert event.text.isprintable()

"""A quiet table's sink gets its position once more, with the time, and nothing where it lacks something."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_lake_provider.replication.checkpoint import Checkpoint, from_text, to_text
from airflow_lake_provider.replication.heartbeat import print_time
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.transactions import Order, Report
from tests.support.fake_sink import FakeSink
from tests.unit.replication.table_model import ModelTable

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def run(table: ModelTable, sink: FakeSink, after_s: float, heartbeat_s: float = 60.0, **order: object) -> Report:
    given = Order("t.sink", heartbeat_s=heartbeat_s, **order)  # type: ignore[arg-type]
    return Pump(table, sink, given, clock=lambda: NOON + timedelta(seconds=after_s)).run()


def durable(sink: FakeSink) -> Checkpoint:
    assert sink.text is not None
    return from_text(sink.text)


def test_quiet_table_gives_a_heartbeat_when_the_last_position_is_old_enough() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink, 0)
    begun = durable(sink)
    assert begun.at == "2026-06-01T12:00:00.000Z"
    run(table, sink, 59.9)
    assert durable(sink) == begun
    report = run(table, sink, 60)
    beat = durable(sink)
    assert (report.commits, report.rows, report.checkpoint) == (0, 0, beat)
    assert (beat.at, beat.sequence) == ("2026-06-01T12:01:00.000Z", begun.sequence + 1)
    assert (beat.commit, beat.watermark, beat.hold) == (begun.commit, begun.watermark, begun.hold)
    assert len(sink.records) == 1
    # The next one counts from this one, and a commit is one too.
    table.complete(3, 4, {1: 11})
    run(table, sink, 119)
    run(table, sink, 120)
    assert durable(sink).at == "2026-06-01T12:01:59.000Z"


def test_clock_that_went_back_gives_a_heartbeat_at_once() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink, 3600)
    run(table, sink, 0)
    assert durable(sink).at == print_time(NOON)


def test_sink_that_lacks_a_commit_gets_no_heartbeat() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink, 0)
    begun = durable(sink)
    table.complete(3, 4, {1: 11})
    run(table, sink, 600, max_commits=0)
    assert durable(sink) == begun


def test_without_the_setting_a_checkpoint_has_no_time() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink, 0, heartbeat_s=0)
    begun = durable(sink)
    assert (begun.at, '"at"' in (sink.text or "")) == ("", False)
    run(table, sink, 86_400, heartbeat_s=0)
    assert durable(sink) == begun
    # Switched on later, it begins at once; switched off again, the time goes with the next transaction.
    run(table, sink, 86_400)
    assert from_text(to_text(durable(sink))).at == "2026-06-02T12:00:00.000Z"

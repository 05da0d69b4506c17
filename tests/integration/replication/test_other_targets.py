"""A stream whose target is replaced, made again, emptied or grown: the target has the table's rows all the same.

Real servers under the real pump, over a model of a table; read back by plain clients.
"""

from __future__ import annotations

import uuid
from typing import Any

import confluent_kafka.admin
import pytest

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order, Report
from local_stack.kafka import LocalKafka
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from tests.support.plain_sql import run_sql
from tests.support.read_topic import MEANING, Topic
from tests.unit.replication.table_model import ModelTable


class Mirror:
    """One stream to a table of PostgreSQL."""

    def __init__(self, server: LocalPostgres) -> None:
        self.url, self.name = server.url, f"t{uuid.uuid4().hex[:12]}"
        self.source = ModelTable()
        self.source.complete(10, 11, dict.fromkeys(range(10), 1))
        self.table = self.name
        self.make()

    def make(self) -> None:
        self.sql(f'create table "{self.table}" (id bigint primary key, value integer)')

    def run(self, *, starts_now: bool = False, **meaning: str) -> Report:
        settings = SinkSettings(f"{self.name}.mirror", "t", ChangeMode.LATEST, {"url": self.url, "table": self.table})
        order = Order(settings.stream, meaning={**MEANING, **meaning}, starts_now=starts_now)
        return Pump(self.source, create_sink("database", settings), order).run()

    def rows(self) -> dict[int, int]:
        return {row[0]: row[1] for row in self.sql(f'select id, value from "{self.table}"')}

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.url, statement)


@pytest.fixture
def mirror(postgres: LocalPostgres) -> Mirror:
    found = Mirror(postgres)
    assert found.run().commits == 0
    assert found.rows() == found.source.rows()
    return found


def test_stream_that_starts_now_keeps_an_empty_table_until_rows_change(postgres: LocalPostgres) -> None:
    mirror = Mirror(postgres)
    for _ in range(2):
        assert mirror.run(starts_now=True).snapshot_reason == ""
        assert mirror.rows() == {}
    mirror.source.complete(20, 21, {3: 2, 4: None, 77: 1})
    assert mirror.run(starts_now=True).rows == 3
    assert mirror.rows() == {3: 2, 77: 1}
    mirror.sql(f'drop table "{mirror.table}"')
    mirror.make()
    assert "table's oid was" in mirror.run(starts_now=True).snapshot_reason
    assert mirror.rows() == mirror.source.rows()


def test_another_table_of_the_same_database_gets_all_rows(mirror: Mirror) -> None:
    mirror.table = f"{mirror.name}_v2"
    mirror.make()
    mirror.source.complete(20, 21, {3: 2})
    report = mirror.run()
    assert mirror.rows() == mirror.source.rows()
    assert "empty" in report.snapshot_reason
    # With rows of its own it is another table as well.
    mirror.sql(f'create table "{mirror.name}_v3" as select * from "{mirror.table}" where id < 3')
    mirror.table = f"{mirror.name}_v3"
    report = mirror.run()
    assert mirror.rows() == mirror.source.rows()
    assert "table's oid was" in report.snapshot_reason


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(("drop table {t}", "create table {t} (id bigint primary key, value integer)"), id="made again"),
        pytest.param(("alter table {t} rename to {t}_old", "create table {t} (like {t}_old)"), id="renamed away"),
        pytest.param(
            ("alter table {t} rename to {t}_old", "create table {t} as select * from {t}_old where id < 4"),
            id="made again with some rows",
        ),
        pytest.param(("truncate {t}",), id="emptied"),
    ],
)
def test_table_that_was_made_again_gets_all_rows(mirror: Mirror, statements: tuple[str, ...]) -> None:
    for statement in statements:
        mirror.sql(statement.format(t=mirror.table))
    mirror.source.complete(20, 21, {3: 2, 4: None})
    report = mirror.run()
    assert mirror.rows() == mirror.source.rows()
    assert report.snapshot_reason
    assert mirror.run().snapshot_reason == ""


def test_renamed_table_that_the_entry_follows_goes_on(mirror: Mirror) -> None:
    mirror.sql(f'alter table "{mirror.table}" rename to "{mirror.table}_new"')
    mirror.table += "_new"
    mirror.source.complete(20, 21, {3: 2, 4: None})
    report = mirror.run()
    assert (report.commits, report.snapshot_reason) == (1, "")
    assert mirror.rows() == mirror.source.rows()


def test_earlier_table_of_a_stream_is_free_for_another_one(mirror: Mirror) -> None:
    mirror.table = f"{mirror.name}_v2"
    mirror.make()
    mirror.run()
    other = Mirror.__new__(Mirror)
    other.url, other.name, other.table, other.source = mirror.url, f"{mirror.name}x", mirror.name, mirror.source
    other.run()
    assert other.rows() == other.source.rows()


def test_other_key_or_columns_begin_with_a_snapshot(mirror: Mirror) -> None:
    mirror.source.complete(20, 21, {3: 2})
    assert "key was id and is id, part" in mirror.run(key="id, part").snapshot_reason
    assert mirror.run(key="id, part").snapshot_reason == ""
    assert "columns was all and is" in mirror.run(key="id, part", columns="column.exclude.list=a").snapshot_reason


@pytest.fixture
def topic(broker: LocalKafka) -> Topic:
    found = Topic(broker)
    found.run()
    assert found.rows() == found.source.rows()
    return found


def test_topic_that_was_made_again_gets_all_rows(topic: Topic) -> None:
    topic.admin.delete_topics([topic.topic])[topic.topic].result(20)
    wait_until(lambda: topic.topic not in topic.admin.list_topics(timeout=10).topics, 30, "the topic to be gone")
    topic.source.complete(20, 21, {3: 2, 4: None})
    report = topic.run()
    assert topic.rows() == topic.source.rows()
    assert "topic's id was" in report.snapshot_reason
    assert topic.run().snapshot_reason == ""


def test_another_topic_with_the_same_checkpoint_topic_gets_all_rows(topic: Topic) -> None:
    topic.topic = f"{topic.name}.v2"
    topic.source.complete(20, 21, {3: 2, 4: None})
    report = topic.run()
    assert topic.rows() == topic.source.rows()
    assert f"topic was {topic.name} and is {topic.name}.v2" in report.snapshot_reason


def test_keys_of_a_topic_that_has_grown_are_each_in_one_partition(topic: Topic) -> None:
    more = confluent_kafka.admin.NewPartitions(topic.topic, 3)
    topic.admin.create_partitions([more])[topic.topic].result(20)
    wait_until(
        lambda: len(topic.admin.list_topics(topic.topic, timeout=10).topics[topic.topic].partitions) == 3,
        30,
        "the partitions",
    )
    topic.source.complete(20, 21, dict.fromkeys(range(10), 2))
    report = topic.run()
    assert "partitions was 1 and is 3" in report.snapshot_reason
    topic.source.complete(30, 31, dict.fromkeys(range(5), 3))
    topic.run()
    assert all(len(places) == 1 for places in topic.partitions_of_keys().values())
    assert topic.rows() == topic.source.rows()

"""The sinks to a real Kafka and a real PostgreSQL, by the contract that ships with the package, and when they fail."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import confluent_kafka.admin
import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import RecordRefusedError, SinkFencedError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import SnapshotProgress
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import (
    SCHEMA,
    SinkContract,
    batch,
    checkpoint,
    commit_ref,
    delete,
    insert,
    read,
    update,
)
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.postgres import LocalPostgres
from tests.integration.replication.conftest import LOGIN_PASSWORD, LOGIN_USER
from tests.support.database_sink_contract import DatabaseSinkContract
from tests.support.kafka_streams import kafka_sink, new_stream
from tests.support.patience import patient


class TestKafkaSink(SinkContract):
    @pytest.fixture(autouse=True)
    def _broker(self, broker: LocalKafka) -> None:
        self.broker = broker

    def make_sink(self, stream: str) -> Sink:
        return kafka_sink(self.broker, stream)

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        records = read_topic(self.broker.bootstrap, stream)
        return [(record.key["id"], (record.value["after"] or {}).get("value")) for record in records]

    def test_new_generation_is_marked(self) -> None:
        # Over three partitions only the order within a key is known.
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)], begins_snapshot=True))
        sink.commit(checkpoint(stream, 1))
        sink.write(batch(2, [insert(1, 11)], generation=2, begins_snapshot=True))
        sink.commit(checkpoint(stream, 2))
        sink.close()
        assert [record.headers["generation"] for record in read_topic(self.broker.bootstrap, stream)] == ["1", "2"]


class TestDatabaseSinkOnPostgres(DatabaseSinkContract):
    @pytest.fixture(autouse=True)
    def _postgres(self, postgres: LocalPostgres) -> None:
        self.url = postgres.url

    def make_sink(self, stream: str) -> Sink:
        self._run(f'create table if not exists "{stream[:-5]}" (id bigint primary key, value integer)')
        options = {"url": self.url, "table": stream[:-5]}
        return create_sink("database", SinkSettings(stream, "orders", ChangeMode.LATEST, options))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        return [(row[0], row[1]) for row in self._run(f'select id, value from "{stream[:-5]}" order by id')]

    def tables(self, stream: str) -> set[str]:
        return {row[0] for row in self._run("select tablename from pg_tables")}

    def select(self, stream: str, columns: str) -> list[tuple[Any, ...]]:
        names, _, where = columns.partition(" where ")
        return self._run(f'select {names} from "{stream[:-5]}" where {where}')

    def test_column_that_the_login_may_not_add_is_said_with_what_to_run(self) -> None:
        stream, sink = self._opened()
        sink.close()
        role = f"r{uuid.uuid4().hex[:12]}"
        self._run(f"create role {role} login password 'x'")
        for table in (f'"{stream[:-5]}"', "lake_checkpoint", "lake_target"):
            self._run(f"grant all on {table} to {role}")
        url = sa.make_url(self.url).set(username=role, password="x").render_as_string(hide_password=False)
        options = {"url": url, "table": stream[:-5]}
        guest = create_sink("database", SinkSettings(stream, "orders", ChangeMode.LATEST, options))
        guest.open()
        city = SCHEMA.removesuffix("]}") + ',{"name":"city","type":["null","string"],"default":null}]}'
        row = insert(1, 10)._replace(after='{"id":1,"value":10,"city":"Cork"}')
        said = f"has no column 'city', .*refuses it .*run alter table .*{stream[:-5]}.* add column city TEXT"
        with pytest.raises(SinkRefusedError, match=said):
            guest.write(replace(batch(1, [row]), schema=city))
        guest.close()

    def test_table_of_another_stream_is_refused(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        sink.close()
        options = {"url": self.url, "table": f"public.{stream[:-5]}"}
        second = create_sink("database", SinkSettings("customers.mirror", "customers", ChangeMode.LATEST, options))
        with pytest.raises(SinkRefusedError, match=f"stream {stream}'s, and a snapshot of stream customers.mirror"):
            second.open()
        second.close()
        assert self.read_back(stream) == [(1, 10)]

    def test_decimals_have_all_their_digits(self) -> None:
        stream = f"orders{uuid.uuid4().hex[:12]}.sink"
        columns = "price numeric(38,10), amount decimal, ratio double precision, body jsonb, lines text"
        self._run(f'create table "{stream[:-5]}" (id numeric(30,2) primary key, {columns})')
        long, amount = "1234567890123456789012345678.0123456789", "1234567890123456.7891"
        sink = self.make_sink(stream)
        sink.open()
        for number, keys in ((1, ["1.25", "12345678901234567.89"]), (2, ["12345678901234567.89"])):
            rows = [
                f'{{"id":{key},"price":{long},"amount":{amount},"ratio":0.1,"body":{{"price":{long}}},"lines":[{amount}]}}'
                for key in keys
            ]
            sink.write(
                batch(
                    number,
                    [
                        insert(1, 1)._replace(key=f'{{"id":{key}}}', after=row)
                        for key, row in zip(keys, rows, strict=True)
                    ],
                )
            )
            sink.commit(checkpoint(stream, number))
        sink.close()
        texts = "id::text, price::text, amount::text, ratio::text, body->>'price', lines"
        rest = (long, amount, "0.1", long, f"[{amount}]")
        assert self._run(f'select {texts} from "{stream[:-5]}" order by id') == [
            ("1.25", *rest),
            ("12345678901234567.89", *rest),
        ]

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            rows = [tuple(row) for row in result] if result.returns_rows else []
        engine.dispose()
        return rows


def test_deleted_row_is_a_tombstone_in_mode_latest(broker: LocalKafka) -> None:
    stream = new_stream()
    sink = kafka_sink(broker, stream, ChangeMode.LATEST)
    sink.open()
    sink.write(batch(1, [insert(1, 10), update(1, 11), delete(1, 11)]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    values = [record.value for record in read_topic(broker.bootstrap, stream)]
    assert values == [{"id": 1, "value": 10}, {"id": 1, "value": 11}, None]


def test_each_partition_shows_where_a_snapshot_begins_and_ends_and_how_far_the_stream_is(broker: LocalKafka) -> None:
    stream = new_stream()
    more = {"control_records": "true", "partitions": "3"}
    sink = kafka_sink(broker, stream, **more)
    sink.open()
    sink.write(batch(1, [read(key, 10) for key in range(9)], begins_snapshot=True))
    part = replace(checkpoint(stream, 1), snapshot=SnapshotProgress("1", "k"))
    sink.commit(part)
    sink.close()
    # The run dies within the snapshot; another one ends it.
    sink = kafka_sink(broker, stream, **more)
    sink.open()
    sink.commit(replace(part, sequence=2, snapshot=None))
    sink.write(batch(3, [update(1, 11)]))
    sink.commit(replace(checkpoint(stream, 3), watermark="20260101000000000"))
    kept = {key: row for key, row in sink.read_rows(("id",), checkpoint(stream, 3)) if row is not None}
    sink.close()
    assert len(kept) == 9
    records = read_topic(broker.bootstrap, stream)
    for partition in range(3):
        seen = [record for record in records if record.partition == partition]
        controls = [record.value["control"] for record in seen if "control" in record.headers]
        assert controls == ["snapshot_begins", "snapshot_ends", "resolved", "resolved"]
        assert seen[0].headers["control"] == "snapshot_begins"
        ends = next(at for at, record in enumerate(seen) if record.headers.get("control") == "snapshot_ends")
        assert {record.value["op"] for record in seen[1:ends]} <= {"r"}
        # A reader that obeys the last one has all that completed until then.
        assert seen[-1].value == {
            "control": "resolved",
            "commit": commit_ref(3).requested_time,
            "completed": commit_ref(3).completed_time,
            "generation": 1,
            "floor": "20260101000000000",
        }


def write_for(sink: Sink, most_s: float) -> None:
    """Write on: a client learns that it is shut out from the broker's answer to some record, and refuses the next."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        sink.write(batch(1, [insert(2, 20)]))


def test_run_that_is_shut_out_while_it_writes_says_so(broker: LocalKafka) -> None:
    stream = new_stream()
    first, second = kafka_sink(broker, stream), kafka_sink(broker, stream)
    first.open()
    first.write(batch(1, [insert(1, 10)]))
    second.open()
    second.write(batch(1, [insert(1, 10)]))
    second.commit(checkpoint(stream, 1))
    with pytest.raises(SinkFencedError, match=f"another run has opened stream {stream}"):
        write_for(first, 60)
    first.close()
    second.close()
    assert len(read_topic(broker.bootstrap, stream)) == 1


def test_commit_that_takes_longer_than_its_transaction_may_says_which_setting_to_raise(broker: LocalKafka) -> None:
    stream = new_stream()
    short = {"kafka.transaction.timeout.ms": "2000", "kafka.socket.timeout.ms": "1500"}
    sink = kafka_sink(broker, stream, **short)
    sink.open()
    sink.write(batch(1, [insert(1, 10)]))
    time.sleep(5)
    said = (
        r"transaction of commit 20\d+, stream .*open for \d s, and kafka.transaction.timeout.ms is 2000: "
        r"set a smaller max_transaction_rows, or raise that time-out"
    )
    with pytest.raises(SinkUnavailableError, match=said):
        sink.commit(checkpoint(stream, 1))
    sink.close()
    assert sink.open() is None
    deliver(sink, stream, 1)
    sink.close()
    assert len(read_topic(broker.bootstrap, stream)) == 1


def test_missing_topic_is_said_and_replication_goes_on_once_it_is_there(broker: LocalKafka) -> None:
    stream = new_stream()
    sink = kafka_sink(broker, stream, create_topics="false")
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match=f"has no topic {stream}, {stream}.checkpoints"):
        sink.open()
    assert time.monotonic() - began < patient(30)
    sink.close()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [confluent_kafka.admin.NewTopic(name, 1, 1) for name in (stream, f"{stream}.checkpoints")]
    for created in admin.create_topics(topics).values():
        created.result(30)
    with pytest.raises(SinkRefusedError, match=f"{stream}.checkpoints has cleanup.policy=delete.* set .*=compact"):
        sink.open()
    sink.close()
    kinds = confluent_kafka.admin
    compact = kinds.ConfigEntry("cleanup.policy", "compact", incremental_operation=kinds.AlterConfigOpType.SET)
    resource = kinds.ConfigResource("topic", f"{stream}.checkpoints", incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result(30)
    assert sink.open() is None
    sink.write(batch(1, [insert(1, 10)]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    assert len(read_topic(broker.bootstrap, stream)) == 1


def test_topic_of_another_stream_is_refused_until_that_one_is_no_more(broker: LocalKafka) -> None:
    stream, other = new_stream(), new_stream()
    shared = f"shared-{uuid.uuid4().hex[:8]}"
    first = kafka_sink(broker, stream, checkpoint_topic=shared)
    assert first.open() is None
    deliver(first, stream, 1)
    second = kafka_sink(broker, other, checkpoint_topic=shared)
    # Its own topic, checkpoints in one topic: nothing is mixed up.
    assert second.open() is None
    deliver(second, other, 1)
    for sink in (first, second):
        sink.close()
    third = new_stream()
    late = kafka_sink(broker, third, topic=stream, checkpoint_topic=shared)
    with pytest.raises(SinkRefusedError, match=f"topic {stream} is stream {stream}'s, and readers could not"):
        late.open()
    late.close()
    # The first one goes on, and hands over.
    assert first.open() is not None
    first.close()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(shared, key=stream.encode(), value=None, headers={"topic": stream})
    assert producer.flush(30) == 0
    late = kafka_sink(broker, third, topic=stream, checkpoint_topic=shared)
    assert late.open() is None
    late.close()


def test_key_is_in_the_partition_of_javas_partitioner(broker: LocalKafka) -> None:
    stream = new_stream()
    sink = kafka_sink(broker, stream, partitions="7")
    assert sink.open() is None
    keys = [f'{{"id":{number}}}' for number in range(40)]
    sink.write(batch(1, [insert(1, 1)._replace(key=key) for key in keys]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": stream})
    consumer.assign([confluent_kafka.TopicPartition(stream, number, 0) for number in range(7)])
    found, deadline = {}, time.monotonic() + 30
    while len(found) < len(keys):
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found[message.key().decode()] = message.partition()
    consumer.close()
    assert found == {key: (murmur2(key.encode()) & 0x7FFF_FFFF) % 7 for key in keys}


def murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2, from its documentation of the algorithm: seed 0x9747b28c, 32 bits."""
    mask, m = 0xFFFF_FFFF, 0x5BD1_E995
    h = 0x9747_B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize("dead_letter", [False, True], ids=["stops", "dead-letter"])
def test_record_that_does_not_fit_its_avro_schema(broker: LocalKafka, dead_letter: bool) -> None:
    stream = new_stream()
    letters = f"{stream}.letters"
    sink = kafka_sink(broker, stream, format="avro", **({"dead_letter_topic": letters} if dead_letter else {}))
    sink.open()
    misfit = insert(2, 20)._replace(after='{"id":2,"value":"twenty"}')
    if dead_letter:
        sink.write(batch(1, [insert(1, 10), misfit, insert(3, 30)]))
        sink.commit(checkpoint(stream, 1))
        assert len(read_topic(broker.bootstrap, stream, parse=lambda content: content)) == 2
        (letter,) = read_topic(broker.bootstrap, letters)
        assert letter.key == {"id": 2}
        assert (letter.value["op"], letter.value["after"]) == ("i", {"id": 2, "value": "twenty"})
        assert "'twenty' is not of type" in letter.headers["error"]
    else:
        with pytest.raises(RecordRefusedError, match="'twenty' is not of type"):
            sink.write(batch(1, [insert(1, 10), misfit]))
    sink.close()


@pytest.mark.parametrize("dead_letter", [False, True], ids=["stops", "dead-letter"])
def test_record_that_is_too_large(broker: LocalKafka, dead_letter: bool) -> None:
    stream = new_stream()
    letters = f"{stream}.letters"
    sink = kafka_sink(broker, stream, **({"dead_letter_topic": letters} if dead_letter else {}))
    sink.open()
    large = insert(2, 20)._replace(after='{"id":2,"value":"' + "x" * 2_000_000 + '"}')
    if dead_letter:
        sink.write(batch(1, [insert(1, 10), large, insert(3, 30)]))
        sink.commit(checkpoint(stream, 1))
        assert sorted(record.key["id"] for record in read_topic(broker.bootstrap, stream)) == [1, 3]
        (letter,) = read_topic(broker.bootstrap, letters)
        assert (letter.key, letter.value) == ({"id": 2}, None)
        assert "has 200" in letter.headers["error"]
        assert "; it is not here, since this topic takes" in letter.headers["error"]
    else:
        with pytest.raises(RecordRefusedError, match=r'record \{"id":2\} has 200\d+ bytes.*max.message.bytes'):
            sink.write(batch(1, [insert(1, 10), large]))
        sink.close()
        assert read_topic(broker.bootstrap, stream) == []
    sink.close()


def test_dead_letter_has_the_whole_record_where_its_topic_takes_larger_ones(broker: LocalKafka) -> None:
    stream, letters = new_stream(), f"{uuid.uuid4().hex}.letters"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [
        confluent_kafka.admin.NewTopic(stream, 1, 1, config={"max.message.bytes": "20000"}),
        confluent_kafka.admin.NewTopic(letters, 1, 1, config={"max.message.bytes": "4000000"}),
    ]
    for created in admin.create_topics(topics).values():
        created.result(30)
    sink = kafka_sink(broker, stream, dead_letter_topic=letters)
    sink.open()
    text = "x" * 2_000_000
    sink.write(batch(1, [insert(1, 10), insert(2, 20)._replace(after=f'{{"id":2,"value":"{text}"}}')]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    assert [record.key["id"] for record in read_topic(broker.bootstrap, stream)] == [1]
    (letter,) = read_topic(broker.bootstrap, letters)
    assert letter.value["after"] == {"id": 2, "value": text}
    assert letter.value["commit"] == commit_ref(1).requested_time


def test_broker_that_is_away_is_said_within_the_timeout() -> None:
    sink = create_sink(
        "kafka",
        SinkSettings("s", "orders", options={"bootstrap_servers": "127.0.0.1:1", "topic": "t", "timeout_s": "3"}),
    )
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1, topic t"):
        sink.open()
    sink.close()


def logged_in(broker: LocalKafka, address: str, stream: str, password: str, timeout_s: str = "30") -> Sink:
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": LOGIN_USER}
    client["sasl.password"] = password
    options = {f"kafka.{key}": value for key, value in client.items()}
    return kafka_sink(broker, stream, bootstrap_servers=address, timeout_s=timeout_s, **options)


def test_refused_login_is_said_and_not_tried_again(broker: LocalKafka, login_address: str) -> None:
    sink = logged_in(broker, login_address, new_stream(), "wrong", timeout_s="3")
    with pytest.raises(SinkRefusedError, match=f"Kafka refuses this client at {login_address}.*[Aa]uthentication"):
        sink.open()
    sink.close()


def test_topic_that_the_login_may_not_write_is_said_and_keeps_its_checkpoint(
    broker: LocalKafka, login_address: str
) -> None:
    stream = new_stream()
    sink = logged_in(broker, login_address, stream, LOGIN_PASSWORD)
    assert sink.open() is None
    deliver(sink, stream, 1)
    sink.close()
    deny_writes(broker, stream)
    assert sink.open() is not None
    with pytest.raises(SinkRefusedError, match=f"Kafka refuses this client at {login_address}, topic {stream}"):
        deliver(sink, stream, 2)
    sink.close()
    assert len(read_topic(broker.bootstrap, stream)) == 1
    text = kafka_sink(broker, stream).open()
    assert text is not None
    assert '"sequence":1' in text


def deliver(sink: Sink, stream: str, number: int) -> None:
    sink.write(batch(number, [insert(number, 10 * number)]))
    sink.commit(checkpoint(stream, number))


def deny_writes(broker: LocalKafka, topic: str) -> None:
    """As an administrator does it: the login may read the topic, and no longer write to it."""
    kafka_admin = confluent_kafka.admin
    rule = kafka_admin.AclBinding(
        kafka_admin.ResourceType.TOPIC,
        topic,
        kafka_admin.ResourcePatternType.LITERAL,
        f"User:{LOGIN_USER}",
        "*",
        kafka_admin.AclOperation.WRITE,
        kafka_admin.AclPermissionType.DENY,
    )
    rest = kafka_admin.AclBinding(
        kafka_admin.ResourceType.TOPIC,
        topic,
        kafka_admin.ResourcePatternType.LITERAL,
        f"User:{LOGIN_USER}",
        "*",
        kafka_admin.AclOperation.DESCRIBE,
        kafka_admin.AclPermissionType.ALLOW,
    )
    admin = kafka_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_acls([rule, rest]).values():
        made.result(30)


def test_checkpoint_behind_a_transaction_that_another_stream_left_open_is_not_overlooked(broker: LocalKafka) -> None:
    shared, stream = f"shared-{uuid.uuid4().hex[:8]}", new_stream()
    ours = kafka_sink(broker, stream, checkpoint_topic=shared, timeout_s="5")
    ours.open()
    ours.commit(checkpoint(stream, 1))
    dead = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"dead.{stream}"})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(shared, key=b"dead", value=b"{}")
    assert dead.flush(30) == 0
    ours.commit(checkpoint(stream, 2))
    ours.close()
    with pytest.raises(SinkUnavailableError, match=f"topic {shared} has an open transaction at offset"):
        ours.open()
    ours.close()
    dead.abort_transaction(30)
    text = ours.open()
    ours.close()
    assert text is not None
    assert '"sequence":2' in text


def test_newest_checkpoint_is_found_among_those_of_other_streams(broker: LocalKafka) -> None:
    shared = f"shared-{uuid.uuid4().hex[:8]}"
    quiet, busy = new_stream(), new_stream()
    first = kafka_sink(broker, quiet, checkpoint_topic=shared)
    first.open()
    first.commit(checkpoint(quiet, 7))
    first.close()
    other = kafka_sink(broker, busy, checkpoint_topic=shared)
    other.open()
    for number in range(1, 101):
        other.commit(checkpoint(busy, number))
    other.close()
    text = first.open()
    first.close()
    assert text is not None
    assert '"sequence":7' in text

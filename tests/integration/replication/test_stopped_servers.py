"""A server that hangs (SIGSTOP): its sockets stay open, so the run ends its wait itself, and names the server."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from airflow_lake_provider.errors import SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.postgres import LocalPostgres
from tests.integration.replication.conftest import broker_with_a_login
from tests.support.patience import patient

NAME = "orders"
LONGEST_S = 40
"""The time-outs of the tests are two seconds; the machine is shared."""


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    started = LocalPostgres()
    started.start()
    yield started
    started.resume()
    started.stop()


def database_sink(server: LocalPostgres) -> Sink:
    options = {"url": server.url, "table": NAME, "timeout_s": "2"}
    return create_sink("database", SinkSettings(f"{NAME}.sink", NAME, ChangeMode.LATEST, options))


@pytest.mark.parametrize("when", ["within a transaction", "before it is opened"])
def test_database_that_hangs_is_named_and_the_next_run_goes_on(server: LocalPostgres, when: str) -> None:
    server.query(f"create table {NAME} (id bigint primary key, value integer)")
    sink = database_sink(server)
    if when == "within a transaction":
        sink.open()
        sink.write(batch(1, [insert(1, 10)]))
    server.pause()
    began_s = time.monotonic()
    meet = partial(sink.commit, checkpoint(f"{NAME}.sink", 1)) if when == "within a transaction" else sink.open
    with pytest.raises(SinkUnavailableError, match=r"table orders: .*(has not answered for|timeout expired)"):
        meet()
    sink.close()
    assert time.monotonic() - began_s < patient(LONGEST_S)
    server.resume()
    again = database_sink(server)
    again.open()
    again.write(batch(1, [insert(1, 10)]))
    again.commit(checkpoint(f"{NAME}.sink", 1))
    again.close()
    assert server.query(f"select id, value from {NAME}") == ["1|10"]


def test_statement_that_takes_longer_than_the_time_out_goes_on_while_the_server_answers(server: LocalPostgres) -> None:
    server.query(
        f"create table {NAME} (id bigint primary key, value integer);"
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(7); return new; end $$;"
        f"create trigger slow before insert on {NAME} for each row execute function slow()"
    )
    sink = database_sink(server)
    sink.open()
    sink.write(batch(1, [insert(1, 10)]))
    sink.commit(checkpoint(f"{NAME}.sink", 1))
    sink.close()
    assert server.query(f"select id, value from {NAME}") == ["1|10"]


def signal_broker(broker: LocalKafka, number: signal.Signals) -> None:
    assert broker.server is not None
    os.killpg(broker.server.process.pid, number)


def test_broker_that_hangs_is_named_and_the_next_run_goes_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker: LocalKafka = broker_with_a_login(tmp_path_factory.mktemp("kafka"))[0]
    broker.start()
    topic = f"t{uuid.uuid4().hex[:12]}"
    options = {"bootstrap_servers": broker.bootstrap, "topic": topic, "create_topics": "true", "timeout_s": "5"}

    def make() -> Sink:
        return create_sink("kafka", SinkSettings(f"{topic}.sink", NAME, ChangeMode.CHANGES, options))

    try:
        sink = make()
        sink.open()
        sink.write(batch(1, [insert(1, 10)]))
        signal_broker(broker, signal.SIGSTOP)
        began_s = time.monotonic()
        with pytest.raises(SinkUnavailableError, match=f"{broker.bootstrap}, topic {topic}"):
            sink.commit(checkpoint(f"{topic}.sink", 1))
        sink.close()
        assert time.monotonic() - began_s < patient(LONGEST_S)
        signal_broker(broker, signal.SIGCONT)
        again = make()
        again.open()
        again.write(batch(1, [insert(1, 10)]))
        again.commit(checkpoint(f"{topic}.sink", 1))
        again.close()
        assert len(read_topic(broker.bootstrap, topic)) == 1
    finally:
        signal_broker(broker, signal.SIGCONT)
        broker.stop()

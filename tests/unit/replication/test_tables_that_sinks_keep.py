"""A table's name leads into none of the places that a sink keeps for all streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import ConfigError, SinkRefusedError
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sinks.database_aside import Aside
from airflow_lake_provider.sink_options.kafka import take_kafka
from airflow_lake_provider.sink_options.options import TakenOptions


@pytest.mark.parametrize("schema", ["", "main."])
@pytest.mark.parametrize("chosen", ["checkpoint", "CHECKPOINT", "target", "dead_letter", "snapshot"])
def test_table_that_is_called_like_a_bookkeeping_table_is_refused(tmp_path: Path, schema: str, chosen: str) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    engine = sa.create_engine(url)
    orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    orders.create(engine)
    own = SinkSettings("s1", "orders", options={"url": url, "table": "orders"})
    assert create_sink("database", own).open() is None
    with engine.begin() as connection:
        name = Aside(connection, orders)._name if chosen == "snapshot" else f"lake_{chosen}"
        connection.execute(sa.text(f"create table if not exists {name} (id integer primary key)"))
    settings = SinkSettings("s2", name, options={"url": url, "table": f"{schema}{name}"})
    with pytest.raises(SinkRefusedError, match=f"{name} would be one that the sink itself keeps"):
        create_sink("database", settings).open()


def test_table_that_differs_from_another_by_case_alone_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True)).create(sa.create_engine(url))
    create_sink("database", SinkSettings("s1", "orders", options={"url": url, "table": "orders"})).open()
    with pytest.raises(SinkRefusedError, match="is stream s1's"):
        create_sink("database", SinkSettings("s2", "Orders", options={"url": url, "table": "main.Orders"})).open()


@pytest.mark.parametrize("own", ["checkpoint_topic", "dead_letter_topic", "topic.transaction"])
def test_table_that_is_called_like_a_shared_topic_is_refused(own: str) -> None:
    options = {
        "bootstrap_servers": "b:9092", "format": "debezium", "provide.transaction.metadata": "true",
        "on_record_error": "dead_letter", "dead_letter_topic": "lake-letters", own: "lake-shared",
    }  # fmt: skip
    take_kafka(TakenOptions(options | {"topic": "lake-orders"}, "kafka"), "changes")
    with pytest.raises(ConfigError, match="has one topic 'lake-shared' as"):
        take_kafka(TakenOptions(options | {"topic": "lake-shared"}, "kafka"), "changes")

"""A stream as the tables file names it, from its entry to the rows in its sink."""

from __future__ import annotations

import uuid

import yaml

from airflow_lake_provider.config.policies import ReplicationPolicy
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.execution.sink_connections import options_with_connection
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.sink import create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert
from airflow_lake_provider.replication.transactions import Order

STREAM = "t.s"
SECRETS = {
    "secret://variable/registry": "s3cret",
    "secret://variable/salt": "pepper",
    "secret://variable/token": "ey.J0.x",
}
"""What the task puts in the place of references: none is written in a tables file."""


def policy_of(**entry: str) -> ReplicationPolicy:
    """Write an entry into a tables file, and return what that file says."""
    text = yaml.safe_dump({"tables": [{"base_path": "/lake/orders", "replication": [entry]}]})
    (policy,) = parse_tables_file(text, "t.yaml").policy_for("/lake/orders", "orders").replication
    return policy


def send(*, stream: str = "", number: int = 1, **entry: str) -> str:
    """Send one batch through the sink that an entry of a tables file names; return the stream's name."""
    policy = policy_of(**entry)
    stream = stream or f"{STREAM}{uuid.uuid4().hex[:8]}"
    options = options_with_connection(policy.sink, policy.options)
    request = ReplicationRequest(
        "/lake/orders", "orders", policy.sink, Order(stream), "", ChangeMode(policy.mode),
        options={name: SECRETS.get(text, text) for name, text in options.items()}, database="sales",
    )  # fmt: skip
    assert request.run_options
    sink = create_sink(request.kind, request.sink_settings)
    try:
        known = sink.open()
        assert (known is None) is (number == 1)
        sink.write(batch(number, [insert(1, 10)]))
        sink.commit(checkpoint(stream, number))
    finally:
        sink.close()
    return stream

"""Where replication meets Airflow: lag, refused arguments, connections, and what is reported to the manager."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, to_text
from airflow_lake_provider.replication.feed import Lag
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import unpack
from tests.support.replicated_writes import writes

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return unpack("cow_v9", tmp_path).path


def test_lag_is_what_the_sink_does_not_have(table: Path) -> None:
    from airflow_lake_provider.manager.supervision.writers_and_sinks import load_sink_state

    storage, commits = open_storage(str(table)), writes(table)

    def lag(checkpoint: Checkpoint | None) -> Lag:
        text = "" if checkpoint is None else to_text(checkpoint)
        return load_sink_state(storage, text, "", time.time(), {}).lag

    everything = lag(None)
    assert 0 < everything.commits <= len(commits)
    assert everything.oldest_completed_time == commits[0].completed_time
    done = tuple(commit.requested_time for commit in commits)
    caught_up = Checkpoint("t.s", 1, 1, commits[-1], done=done)
    assert lag(caught_up).commits == 0
    one_behind = Checkpoint("t.s", 1, 1, commits[0], floor=commits[0].completed_time)
    assert lag(one_behind).commits == everything.commits - 1
    # Within a snapshot: what lies behind its instant, and that it is not whole yet.
    in_snapshot = Checkpoint("t.s", 1, 1, commits[-1], done=done, snapshot=SnapshotProgress("1", rows=7))
    assert (lag(in_snapshot).commits, lag(in_snapshot).snapshot_rows) == (0, 7)
    assert lag(caught_up).snapshot_rows is None


POSTGRES = {"conn_type": "postgres", "host": "h", "login": "u@x", "password": "p:/ %é", "schema": "d"}
POSTGRES_URL = "postgresql://u%40x:p%3A%2F%20%25%C3%A9@h/d"
AWS = {"conn_type": "aws", "login": "AK", "password": "SK"}


@pytest.mark.parametrize(
    ("sink", "fields", "extra", "options"),
    [
        pytest.param(
            "kafka",
            {"conn_type": "kafka"},
            {"bootstrap.servers": "b:9092", "sasl.password": "x", "enable.auto.commit": False, "error_cb": "a.b"},
            {"bootstrap_servers": "b:9092", "kafka.sasl.password": "x", "kafka.enable.auto.commit": "false"},
            id="kafka",
        ),
        pytest.param("database", POSTGRES, {}, {"url": POSTGRES_URL}, id="database"),
        pytest.param(
            "database",
            POSTGRES,
            {"sslmode": "verify-full", "connect_timeout": 9, "keepalives": True, "cursor": "dictcursor"},
            {"url": f"{POSTGRES_URL}?sslmode=verify-full&connect_timeout=9&keepalives=1"},
            id="numbers",
        ),
        pytest.param(
            "database",
            {**POSTGRES, "host": "a, b", "port": 5433, "password": ""},
            {},
            {"url": "postgresql://u%40x@/d?host=a%3A5433&host=b%3A5433"},
            id="two hosts",
        ),
        pytest.param(
            "database", {"conn_type": "postgres", "host": "fe80::1"}, {}, {"url": "postgresql://[fe80::1]/"}, id="v6"
        ),
        pytest.param(
            "database",
            {"conn_type": "mysql", "host": "h", "schema": "d"},
            {"ssl": '{"ca": "/x"}', "charset": "utf8mb4"},
            {"url": "mysql://h/d?ssl_ca=%2Fx&charset=utf8mb4"},
            id="mysql",
        ),
        pytest.param("database", {"conn_type": "sqlite", "host": "/x.db"}, {}, {"url": "sqlite:////x.db"}, id="sqlite"),
        pytest.param(
            "file",
            AWS,
            {"endpoint_url": "http://s:9", "region_name": "eu-1"},
            {
                "storage.key": "AK",
                "storage.secret": "SK",
                "storage.endpoint_url": "http://s:9",
                "storage.client_kwargs": '{"region_name": "eu-1"}',
            },
            id="s3",
        ),
        pytest.param("mine", {"conn_type": "x"}, {"a": 1}, {"a": "1"}, id="own"),
    ],
)
def test_connection_becomes_the_sinks_settings(
    sink: str, fields: dict[str, Any], extra: dict[str, Any], options: dict[str, str]
) -> None:
    from airflow_lake_provider.execution.sink_connections import connection_options

    assert connection_options(sink, connection_of(fields, extra)) == options


@pytest.mark.parametrize(
    ("sink", "fields", "extra", "said"),
    [
        ("database", POSTGRES, {"iam": True}, "with iam its password"),
        ("kafka", {"conn_type": "kafka"}, {"oauth_cb": "a.b"}, "oauth_cb names a function of Airflow's"),
        ("kafka", {"conn_type": "kafka"}, {"a": {"b": 1}}, "a in its extra is no text"),
        ("file", AWS, {"role_arn": "arn:x"}, "takes on no role"),
        ("file", {"conn_type": "aws", "login": "AK"}, {}, "only one of login and password"),
    ],
)
def test_connection_that_a_sink_cannot_use_is_refused(
    sink: str, fields: dict[str, Any], extra: dict[str, Any], said: str
) -> None:
    from airflow_lake_provider.errors import ConfigError
    from airflow_lake_provider.execution.sink_connections import connection_options

    with pytest.raises(ConfigError, match=said):
        connection_options(sink, connection_of(fields, extra))


def connection_of(fields: dict[str, Any], extra: dict[str, Any]) -> Any:
    from airflow.sdk import Connection

    return Connection(conn_id="c", extra=json.dumps(extra), **fields)


@pytest.mark.parametrize(
    ("arguments", "request_id", "snapshot"),
    [
        pytest.param({}, "", False, id="replicate"),
        pytest.param({"release": "released.7"}, "released.7", True, id="released"),
        pytest.param({"action": "snapshot"}, "run-1", True, id="snapshot"),
        pytest.param({"action": "snapshot", "rows": "day = '2026-06-01'"}, "", False, id="snapshot of a part"),
        pytest.param(
            {"action": "snapshot", "rows": "a = 1", "release": "released.7"},
            "released.7",
            True,
            id="part of a released",
        ),
        pytest.param({"action": "seek", "seek_until": "20260601000000"}, "run-1", False, id="seek"),
    ],
)
def test_order_names_its_request_so_that_a_cleared_task_obeys_it_once(
    arguments: dict[str, str], request_id: str, snapshot: bool
) -> None:
    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    release = arguments.pop("release", "")
    begun = {"needs_snapshot": bool(release), "request": release, "generation": 3}
    operator = HudiReplicationOperator(task_id="t", base_path="/lake/t", sink="kafka", **arguments)
    order = operator._order("t.kafka", "run-1", begun)
    assert (order.request, order.snapshot, order.generation) == (request_id, snapshot, 3)


@pytest.mark.parametrize(
    ("action", "rows", "said"),
    [
        ("snapshot", "day = today()", "in which a value .* is expected before 'today\\(\\)'"),
        ("replicate", "a = 1", "rows is for snapshot"),
    ],
)
def test_part_of_a_table_is_refused_before_it_begins(action: str, rows: str, said: str) -> None:
    from airflow_lake_provider.errors import ConfigError
    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    operator = HudiReplicationOperator(task_id="t", base_path="/lake/t", sink="kafka", action=action, rows=rows)
    with pytest.raises(ConfigError, match=said):
        operator._run({})


@pytest.mark.parametrize(("until", "said"), [("", "seek with seek_until"), ("2026", "seek_until is '2026', allowed")])
def test_seek_without_a_time_is_refused_before_it_begins(until: str, said: str) -> None:
    from airflow_lake_provider.errors import ConfigError
    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    operator = HudiReplicationOperator(task_id="t", base_path="/lake/t", sink="kafka", action="seek", seek_until=until)
    with pytest.raises(ConfigError, match=said):
        operator._run({})

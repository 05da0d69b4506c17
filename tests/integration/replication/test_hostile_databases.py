"""A database that is not what the sink expects of it: what it says stays short and plain, and no run hangs with it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from airflow_lake_provider.errors import ConfigError, LakeError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from local_stack.postgres import LocalPostgres
from tests.support.patience import patient
from tests.support.refusing_target import Target

HUGE = 20_000_000


def trigger(target: Target, body: str, when: str = "before insert") -> None:
    name = f"hostile_{target.name}"
    target.sql(f"create function {name}() returns trigger language plpgsql as $$ begin {body} return new; end $$")
    target.sql(f"create trigger {name} {when} on {target.name} for each row execute function {name}()")


def send(target: Target, **options: str) -> None:
    target.send(("i", {"id": 1}, {"secret": "the-value-of-the-row"}), **options)


@pytest.fixture
def target(postgres: LocalPostgres) -> Target:
    return Target(postgres, "id bigint primary key, secret text")


def test_what_a_server_says_is_short_and_holds_no_code_of_a_terminal(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    trigger(target, rf"raise exception '%', E'\x1b[2J\x1b]0;owned\x07' || repeat('x', {HUGE});")
    with caplog.at_level(logging.DEBUG), pytest.raises(LakeError) as refused:
        send(target)
    said = [str(refused.value), *(record.getMessage() for record in caplog.records)]
    assert max(map(len, said)) < 3000
    assert not any("\x1b" in text or "\x07" in text for text in said)
    # The statement with its parameters is what a traceback would print.
    assert "the-value-of-the-row" not in f"{said} {refused.value.__cause__}"


def test_notices_of_a_trigger_cost_no_memory(target: Target) -> None:
    import resource

    trigger(target, f"for i in 1..40 loop raise notice '%', repeat('x', {HUGE}); end loop;")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    send(target)
    assert target.rows("id") == [(1,)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200_000


def test_rows_that_a_policy_hides_are_refused_and_not_left_behind(postgres: LocalPostgres, target: Target) -> None:
    """Without this the snapshot deletes the rows that the login sees, and the hidden ones stay for readers."""
    login = f"mirror_{target.name}"
    target.sql(f"create role {login} login; grant all on all tables in schema public to {login}")
    target.sql(f"grant create on schema public to {login}; insert into {target.name} values (7, 'hidden')")
    send(target)
    target.sql(f"alter table {target.name} enable row level security")
    target.sql(f"create policy part_of_it on {target.name} to {login} using (id < 5) with check (true)")
    with pytest.raises(SinkRefusedError, match=r"row-level security.*BYPASSRLS"):
        send(target, url=postgres.url.replace("airflow@", f"{login}@"))
    assert sorted(target.rows("id")) == [(1,), (7,)]


def test_what_other_sessions_ask_stays_out_of_errors(postgres: LocalPostgres, target: Target) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(postgres.url)
    with engine.begin() as other:
        other.execute(sa.text(f"lock table {target.name} in share mode"))
        other.execute(sa.text("select 'the-password-of-another'"))
        with pytest.raises(SinkUnavailableError, match="locked by process") as locked:
            send(target, timeout_s="2")
    engine.dispose()
    assert "the-password-of-another" not in str(locked.value)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("create view {0} as select * from {0}_t", id="view"),
        pytest.param("create table {0} (like {0}_t); create rule r as on insert to {0} do instead nothing", id="rule"),
        pytest.param("create table {0} (id bigint, secret text generated always as ('x') stored)", id="gen"),
        pytest.param("create foreign data wrapper w_{0}; create server s_{0} foreign data wrapper w_{0}; "
                     "create foreign table {0} (id bigint, secret text) server s_{0}", id="foreign"),
        pytest.param("create sequence {0}", id="sequence"),
        pytest.param("create type {0} as (id bigint, secret text)", id="type"),
    ],
)  # fmt: skip
def test_what_is_no_plain_table_ends_in_an_error_of_ours_or_works(target: Target, kind: str) -> None:
    target.sql(f"alter table {target.name} rename to {target.name}_t")
    target.sql(kind.format(target.name))
    with suppress(LakeError):
        send(target)


def test_objects_earlier_in_the_search_path_are_not_taken_for_the_servers_own(target: Target) -> None:
    """A user with a schema of the login's name has functions and operators there that the sink never calls."""
    target.sql("create schema if not exists airflow")
    for name, arguments in (("to_regclass", "text"), ("current_database", "")):
        target.sql(
            f"create or replace function airflow.{name}({arguments}) returns text language plpgsql as "
            "$$ begin raise exception 'called'; end $$"
        )
    try:
        send(target)
        assert target.rows("id") == [(1,)]
    finally:
        target.sql("drop schema airflow cascade")


# --- Servers that are no PostgreSQL


@contextmanager
def serve(greeting: bytes, then: bytes = b"", pause_s: float = 0.0) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(greeting)
            while then:
                connection.sendall(then)
                time.sleep(pause_s)
            connection.recv(1)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"postgresql+psycopg2://lake:the-password@127.0.0.1:{listener.getsockname()[1]}/x?sslmode=disable"
    finally:
        listener.close()


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


NAMES = {"server_version": "17.2", "client_encoding": "UTF8", "server_encoding": "UTF8", "DateStyle": "ISO, MDY"}
NAMES |= {"standard_conforming_strings": "on", "integer_datetimes": "on"}
PARAMETERS = b"".join(message(b"S", f"{name}\0{text}\0".encode()) for name, text in NAMES.items())
READY = message(b"R", bytes(4)) + PARAMETERS + message(b"Z", b"I")
NOTICE = message(b"N", b"SNOTICE\0Mof a server\0\0")


@pytest.mark.parametrize(
    ("greeting", "then", "pause_s"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", 0, id="another-protocol"),
        pytest.param(bytes(range(256)) * 1000, b"", 0, id="garbage"),
        pytest.param(b"", b"", 0, id="nothing"),
        pytest.param(b"", NOTICE, 0.01, id="notices-before-the-login"),
        pytest.param(READY, b"", 0, id="login-and-nothing"),
        pytest.param(READY, NOTICE, 0.001, id="notices-without-an-end"),
        pytest.param(message(b"E", b"SERROR\0M" + b"\x1b[2J" * 50_000 + b"\0\0"), b"", 0, id="a-long-refusal"),
    ],
)
def test_server_that_is_none_ends_the_run_and_says_little(greeting: bytes, then: bytes, pause_s: float) -> None:
    began_s = time.monotonic()
    with serve(greeting, then, pause_s) as url:
        options = {"url": url, "table": "orders", "timeout_s": "2", "statement_timeout_s": "3"}
        sink = create_sink("database", SinkSettings("orders.sink", "orders", ChangeMode.LATEST, options))
        with pytest.raises(LakeError) as refused:
            sink.open()
        sink.close()
    assert time.monotonic() - began_s < patient(30)
    assert len(str(refused.value)) < 3000
    assert "the-password" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_password_with_an_at_sign_is_not_taken_for_a_host() -> None:
    options = {"url": "postgresql://lake:pass@the-rest-of-it@127.0.0.1/x", "table": "orders"}
    with pytest.raises(ConfigError, match="%40") as refused:
        create_sink("database", SinkSettings("orders.sink", "orders", ChangeMode.LATEST, options))
    assert "the-rest-of-it" not in str(refused.value)

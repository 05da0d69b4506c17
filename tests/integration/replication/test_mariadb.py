"""The database sink on a real MariaDB, Debian's own. Plain SQL is the judge.

LAKE_MARIADB_URL names an empty database of another one, `mysql+pymysql://...`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import RecordRefusedError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, CommitRef, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import SinkContract
from local_stack.debian_packages import PackagesMissingError
from local_stack.mariadb import LocalMariaDb
from tests.support import configured_streams
from tests.support.plain_sql import run_sql
from tests.support.private_ca import load, sign

pytestmark = pytest.mark.soak(covered_by="tests/unit/replication/test_columns_of_mysql.py")
COMMIT = CommitRef("20260101000000000", "20260101000000001")


class Server:
    """The one of this module."""

    url = ""


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    Server.url = os.environ.get("LAKE_MARIADB_URL", "")
    if Server.url:
        yield
        return
    started = start_mariadb(tmp_path_factory.mktemp("mariadb"))
    Server.url = started.url
    yield
    started.stop()


def start_mariadb(folder: Path, *options: str) -> LocalMariaDb:
    server = LocalMariaDb(folder, options=options)
    try:
        server.start()
    except PackagesMissingError as error:
        pytest.skip(f"needs a Debian for its MariaDB: {error}")
    return server


class TestDatabaseSinkOnMariaDb(SinkContract):
    keeps_versions = False

    def make_sink(self, stream: str) -> Sink:
        table = stream.replace(".", "_")
        run_sql(Server.url, f"create table if not exists `{table}` (id bigint primary key, value int)")
        settings = {"url": Server.url, "table": table}
        return create_sink("database", SinkSettings(stream, "orders", ChangeMode.LATEST, settings))

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        return [
            (key, value)
            for key, value in run_sql(Server.url, f"select id, value from `{stream.replace('.', '_')}` order by id")
        ]


def send(columns: str, rows: Sequence[Mapping[str, Any]], schema: str = "", **options: str) -> list[tuple[Any, ...]]:
    """Make a table, send rows to it in one transaction, and return what it has."""
    table = f"t{uuid.uuid4().hex[:12]}"
    run_sql(Server.url, f"create table {table} ({columns})")
    settings = {"url": Server.url, "table": table, **options}
    sink = create_sink("database", SinkSettings(f"{table}.s", "t", ChangeMode.LATEST, settings))
    sink.open()
    try:
        changes = [Change(Op.INSERT, json.dumps({"id": row["id"]}), None, json.dumps(row)) for row in rows]
        sink.write(Batch(COMMIT, changes, 1, schema=schema))
        # As of a table with a thousand columns.
        sink.commit(Checkpoint(f"{table}.s", 1, 1, COMMIT, schema="x" * 100_000))
    finally:
        sink.close()
    return run_sql(Server.url, f"select * from {table} order by id")


@pytest.fixture
def in_another_zone() -> Any:
    run_sql(Server.url, "set global time_zone = '+05:30'")
    yield
    run_sql(Server.url, "set global time_zone = 'SYSTEM'")


@pytest.mark.usefixtures("in_another_zone")
def test_values_are_there_as_they_were() -> None:
    columns = (
        "id bigint primary key, at datetime(6), moment timestamp(6) null, n decimal(20,4), raw varbinary(9), f double"
    )
    at = "2026-03-01T10:00:00.123456Z"
    row = {"id": 1, "at": at, "moment": at, "n": 7.25, "raw": "YWIA/w==", "f": 1e300}
    ((_, bare, moment, number, raw, large),) = send(columns, [row])
    assert (bare, str(number), raw, large) == (datetime(2026, 3, 1, 10, 0, 0, 123456), "7.2500", b"ab\0\xff", 1e300)  # noqa: DTZ001
    # The session of this reader is in the server's zone.
    assert moment == datetime(2026, 3, 1, 15, 30, 0, 123456)  # noqa: DTZ001


def test_texts_that_differ_are_different_keys() -> None:
    rows = [{"id": text, "n": number} for number, text in enumerate(("a", "A", "a "))]
    with pytest.raises(SinkRefusedError, match=r"takes different keys for one: run alter table .* utf8mb4_nopad_bin"):
        send("id varchar(9), n int", rows)
    found = send("id varchar(9) collate utf8mb4_nopad_bin primary key, n int", rows)
    assert sorted(found) == sorted((row["id"], row["n"]) for row in rows)


def test_record_that_does_not_fit_follows_its_policy_whatever_the_servers_mode_is() -> None:
    rows = [{"id": 1, "t": "abcdef"}, {"id": 2, "t": "ok"}]
    (mode,) = run_sql(Server.url, "select @@global.sql_mode")[0]
    run_sql(Server.url, "set global sql_mode = ''")
    try:
        with pytest.raises(RecordRefusedError, match=r"run alter table .* modify column t text"):
            send("id bigint primary key, t varchar(3)", rows)
        assert send("id bigint primary key, t varchar(3)", rows, on_record_error="dead_letter") == [(2, "ok")]
    finally:
        run_sql(Server.url, f"set global sql_mode = '{mode}'")
    with pytest.raises(RecordRefusedError, match="no NaN and no infinity"):
        send("id bigint primary key, f double", [{"id": 1, "f": "NaN"}])


POLICIES = [{"on_record_error": policy} for policy in ("stop", "skip", "dead_letter")]


@pytest.mark.parametrize("options", POLICIES, ids=lambda options: options["on_record_error"])
def test_statement_that_the_server_does_not_take(options: Mapping[str, str]) -> None:
    """A server that gets one ends the connection, and the stream would try it again and again."""
    (before,) = run_sql(Server.url, "select @@global.max_allowed_packet")[0]
    run_sql(Server.url, "set global max_allowed_packet = 2097152")
    run_sql(Server.url, "drop table if exists lake_dead_letter")
    # The second one is too large by what is escaped alone.
    rows = [{"id": 1, "t": "x" * 2_200_000}, {"id": 2, "t": "'" * 1_100_000}, {"id": 3, "t": "y" * 2_000_000}]
    try:
        if options["on_record_error"] == "stop":
            with pytest.raises(
                RecordRefusedError, match=r'record .*"id": ?"?1.*run set global max_allowed_packet = 3145728'
            ):
                send("id bigint primary key, t longtext", rows, **options)
            return
        assert send("id bigint primary key, t longtext", rows, **options) == [(3, "y" * 2_000_000)]
    finally:
        run_sql(Server.url, f"set global max_allowed_packet = {before}")
    if options["on_record_error"] == "dead_letter":
        found = run_sql(Server.url, "select record_key, length(change_json), error from lake_dead_letter order by 1")
        # The quotes need no escape in JSON, so this change is a statement that fits no more than the row.
        assert [(json.loads(key)["id"], size) for key, size, _ in found] == [(1, 0), (2, 0)]
        assert all("its change is too large to be stored here" in error for *_, error in found)


@pytest.mark.parametrize("options", POLICIES, ids=lambda options: options["on_record_error"])
def test_row_larger_than_half_a_page(options: Mapping[str, str]) -> None:
    columns = ", ".join(f"c{number} varchar(255)" for number in range(40))
    rows = [{"id": number, **{f"c{each}": text for each in range(40)}} for number, text in ((1, "x" * 255), (2, "y"))]
    run_sql(Server.url, "set global innodb_strict_mode = 0")  # as where such a table could be made
    try:
        if options["on_record_error"] == "stop":
            said = (
                r'record .*"id": "1".*Row size too large.*run alter table \w+ row_format=dynamic, modify column c0 text'
            )
            with pytest.raises(RecordRefusedError, match=said):
                send(f"id bigint primary key, {columns}", rows, **options)
        else:
            ((number, *_),) = send(f"id bigint primary key, {columns}", rows, **options)
            assert number == 2
    finally:
        run_sql(Server.url, "set global innodb_strict_mode = 1")


def test_decimal_that_a_column_would_round() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
    ]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    row = {"id": 1, "n": 1.2345}
    said = (
        r"column n \(DECIMAL\(10, 2\)\) would round this decimal: run alter table \w+ modify column n NUMERIC\(20, 4\)"
    )
    with pytest.raises(RecordRefusedError, match=said):
        send("id bigint primary key, n decimal(10,2)", [row], schema)
    assert [str(number) for _, number in send("id bigint primary key, n decimal(20,4)", [row], schema)] == ["1.2345"]


def test_locked_table_is_named_after_the_entrys_time() -> None:
    table = f"t{uuid.uuid4().hex[:12]}"
    run_sql(Server.url, f"create table {table} (id bigint primary key, n int)")
    engine = sa.create_engine(Server.url)
    settings = {"url": Server.url, "table": table, "timeout_s": "1"}
    sink = create_sink("database", SinkSettings(f"{table}.s", "t", ChangeMode.LATEST, settings))
    with engine.connect() as other:
        other.execute(sa.text(f"lock table {table} read"))
        sink.open()
        sink.write(Batch(COMMIT, [Change(Op.INSERT, '{"id":1}', None, '{"id":1,"n":1}')], 1))
        with pytest.raises(SinkUnavailableError, match="Lock wait timeout exceeded"):
            sink.commit(Checkpoint(f"{table}.s", 1, 1, COMMIT))
    sink.close()
    engine.dispose()


def test_airflows_connection_names_no_driver_and_brings_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = sign("authority", None, tmp_path)
    certificate = sign("server", load(ca), tmp_path)
    stranger = sign("stranger", None, tmp_path)
    server = start_mariadb(
        tmp_path / "server", f"--ssl-cert={certificate}", f"--ssl-key={certificate}", "--require-secure-transport=on"
    )
    try:
        for authority, is_trusted in ((ca, True), (stranger, False)):
            fields = {
                "conn_type": "mysql", "host": "localhost", "port": server.port, "login": "lake", "schema": "lake",
                "extra": {"charset": "utf8mb4", "ssl": {"ca": str(authority), "check_hostname": True}},
            }  # fmt: skip
            monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(fields))
            table = f"t{uuid.uuid4().hex[:12]}"
            secure = f"{server.url}&ssl_ca={ca}"
            run_sql(secure, f"create table {table} (id bigint primary key, value int)")
            if is_trusted:
                configured_streams.send(sink="database", conn_id="shop", table=table, mode="latest")
                assert run_sql(secure, f"select * from {table}") == [(1, 10)]
            else:
                with pytest.raises(SinkUnavailableError, match="certificate verify failed"):
                    configured_streams.send(sink="database", conn_id="shop", table=table, mode="latest")
    finally:
        server.stop()

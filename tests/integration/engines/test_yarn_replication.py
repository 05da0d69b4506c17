"""Replication whose driver runs inside a real YARN: a real PostgreSQL counts what it got, whatever was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, create_engine, text

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.postgres import LocalPostgres, find_programs
from local_stack.processes import PATIENCE, ServerProcess
from local_stack.writer_process import StandingWriter
from tests.integration.engines.yarn_stage import YarnStage

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak(covered_by="tests/unit/execution/test_job_run.py"),
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL: run `python -m local_stack.postgres`"),
]

PASSWORD = "hunter2-of-the-mirror"
CHANGES = 220
"""Of the two commits after the first one: each has a hundred old rows and ten new ones."""
TARGET = """
create table mirror (
    id bigint primary key, customer bigint, city text, day text, amount double precision, ts bigint
);
create table counted (id bigint not null, ts bigint not null);
create function count_row() returns trigger language plpgsql as
$$ begin insert into counted values (new.id, new.ts); perform pg_sleep(0.15); return new; end $$;
"""
COUNT = "create trigger count_rows after insert or update on mirror for each row execute function count_row()"
"""Each row that comes is counted in the transaction that brings it, and takes so long that kills hit the middle."""


@dataclass
class Mirror:
    """A table of PostgreSQL that has all rows, and runs that send it the last commits once more."""

    stage: YarnStage
    database: Engine
    path: str
    seek_until: str
    rows: dict[str, Any]
    """What Hudi's own reader finds."""

    def start(self, run_id: str, try_number: int = 1, **settings: str) -> ServerProcess:
        options = {
            "conn_id": "mirror",
            "table": "public.mirror",
            "columns": "id, customer, city, day, amount, ts",
            "max_transaction_rows": "10",
        }
        sink = {"sink": "database", "name": "mirror", "mode": "latest", "key": ["id"], "is_claimed": True}
        table = {"base_path": self.path, "table_name": "mirrored"}
        return self.stage.start_task(run_id, try_number, options=options, **table, **sink, **settings)

    def seek(self, run_id: str, try_number: int = 1) -> ServerProcess:
        return self.start(run_id, try_number, action="seek", seek_until=self.seek_until)

    def ask(self, statement: str) -> dict[str, Any]:
        with self.database.connect() as connection:
            return dict(connection.execute(text(statement)).mappings().one())

    def execute(self, statement: str) -> None:
        with self.database.begin() as connection:
            connection.execute(text(statement))

    def counted(self) -> int:
        return int(self.ask("select count(*) as n from counted")["n"])

    def wait_for_rows(self, more_than: int, task: ServerProcess) -> None:
        self.stage.wait_until(lambda: self.counted() > more_than or not task.alive(), "rows in the mirror", 180)
        assert task.alive(), task.log_tail(80)

    def running(self) -> dict[str, Any]:
        (app,) = self.stage.yarn.applications()
        return app

    def outcome(self, application_id: str) -> str:
        (app,) = [app for app in self.stage.yarn.applications(active=False) if app["id"] == application_id]
        return str(app["finalStatus"])

    def require_no_password(self) -> None:
        """Require that neither a command line of this machine nor a task's log has the sink's password."""
        for process in psutil.process_iter(["cmdline"]):
            assert PASSWORD not in " ".join(process.info["cmdline"] or ()), process
        for task in self.stage.tasks:
            assert PASSWORD not in self.stage.log_of(task)

    def require_once(self) -> None:
        """Require the table's rows in the mirror, and that each change came once; nothing runs, and nothing is left."""
        found = self.ask(
            "select count(*) as rows, count(distinct id) as ids, round(sum(amount) * 100) as cents from mirror"
        )
        assert {name: int(value) for name, value in found.items()} == {name: self.rows[name] for name in found}
        changes = self.ask("select count(*) as n, count(distinct (id, ts)) as different from counted")
        assert (changes["n"], changes["different"]) == (CHANGES, CHANGES)
        self.require_no_password()
        self.stage.wait_until(lambda: not self.stage.yarn.applications(), "the end of all applications", 60)
        for app in self.stage.yarn.applications(active=False):
            self.stage.wait_until(lambda app=app: not self.stage.containers(app["id"]), "the end of containers", 60)
        left = [entry.path for entry in self.stage.store.list_status(f"{self.stage.folder}/work", recursive=True)]
        # A request has the password, and a record would name a job that may be running.
        assert not [path for path in left if path.endswith(("/request.json", "/job.json")) and "mirror" in path], left


@pytest.fixture(scope="module")
def filled(stage: YarnStage, reader: StandingWriter) -> Iterator[Mirror]:
    server = LocalPostgres()
    server.start()
    database = create_engine(server.url)
    try:
        login = {"login": "airflow", "password": PASSWORD}
        where = {"conn_type": "postgres", "host": "127.0.0.1", "port": server.port, "schema": "airflow"}
        stage.connections["mirror"] = {**where, **login}
        path = stage.copy_table("mirrored")
        first = min(name for name in stage.instants("mirrored") if name.endswith(".deltacommit"))
        seek_until = first.removesuffix(".deltacommit").partition("_")[2]
        mirror = Mirror(stage, database, path, seek_until, reader.read(path))
        mirror.execute(TARGET)
        task = mirror.start("filled")
        assert stage.wait_for_task(task)["rows"] == mirror.rows["rows"], task.log_tail(80)
        mirror.execute(COUNT)
        yield mirror
    finally:
        stage.connections.clear()
        database.dispose()
        server.stop()


@pytest.fixture
def mirror(filled: Mirror) -> Mirror:
    filled.execute("truncate counted")
    return filled


def test_mirror_gets_each_change_once_although_a_driver_and_a_worker_are_killed(
    stage: YarnStage, mirror: Mirror
) -> None:
    # The driver's JVM, between two transactions or within one.
    first = mirror.seek("killed")
    mirror.wait_for_rows(0, first)
    mirror.require_no_password()
    died = mirror.running()["id"]
    for process in stage.master_processes(mirror.running()):
        if process.name() == "java":
            process.kill()
    first.process.wait(timeout=240 * PATIENCE)
    log = stage.log_of(first)
    assert "RETURNED {" not in log
    assert f"died: YARN application {died} ended as FAILED" in log, log[-4000:]

    # The worker of the next try: its driver goes on, and the try after it follows that one.
    durable = mirror.counted()
    assert 0 < durable < CHANGES
    second = mirror.seek("killed", 2)
    mirror.wait_for_rows(durable, second)
    inside = mirror.running()["id"]
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait()
    third = mirror.seek("killed", 3)
    returned = stage.wait_for_task(third)
    follows = f"this try follows lake-replicate-{table_id_of(mirror.path)}.mirror of an earlier try: {inside}"
    assert follows in stage.log_of(third)
    # What the followed driver sent, which began where the one before it had ended.
    assert returned["rows"] == CHANGES - durable
    assert (mirror.outcome(died), mirror.outcome(inside)) == ("FAILED", "SUCCEEDED")
    mirror.require_once()


def test_run_that_takes_the_sink_over_ends_the_driver_that_it_finds(stage: YarnStage, mirror: Mirror) -> None:
    first = mirror.seek("left")
    mirror.wait_for_rows(0, first)
    left = mirror.running()["id"]
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    other = mirror.start("other")
    stage.wait_for_task(other)
    # A driver that YARN ends may report its own end first.
    assert mirror.outcome(left) in {"KILLED", "FAILED"}
    assert "this try ends lake-replicate-" in stage.log_of(other)
    mirror.require_once()


def test_cleared_run_ends_its_driver_and_the_next_try_goes_on(stage: YarnStage, mirror: Mirror) -> None:
    first = mirror.seek("cleared")
    mirror.wait_for_rows(0, first)
    ended = mirror.running()["id"]
    os.kill(first.process.pid, signal.SIGTERM)
    first.process.wait(timeout=120 * PATIENCE)
    assert not stage.yarn.applications()
    assert mirror.outcome(ended) in {"KILLED", "FAILED"}
    stage.wait_for_task(mirror.seek("cleared", 2))
    mirror.require_once()

"""A table of PostgreSQL that a sink fills, and that counts what it gets while drivers and workers are killed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil
from sqlalchemy import Engine, text

from local_stack.postgres import LocalPostgres
from local_stack.processes import ServerProcess
from tests.integration.engines.stage import Stage

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


def connection_of(server: LocalPostgres, host: str = "127.0.0.1") -> dict[str, Any]:
    """Return the fields of Airflow's connection to a server."""
    where = {"conn_type": "postgres", "host": host, "port": server.port, "schema": "airflow"}
    return {**where, "login": "airflow", "password": PASSWORD}


def time_of_first(instants: Iterable[str]) -> str:
    """Return when the first commit of a timeline completed; behind it are CHANGES."""
    first = min(name for name in instants if name.endswith(".deltacommit"))
    return first.removesuffix(".deltacommit").partition("_")[2]


@dataclass
class Mirror:
    """A table of PostgreSQL that has all rows, and runs that send it the last commits once more."""

    options: ClassVar[Mapping[str, str]] = {
        "conn_id": "mirror",
        "table": "public.mirror",
        "columns": "id, customer, city, day, amount, ts",
        "max_transaction_rows": "10",
    }

    stage: Stage
    database: Engine
    path: str
    seek_until: str
    rows: dict[str, Any]
    """What Hudi's own reader finds."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings besides the stage's."""

    def start(self, run_id: str, try_number: int = 1, **settings: str) -> ServerProcess:
        sink = {"sink": "database", "name": "mirror", "mode": "latest", "key": ["id"], "is_claimed": True}
        table = {"base_path": self.path, "table_name": "mirrored", "spark_conf": {**self.stage.spark_conf, **self.conf}}
        return self.stage.start_task(run_id, try_number, options=dict(self.options), **table, **sink, **settings)

    def seek(self, run_id: str, try_number: int = 1) -> ServerProcess:
        return self.start(run_id, try_number, action="seek", seek_until=self.seek_until)

    def fill(self) -> None:
        """Make the table, bring all rows, and count from then on."""
        self.execute(TARGET)
        task = self.start("filled")
        assert self.stage.wait_for_task(task, 400)["rows"] == self.rows["rows"], task.log_tail(80)
        self.execute(COUNT)

    def ask(self, statement: str) -> dict[str, Any]:
        with self.database.connect() as connection:
            return dict(connection.execute(text(statement)).mappings().one())

    def execute(self, statement: str) -> None:
        with self.database.begin() as connection:
            connection.execute(text(statement))

    def counted(self) -> int:
        return int(self.ask("select count(*) as n from counted")["n"])

    def wait_for_rows(self, more_than: int, task: ServerProcess) -> None:
        self.stage.wait_until(lambda: self.counted() > more_than or not task.alive(), "rows in the mirror", 300)
        assert task.alive(), task.log_tail(80)

    def require_no_password(self) -> None:
        """Require that neither a command line of this machine nor a task's log has the sink's password."""
        for process in psutil.process_iter(["cmdline"]):
            assert PASSWORD not in " ".join(process.info["cmdline"] or ()), process
        for task in self.stage.tasks:
            assert PASSWORD not in task.log_path.read_text(encoding="utf-8")

    def require_rows_once(self) -> None:
        """Require the table's rows in the mirror, and that each change came once."""
        found = self.ask(
            "select count(*) as rows, count(distinct id) as ids, round(sum(amount) * 100) as cents from mirror"
        )
        assert {name: int(value) for name, value in found.items()} == {name: self.rows[name] for name in found}
        changes = self.ask("select count(*) as n, count(distinct (id, ts)) as different from counted")
        assert (changes["n"], changes["different"]) == (CHANGES, CHANGES)
        self.require_no_password()


def left_of_mirrors(paths: Iterable[str]) -> list[str]:
    """Return which of a work folder's files a run leaves wrongly.

    A request has the password, and a record would name a job that may be running.
    """
    return [path for path in paths if path.endswith(("/request.json", "/job.json")) and "mirror" in path]

"""A history of a table, and its mirror in a database while runs are killed."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.support.killed_streams import Story
from tests.support.plain_sql import run_sql


class MirrorStory(Story):
    """A table's history, and its mirror, which notes what it gets. `bootstrap` is the server's address."""

    kind: ClassVar[str] = "database"

    def make(self, constraint: str) -> None:
        table = self.stream
        self.sql(f"create table {table} (id bigint, value bigint{constraint})")
        self.sql(f"create table {table}_got (id bigint, value bigint)")
        self.sql(
            f"create function {table}_note() returns trigger language plpgsql as $$ begin "
            f"insert into {table}_got values (new.id, new.value); return null; end $$"
        )
        self.sql(f"create trigger note after insert or update on {table} for each row execute function {table}_note()")

    def options(self) -> dict[str, str]:
        return {"url": self.bootstrap, "table": self.stream}

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.bootstrap, statement)

    def verify(self) -> None:
        rows = self.sql(f"select id, value from {self.stream}")
        assert sorted(rows) == sorted(self.table.rows().items())
        twice = self.sql(f"select id, value from {self.stream}_got group by id, value having count(*) > 1")
        assert twice == [], "a version of a row came twice"

"""The table in which a database's sink collects a snapshot, so that readers see it whole or not at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_lake_provider.replication.sinks.database_columns import print_add_column, printing_dialect, run_as_it_is
from airflow_lake_provider.replication.sinks.database_schema import is_wider, print_type
from airflow_lake_provider.replication.sinks.database_steps import UPSERTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.replication.sinks.database_copy import CopiedStep
    from airflow_lake_provider.replication.sinks.database_steps import RowsStep

SNAPSHOT_BEGINS = "lake_snapshot_"


class Aside:
    """The table that collects a snapshot's parts until the last one. It has the columns that the sink writes."""

    def __init__(self, connection: sa.Connection, seen: sa.Table) -> None:
        self._connection = connection
        self._seen = seen
        digest = hashlib.blake2b(f"{seen.schema or ''}.{seen.name}".encode(), digest_size=8).hexdigest()
        self._name = f"{SNAPSHOT_BEGINS}{digest}"

    def is_there(self) -> bool:
        """Whether a snapshot is durable in part."""
        if self._connection.dialect.name not in UPSERTS:
            return False
        return sa.inspect(self._connection).has_table(self._name, schema=self._seen.schema)

    def begin(self, step: RowsStep | CopiedStep) -> bool:
        """Create the table again, unless readers have no rows to lose; return whether it exists."""
        if self._connection.dialect.name not in UPSERTS:
            return False
        if self.is_there():
            self._table((), ()).drop(self._connection)
        if self._connection.execute(sa.select(sa.literal(1)).select_from(self._seen).limit(1)).first() is None:
            return False
        names = [*step.names] if step.names else [column.name for column in self._seen.c]
        like = sa.select(*(self._seen.c[name] for name in names)).where(sa.false()).compile(self._connection)
        key = _key_among(names, step)
        table = self._table(names, key)
        shown = self._connection.dialect.identifier_preparer.format_table(table)
        self._connection.execute(sa.text(f"create table {shown} as {like}"))
        if key:
            sa.Index(f"{self._name}_key", *(table.c[name] for name in key), unique=True).create(self._connection)
        return True

    def find(self, step: RowsStep | CopiedStep) -> sa.Table:
        """Return the table, with a column for each field of a step's rows."""
        names = self._names()
        # Columns that the sink's table got after the snapshot had begun.
        for name in [name for name in step.names if name not in names]:
            column = sa.Column(name, self._seen.c[name].type)
            dialect = printing_dialect(self._connection.dialect)
            run_as_it_is(self._connection, print_add_column(self._table(names, ()), column, dialect))
            names.append(name)
        self._widen()
        return self._table(names, _key_among(names, step))

    def _widen(self) -> None:
        """Give columns the types that those of the sink's table have got after the snapshot had begun."""
        dialect = printing_dialect(self._connection.dialect)
        if dialect.name != "postgresql":
            return
        for column in sa.inspect(self._connection).get_columns(self._name, self._seen.schema):
            kind = self._seen.c[column["name"]].type
            if is_wider(kind, column["type"]):
                run_as_it_is(self._connection, print_type(self._table((), ()), column["name"], kind, dialect))

    def end(self, *, is_whole: bool) -> None:
        """Replace the rows that readers see by the whole snapshot, if the table has it, and drop the table."""
        names = self._names()
        table = self._table(names, ())
        if is_whole:
            self._connection.execute(sa.delete(self._seen))
            self._connection.execute(sa.insert(self._seen).from_select(names, sa.select(table)))
        table.drop(self._connection)

    def _names(self) -> list[str]:
        return [column["name"] for column in sa.inspect(self._connection).get_columns(self._name, self._seen.schema)]

    def _table(self, names: Iterable[str], key: Iterable[str]) -> sa.Table:
        columns = [sa.Column(name, self._seen.c[name].type) for name in names]
        unique = [sa.UniqueConstraint(*key)] if key else []
        return sa.Table(self._name, sa.MetaData(), *columns, *unique, schema=self._seen.schema)


def _key_among(names: Iterable[str], step: RowsStep | CopiedStep) -> tuple[str, ...]:
    """Return the names of the key's columns, if they are all among these."""
    key = step.key
    return key if {*key} <= {*names} else ()

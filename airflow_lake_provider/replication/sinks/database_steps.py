"""What a transaction of a database's sink does to its table: rows with their keys upserted, keys deleted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from airflow_lake_provider.replication.sinks.database_columns import match_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UPSERTS: Mapping[str, Any] = MappingProxyType({"postgresql": postgresql.insert, "sqlite": sqlite.insert})
"""By dialect: their insert has `on conflict`, and a transaction of theirs may create and drop tables."""


@dataclass(frozen=True, slots=True)
class RowsStep:
    """Rows with their keys, and the keys of rows that are gone; with `begins_snapshot` no other row stays."""

    begins_snapshot: bool
    gone: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The changes that brought the rows, where a refused one becomes a dead letter."""
    commit_time: str = ""
    letters: list[dict[str, str]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's fields; none without a row."""
        return tuple(self.keys[0]) if self.keys else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; none without a row."""
        return tuple(self.rows[0]) if self.rows else ()

    @property
    def size(self) -> int:
        """How many records it has."""
        return len(self.gone) + len(self.keys)

    def in_halves(self) -> tuple[RowsStep, RowsStep]:
        """Return two steps with half of the records each."""
        gone = len(self.gone) // 2
        kept = len(self.keys) // 2
        if len(self.gone) + len(self.keys) == 2 and len(self.gone) == 1:
            gone = 1
        return (
            replace(self, gone=self.gone[:gone], keys=self.keys[:kept], rows=self.rows[:kept], texts=self.texts[:kept]),
            replace(self, gone=self.gone[gone:], keys=self.keys[kept:], rows=self.rows[kept:], texts=self.texts[kept:]),
        )


def apply_step(connection: sa.Connection, table: sa.Table, step: RowsStep) -> None:
    """Write a step's rows and delete those that are gone, in the connection's transaction."""
    upsert = _find_upsert(connection, table, step)
    # A null is in no constraint's way, and `on conflict` takes it for another value.
    is_upserted = [upsert is not None and None not in key.values() for key in step.keys]
    others = [key for key, is_so in zip(step.keys, is_upserted, strict=True) if not is_so]
    doomed = [*step.gone, *others]
    if doomed and not step.begins_snapshot:
        _delete(connection, table, doomed)
    for wanted, statement in ((True, upsert), (False, sa.insert(table))):
        rows = [row for row, is_so in zip(step.rows, is_upserted, strict=True) if is_so is wanted]
        if rows and statement is not None:
            connection.execute(statement, rows)


def _delete(connection: sa.Connection, table: sa.Table, keys: Iterable[Mapping[str, Any]]) -> None:
    """Delete the rows with these keys, in which a null is a value as any other."""
    by_nulls: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for key in keys:
        by_nulls.setdefault(frozenset(name for name, value in key.items() if value is None), []).append(key)
    for nulls, alike in by_nulls.items():
        matches = [
            table.c[name].is_(None) if name in nulls else match_key(table.c[name], sa.bindparam(f"key_{name}"))
            for name in alike[0]
        ]
        values = [{f"key_{name}": value for name, value in key.items() if name not in nulls} for key in alike]
        connection.execute(sa.delete(table).where(*matches), values if values[0] else None)


def _find_upsert(connection: sa.Connection, table: sa.Table, step: RowsStep) -> Any | None:
    """Return the statement that replaces a row where its key is there, columns apart that it does not name.

    None where the database has none, or the key is not unique in the table.
    """
    insert = UPSERTS.get(connection.dialect.name)
    if insert is None or not step.rows or step.begins_snapshot:
        return None
    key = {*step.key}
    if not is_unique(table, key):
        return None
    statement = insert(table)
    others = {name: statement.excluded[name] for name in step.rows[0] if name not in key}
    if not others:
        return statement.on_conflict_do_nothing(index_elements=sorted(key))
    return statement.on_conflict_do_update(index_elements=sorted(key), set_=others)


def is_unique(table: sa.Table, key: Iterable[str]) -> bool:
    """Whether the key is the table's primary key, or a unique constraint of it."""
    constraints = [
        found for found in table.constraints if isinstance(found, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))
    ]
    return any({column.name for column in found.columns} == {*key} for found in constraints)

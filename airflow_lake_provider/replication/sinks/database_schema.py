"""How a table follows the schema of its rows: the statements that make it, add columns and widen them; pure.

Any number of runs may need the same statements: each runs what the table, as it reads it, still lacks, and where the
database refuses, it reads the table again, for another run may have been faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_lake_provider.replication.change import RowTypes
from airflow_lake_provider.replication.sinks.database_columns import plain_name, print_add_column, type_of, types_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SIZES: tuple[tuple[type[sa.types.TypeEngine[Any]], int], ...] = (
    (sa.SmallInteger, 5),
    (sa.BigInteger, 19),
    (sa.Integer, 10),
)
"""Integers by how many digits they have; a type before the one that it is a kind of."""

MAX_COLUMNS = 1600
"""Of a table of PostgreSQL's, those that were dropped included."""
MAX_NAME_BYTES = 63
"""Of a name that PostgreSQL keeps: it cuts the rest off, and says so in a notice alone."""


def find_obstacle(table: sa.Table, names: Iterable[str]) -> str:
    """Return why a table of PostgreSQL's cannot have columns of these names as well; empty where it can."""
    known = {column.name for column in table.c}
    new = [name for name in dict.fromkeys(names) if name not in known]
    cut = next((name for name in new if len(name.encode()) > MAX_NAME_BYTES), None)
    if cut is not None:
        return f"PostgreSQL keeps {MAX_NAME_BYTES} bytes of a name, and column {cut!r} has {len(cut.encode())}"
    if len(known) + len(new) > MAX_COLUMNS:
        return f"PostgreSQL has {MAX_COLUMNS} columns in a table at most, and this one needs {len(known) + len(new)}"
    return ""


def print_table(
    table: sa.Table, schema: str, key: Sequence[str], wanted: Sequence[str], dialect: sa.Dialect
) -> list[str]:
    """Return the statement that gives a table without columns those of a schema, or `wanted`, and its key.

    The key is a unique constraint, no primary key: a partition may be null.
    """
    types = types_of(schema, dialect.name)
    names = [*dict.fromkeys((*key, *(wanted or types)))]
    nested = {name: _type_at(schema, name, dialect.name) for name in key}
    columns = [
        sa.Column(name, types[name] if name in types else nested[name]) for name in names if name in {*types, *key}
    ]
    shown = ", ".join(f"add column {sa.schema.CreateColumn(column).compile(dialect=dialect)}" for column in columns)
    quoted = ", ".join(dialect.identifier_preparer.quote(name) for name in key)
    return [f"alter table {dialect.identifier_preparer.format_table(table)} {shown}, add unique ({quoted})"]


def _type_at(schema: str, path: str, dialect: str) -> sa.types.TypeEngine[Any]:
    """Return the type of a part of a column (`a.b`); text where the schema has none, as of a partition's path."""
    types = RowTypes(schema)
    kind: Any = types.record
    for name in path.split("."):
        fields = kind.get("fields", ()) if isinstance(kind, dict) else ()
        found = next((field["type"] for field in fields if field["name"] == name), None)
        if found is None:
            return sa.Text()
        kind, _ = types.resolve(found)
    return type_of(kind, dialect)


def print_added(
    table: sa.Table, missing: Iterable[str], types: Mapping[str, sa.types.TypeEngine[Any]], dialect: sa.Dialect
) -> list[str]:
    """Return the statements that add columns."""
    return [print_add_column(table, sa.Column(name, types[name]), dialect) for name in missing]


def print_widened(table: sa.Table, schema: str, names: Iterable[str], dialect: sa.Dialect) -> list[str]:
    """Return the statements that widen the columns that are narrower than the schema's."""
    # A float fits a real column, although one that is made for it is wider.
    floats = {field["name"] for field in _fields(schema) if plain_name(field["type"]) == "float"}
    types = types_of(schema, dialect.name)
    narrow = [name for name in names if name in types and name in table.c and name not in floats]
    return [
        print_type(table, name, types[name], dialect) for name in narrow if is_wider(types[name], table.c[name].type)
    ]


def _fields(schema: str) -> list[dict[str, Any]]:
    types = RowTypes(schema)
    return [{"name": field["name"], "type": types.resolve(field["type"])[0]} for field in types.record["fields"]]


def print_type(table: sa.Table, name: str, kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> str:
    """Return the statement that gives a column another type."""
    quote = dialect.identifier_preparer
    shown = kind.compile(dialect=dialect)
    return f"alter table {quote.format_table(table)} alter column {quote.quote(name)} type {shown}"


def is_wider(want: sa.types.TypeEngine[Any], have: sa.types.TypeEngine[Any]) -> bool:
    """Whether one type has all values of another, as Avro's schemas may grow, and more."""
    if isinstance(have, sa.Integer):
        digits = _digits(have)
        if isinstance(want, sa.Integer):
            return _digits(want) > digits
        return isinstance(want, sa.Double) or (_is_decimal(want) and _whole_digits(want) >= digits)
    if isinstance(have, sa.REAL):
        return isinstance(want, sa.Double)
    if _is_decimal(have) and _is_decimal(want):
        grows = (_whole_digits(want) - _whole_digits(have), _scale(want) - _scale(have))
        return _precision(have) is not None and min(grows) >= 0 and grows != (0, 0)
    return isinstance(have, sa.String) and have.length is not None and isinstance(want, sa.Text)


def _digits(kind: sa.Integer) -> int:
    return next(digits for each, digits in _SIZES if isinstance(kind, each))


def _is_decimal(kind: sa.types.TypeEngine[Any]) -> bool:
    return isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float)


def _precision(kind: Any) -> int | None:
    return kind.precision  # type: ignore[no-any-return]


def _scale(kind: Any) -> int:
    return kind.scale or 0


def _whole_digits(kind: Any) -> int:
    return (kind.precision or 0) - _scale(kind)


def explain_unique(connection: sa.Connection, table: sa.Table, error: sa.exc.IntegrityError) -> str:
    """Return what to run where a constraint of PostgreSQL's, besides the key, refuses rows that swap their values."""
    named = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    constraints = sa.inspect(connection).get_unique_constraints(table.name, table.schema) if named else []
    columns = next((each["column_names"] for each in constraints if each["name"] == named), None)
    if columns is None:
        return ""
    quote = connection.dialect.identifier_preparer
    name = quote.quote(str(named))
    listed = ", ".join(quote.quote(str(column)) for column in columns)
    return (
        f"rows of one commit may swap such values: run alter table {quote.format_table(table)} drop constraint {name}, "
        f"add constraint {name} unique ({listed}) deferrable initially deferred"
    )

"""Columns of a database sink: which types they get where the sink adds them, and values on their way in and back.

A row comes as JSON, by the types of the table's Avro schema; a column accepts it as its own type says, and what is read
back is JSON again.
"""

from __future__ import annotations

import base64
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_lake_provider.replication.change import RowTypes, load_json, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_SCALARS: Mapping[str, Callable[[], sa.types.TypeEngine[Any]]] = MappingProxyType(
    {
        "boolean": sa.Boolean,
        "int": sa.Integer,
        "long": sa.BigInteger,
        "float": sa.Double,
        "double": sa.Double,
        "bytes": sa.LargeBinary,
        "fixed": sa.LargeBinary,
        "date": sa.Date,
        "timestamp-millis": lambda: sa.DateTime(timezone=True),
        "timestamp-micros": lambda: sa.DateTime(timezone=True),
        "local-timestamp-millis": sa.DateTime,
        "local-timestamp-micros": sa.DateTime,
        **dict.fromkeys(("record", "array", "map"), sa.JSON),
    }
)
"""Types of columns that are added, by logical or plain type in the table's Avro schema; others are texts."""


def types_of(schema: str, dialect: str) -> dict[str, sa.types.TypeEngine[Any]]:
    """Return the types of the columns of an Avro schema; none where a commit names no schema."""
    if not schema:
        return {}
    types = RowTypes(schema)
    return {field["name"]: _type_of(types.resolve(field["type"])[0], dialect) for field in types.record["fields"]}


def _type_of(kind: Any, dialect: str) -> sa.types.TypeEngine[Any]:
    logical = kind.get("logicalType", "") if isinstance(kind, dict) else ""
    if logical == "decimal" and dialect != "sqlite":  # whose numbers are floats
        return sa.Numeric(int(kind["precision"]), int(kind.get("scale", 0)))
    if logical == "decimal":
        return sa.Text()
    return (_SCALARS.get(logical) or _SCALARS.get(kind if isinstance(kind, str) else kind["type"]) or sa.Text)()


def print_add_column(table: sa.Table, column: sa.Column[Any], dialect: sa.Dialect) -> str:
    """Return the statement that adds a column."""
    shown = dialect.identifier_preparer.format_table(table)
    return f"alter table {shown} add column {sa.schema.CreateColumn(column).compile(dialect=dialect)}"


def create_engine(url: str) -> sa.Engine:
    """Return an engine whose JSON columns keep all digits of decimals."""
    try:
        return sa.create_engine(url, json_serializer=print_json)
    except TypeError:  # a database without a JSON type has no such setting
        return sa.create_engine(url)


def keeps_decimals_of(dialect: sa.Dialect) -> bool:
    """Whether the driver accepts decimals: `supports_native_decimal` is false for PostgreSQL's drivers too."""
    process = sa.Numeric().dialect_impl(dialect).bind_processor(dialect)
    return process is None or not isinstance(process(Decimal(1)), float)


def to_json_value(column: sa.Column[Any], value: Any) -> Any:
    """Return a value that was read back, or would be: JSON in a text column as what it stands for."""
    if isinstance(value, str) and value[:1] in "{[" and value and _python_type(column) is str:
        try:
            return load_json(value)
        except ValueError:
            return value
    return value


def to_column_value(column: sa.Column[Any], value: Any, *, keeps_decimals: bool) -> Any:
    """Return a JSON value as the column's type accepts it. Raises ValueError."""
    if value is None or isinstance(column.type, sa.JSON):
        return value
    if isinstance(value, (dict, list)):
        return print_json(value)
    if isinstance(value, Decimal):
        return _bound_number(column, value, keeps_decimals=keeps_decimals)
    if isinstance(value, str):
        parser = _PARSERS.get(_python_type(column))
        return value if parser is None else parser(value)
    return value


def _bound_number(column: sa.Column[Any], value: Decimal, *, keeps_decimals: bool) -> Any:
    """Return a number with a fraction or exponent: exact where the column is, a float elsewhere."""
    kind = _python_type(column)
    if kind is str:
        return str(value)
    if kind is int and value == value.to_integral_value():
        return int(value)
    if kind is not Decimal and not (kind is object and keeps_decimals):
        return float(value)
    if keeps_decimals:
        return value
    number = float(value)
    # Java prints some doubles with one digit more than they need.
    if value not in {Decimal(repr(number)), Decimal(f"{number:.17g}")}:
        raise ValueError(
            f"column {column.name} would store {number!r} for {value}: this database has no exact decimals, declare "
            "the column as text"
        )
    return value


def _python_type(column: sa.Column[Any]) -> type:
    """Return the type of the column's values; `object` where SQLAlchemy does not know it."""
    try:
        return column.type.python_type
    except NotImplementedError:
        return object


_PARSERS: Mapping[type, Callable[[str], Any]] = MappingProxyType(
    {
        datetime: datetime.fromisoformat,
        date: date.fromisoformat,
        Decimal: Decimal,
        bytes: base64.b64decode,
    }
)

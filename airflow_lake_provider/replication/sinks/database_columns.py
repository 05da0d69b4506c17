"""Columns of a database sink: which types they get where the sink adds them, and values on their way in and back.

A row comes as JSON, by the types of the table's Avro schema; a column accepts it as its own type says, and what is read
back is JSON again.
"""

from __future__ import annotations

import base64
import math
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import RowTypes, load_json, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


TYPES: Mapping[str, Callable[[], sa.types.TypeEngine[Any]]] = MappingProxyType(
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
"""Types of columns that the sink makes, by logical or plain type in the table's Avro schema; others are texts.

docs/replication-sinks.md has the same table."""


MYSQL = ("mysql", "mariadb")
"""The names by which SQLAlchemy knows them."""


def types_of(schema: str, dialect: str) -> dict[str, sa.types.TypeEngine[Any]]:
    """Return the types of the columns of an Avro schema; none where a commit names no schema."""
    if not schema:
        return {}
    types = RowTypes(schema)
    return {field["name"]: type_of(types.resolve(field["type"])[0], dialect) for field in types.record["fields"]}


def plain_name(kind: Any) -> str:
    """Return the logical type of a resolved Avro schema, or its plain one."""
    return str(kind if isinstance(kind, str) else kind.get("logicalType") or kind["type"])


def type_of(kind: Any, dialect: str) -> sa.types.TypeEngine[Any]:
    """Return the type of the column for a resolved Avro schema."""
    name = plain_name(kind)
    if name == "decimal" and dialect != "sqlite":  # whose numbers are floats
        return sa.Numeric(int(kind["precision"]), int(kind.get("scale", 0)))
    if name == "decimal":
        return sa.Text()
    found = (TYPES.get(name) or TYPES.get(kind if isinstance(kind, str) else kind["type"]) or sa.Text)()
    if dialect not in MYSQL:
        return found
    # Its own have no fractions of seconds, and end at 64 KiB.
    if isinstance(found, sa.DateTime):
        return mysql.DATETIME(fsp=6)
    if isinstance(found, sa.LargeBinary):
        return mysql.LONGBLOB()
    return mysql.LONGTEXT() if isinstance(found, sa.Text) else found


def printing_dialect(dialect: sa.Dialect) -> sa.Dialect:
    """Return a dialect that prints statements for `run_as_it_is`: it doubles no percent signs."""
    return type(dialect)(paramstyle="named")  # type: ignore[call-arg]


def print_add_column(table: sa.Table, column: sa.Column[Any], dialect: sa.Dialect) -> str:
    """Return the statement that adds a column."""
    shown = dialect.identifier_preparer.format_table(table)
    return f"alter table {shown} add column {sa.schema.CreateColumn(column).compile(dialect=dialect)}"


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a sink waits for its database."""

    connect_s: float = 60.0
    """For a connection, for an answer on the wire, and for a lock that another session has."""
    statement_s: float = 3600.0


_POSTGRESQL = {"psycopg2": "psycopg2", "psycopg": "psycopg"}
_MYSQL = {"pymysql": "pymysql", "mysqldb": "MySQLdb", "mysqlconnector": "mysql.connector"}
_DRIVERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"postgresql": _POSTGRESQL, **dict.fromkeys(MYSQL, _MYSQL)}
)
"""By dialect: drivers with their modules, in the order in which an address that names none gets one."""
_TO_INSTALL = MappingProxyType({"postgresql": "psycopg2-binary or psycopg[binary]", **dict.fromkeys(MYSQL, "PyMySQL")})


def create_engine(address: str, waits: Waits | None = None) -> sa.Engine:
    """Return an engine whose JSON columns keep all digits of decimals, and whose sessions are as the sink needs them.

    Raises ConfigError for an address that is none, and for a driver that is not installed.
    """
    waits = waits or Waits()
    try:
        url = _with_driver(sa.make_url(address))
        if "@" in (url.host or ""):
            # The driver would name the rest of the password as a host that it does not find.
            raise ConfigError("url of the database sink has an @ in its login: write it as %40")
        settings: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql" and url.get_driver_name() in _POSTGRESQL:
            wire = {"connect_timeout": max(2, int(waits.connect_s)), "tcp_user_timeout": int(waits.connect_s * 1000)}
            settings["connect_args"] = {name: value for name, value in wire.items() if name not in url.query}
        elif url.get_driver_name() == "pymysql":
            # A statement's time-out is the wire's here: only MariaDB has one of its own.
            wire = {"connect_timeout": int(waits.connect_s), "read_timeout": int(waits.statement_s)}
            settings["connect_args"] = {name: value for name, value in wire.items() if name not in url.query}
        try:
            engine = sa.create_engine(url, json_serializer=print_json, hide_parameters=True, **settings)
        except TypeError:  # a database without a JSON type has no such setting
            engine = sa.create_engine(url, hide_parameters=True, **settings)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the database needs {error.name} on Spark's driver: install it there") from error
    except sa.exc.ArgumentError as error:
        raise ConfigError(
            "url of the database sink is no address of SQLAlchemy's (dialect://user@host/name)"
        ) from error
    session = _print_session(engine.dialect.name, waits)
    if session:
        # Of each transaction and not of the session: a pooler may give each one another session.
        sa.event.listen(engine, "begin", lambda connection: run_as_it_is(connection, session))
    return engine


def _print_session(dialect: str, waits: Waits) -> str:
    """Return the statement that makes a session the sink's own; empty for a database that has no such settings."""
    lock_s = max(1, int(waits.connect_s))
    if dialect == "postgresql":
        return (
            f"set local time zone 'UTC'; set local lock_timeout = {int(waits.connect_s * 1000)}; "
            f"set local statement_timeout = {int(waits.statement_s * 1000)}; "
            # Rows that a policy hides would stay when they should go: the server refuses such a statement now. And the
            # driver would keep whatever a trigger says to its client.
            "set local row_security = off; set local client_min_messages = error"
        )
    if dialect in MYSQL:
        # Without strict mode a value that does not fit is cut, and the statement succeeds.
        return (
            "set session time_zone = '+00:00', sql_mode = concat_ws(',', nullif(@@sql_mode, ''), 'STRICT_ALL_TABLES'), "
            f"innodb_lock_wait_timeout = {lock_s}, lock_wait_timeout = {lock_s}"
        )
    return ""


def find_loose_collations(connection: sa.Connection, table: sa.Table) -> dict[str, str]:
    """Return the text columns of a table in MySQL or MariaDB that take different texts for one, with their collations.

    `a` and `A` are one where case is ignored, and `a` and `a ` where texts are padded. A reflected column does not say
    the collation that it has from its table.
    """
    query = sa.text(
        "select column_name, collation_name from information_schema.columns "
        "where table_schema = coalesce(:schema, database()) and table_name = :name and collation_name is not null"
    )
    found = connection.execute(query, {"schema": table.schema, "name": table.name})
    return {name: collation for name, collation in found if not collation.endswith(("_nopad_bin", "_0900_bin"))}


def run_as_it_is(connection: sa.Connection, statement: str) -> None:
    """Run a statement without parameters: SQLAlchemy takes a colon or percent sign in a name for one."""
    # With a cursor of its own: the connection's may be one of the server, which runs queries alone.
    use_cursor(connection, statement, lambda cursor: cursor.execute(statement))


def use_cursor(connection: sa.Connection, statement: str, use: Callable[[Any], None]) -> None:
    """Use a cursor of the driver's. Raises its errors as SQLAlchemy raises those of its own statements."""
    dialect = connection.dialect
    errors: Any = dialect.loaded_dbapi
    try:
        with in_statement(connection.info), closing(connection.connection.cursor()) as cursor:
            use(cursor)
    except errors.Error as error:
        is_lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
        raise DBAPIError.instance(
            statement, None, error, errors.Error, hide_parameters=True, connection_invalidated=is_lost, dialect=dialect
        ) from error


STATEMENT_SINCE_S = "lake_statement_since_s"
"""In a connection's `info` while a statement runs: when it began, by the monotonic clock."""


@contextmanager
def in_statement(info: dict[Any, Any]) -> Iterator[None]:
    """Note that a statement runs meanwhile."""
    info[STATEMENT_SINCE_S] = time.monotonic()
    try:
        yield
    finally:
        info.pop(STATEMENT_SINCE_S, None)


def _with_driver(url: sa.URL) -> sa.URL:
    """Return an address with a driver that is installed, where it names none: SQLAlchemy's own choice varies."""
    if "+" in url.drivername:
        return url
    dialect = {"postgres": "postgresql"}.get(url.drivername, url.drivername)
    drivers = _DRIVERS.get(dialect)
    if drivers is None:
        return url
    found = next((driver for driver, module in drivers.items() if find_spec(module) is not None), None)
    if found is None:
        raise ConfigError(f"the database needs a driver of {dialect} on Spark's driver: install {_TO_INSTALL[dialect]}")
    return url.set(drivername=f"{dialect}+{found}")


def kind_of(value: Any) -> str:
    """Return what a value is, without the value."""
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    names = {dict: "record", list: "list", bool: "boolean", int: "integer", Decimal: "decimal", type(None): "null"}
    return names.get(type(value), type(value).__name__)


_LARGEST = ((sa.SmallInteger, 2**15), (sa.BigInteger, 2**63), (sa.Integer, 2**31))
"""Integers by their first number that does not fit; a type before the one that it is a kind of."""


def find_misfit(table: sa.Table, row: Mapping[str, Any], dialect: str) -> str:
    """Return which column is too small for its value, and what to run; empty when none is."""
    for name, value in row.items():
        column = table.c[name]
        if isinstance(value, str) and "\0" in value:
            return f"column {name} ({column.type}) cannot have a text with U+0000"
        wider = _wider_type(column, value)
        if wider:
            change = f"alter column {name} {wider}"
            if dialect in MYSQL:
                change = f"modify column {name} {wider.removeprefix('type ') if value is not None else column.type}"
            return (
                f"column {name} ({column.type}) cannot have this {kind_of(value)}: run alter table {table.name} "
                f"{change}"
            )
    return ""


def _wider_type(column: sa.Column[Any], value: Any) -> str:
    kind = column.type
    if value is None:
        return "" if column.nullable else "drop not null"
    if isinstance(kind, sa.Integer) and isinstance(value, int):
        end = next(end for each, end in _LARGEST if isinstance(kind, each))
        return "" if -end <= value < end else ("type numeric" if end == 2**63 else "type bigint")
    if isinstance(kind, sa.Numeric) and isinstance(value, (int, Decimal)) and kind.precision is not None:
        most: int = 10 ** (kind.precision - (kind.scale or 0))
        return "" if -most < value < most else "type numeric"
    if isinstance(kind, sa.String) and isinstance(value, str) and kind.length is not None:
        return "" if len(value) <= kind.length else "type text"
    return ""


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
    if isinstance(column.type, sa.ARRAY):
        return _to_array(column, value, keeps_decimals=keeps_decimals)
    if isinstance(value, (dict, list)):
        return print_json(value)
    if isinstance(column.type, _FLOATS_OF_MYSQL):
        return _finite(value)
    if isinstance(value, Decimal):
        return _bound_number(column, value, keeps_decimals=keeps_decimals)
    if isinstance(value, str):
        parser = _PARSERS.get(_python_type(column))
        return value if parser is None else parser(value)
    if isinstance(value, int) and _python_type(column) is str:
        # PostgreSQL stores a number as a text, and then compares none with a text.
        return print_json(value)
    return value


def _to_array(column: sa.Column[Any], value: Any, *, keeps_decimals: bool) -> list[Any]:
    """Return a list for a column of arrays, with items as their type accepts them. Raises ValueError."""
    if not isinstance(value, list):
        # Of a text, SQLAlchemy would make an array of its characters.
        raise ValueError("the column has arrays")
    item: sa.Column[Any] = sa.Column(column.name, column.type.item_type)  # type: ignore[attr-defined]
    return [
        to_column_value(column if isinstance(each, list) else item, each, keeps_decimals=keeps_decimals)
        for each in value
    ]


def match_key(column: sa.Column[Any], value: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
    """Return the comparison of a column of the key with a value: a number of half the digits is none of all."""
    if isinstance(column.type, (sa.REAL, mysql.FLOAT)):
        return column == sa.cast(value, column.type)
    return column == value


_FLOATS_OF_MYSQL = (mysql.DOUBLE, mysql.FLOAT, mysql.REAL)


def _finite(value: Any) -> float:
    """Return a number for a column of doubles in MySQL, whose driver writes a decimal with 65 digits at most."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("MySQL and MariaDB have no NaN and no infinity")
    return number


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

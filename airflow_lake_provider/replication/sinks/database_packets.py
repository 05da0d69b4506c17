"""How many bytes a statement and a row may have on MySQL and MariaDB.

A server that gets a larger statement ends the connection without an answer, so the sink reckons before it sends one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_lake_provider.replication.sinks.database_columns import MYSQL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ROOM_BYTES = 4096
"""Of a statement besides a record's values: the names of table and columns, with a margin."""
_ESCAPED = "\0\n\r\x1a\"'\\"
_ROW_TOO_LARGE = 1118
_MAX_PACKET_BYTES = 1 << 30
"""The largest value of `max_allowed_packet`."""


def find_max_packet_bytes(connection: sa.Connection) -> int:
    """Return the server's `max_allowed_packet` in bytes; 0 where a statement has no such bound."""
    if connection.dialect.name not in MYSQL:
        return 0
    return int(connection.execute(sa.text("select @@max_allowed_packet")).scalar_one())


def find_excess(values: Iterable[Any], max_bytes: int) -> str:
    """Return why a statement with these values is too large, and what to run; empty where it fits."""
    size = _ROOM_BYTES + sum(map(_literal_bytes, values)) if max_bytes else 0
    if size <= max_bytes:
        return ""
    if size > _MAX_PACKET_BYTES:
        return f"its statement has {size} bytes, and no server takes more than {_MAX_PACKET_BYTES}"
    needed = -(-size // 1_048_576) * 1_048_576
    return (
        f"its statement has {size} bytes, and the server takes max_allowed_packet = {max_bytes}: run set global "
        f"max_allowed_packet = {needed}, and set it in the server's file of settings as well"
    )


def is_of_row_size(error: sa.exc.DBAPIError) -> bool:
    """Whether the server refused a row that is larger than half a page, the most that InnoDB keeps together."""
    return getattr(error.orig, "args", ())[:1] == (_ROW_TOO_LARGE,)


def explain_row_size(table: sa.Table, row: Mapping[str, Any]) -> str:
    """Return what to run so that long values leave the row's page."""
    longest = max((name for name in row if isinstance(row[name], str)), key=lambda name: len(row[name]), default="")
    column = f", modify column {longest} text" if longest else ""
    return f"run alter table {table.name} row_format=dynamic{column}, and the same for other columns of long texts"


def _literal_bytes(value: Any) -> int:
    """Return the bytes of a value in a statement: bytes are hexadecimal, some characters follow a backslash."""
    if isinstance(value, bytes):
        return 2 * len(value) + len("_binary X'', ")
    text = str(value)
    return len(text.encode()) + sum(map(text.count, _ESCAPED)) + len("'', ")

"""Columns of plain types as JSON: each value in the text that Spark's `to_json` makes of it, from Arrow's columns."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lake_jobs.replication.change_columns import META_PREFIX
from lake_jobs.replication.log_records import NotAlikeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FIRST_YEAR = 1900
"""What is older may be in the calendar of before 1582, and Spark asks its settings what to make of it."""
_PLAIN_DOUBLES = 1e-3, 1e7
"""From and below which Java prints a double without an exponent."""
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES = {chr(code): f"\\u{code:04X}" for code in range(0x20)} | {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """A column of a table, with Arrow's type of it and the function that prints its values as JSON."""

    name: str
    kind: Any
    print: Callable[[Any], Iterable[str]]


@lru_cache(maxsize=256)
def plain_columns(schema: str) -> tuple[PlainColumn, ...] | None:
    """Return the columns of an Avro schema, without Hudi's meta fields; None where one is left to Spark.

    It also is None where the driver lacks Arrow's package.
    """
    try:
        import pyarrow  # noqa: F401 - the driver may lack it

        fields = [found for found in json.loads(schema)["fields"] if not found["name"].startswith(META_PREFIX)]
        columns = [_plain_column(found["name"], found["type"]) for found in fields]
    except (ModuleNotFoundError, NotAlikeError, *_NO_SCHEMA):
        return None
    return tuple(columns)


_NO_SCHEMA = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a text raises that is no schema of a row, such as that of a commit which another program wrote."""


@lru_cache(maxsize=256)
def names_in(schema: str) -> tuple[str, ...]:
    """Return the names of an Avro schema's columns without Hudi's meta fields; none of what is no schema of a row."""
    try:
        names = (str(found["name"]) for found in json.loads(schema)["fields"])
        return tuple(name for name in names if not name.startswith(META_PREFIX))
    except _NO_SCHEMA:
        return ()


def can_be_key(columns: Sequence[PlainColumn], key: Sequence[str]) -> bool:
    """Whether a key's fields are columns whose text is the same in each Java: fractions have shorter ones in some."""
    import pyarrow as pa

    kinds = {column.name: column.kind for column in columns}
    return all(name in kinds and kinds[name] != pa.float64() for name in key)


def _plain_column(name: str, kind: Any) -> PlainColumn:
    import pyarrow as pa

    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise NotAlikeError(f"column {name} is one of several types")
        kind = others[0]
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    base = kind["type"] if isinstance(kind, dict) else kind
    if logical == "decimal" and base in ("bytes", "fixed"):
        return PlainColumn(name, pa.decimal128(int(kind["precision"]), int(kind.get("scale", 0))), _decimals)
    known: dict[tuple[str, str | None], tuple[Any, Callable[[Any], Iterable[str]]]] = {
        ("string", None): (pa.string(), _strings),
        ("int", None): (pa.int32(), _numbers),
        ("long", None): (pa.int64(), _numbers),
        ("boolean", None): (pa.bool_(), _booleans),
        ("double", None): (pa.float64(), _doubles),
        ("bytes", None): (pa.binary(), _bytes),
        ("int", "date"): (pa.date32(), _dates),
        ("long", "timestamp-micros"): (pa.timestamp("us", "UTC"), _times),
        ("long", "local-timestamp-micros"): (pa.timestamp("us"), _local_times),
    }
    if not isinstance(base, str) or (base, logical) not in known:
        raise NotAlikeError(f"column {name} is of another type")
    return PlainColumn(name, *known[base, logical])


def _printed(values: Any, one: Callable[[Any], str]) -> list[str]:
    return ["null" if value is None else one(value) for value in values.to_pylist()]


def _strings(values: Any) -> list[str]:
    return _printed(values, quote)


def _numbers(values: Any) -> list[str]:
    return _printed(values, str)


def _booleans(values: Any) -> list[str]:
    return _printed(values, lambda value: "true" if value else "false")


def _doubles(values: Any) -> list[str]:
    return _printed(values, java_double)


def _decimals(values: Any) -> list[str]:
    # Python and Java print decimals by the same rules.
    return _printed(values, str)


def _bytes(values: Any) -> list[str]:
    return _printed(values, lambda value: f'"{base64.b64encode(value).decode()}"')


def _dates(values: Any) -> list[str]:
    return _printed(values, lambda value: f'"{_of_our_calendar(value).isoformat()}"')


def _times(values: Any) -> list[str]:
    import pyarrow as pa

    # The same moments in UTC, as all times here are.
    return _printed(values.cast(pa.timestamp("us")), lambda value: f'"{_time_text(value)}Z"')


def _local_times(values: Any) -> list[str]:
    return _printed(values, lambda value: f'"{_time_text(value)}"')


def _time_text(value: Any) -> str:
    return str(_of_our_calendar(value).isoformat(timespec="microseconds"))


def _of_our_calendar(value: Any) -> Any:
    if value.year < _FIRST_YEAR:
        raise NotAlikeError(f"a time of the year {value.year}")
    return value


def quote(text: str) -> str:
    """Return a text in quotes, with the characters escaped that Java's writer of JSON escapes."""
    return f'"{_ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)}"'


def java_double(value: float) -> str:
    """Return a number as Java prints it; what is none is a text to Spark's writer of JSON."""
    if value != value:
        return '"NaN"'
    if value in (float("inf"), float("-inf")):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    least, most = _PLAIN_DOUBLES
    if value == 0 or least <= abs(value) < most:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    power = int(exponent) + len(rest)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{power}"

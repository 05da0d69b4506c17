"""The rows of a table that an entry's `where` lets out, and what becomes of a row that begins or ceases to fit; pure.

To the sink, the rows that fit are the table: a row that ceases to fit is deleted, and one that begins to is inserted.
Rows are compared as JSON has them, in which dates and times are texts of one form, whose order is that of time.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import Change, ChangeMode, Op, load_json
from airflow_lake_provider.sink_options.where import ColumnComparison, Operator, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_COMPARE: Mapping[Operator, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        Operator.EQUAL: operator.eq,
        Operator.NOT_EQUAL: operator.ne,
        Operator.LESS: operator.lt,
        Operator.AT_MOST: operator.le,
        Operator.MORE: operator.gt,
        Operator.AT_LEAST: operator.ge,
    }
)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Comparisons whose values are those that a row's JSON has; without any, all rows fit."""

    comparisons: tuple[ColumnComparison, ...] = ()

    def fits(self, row: str) -> bool:
        """Whether a row, as JSON, fits. A column that it lacks is null."""
        if not self.comparisons:
            return True
        values = load_json(row)
        return all(_holds(each, values.get(each.column)) for each in self.comparisons)

    def changes(self, changes: Sequence[Change], mode: ChangeMode) -> Sequence[Change]:
        """Return what a sink gets of these changes.

        In mode `latest` a change does not say what its row was before: the sink gets a delete of each key that is
        updated to a row that does not fit, and of each that is deleted, whether it has the key or not.
        """
        if not self.comparisons:
            return changes
        return [kept for change in changes if (kept := self._change(change, mode)) is not None]

    def _change(self, change: Change, mode: ChangeMode) -> Change | None:
        is_new = change.op in (Op.INSERT, Op.READ)
        knows_before = mode is ChangeMode.CHANGES and change.before is not None
        had = not is_new and (not knows_before or self.fits(change.before or ""))
        has = change.after is not None and self.fits(change.after)
        if has and (had or is_new):
            return change
        if has:
            return Change(Op.INSERT, change.key, None, change.after)
        if not had:
            return None
        return Change(Op.DELETE, change.key, change.before, None)


def filter_for(table: str, comparisons: Iterable[ColumnComparison], types: Mapping[str, str]) -> RowFilter:
    """Return the filter of a table. `types` are its columns' types in Spark's words. Raises ConfigError."""
    return RowFilter(tuple(_fit(table, each, types) for each in comparisons))


def _fit(table: str, comparison: ColumnComparison, types: Mapping[str, str]) -> ColumnComparison:
    column = comparison.column
    if column not in types:
        raise ConfigError(
            f"table {table} has no column {column!r} that reaches the sink as it is, and where compares it: the "
            f"columns are {', '.join(types)}"
        )
    kind = types[column].partition("(")[0]
    if comparison.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return comparison
    take = _TAKE.get(kind)
    if take is None:
        raise ConfigError(f"column {column} of table {table} is a {types[column]}: where asks it for null alone")
    try:
        values = tuple(map(take, comparison.values))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"column {column} of table {table} is a {types[column]}, and where has {error}") from error
    if kind == "boolean" and comparison.operator not in (Operator.EQUAL, Operator.NOT_EQUAL, Operator.IN):
        raise ConfigError(f"column {column} of table {table} is a boolean: where compares it by = and != alone")
    return ColumnComparison(column, comparison.operator, values)


def _take_text(value: Value) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value}: write a text, '{value}'")
    return value


def _take_number(value: Value) -> Decimal:
    if not isinstance(value, Decimal):
        raise TypeError(f"{value!r}: write a number")
    return value


def _take_flag(value: Value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r}: write true or false")
    return value


def _take_date(value: Value) -> str:
    try:
        return date.fromisoformat(_take_text(value)).isoformat()
    except ValueError:
        raise ValueError(f"{value!r}: write a date, '2026-06-01'") from None


def _take_moment(value: Value) -> str:
    wanted = f"{value!r}: write a time with its zone, '2026-06-01T10:00:00Z'"
    try:
        found = datetime.fromisoformat(_take_text(value))
    except ValueError:
        raise ValueError(wanted) from None
    if found.tzinfo is None:
        raise ValueError(wanted)
    return found.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _take_local_moment(value: Value) -> str:
    wanted = f"{value!r}: write a time without a zone, '2026-06-01T10:00:00'"
    try:
        found = datetime.fromisoformat(_take_text(value))
    except ValueError:
        raise ValueError(wanted) from None
    if found.tzinfo is not None:
        raise ValueError(wanted)
    return found.isoformat(timespec="microseconds")


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TAKE: Mapping[str, Callable[[Value], Value]] = MappingProxyType(
    {
        **dict.fromkeys(_NUMBERS, _take_number),
        "string": _take_text,
        "boolean": _take_flag,
        "date": _take_date,
        "timestamp": _take_moment,
        "timestamp_ntz": _take_local_moment,
    }
)


def _holds(comparison: ColumnComparison, value: Any) -> bool:
    if comparison.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return (value is None) is (comparison.operator is Operator.IS_NULL)
    if value is None:
        return False
    if isinstance(comparison.values[0], Decimal) and isinstance(value, str):
        # Infinity, or NaN, which is equal to nothing, and to none of these unequal either.
        value = Decimal(value)
        if value.is_nan():
            return False
    if comparison.operator is Operator.IN:
        return value in comparison.values
    return _COMPARE[comparison.operator](value, comparison.values[0])

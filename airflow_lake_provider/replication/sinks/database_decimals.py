"""Decimals that a column has fewer digits for after the point: PostgreSQL and MySQL round them without a word."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.replication.change import RowTypes
from airflow_lake_provider.replication.sinks.database_columns import MYSQL, type_of


@dataclass(frozen=True, slots=True)
class RoundedColumn:
    """A column whose rows may have decimals of more digits after the point than its type."""

    name: str
    scale: int
    """Digits after the point that the column has."""
    kind: str
    statement: str
    """What gives the column the schema's type."""

    def explain(self, value: Any) -> str:
        """Return why the column would change a value; empty where it has it as it is."""
        number = Decimal(str(value)) if isinstance(value, (Decimal, float)) else None
        if number is None or fraction_digits(number) <= self.scale:
            return ""
        return f"column {self.name} ({self.kind}) would round this decimal: run {self.statement}"


def find_rounded(schema: str, table: sa.Table, dialect: sa.Dialect) -> tuple[RoundedColumn, ...]:
    """Return the columns that may round decimals of rows with this schema. Doubles are rounded as the owner chose."""
    if not schema or dialect.name not in ("postgresql", *MYSQL):
        return ()
    try:
        types = RowTypes(schema)
    except SourceRefusedError:  # rows of a sink's own, whose values have no types
        return ()
    found = []
    for name, described in ((field["name"], field["type"]) for field in types.record["fields"]):
        try:
            want = type_of(types.resolve(described)[0], dialect.name)
        except SourceRefusedError:  # a union of types, which is no decimal alone
            continue
        if name not in table.c or not isinstance(want, sa.Numeric) or isinstance(want, sa.Float):
            continue
        have = table.c[name].type
        scale = _scale_of(have)
        if scale is None or (want.scale or 0) <= scale:
            continue
        quote = dialect.identifier_preparer
        verb = (
            f"modify column {quote.quote(name)}" if dialect.name in MYSQL else f"alter column {quote.quote(name)} type"
        )
        statement = f"alter table {quote.format_table(table)} {verb} {want.compile(dialect=dialect)}"
        found.append(RoundedColumn(name, scale, have.compile(dialect=dialect), statement))
    return tuple(found)


def fraction_digits(value: Decimal) -> int:
    """Return how many digits a number has after the point, without zeros at its end."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not any(digits):
        return 0
    zeros = next(count for count, digit in enumerate(reversed(digits)) if digit)
    return max(0, -exponent - zeros)


def _scale_of(kind: sa.types.TypeEngine[Any]) -> int | None:
    """Return the digits after the point of a type; None of one without a bound, or that rounds by its nature."""
    if isinstance(kind, sa.Integer):
        return 0
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float) and kind.precision is not None:
        return kind.scale or 0
    return None

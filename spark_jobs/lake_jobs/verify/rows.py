"""Compare two sets of rows: their number, and an order-free hash of them; and name keys where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.shared.plain_text import MAX_SHOWN_OF_KEY, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

MAX_KEYS = 5
"""Maximum number of keys that a difference names."""
UNIT = "_lake_unit"
"""The number of the compared unit that a row belongs to."""
_KEY = "_lake_key"
_HASH = "_lake_hash"
_BEFORE = "_lake_before"
_AFTER = "_lake_after"
_WIDE = T.DecimalType(38, 0)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows, and the sum of their hashes: equal for equal rows in any order."""

    rows: int
    hashes: int


NO_ROWS = Fingerprint(0, 0)


def row_hash(fields: Sequence[T.StructField]) -> Column:
    """Return a hash of a row: 64 bits in which nulls count by their place, and all NaN are one value."""
    return F.xxhash64(*(_comparable(F.col(f"`{field.name}`"), field.dataType) for field in fields))


def _comparable(value: Column, kind: T.DataType) -> Column:
    """Return a value in a form whose hash distinguishes nulls by their place, and does not depend on a map's order."""
    plain = value
    if isinstance(kind, T.StructType):
        plain = F.struct(*(_comparable(value[field.name], field.dataType).alias(field.name) for field in kind.fields))
    elif isinstance(kind, T.ArrayType):
        plain = F.transform(value, lambda item: _comparable(item, kind.elementType))
    elif isinstance(kind, T.MapType):
        plain = F.array_sort(F.transform(F.map_entries(value), lambda entry: _entry(entry, kind)))
    return F.struct(value.isNull().alias("is_null"), plain.alias("value"))


def _entry(entry: Column, kind: T.MapType) -> Column:
    key = _comparable(entry["key"], kind.keyType)
    value = _comparable(entry["value"], kind.valueType)
    return F.struct(key.alias("key"), value.alias("value"))


def align(rows: DataFrame, fields: Sequence[T.StructField]) -> DataFrame:
    """Return rows with these columns and the unit: a column that the rows lack is null."""
    present = {field.name: field.dataType for field in rows.schema.fields}
    return rows.select(UNIT, *(_aligned(field, present) for field in fields))


def _aligned(field: T.StructField, present: Mapping[str, T.DataType]) -> Column:
    if field.name not in present:
        return F.lit(None).cast(_nullable(field.dataType)).alias(field.name)
    value = F.col(f"`{field.name}`")
    # A file says of more values than the table's schema that they may be null; no cast takes that back.
    is_same = present[field.name].simpleString() == field.dataType.simpleString()
    return value if is_same else value.cast(_nullable(field.dataType)).alias(field.name)


def _nullable(kind: T.DataType) -> T.DataType:
    """Return a type in which all values may be null."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def fingerprints(sides: Sequence[DataFrame], fields: Sequence[T.StructField]) -> tuple[dict[int, Fingerprint], ...]:
    """Return the fingerprints of each side's units, by number, with one Spark job for all sides."""
    hashed = [
        align(rows, fields).select(UNIT, F.lit(at).alias("_lake_side"), row_hash(fields).cast(_WIDE).alias(_HASH))
        for at, rows in enumerate(sides)
    ]
    found: tuple[dict[int, Fingerprint], ...] = tuple({} for _ in sides)
    summed = reduce(lambda left, right: left.unionAll(right), hashed).groupBy(UNIT, "_lake_side")
    for row in summed.agg(F.count(F.lit(1)).alias("rows"), F.sum(_HASH).alias("hashes")).collect():
        found[row["_lake_side"]][row[UNIT]] = Fingerprint(int(row["rows"]), int(row["hashes"]))
    return found


def find_differing_keys(
    before: DataFrame, after: DataFrame, fields: Sequence[T.StructField], key: Sequence[str]
) -> tuple[str, ...]:
    """Return up to five keys whose rows differ, each with how, in the order of the keys."""

    def counted(rows: DataFrame, name: str) -> DataFrame:
        keys = F.concat_ws(",", *(F.col(f"`{field}`").cast("string") for field in key))
        hashed = align(rows, fields).select(keys.alias(_KEY), row_hash(fields).alias(_HASH))
        return hashed.groupBy(_KEY, _HASH).agg(F.count(F.lit(1)).alias(name))

    joined = counted(before, _BEFORE).join(counted(after, _AFTER), [_KEY, _HASH], "full").fillna(0, [_BEFORE, _AFTER])
    differing = joined.where(F.col(_BEFORE) != F.col(_AFTER)).groupBy(_KEY)
    found = differing.agg(F.sum(_BEFORE).alias(_BEFORE), F.sum(_AFTER).alias(_AFTER)).orderBy(_KEY).limit(MAX_KEYS)
    return tuple(f"{first_line(row[_KEY], MAX_SHOWN_OF_KEY)} ({_describe(row)})" for row in found.collect())


def _describe(row: Any) -> str:
    if not row[_AFTER]:
        return "missing in the new files"
    if not row[_BEFORE]:
        return "only in the new files"
    return "other values" if row[_AFTER] == row[_BEFORE] else f"{row[_BEFORE]} rows became {row[_AFTER]}"

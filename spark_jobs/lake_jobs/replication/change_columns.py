"""Turn what Hudi returns into one form: canonical JSON of the key, the row before and the row after.

Hudi 1.2 writes the images of change data in two dialects (found on real tables): those from `.cdc` files have no meta
fields, spaces after colons, the text `null` for none, and bytes as Latin-1 text; those that are inferred from other
files have meta fields, SQL NULL for none, and bytes as base64. In both a date is a number of days and a timestamp a
number of microseconds. Decimals are an array of bytes in the one and lost (`{"zero":false}`) in the other.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.replication.change import PARTITION_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

META_PREFIX = "_hoodie_"
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_STRICT = {"mode": "FAILFAST"}
_INFERRED_BEGINS = '{"_hoodie_commit_time":"'


def data_schema(schema: T.StructType) -> T.StructType:
    """Return the schema without Hudi's meta fields."""
    return T.StructType([field for field in schema.fields if not field.name.startswith(META_PREFIX)])


def find_unfit_column(kind: T.DataType, name: str = "") -> str | None:
    """Return the dotted name of a field whose values Hudi 1.2 loses in change data; None when there is none.

    Those are decimals, and entries of a map whose value is null.
    """
    if isinstance(kind, (T.DecimalType, T.MapType)):
        return name
    inner: list[tuple[str, T.DataType]] = []
    if isinstance(kind, T.StructType):
        inner = [(f"{name}.{field.name}".lstrip("."), field.dataType) for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = [(name, kind.elementType)]
    return next((found for path, part in inner if (found := find_unfit_column(part, path)) is not None), None)


def row_json(schema: T.StructType) -> Column:
    """Return the JSON of a row of the table: every field, also those that are null."""
    return _to_json(struct_text(schema.names))


def struct_text(names: Sequence[str]) -> str:
    """Return the expression of a row's columns as one. Spark parses it: objects would be some calls for each column."""
    return f"struct({', '.join(_quoted(name) for name in names)})"


def key_json(fields: Sequence[str], row: str = "", path: str = PARTITION_PATH) -> Column:
    """Return the JSON of the key's fields, taken from a struct (an expression), or from the row itself.

    A dotted name is that of a part of a column. `path` is the expression of the partition's path.
    """
    prefix = f"{row}." if row else ""
    named = [
        f"{path if name == PARTITION_PATH else prefix + '.'.join(map(_quoted, name.split('.')))} as {_quoted(name)}"
        for name in fields
    ]
    return _to_json(f"struct({', '.join(named)})")


def column_of(name: str, row: str = "") -> Column:
    """Return a column of a struct column, or of the row itself."""
    return F.col(f"{row}.{_quoted(name)}" if row else _quoted(name))


def json_of(struct: str) -> Column:
    """Return the JSON of a struct column; null where that is null."""
    return _to_json(_quoted(struct))


def _to_json(expression: str) -> Column:
    """Return the JSON of a struct. As `functions.to_json`, which makes a map of Java for each of them."""
    session: Any = SparkSession._instantiatedSession
    functions = session._jvm.functions
    return Column(functions.to_json(functions.expr(expression), _json_options(session._jvm)))


@cache
def _json_options(jvm: Any) -> Any:
    options = jvm.java.util.HashMap()
    for name, value in JSON_OPTIONS.items():
        options.put(name, value)
    return options


def cdc_changes(
    rows: DataFrame, schema: T.StructType, key: Sequence[str], image: Callable[[str], Column] | None = None
) -> DataFrame:
    """Return op, key, before and after of Hudi's change rows; `image` prints a struct column."""
    image = image or json_of
    sides = ("before", "after")
    texts = rows.select("op", *[F.when(F.col(side) != "null", F.col(side)).alias(side) for side in sides])
    # In a projection of its own: Spark would parse the text once for each column that is taken from it.
    parsed = texts.select(
        "op",
        *[F.from_json(side, _physical_row(schema), _STRICT).alias(side) for side in sides],
        *[F.col(side).startswith(_INFERRED_BEGINS).alias(f"{side}_inferred") for side in sides],
    )
    images = parsed.select(
        "op", *[_logical(F.col(side), schema, F.col(f"{side}_inferred")).alias(side) for side in sides]
    )
    keyed = images.withColumn("row", F.coalesce("after", "before"))
    return keyed.select(
        "op",
        key_json(key, "row").alias("key"),
        image("before").alias("before"),
        image("after").alias("after"),
    )


def in_order_per_key(changes: DataFrame) -> DataFrame:
    """Bring a key's changes into one partition, deletes first; Hudi orders nothing within an instant."""
    # A row that moves to another partition is deleted there and inserted here, in one commit.
    rank = F.when(F.col("op") == "d", 0).otherwise(1)
    return changes.repartition("key").sortWithinPartitions("key", rank)


def _physical_row(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(field.name, _physical(field.dataType)) for field in schema.fields])


def _physical(kind: T.DataType) -> T.DataType:
    """Return the type as the images write it."""
    if isinstance(kind, T.DateType):
        return T.IntegerType()
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return T.LongType()
    if isinstance(kind, T.BinaryType):
        return T.StringType()
    if isinstance(kind, T.StructType):
        return _physical_row(kind)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_physical(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), _physical(kind.valueType))
    return kind


def _logical(value: Column, kind: T.DataType, inferred: Column) -> Column:
    """Return a value of its physical type as one of the table's type."""
    if isinstance(kind, T.DateType):
        return F.date_add(F.lit("1970-01-01").cast("date"), value)
    if isinstance(kind, T.TimestampType):
        return F.timestamp_micros(value)
    if isinstance(kind, T.TimestampNTZType):
        # The session's zone is UTC, so nothing moves.
        return F.timestamp_micros(value).cast("timestamp_ntz")
    if isinstance(kind, T.BinaryType):
        return F.when(inferred, F.unbase64(value)).otherwise(F.encode(value, "ISO-8859-1"))
    if isinstance(kind, T.StructType):
        parts = [_logical(value[field.name], field.dataType, inferred).alias(field.name) for field in kind.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda item: _logical(item, kind.elementType, inferred))
    if isinstance(kind, T.MapType):
        return F.transform_values(value, lambda _, item: _logical(item, kind.valueType, inferred))
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

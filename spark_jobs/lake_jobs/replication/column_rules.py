"""Which columns of a table's rows reach a sink, and what stands for those that must not be read there.

The options have Debezium's names where it has one for the same: `column.include.list`, `column.exclude.list` and
`column.mask.with.<n>.chars`. A hash has its salt in an option of its own, so that it can be a reference to a secret.
The rules hold for all that leaves the table: rows before and after, the schema, and the rows that `verify` compares.
Spark applies them to columns, before it prints a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.sink_options.run import EXCLUDE, HASH, INCLUDE, MASK
from lake_jobs.replication.change_columns import JSON_OPTIONS, column_of, json_of, row_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_lake_provider.sink_options.run import ColumnLists


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """The rules of one entry. Names are those of the table's own columns."""

    table: str
    include: frozenset[str] = frozenset()
    """Besides the key's, these alone reach the sink; empty: all but the excluded ones."""
    exclude: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    salt: str = ""
    masked: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many asterisks stand for a value."""
    kept: frozenset[str] = frozenset()
    """The key's columns: without them a row has no name."""

    @property
    def is_empty(self) -> bool:
        """Whether rows leave the table as they are."""
        return not (self.include or self.exclude or self.hashed or self.masked)

    def for_key(self, key: Collection[str], columns: Collection[str]) -> ColumnRules:
        """Return the rules of a table with this key. Raises ConfigError for a name that is no column, or is a key's.

        A wrong name would otherwise let out what it was to keep in.
        """
        named = {
            INCLUDE: self.include, EXCLUDE: self.exclude, HASH: self.hashed, MASK: self.masked
        }  # fmt: skip
        for option, names in named.items():
            unknown = sorted({*names} - {*columns})
            in_key = sorted({*names} & {*key})
            if unknown:
                raise ConfigError(
                    f"table {self.table} has no column {unknown[0]!r}, which {option} names: it has "
                    f"{', '.join(columns)}"
                )
            if in_key and option != INCLUDE:
                raise ConfigError(
                    f"{option} names {in_key[0]!r}, a column of the key of table {self.table}: rows would have no name "
                    "in the sink; leave it out there, or name other fields in key"
                )
        return ColumnRules(self.table, self.include, self.exclude, self.hashed, self.salt, self.masked, frozenset(key))

    def has(self, name: str) -> bool:
        """Whether a column reaches the sink."""
        return name in self.kept or (name not in self.exclude and (not self.include or name in self.include))

    def is_text(self, name: str) -> bool:
        """Whether a text stands for a column's values."""
        return name in self.hashed or name in self.masked

    def image(self, schema: T.StructType, row: str = "") -> Column:
        """Return the JSON of a row as the sink gets it, from the struct column `row`, or from the row itself.

        Null where the struct is null. `schema` are the row's columns.
        """
        if self.is_empty:
            return json_of(row) if row else row_json(schema)
        shown = [self._shown(column, column_of(column.name, row)) for column in schema.fields if self.has(column.name)]
        image = F.to_json(F.struct(*shown), JSON_OPTIONS)
        return F.when(F.col(row).isNotNull(), image) if row else image

    def _shown(self, column: T.StructField, value: Column) -> Column:
        if not self.is_text(column.name):
            return value.alias(column.name)
        if column.name in self.masked:
            text = F.lit("*" * self.masked[column.name])
        else:
            text = F.sha2(F.concat(_hidden_text(self.salt), _text_of(value, column.dataType)), 256)
        return F.when(value.isNotNull(), text).alias(column.name)

    def schema(self, text: str) -> str:
        """Return an Avro schema with the columns that reach the sink, and their types there; empty stays empty."""
        if not text or self.is_empty:
            return text
        body: dict[str, Any] = json.loads(text)
        kept = [found for found in body["fields"] if self.has(found["name"])]
        masked = {"type": ["null", "string"], "default": None}
        fields = [{**found, **masked} if self.is_text(found["name"]) else found for found in kept]
        return json.dumps({**body, "fields": fields}, separators=(",", ":"))


def rules_of(lists: ColumnLists, table: str) -> ColumnRules:
    """Return the rules of an entry for a table whose key and columns are not known yet."""
    return ColumnRules(table, lists.include, lists.exclude, lists.hashed, lists.salt, lists.masked)


def _text_of(value: Column, kind: T.DataType) -> Column:
    """Return a text as it is, and any other value as it stands in a row's JSON, without the quotes around it."""
    if isinstance(kind, T.StringType):
        return value
    part = F.regexp_extract(F.to_json(F.struct(value.alias("v")), JSON_OPTIONS), r'(?s)^\{"v":(.*)\}$', 1)
    return F.when(part.startswith('"'), F.regexp_extract(part, '^"(.*)"$', 1)).otherwise(part)


def _hidden_text(text: str) -> Column:
    """Return a text that Spark never shows: plans are in its UI and event logs, and a literal would be in them.

    The text is made of an object that prints nothing of itself, by an expression that the optimizer does not compute.
    """
    session: Any = SparkSession._instantiatedSession
    jvm = session._jvm
    sql = jvm.org.apache.spark.sql
    find_class = jvm.java.lang.Class.forName
    objects = sql.catalyst.expressions.objects
    object_type = sql.types.ObjectType

    def literal(value: Any, name: str) -> Any:
        return sql.catalyst.expressions.Literal(value, object_type(find_class(name)))

    def sequence(*items: Any) -> Any:
        found = jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return jvm.PythonUtils.toSeq(found)

    string = "java.lang.String"
    propagates_null = False
    outer = jvm.scala.Option.empty()
    parts = sequence(literal(bytearray(text.encode()), "[B"), literal("UTF-8", string))
    kind = object_type(find_class(string))
    made = objects.NewInstance(find_class(string), parts, sequence(), propagates_null, kind, outer)
    utf8 = find_class("org.apache.spark.unsafe.types.UTF8String")
    is_nullable = is_deterministic = True
    text_type = sql.types.DataTypes.StringType
    flags = (propagates_null, is_nullable, is_deterministic)
    found = objects.StaticInvoke(utf8, text_type, "fromString", sequence(made), sequence(), *flags)
    return Column(sql.Column(found))

"""Rows on their way into PostgreSQL by COPY, without a Python object for each value.

Arrow reads the JSON of a block's rows by the types of the table's Avro schema and prints CSV; the server copies it into
the table, or into a temporary one that one statement merges. All that is only for what both sides read alike: where
Arrow or the server refuses anything, the sink writes the same block value by value, which also finds the record.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import compress
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.replication.change import Batch, Change, CommitRef, Op, RowTypes, load_json
from airflow_lake_provider.replication.sinks.database_columns import plain_name, run_as_it_is, use_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import sqlalchemy as sa

_ACCEPTED: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "string": (str,),
        "int": (int, Decimal),
        "long": (int, Decimal),
        "boolean": (bool,),
        "float": (float,),
        "double": (float,),
        "decimal": (Decimal,),
        "date": (date, str),
        "timestamp-millis": (datetime, str),
        "timestamp-micros": (datetime, str),
        "local-timestamp-millis": (datetime, str),
        "local-timestamp-micros": (datetime, str),
    }
)
"""By logical or plain type in the Avro schema: the columns, by the type of their values, that read its text alike."""


@dataclass(frozen=True, slots=True)
class CopiedStep:
    """A block of changes as CSV, and the changes themselves, for when the server refuses it."""

    begins_snapshot: bool
    commit: CommitRef
    generation: int
    schema: str
    key: tuple[str, ...]
    names: tuple[str, ...]
    rows: bytes
    gone: bytes
    is_new: bool
    """All of its rows are new in the table, as the source knows it."""
    changes: bytes
    """Pickled apart: they are rarely needed, and are more than the rest."""

    def to_batch(self) -> Batch:
        """Return the changes, the newest one of each key."""
        rows = zip(*pickle.loads(self.changes), strict=True)
        changes = tuple(Change(Op(op), key, None, after) for op, key, after in rows)
        return Batch(self.commit, changes, self.generation, self.begins_snapshot, self.schema)


class Copies:
    """Prints the blocks of one stream; a schema is read once."""

    def __init__(self, arrow: Arrow) -> None:
        self._arrow = arrow
        self._known: tuple[str, sa.Table | None] = ("", None)
        self._types: Mapping[str, Any] | None = None

    def step_of(
        self, batch: Batch, changes: Sequence[Change], table: sa.Table, wanted: Sequence[str]
    ) -> CopiedStep | None:
        """Return the step of a block whose changes are the newest of their keys; None where it is not certain."""
        types = self._types_of(batch.schema, table)
        if not changes or types is None:
            return None
        is_gone = [change.op is Op.DELETE for change in changes]
        key = tuple(load_json(changes[0].key))
        rows = [change.after or "{}" for change in changes if change.op is not Op.DELETE]
        names = tuple(dict.fromkeys((*wanted, *key))) if wanted else tuple(load_json(rows[0])) if rows else key
        if not {*names, *key} <= types.keys():
            return None
        kept = self._arrow.print(rows, {name: types[name] for name in names}, key)
        gone = self._arrow.print(
            [change.key for change in compress(changes, is_gone)], {name: types[name] for name in key}, key
        )
        if kept is None or gone is None:
            return None
        return CopiedStep(
            batch.begins_snapshot, batch.commit, batch.generation, batch.schema, key, names, kept, gone,
            is_new=not gone and all(change.op in (Op.READ, Op.INSERT) for change in changes),
            changes=pickle.dumps(
                ([c.op.value for c in changes], [c.key for c in changes], [c.after for c in changes])
            ),
        )  # fmt: skip

    def _types_of(self, schema: str, table: sa.Table) -> Mapping[str, Any] | None:
        """Return Arrow's type of each column that both sides read alike; None without a schema."""
        if not schema:
            return None
        if self._known != (schema, table):
            self._known = (schema, table)
            self._types = self._find_types(schema, table)
        return self._types

    def _find_types(self, schema: str, table: sa.Table) -> Mapping[str, Any] | None:
        try:
            types = RowTypes(schema)
            kinds = {field["name"]: types.resolve(field["type"])[0] for field in types.record["fields"]}
        except SourceRefusedError:
            return None
        found = {}
        for name, kind in kinds.items():
            plain = plain_name(kind)
            accepted = _ACCEPTED.get(plain, ())
            if name in table.c and _values_of(table.c[name]) in accepted:
                found[name] = self._arrow.type_of(plain, kind)
        return {name: kind for name, kind in found.items() if kind is not None}


def _values_of(column: sa.Column[Any]) -> type | None:
    try:
        return column.type.python_type
    except NotImplementedError:
        return None


class Arrow:
    """PyArrow, where it is installed. Raises ImportError elsewhere."""

    def __init__(self) -> None:
        import pyarrow  # not at the top: the sink does without it
        import pyarrow.csv
        import pyarrow.json

        self._pa = pyarrow
        # A null is empty, a text without characters has quotes.
        self._csv = pyarrow.csv.WriteOptions(include_header=False)

    def type_of(self, plain: str, kind: Any) -> Any:
        """Return the type as which Arrow reads JSON's values; None for a decimal that it does not have."""
        arrow = self._pa
        if plain == "decimal":
            precision = int(kind["precision"])
            return arrow.decimal128(precision, int(kind.get("scale", 0))) if precision <= 38 else None
        if plain in {"int", "long"}:
            return arrow.int64()
        if plain in {"float", "double"}:
            return arrow.float64()
        return arrow.bool_() if plain == "boolean" else arrow.string()

    def print(self, texts: Sequence[str], types: Mapping[str, Any], key: Iterable[str]) -> bytes | None:
        """Return JSON objects as CSV; None where one has a value of another type, a field besides, or no whole key."""
        if not texts:
            return b""
        arrow = self._pa
        try:
            body = "\n".join(texts).encode()
            found = arrow.json.read_json(
                arrow.BufferReader(body),
                # A row must fit into a block.
                arrow.json.ReadOptions(block_size=max(1 << 20, 4 * max(map(len, texts)) + 16)),
                arrow.json.ParseOptions(
                    explicit_schema=arrow.schema(list(types.items())), unexpected_field_behavior="infer"
                ),
            )
        except (arrow.ArrowException, UnicodeEncodeError):
            return None
        if len(found) != len(texts) or any(found.column(name).null_count for name in key):
            return None
        others = (name for name in found.schema.names if name not in types)
        if any(found.column(name).null_count < len(found) for name in others):
            return None
        printed = io.BytesIO()
        arrow.csv.write_csv(found.select(list(types)), printed, self._csv)
        return printed.getvalue()


def make_copies(dialect: sa.Dialect) -> Copies | None:
    """Return what prints blocks for a database; None where they are written value by value."""
    if dialect.name != "postgresql" or dialect.driver not in _COPIES:
        return None
    try:
        return Copies(Arrow())
    except ImportError:
        return None


# --- Into the table


def copy_step(connection: sa.Connection, table: sa.Table, step: CopiedStep, *, is_unique: bool) -> None:
    """Write a block, straight into the table where its rows are new there. With `is_unique` the key is a constraint."""
    if not (step.begins_snapshot or (step.is_new and is_unique)):
        merge_step(connection, table, step, is_unique=is_unique)
        return
    # A row that is there all the same breaks the constraint, and the block is merged.
    _copy(connection, _shown(table), step.names, step.rows)


def merge_step(connection: sa.Connection, table: sa.Table, step: CopiedStep, *, is_unique: bool) -> None:
    """Write a block whose rows may be in the table."""
    shown = _shown(table)
    alike = " and ".join(f"s.{_quoted(name)} = {shown}.{_quoted(name)}" for name in step.key)
    if step.gone:
        stage = _stage(connection, table, step.key, step.gone)
        _run(connection, "delete from", shown, "using", stage, "s where", alike)
    if not step.rows:
        return
    stage = _stage(connection, table, step.names, step.rows)
    columns = ", ".join(_quoted(name) for name in step.names)
    insert = f"insert into {shown} ({columns}) select {columns} from", stage
    if not is_unique:
        _run(connection, "delete from", shown, "using", stage, "s where", alike)
        _run(connection, *insert)
        return
    others = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in step.names if name not in step.key)
    conflict = ", ".join(_quoted(name) for name in step.key)
    _run(connection, *insert, f"on conflict ({conflict}) do {f'update set {others}' if others else 'nothing'}")


def _stage(connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: bytes) -> str:
    """Return the temporary table of the transaction that has these rows and nothing else."""
    shown = _shown(table)
    columns = ", ".join(_quoted(name) for name in names)
    stage = f"lake_stage_{hashlib.blake2b(f'{shown} {columns}'.encode(), digest_size=8).hexdigest()}"
    made = f"create temporary table if not exists {stage} on commit drop as"
    _run(connection, made, "select", columns, "from", shown, "where false")
    _run(connection, "truncate", f"pg_temp.{stage}")
    _copy(connection, f"pg_temp.{stage}", names, rows)
    return f"pg_temp.{stage}"


def _quoted(name: str) -> str:
    # The dialect's own doubles percent signs, for statements with parameters.
    return '"' + name.replace('"', '""') + '"'


def _shown(table: sa.Table) -> str:
    return ".".join(_quoted(name) for name in (table.schema, table.name) if name)


def _run(connection: sa.Connection, *parts: str) -> None:
    run_as_it_is(connection, " ".join(parts))


def _copy(connection: sa.Connection, shown: str, names: Sequence[str], rows: bytes) -> None:
    columns = ", ".join(_quoted(name) for name in names)
    statement = f"copy {shown} ({columns}) from stdin (format csv, encoding 'UTF8')"
    use_cursor(connection, statement, lambda cursor: _COPIES[connection.dialect.driver](cursor, statement, rows))


def _copy_by_psycopg2(cursor: Any, statement: str, rows: bytes) -> None:
    source: IO[bytes] = io.BytesIO(rows)
    cursor.copy_expert(statement, source, 1 << 16)


def _copy_by_psycopg(cursor: Any, statement: str, rows: bytes) -> None:
    with cursor.copy(statement) as copy:
        copy.write(rows)


_COPIES = MappingProxyType({"psycopg2": _copy_by_psycopg2, "psycopg": _copy_by_psycopg})

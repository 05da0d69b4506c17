"""A database table through SQLAlchemy: the newest version of each row, and the checkpoint in the same transaction.

The table must exist, with a key that is unique there, and a column for each field of the rows. On PostgreSQL and SQLite
it gets those that it lacks (`columns` narrows that, and adds none). Checkpoints are in a table of the provider next to
it, `lake_checkpoint`, created on first use. Opening a stream raises its epoch, so that an earlier run finds its epoch
replaced when it commits. Another table, `lake_target`, records the stream of each table: a snapshot empties its table,
so two streams must not share one.

Rows are upserted where the database can (PostgreSQL, SQLite) and the key is unique in the table, and are deleted and
inserted elsewhere. A snapshot of a table that has rows is collected in a table of its own there, which the last
part's transaction moves over: readers see the rows before it, and then those of the snapshot.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchTableError, OperationalError, SQLAlchemyError

from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import Change, Op, canonical, load_json
from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.scope import TargetState
from airflow_lake_provider.replication.sinks.database_columns import (
    create_engine,
    keeps_decimals_of,
    print_add_column,
    to_column_value,
    to_json_value,
    types_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.replication.change import Batch
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, SinkSettings

SPOOL_BYTES = 16 * 1024 * 1024
_UPSERTS: Mapping[str, Any] = MappingProxyType({"postgresql": postgresql.insert, "sqlite": sqlite.insert})
"""By dialect: their insert has `on conflict`, and a transaction of theirs may create and drop tables."""

_metadata = sa.MetaData()
_checkpoints = sa.Table(
    "lake_checkpoint",
    _metadata,
    sa.Column("stream", sa.String(250), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.Text, nullable=True),
)
_targets = sa.Table(
    "lake_target",
    _metadata,
    sa.Column("target", sa.String(250), primary_key=True),
    sa.Column("stream", sa.String(250), nullable=False),
)


class DatabaseSink:
    """Options: `url` (SQLAlchemy's), `table` (may be `schema.table`), `columns` (comma list; default: all fields)."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = dict(settings.options)
        url, self._table_name = options.pop("url", ""), options.pop("table", "")
        self._wanted = tuple(part.strip() for part in options.pop("columns", "").split(",") if part.strip())
        if not url or not self._table_name or options:
            raise ConfigError(
                f"the database sink of {settings.table_name} needs url and table, and knows columns besides"
                f"{''.join(f'; not {key}' for key in sorted(options))}"
            )
        self._engine = create_engine(url)
        self._keeps_decimals = keeps_decimals_of(self._engine.dialect)
        self._table: sa.Table | None = None
        self._identity: Mapping[str, str] = MappingProxyType({})
        self._spool: IO[bytes] | None = None
        self._epoch = 0
        self._generation_begun: int | None = None
        """The generation of a snapshot that is durable in part."""

    def open(self) -> str | None:
        """Find the table, reserve it for the stream, raise the stream's epoch, return its checkpoint."""
        try:
            _metadata.create_all(self._engine)
            table = self._reflect()
            self._take_target(f"{table.schema or sa.inspect(self._engine).default_schema_name}.{table.name}")
            self._table = table
            with self._engine.begin() as connection:
                text = self._raise_epoch(connection)
                self._identity = _identity_of(connection, table)
            self._note(from_text(text) if text is not None else None)
            return text
        except NoSuchTableError as error:
            raise SinkUnavailableError(f"the database has no table {self._table_name}: create it") from error
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error

    def find_target(self) -> TargetState:
        """Return the table as PostgreSQL numbers it; of other databases, the name, and whether it has no row."""
        table = self._opened()
        try:
            with self._engine.connect() as connection:
                row = connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first()
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error
        return TargetState(self._identity, is_empty=row is None)

    def write(self, batch: Batch) -> None:
        """Check the changes and buffer them: the database gets them in one go, so that its locks are short."""
        newest = {change.key: change for change in batch.changes}
        self._require_columns(batch.schema, newest.values())
        gone = [self._key(change) for change in newest.values() if change.op is Op.DELETE]
        kept = [change for change in newest.values() if change.op is not Op.DELETE]
        keys, rows = [self._key(change) for change in kept], [self._row(change) for change in kept]
        if self._spool is None:
            # Beyond some megabytes the buffer is on disk: a commit has any number of rows.
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - closed by commit or close
        pickle.dump(_Step(batch.begins_snapshot, gone, keys, rows), self._spool)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint under this run's epoch, then the rows, and commit. Raises SinkFencedError."""
        table = self._opened()
        mine = (_checkpoints.c.stream == self._settings.stream, _checkpoints.c.epoch == self._epoch)
        try:
            with self._engine.begin() as connection:
                # First, for its lock: a rival that opens the stream now waits until this is over.
                written = sa.update(_checkpoints).where(*mine).values(checkpoint=to_text(checkpoint))
                if connection.execute(written).rowcount != 1:
                    raise SinkFencedError(f"another run has opened stream {self._settings.stream} ({self._table_name})")
                self._apply(connection, table, checkpoint)
                # Behind the rows, whose locks keep the table in its place from now on.
                if _identity_of(connection, table) != self._identity:
                    raise SinkUnavailableError(f"table {self._table_name} was made again while it was written")
            self._note(checkpoint)
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error
        finally:
            self._forget()

    def _note(self, durable: Checkpoint | None) -> None:
        is_in_part = durable is not None and durable.snapshot is not None
        self._generation_begun = durable.generation if durable is not None and is_in_part else None

    def _apply(self, connection: sa.Connection, table: sa.Table, checkpoint: Checkpoint) -> None:
        """Write all steps of the transaction; those of a part of a snapshot where no reader sees them."""
        aside, is_part = _Aside(connection, table), checkpoint.snapshot is not None
        if not is_part and aside.is_there():
            aside.end(is_whole=self._generation_begun == checkpoint.generation)
        is_aside = is_part and aside.is_there()
        for step in self._steps():
            if step.begins_snapshot:
                is_aside = is_part and aside.begin(step)
                if not is_aside:
                    connection.execute(sa.delete(table))
            _apply(connection, aside.find(step) if is_aside else table, step)

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return the table's rows, in no order: the columns that this sink writes."""
        _ = checkpoint
        try:
            table = self._reflect()
            wanted = [column for column in table.c if not self._wanted or column.name in {*self._wanted, *key}]
            with self._engine.connect() as connection:
                found = connection.execution_options(yield_per=10_000).execute(sa.select(*wanted))
                for row in found.mappings():
                    values = {name: to_json_value(table.c[name], value) for name, value in row.items()}
                    yield canonical({name: values[name] for name in key}), values
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error

    def as_read(self, change: Change) -> Row:
        """Return a row as the columns' types store it."""
        if self._table is None:
            self._table = self._reflect()
        key, row, table = self._key(change), self._row(change), self._table
        return canonical(key), {name: to_json_value(table.c[name], value) for name, value in row.items()}

    def close(self) -> None:
        """Drop the buffer, and disconnect."""
        self._forget()
        self._engine.dispose()

    def _reflect(self) -> sa.Table:
        schema, _, name = self._table_name.rpartition(".")
        return sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=self._engine)

    def _take_target(self, target: str) -> None:
        mine = self._settings.stream
        owner = self._owner_of(target)
        if owner is None:
            try:
                with self._engine.begin() as connection:
                    # The stream's earlier table is free: no stream writes there any more.
                    connection.execute(sa.delete(_targets).where(_targets.c.stream == mine))
                    connection.execute(sa.insert(_targets).values(target=target, stream=mine))
                return
            except IntegrityError:
                owner = self._owner_of(target)  # another run took it between the two statements
        if owner != mine:
            raise SinkRefusedError(
                f"table {self._table_name} is stream {owner}'s, and a snapshot of stream {mine} would empty it: name "
                f"another table, or delete the row of {target} in lake_target when that stream is no more"
            )

    def _owner_of(self, target: str) -> str | None:
        with self._engine.begin() as connection:
            owner: str | None = connection.execute(
                sa.select(_targets.c.stream).where(_targets.c.target == target)
            ).scalar_one_or_none()
        return owner

    def _raise_epoch(self, connection: sa.Connection) -> str | None:
        mine = _checkpoints.c.stream == self._settings.stream
        raised = connection.execute(sa.update(_checkpoints).where(mine).values(epoch=_checkpoints.c.epoch + 1))
        if raised.rowcount == 0:
            connection.execute(sa.insert(_checkpoints).values(stream=self._settings.stream, epoch=1))
        # The update holds the row's lock, so this is the last rival's checkpoint.
        row = connection.execute(sa.select(_checkpoints).where(mine)).one()
        self._epoch = row.epoch
        return None if row.checkpoint is None else str(row.checkpoint)

    def _steps(self) -> Iterator[_Step]:
        if self._spool is None:
            return
        self._spool.seek(0)
        while True:
            try:
                step: _Step = pickle.load(self._spool)
            except EOFError:
                return
            yield step

    def _forget(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def _key(self, change: Change) -> dict[str, Any]:
        body = load_json(change.key)
        return self._values(change, body, tuple(body))

    def _row(self, change: Change) -> dict[str, Any]:
        body, table = load_json(change.after or "{}"), self._opened()
        known = [name for name, value in body.items() if value is not None or name in table.c]
        return self._values(change, body, self._wanted or known)

    def _values(self, change: Change, body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        table, keeps_decimals = self._opened(), self._keeps_decimals
        try:
            return {
                name: to_column_value(self._column(table, name), body.get(name), keeps_decimals=keeps_decimals)
                for name in names
            }
        except (ValueError, ArithmeticError) as error:
            raise RecordRefusedError(f"record {change.key} does not fit table {self._table_name}: {error}") from error

    def _require_columns(self, schema: str, changes: Iterable[Change]) -> None:
        """Add the columns that rows of this schema have and the table lacks, unless `columns` names the wanted ones."""
        table, row = self._opened(), next((change.after for change in changes if change.after is not None), None)
        missing = [] if row is None or self._wanted else [name for name in load_json(row) if name not in table.c]
        types = types_of(schema, self._engine.dialect.name) if missing else {}
        # Rows are read with the table's newest schema: what a commit does not know yet is null there.
        missing = [name for name in missing if name in types]
        if not missing:
            return
        dialect, added = self._engine.dialect, [sa.Column(name, types[name]) for name in missing]
        statements = [print_add_column(table, column, dialect) for column in added]
        what = f"table {self._table_name} has no column {', '.join(map(repr, missing))}"
        advice = f"run {'; '.join(statements)}, or list the wanted columns in `columns`"
        if dialect.name not in _UPSERTS:
            raise SinkRefusedError(f"{what}: {advice}")
        try:
            with self._engine.begin() as connection:
                for statement in statements:
                    connection.execute(sa.text(statement))
        except SQLAlchemyError as error:
            # Another run may have added them meanwhile.
            if not {*missing} <= {*self._reflect().c.keys()}:
                found = self._as_lake_error(error)
                if isinstance(found, SinkRefusedError):
                    raise SinkRefusedError(f"{what}, and the database refuses to add it ({found}): {advice}") from error
                raise found from error
        self._table = self._reflect()

    def _column(self, table: sa.Table, name: str) -> sa.Column[Any]:
        if name not in table.c:
            raise SinkRefusedError(
                f"table {self._table_name} has no column {name!r}: add it, or list the wanted columns in `columns`"
            )
        return table.c[name]

    def _opened(self) -> sa.Table:
        if self._table is None:
            raise SinkUnavailableError(f"the sink to {self._table_name} is not open")
        return self._table

    def _as_lake_error(self, error: SQLAlchemyError) -> LakeError:
        lines = str(getattr(error, "orig", error)).strip().splitlines()[:1] or [type(error).__name__]
        what = f"table {self._table_name}: {lines[0]}"
        if isinstance(error, OperationalError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            return SinkUnavailableError(what)
        if isinstance(error, IntegrityError):
            return RecordRefusedError(f"{what}; is the table's key the record key?")
        return SinkRefusedError(what)


def _identity_of(connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
    """Return what distinguishes a table from one that is made later under its name, where the database says it."""
    if connection.dialect.name != "postgresql":
        return {"table": f"{table.schema}.{table.name}" if table.schema else table.name}
    shown = connection.dialect.identifier_preparer.format_table(table)
    oid, database = connection.execute(
        sa.text(
            "select cast(to_regclass(:shown) as oid), (select oid from pg_database where datname = current_database())"
        ),
        {"shown": shown},
    ).one()
    return {"table's oid": str(oid), "database's oid": str(database)}


@dataclass(frozen=True, slots=True)
class _Step:
    """Rows with their keys, and the keys of rows that are gone; with `begins_snapshot` no other row stays."""

    begins_snapshot: bool
    gone: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    rows: list[dict[str, Any]]


def _apply(connection: sa.Connection, table: sa.Table, step: _Step) -> None:
    upsert = _find_upsert(connection, table, step)
    doomed = step.gone if upsert is not None else [*step.gone, *step.keys]
    if doomed and not step.begins_snapshot:
        matches = [table.c[name] == sa.bindparam(f"key_{name}") for name in doomed[0]]
        values = [{f"key_{name}": value for name, value in key.items()} for key in doomed]
        connection.execute(sa.delete(table).where(*matches), values)
    if step.rows:
        connection.execute(sa.insert(table) if upsert is None else upsert, step.rows)


def _find_upsert(connection: sa.Connection, table: sa.Table, step: _Step) -> Any | None:
    """Return the statement that replaces a row where its key is there, columns apart that it does not name.

    None where the database has none, or the key is not unique in the table.
    """
    insert = _UPSERTS.get(connection.dialect.name)
    if insert is None or not step.rows or step.begins_snapshot:
        return None
    key = {*step.keys[0]}
    constraints = [
        found for found in table.constraints if isinstance(found, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))
    ]
    if not any({column.name for column in found.columns} == key for found in constraints):
        return None
    statement = insert(table)
    others = {name: statement.excluded[name] for name in step.rows[0] if name not in key}
    if not others:
        return statement.on_conflict_do_nothing(index_elements=sorted(key))
    return statement.on_conflict_do_update(index_elements=sorted(key), set_=others)


class _Aside:
    """The table that collects a snapshot's parts until the last one. It has the columns that the sink writes."""

    def __init__(self, connection: sa.Connection, seen: sa.Table) -> None:
        self._connection, self._seen = connection, seen
        digest = hashlib.blake2b(f"{seen.schema or ''}.{seen.name}".encode(), digest_size=8).hexdigest()
        self._name = f"lake_snapshot_{digest}"

    def is_there(self) -> bool:
        """Whether a snapshot is durable in part."""
        if self._connection.dialect.name not in _UPSERTS:
            return False
        return sa.inspect(self._connection).has_table(self._name, schema=self._seen.schema)

    def begin(self, step: _Step) -> bool:
        """Create the table again, unless readers have no rows to lose; return whether it exists."""
        if self._connection.dialect.name not in _UPSERTS:
            return False
        if self.is_there():
            self._table((), ()).drop(self._connection)
        if self._connection.execute(sa.select(sa.literal(1)).select_from(self._seen).limit(1)).first() is None:
            return False
        names = [*step.rows[0]] if step.rows else [column.name for column in self._seen.c]
        like = sa.select(*(self._seen.c[name] for name in names)).where(sa.false()).compile(self._connection)
        key = _key_among(names, step)
        table = self._table(names, key)
        shown = self._connection.dialect.identifier_preparer.format_table(table)
        self._connection.execute(sa.text(f"create table {shown} as {like}"))
        if key:
            sa.Index(f"{self._name}_key", *(table.c[name] for name in key), unique=True).create(self._connection)
        return True

    def find(self, step: _Step) -> sa.Table:
        """Return the table, with a column for each field of a step's rows."""
        names = self._names()
        # Columns that the sink's table got after the snapshot had begun.
        for name in [name for name in (step.rows[0] if step.rows else ()) if name not in names]:
            column = sa.Column(name, self._seen.c[name].type)
            statement = print_add_column(self._table(names, ()), column, self._connection.dialect)
            self._connection.execute(sa.text(statement))
            names.append(name)
        return self._table(names, _key_among(names, step))

    def end(self, *, is_whole: bool) -> None:
        """Replace the rows that readers see by the whole snapshot, if the table has it, and drop the table."""
        names = self._names()
        table = self._table(names, ())
        if is_whole:
            self._connection.execute(sa.delete(self._seen))
            self._connection.execute(sa.insert(self._seen).from_select(names, sa.select(table)))
        table.drop(self._connection)

    def _names(self) -> list[str]:
        return [column["name"] for column in sa.inspect(self._connection).get_columns(self._name, self._seen.schema)]

    def _table(self, names: Iterable[str], key: Iterable[str]) -> sa.Table:
        columns = [sa.Column(name, self._seen.c[name].type) for name in names]
        unique = [sa.UniqueConstraint(*key)] if key else []
        return sa.Table(self._name, sa.MetaData(), *columns, *unique, schema=self._seen.schema)


def _key_among(names: Iterable[str], step: _Step) -> tuple[str, ...]:
    """Return the names of the key's columns, if they are all among these."""
    key = tuple(step.keys[0]) if step.keys else ()
    return key if {*key} <= {*names} else ()

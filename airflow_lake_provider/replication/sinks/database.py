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

import logging
import pickle
import tempfile
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchTableError, OperationalError, SQLAlchemyError

from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import Change, ChangeMode, Op, canonical, load_json, message_of
from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.scope import TargetState
from airflow_lake_provider.replication.sinks.database_aside import SNAPSHOT_BEGINS, Aside
from airflow_lake_provider.replication.sinks.database_columns import (
    MYSQL,
    Waits,
    create_engine,
    find_loose_collations,
    find_misfit,
    keeps_decimals_of,
    kind_of,
    printing_dialect,
    run_as_it_is,
    to_column_value,
    to_json_value,
    types_of,
)
from airflow_lake_provider.replication.sinks.database_copy import CopiedStep, copy_step, make_copies, merge_step
from airflow_lake_provider.replication.sinks.database_decimals import RoundedColumn, find_rounded
from airflow_lake_provider.replication.sinks.database_packets import (
    explain_row_size,
    find_excess,
    find_max_packet_bytes,
    is_of_row_size,
)
from airflow_lake_provider.replication.sinks.database_schema import (
    explain_unique,
    find_obstacle,
    print_added,
    print_table,
    print_widened,
)
from airflow_lake_provider.replication.sinks.database_steps import UPSERTS, RowsStep, apply_step, is_unique
from airflow_lake_provider.replication.sinks.database_watch import watch_engine
from airflow_lake_provider.shared.plain_text import first_line, show_key
from airflow_lake_provider.sink_options.options import OnRecordError, TakenOptions
from airflow_lake_provider.sink_options.stores import Evolve, take_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.replication.change import Batch
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, SinkSettings

log = logging.getLogger(__name__)

_LOCK_NOT_AVAILABLE = "55P03"
_TOO_MANY_COLUMNS = "54011"
_LIMIT_EXCEEDED = "54000"
"""PostgreSQL's state of a row, or a value in an index, that is larger than a page can have."""
SPOOL_BYTES = 16 * 1024 * 1024

_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *MYSQL)
"""A `TEXT` of MySQL ends at 64 KiB, and the schema of a wide table does not."""
_metadata = sa.MetaData()
_checkpoints = sa.Table(
    "lake_checkpoint",
    _metadata,
    sa.Column("stream", sa.String(250), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", _LONG_TEXT, nullable=True),
)
_targets = sa.Table(
    "lake_target",
    _metadata,
    sa.Column("target", sa.String(250), primary_key=True),
    sa.Column("stream", sa.String(250), nullable=False),
)


_letters = sa.Table(
    "lake_dead_letter",
    _metadata,
    sa.Column("stream", sa.String(250), nullable=False),
    sa.Column("commit_time", sa.String(20), nullable=False),
    sa.Column("record_key", sa.Text, nullable=False),
    sa.Column("change_json", _LONG_TEXT, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
)


class DatabaseSink:
    """Options: `url` (SQLAlchemy's), `table` (may be `schema.table`), `columns` (comma list; default: all fields),
    `on_record_error`, and the time-outs `timeout_s` (connection, locks) and `statement_timeout_s`.
    """

    takes_single_rows = True

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = TakenOptions(settings.options, f"the database sink of {settings.table_name}")
        taken = take_database(options)
        options.end()
        self._table_name = taken.table
        self._wanted = taken.columns
        self._on_error = taken.on_record_error
        waits = Waits(taken.timeout_s, taken.statement_timeout_s)
        self._engine = create_engine(taken.url, waits)
        self._creates = taken.create
        self._evolve = taken.evolve
        self._dialect = printing_dialect(self._engine.dialect)
        is_postgresql = self._engine.dialect.name == "postgresql"
        if not is_postgresql and (self._creates or self._evolve is Evolve.WIDEN):
            raise ConfigError(
                f"the database sink of {settings.table_name} makes and widens tables of PostgreSQL alone, and this is "
                f"{self._engine.dialect.name}: leave out create, and evolve: widen"
            )
        self._watch = watch_engine(self._engine, waits) if is_postgresql else None
        self._copies = make_copies(self._engine.dialect)
        self._keeps_decimals = keeps_decimals_of(self._engine.dialect)
        self._table: sa.Table | None = None
        self._identity: Mapping[str, str] = MappingProxyType({})
        self._has_warned = False
        self._exact: sa.Table | None = None
        """The table whose columns were seen to take different texts for different ones."""
        self._fitting: tuple[str, tuple[str, ...], sa.Table] | None = None
        """The schema and fields of rows that the table has columns for, and the table."""
        self._spool: IO[bytes] | None = None
        self._rounding: tuple[str, sa.Table, tuple[RoundedColumn, ...]] | None = None
        """The schema of the last rows, the table, and the columns that may round decimals of the one in the other."""
        self._epoch = 0
        self._max_packet_bytes = 0
        self._generation_begun: int | None = None
        """The generation of a snapshot that is durable in part."""

    def open(self) -> str | None:
        """Find the table, reserve it for the stream, raise the stream's epoch, return its checkpoint."""
        try:
            _metadata.create_all(self._engine)
            table = self._find_or_make()
            target = f"{table.schema or sa.inspect(self._engine).default_schema_name}.{table.name}"
            # Other databases than PostgreSQL may take `Orders` for `orders`.
            self._take_target(target if self._engine.dialect.name == "postgresql" else target.lower())
            self._table = table
            with self._engine.begin() as connection:
                text = self._raise_epoch(connection)
                self._identity = _identity_of(connection, table)
                self._max_packet_bytes = find_max_packet_bytes(connection)
            self._note(from_text(text) if text is not None else None)
            return text
        except NoSuchTableError as error:
            raise SinkUnavailableError(
                f"the database has no table {self._table_name}: create it, or set create: true"
            ) from error
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
        step: RowsStep | CopiedStep | None = None
        if self._copies is not None and not self._rounded(batch.schema):
            step = self._copies.step_of(batch, list(newest.values()), self._opened(), self._wanted)
        if step is None:
            step = self._step_of(batch, newest.values())
        if self._spool is None:
            # Beyond some megabytes the buffer is on disk: a commit has any number of rows.
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - closed by commit or close
        pickle.dump(step, self._spool)

    def _step_of(self, batch: Batch, changes: Iterable[Change]) -> RowsStep:
        """Return the step of a block whose changes are the newest of their keys, value by value."""
        step = RowsStep(batch.begins_snapshot, commit_time=batch.commit.requested_time)
        for change in changes:
            try:
                if change.op is Op.DELETE:
                    step.gone.append(self._key(change))
                    continue
                key = self._key(change)
                row = self._row(change)
                self._require_exact(change, row, batch.schema)
                self._require_packet(change, row)
            except RecordRefusedError as error:
                step.letters.append(self._refuse(error, change.key, _text_of(change, batch), step.commit_time))
            else:
                step.keys.append(key)
                step.rows.append(row)
                if self._on_error is OnRecordError.DEAD_LETTER:
                    step.texts.append(_text_of(change, batch))
        return step

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
        aside = Aside(connection, table)
        is_part = checkpoint.snapshot is not None
        if not is_part and aside.is_there():
            aside.end(is_whole=self._generation_begun == checkpoint.generation)
        is_aside = is_part and aside.is_there()
        for step in self._steps():
            if step.begins_snapshot:
                is_aside = is_part and aside.begin(step)
                if not is_aside:
                    connection.execute(sa.delete(table))
            self._write(connection, aside.find(step) if is_aside else table, step)

    def _write(self, connection: sa.Connection, table: sa.Table, step: RowsStep | CopiedStep) -> None:
        """Write the rows of a step, those apart that the database refuses. Raises RecordRefusedError."""
        if isinstance(step, CopiedStep):
            if self._copies is not None and self._copy(connection, table, step):
                return
            batch = step.to_batch()
            step = self._step_of(batch, batch.changes)
        letters = list(step.letters)
        if connection.dialect.name == "sqlite":  # which has no savepoint before the first statement
            apply_step(connection, table, step)
        else:
            letters += self._write_apart(connection, table, step)
        if letters and self._on_error is OnRecordError.DEAD_LETTER:
            connection.execute(sa.insert(_letters), letters)

    def _copy(self, connection: sa.Connection, table: sa.Table, step: CopiedStep) -> bool:
        """Copy a step; return whether the database took it."""
        has_unique_key = is_unique(table, step.key)
        for write in (copy_step, merge_step):
            try:
                with connection.begin_nested():
                    write(connection, table, step, is_unique=has_unique_key)
                return True
            except IntegrityError:
                continue
            except (sa.exc.DataError, OperationalError) as error:
                if not _is_of_a_value(error):
                    raise
                return False
            except (sa.exc.ProgrammingError, sa.exc.NotSupportedError, sa.exc.InternalError) as error:
                # No right to a temporary table, a view, rows with rules of their own.
                log.warning("stream %s writes row by row: %s", self._settings.stream, first_line(error.orig))
                self._copies = None
                return False
        return False

    def _write_apart(self, connection: sa.Connection, table: sa.Table, step: RowsStep) -> list[dict[str, str]]:
        """Write rows together; where one is refused, in halves until it stands alone. Return the dead letters."""
        try:
            with connection.begin_nested():
                apply_step(connection, table, step)
        except (sa.exc.DataError, IntegrityError, OperationalError, ValueError) as error:
            if not _is_of_a_value(error):
                raise
            if step.size > 1:
                halves = step.in_halves()
                return [letter for half in halves for letter in self._write_apart(connection, table, half)]
            key = step.keys[0] if step.keys else step.gone[0]
            shown = canonical(key)
            why = first_line(getattr(error, "orig", None) or error)
            misfit = find_misfit(table, step.rows[0], connection.dialect.name) if step.rows else ""
            if step.rows and isinstance(error, OperationalError) and is_of_row_size(error):
                misfit = explain_row_size(table, step.rows[0])
            if isinstance(error, IntegrityError):
                misfit = misfit or explain_unique(connection, table, error)
            refused = RecordRefusedError(
                f"record {show_key(shown)} does not fit table {self._table_name}: {why}"
                f"{f'; {misfit}' if misfit else ''}"
            )
            return [self._refuse(refused, shown, step.texts[0] if step.texts else shown, step.commit_time)]
        return []

    def _refuse(self, error: RecordRefusedError, key: str, text: str, commit_time: str) -> dict[str, str]:
        """Return the dead letter of a record that does not fit. Raises the error where that is the policy."""
        if self._on_error is OnRecordError.STOP:
            raise RecordRefusedError(
                f"{error}; on_record_error: dead_letter stores such records in lake_dead_letter, skip leaves them out"
            ) from error
        log.warning("stream %s leaves a record out: %s", self._settings.stream, error)
        if find_excess([text], self._max_packet_bytes):
            error = RecordRefusedError(f"{error}; its change is too large to be stored here")
            text = ""
        named = {"stream": self._settings.stream, "commit_time": commit_time, "record_key": key}
        return {**named, "change_json": text, "error": str(error)}

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return the table's rows, in no order: the columns that this sink writes."""
        _ = checkpoint
        try:
            table = self._reflect()
            if not table.c:  # made, and without rows so far
                return
            wanted = [column for column in table.c if not self._wanted or column.name in {*self._wanted, *key}]
            with self._engine.connect() as connection:
                found = connection.execution_options(yield_per=10_000).execute(sa.select(*wanted))
                for row in found.mappings():
                    values = {name: to_json_value(table.c[name], value) for name, value in row.items()}
                    yield canonical({name: values[name] for name in key}), values
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error

    def count_rows(self) -> int:
        """Return how many rows the table has, those of one key counted each."""
        try:
            with self._engine.connect() as connection:
                return int(connection.execute(sa.select(sa.func.count()).select_from(self._reflect())).scalar_one())
        except SQLAlchemyError as error:
            raise self._as_lake_error(error) from error

    def as_read(self, change: Change) -> Row:
        """Return a row as the columns' types store it."""
        if self._table is None:
            self._table = self._reflect()
        key = self._key(change)
        row = self._row(change)
        table = self._table
        return canonical(key), {name: to_json_value(table.c[name], value) for name, value in row.items()}

    def close(self) -> None:
        """Drop the buffer, and disconnect."""
        self._forget()
        self._engine.dispose()

    def _reflect(self) -> sa.Table:
        schema, _, name = self._table_name.rpartition(".")
        if name.lower() in _metadata.tables or name.lower().startswith(SNAPSHOT_BEGINS):
            raise SinkRefusedError(
                f"table {self._table_name} would be one that the sink itself keeps for all streams: name another table"
            )
        return sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=self._engine)

    def _find_or_make(self) -> sa.Table:
        """Return the table. One that has to be made has no columns before the first rows name them and their key."""
        try:
            return self._reflect()
        except NoSuchTableError:
            if not self._creates:
                raise
        schema, _, name = self._table_name.rpartition(".")
        empty = sa.Table(name, sa.MetaData(), schema=schema or None)
        shown = self._dialect.identifier_preparer.format_table(empty)
        try:
            with self._engine.begin() as connection:
                run_as_it_is(connection, f"create table if not exists {shown} ()")
        except IntegrityError:
            log.info("another run makes table %s", self._table_name)
        return self._reflect()

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

    def _steps(self) -> Iterator[RowsStep | CopiedStep]:
        if self._spool is None:
            return
        self._spool.seek(0)
        while True:
            try:
                step: RowsStep | CopiedStep = pickle.load(self._spool)
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
        # A field of the key need be no column of the row: a part of one, or a partition's path.
        key = load_json(change.key)
        table = self._opened()
        body = key | load_json(change.after or "{}")
        known = [name for name, value in body.items() if value is not None or name in table.c]
        return self._values(change, body, tuple(dict.fromkeys((*self._wanted, *key))) if self._wanted else known)

    def _values(self, change: Change, body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        table = self._opened()
        keeps_decimals = self._keeps_decimals
        values = dict[str, Any]()
        name = ""
        try:
            for name in names:
                values[name] = to_column_value(self._column(table, name), body.get(name), keeps_decimals=keeps_decimals)
        except (ValueError, ArithmeticError) as error:
            shown = show_key(change.key)
            raise RecordRefusedError(
                f"record {shown} does not fit table {self._table_name}: column {name} ({table.c[name].type}) "
                f"cannot have this {kind_of(body.get(name))}: {error}"
            ) from error
        return values

    def _rounded(self, schema: str) -> tuple[RoundedColumn, ...]:
        table = self._opened()
        if self._rounding is None or self._rounding[:2] != (schema, table):
            self._rounding = (schema, table, find_rounded(schema, table, self._dialect))
        return self._rounding[2]

    def _require_exact(self, change: Change, row: Mapping[str, Any], schema: str) -> None:
        for column in self._rounded(schema):
            why = column.explain(row.get(column.name))
            if why:
                raise RecordRefusedError(f"record {show_key(change.key)} does not fit table {self._table_name}: {why}")

    def _require_packet(self, change: Change, row: Mapping[str, Any]) -> None:
        excess = find_excess(row.values(), self._max_packet_bytes)
        if excess:
            raise RecordRefusedError(f"record {show_key(change.key)} does not fit table {self._table_name}: {excess}")

    def _require_columns(self, schema: str, changes: Iterable[Change]) -> None:
        """Make, add or widen the columns of rows of this schema, as far as the entry allows it."""
        changes = list(changes)
        key = tuple(load_json(changes[0].key)) if changes else ()
        row = next((change.after for change in changes if change.after is not None), None)
        names = () if row is None else tuple(load_json(row))
        self._require_room((*key, *names))
        if self._creates and key and not self._opened().c:
            self._alter(
                f"table {self._table_name} has no columns yet",
                lambda table: [] if table.c else print_table(table, schema, key, self._wanted, self._dialect),
            )
        self._require_key(self._opened(), key)
        if names and (schema, names, self._opened()) != self._fitting:
            self._fit(schema, names, key)
            self._fitting = (schema, names, self._opened())

    def _require_room(self, names: Iterable[str]) -> None:
        """Refuse rows of more or longer columns than PostgreSQL has, before any statement."""
        if self._wanted or self._dialect.name != "postgresql":
            return
        obstacle = find_obstacle(self._opened(), names)
        if obstacle:
            raise SinkRefusedError(
                f"table {self._table_name} cannot have the columns of its rows: {obstacle}: leave columns out by "
                "column.exclude.list, or list the wanted ones in `columns`"
            )

    def _fit(self, schema: str, names: Sequence[str], key: Sequence[str]) -> None:
        """Let the table have what rows with these fields need; `columns` names the wanted ones, and adds none."""
        dialect = self._dialect
        missing = [] if self._wanted else [name for name in names if name not in self._opened().c]
        types = types_of(schema, dialect.name) if missing else {}
        # Rows are read with the table's newest schema: what a commit does not know yet is null there.
        missing = [name for name in missing if name in types]
        if missing:
            self._require_no_other_case(self._opened(), missing)
            self._alter(
                f"table {self._table_name} has no column {', '.join(map(repr, missing))}",
                lambda table: print_added(table, [name for name in missing if name not in table.c], types, dialect),
                "list the wanted columns in `columns`",
            )
        if self._evolve is Evolve.WIDEN:
            kept = [name for name in names if not self._wanted or name in {*self._wanted, *key}]
            self._alter(
                f"table {self._table_name} has narrower columns than its rows",
                lambda table: print_widened(table, schema, kept, dialect),
            )

    def _alter(self, what: str, find: Callable[[sa.Table], list[str]], otherwise: str = "") -> None:
        """Run what the table as it is needs; `find` returns the statements, none where it needs nothing."""
        statements = find(self._opened())
        if not statements:
            return
        advice = f"run {'; '.join(statements)}{f', or {otherwise}' if otherwise else ''}"
        if self._evolve is Evolve.STRICT and self._opened().c:
            raise SinkRefusedError(f"{what}, and evolve is strict: {advice}")
        if self._dialect.name not in UPSERTS:
            raise SinkRefusedError(f"{what}: {advice}")
        try:
            with self._engine.begin() as connection:
                for statement in statements:
                    run_as_it_is(connection, statement)
        except SQLAlchemyError as error:
            # Another run may have done so meanwhile.
            if find(self._reflect()):
                found = self._as_lake_error(error)
                if isinstance(found, SinkRefusedError):
                    raise SinkRefusedError(f"{what}, and the database refuses it ({found}): {advice}") from error
                raise found from error
        self._table = self._reflect()

    def _require_key(self, table: sa.Table, key: Iterable[str]) -> None:
        """Refuse a table that lacks a column of the key, and warn of one that has no index for it."""
        names = [*key]
        self._require_no_other_case(table, [name for name in names if name not in table.c])
        for name in names:
            self._column(table, name)
        self._require_exact_texts(table, names)
        if self._has_warned or not names or self._engine.dialect.name != "postgresql":
            return
        self._has_warned = True
        found = [tuple(column.name for column in index.columns) for index in table.indexes]
        found += [tuple(column.name for column in table.primary_key.columns)]
        found += [
            tuple(column.name for column in each.columns)
            for each in table.constraints
            if isinstance(each, sa.UniqueConstraint)
        ]
        if not any(index and index[0] in names for index in found):
            log.warning(
                "table %s has no index on the key (%s), so each change reads the whole table: create one",
                self._table_name, ", ".join(names),
            )  # fmt: skip

    def _require_exact_texts(self, table: sa.Table, key: Sequence[str]) -> None:
        """Refuse a key whose columns take different texts for one: a change of one row would delete another."""
        if table is self._exact or self._engine.dialect.name not in MYSQL:
            return
        with self._engine.connect() as connection:
            loose = find_loose_collations(connection, table)
        name = next((name for name in key if name in loose), None)
        if name is not None:
            raise SinkRefusedError(
                f"column {name} of table {self._table_name} has collation {loose[name]}, which takes different keys "
                f"for one: run alter table {self._table_name} modify column {name} {table.c[name].type} collate "
                "utf8mb4_nopad_bin (MySQL: utf8mb4_0900_bin)"
            )
        self._exact = table

    def _require_no_other_case(self, table: sa.Table, missing: Sequence[str]) -> None:
        """Refuse names that the table has in other letters: PostgreSQL makes unquoted names small."""
        small = {column.name.lower(): column.name for column in table.c}
        for name in missing:
            if name.lower() in small:
                raise SinkRefusedError(
                    f"table {self._table_name} has no column {name!r}, but {small[name.lower()]!r}: rename it (alter "
                    f'table ... rename column "{small[name.lower()]}" to "{name}")'
                )

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

    def _find_holders(self) -> str:
        """Return which sessions have a lock on the table; empty where the login may not see it."""
        query = sa.text(
            # Not what it asks: a statement may hold a password or a row.
            "select distinct a.pid, a.usename, a.state from pg_locks l "
            "join pg_stat_activity a using (pid) where l.granted and a.pid <> pg_backend_pid() "
            "and l.relation = to_regclass(:shown)"
        )
        try:
            with self._engine.connect() as connection:
                shown = connection.dialect.identifier_preparer.format_table(self._opened())
                rows = connection.execute(query, {"shown": shown}).all()
        except (SQLAlchemyError, LakeError):
            return ""
        held = [f"process {pid} ({user}, {state})" for pid, user, state in rows]
        return f"; it is locked by {'; '.join(held)}" if held else ""

    def _as_lake_error(self, error: SQLAlchemyError) -> LakeError:
        what = f"table {self._table_name}: {first_line(getattr(error, 'orig', error))}"
        if self._watch is not None and self._watch.problem:
            return SinkUnavailableError(f"table {self._table_name}: {self._watch.problem}")
        state = _state_of(error)
        if state == _LOCK_NOT_AVAILABLE:
            what += f", after timeout_s{self._find_holders()}"
        if "row-level security" in what:
            what += "; give the sink's login BYPASSRLS: it has to see every row that it replaces"
        if state == _TOO_MANY_COLUMNS:
            return SinkRefusedError(f"{what}; dropped columns count as well: make the table again")
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


def _state_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error of PostgreSQL's; psycopg and psycopg2 call it differently."""
    cause = getattr(error, "orig", None)
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")


def _is_of_a_value(error: Exception) -> bool:
    """Whether a database refused a record for its values: an operational error else is the server's."""
    if not isinstance(error, OperationalError) or _state_of(error) == _LIMIT_EXCEEDED:
        return True
    return is_of_row_size(error)


def _text_of(change: Change, batch: Batch) -> str:
    return message_of(change, batch.commit, ChangeMode.CHANGES) or ""

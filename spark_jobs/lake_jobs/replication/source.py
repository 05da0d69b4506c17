"""A Hudi table as replication reads it: its timeline, one commit alone, and a snapshot at an instant.

Hudi 1.2 compares the range of a change data query with *requested* times, whatever its documents state: a range behind
a completion time skips the commits of slow writers for good. So each commit is read alone, by its requested time.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.job_contract import UPGRADE_MARK, describe_mark
from airflow_lake_provider.replication.change import PARTITION_PATH, Change, ChangeMode, CommitRef, Op, bytes_of
from airflow_lake_provider.replication.transactions import UNBOUNDED
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ
from airflow_lake_provider.sink_options.run import Reader
from airflow_lake_provider.sink_options.where import Operator
from airflow_lake_provider.table_layout import LOST_MERGER, Buckets, read_layout
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.files import TableFiles, find_link_below, refuse_link
from lake_jobs.replication.arrow_changes import AFTER, KEY, count_changes
from lake_jobs.replication.change_columns import (
    data_schema,
    find_unfit_column,
    key_json,
)
from lake_jobs.replication.column_rules import ColumnRules
from lake_jobs.replication.commit_reading import (
    ChangeDataReading,
    SliceReading,
    find_groups,
    list_files,
    read_merging,
)
from lake_jobs.replication.commits_in_turn import CommitsInTurn
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS
from lake_jobs.replication.log_records import NotAlikeError
from lake_jobs.replication.plain_columns import can_be_key, names_in, plain_columns
from lake_jobs.replication.reader_choice import Choice, Description, TableTraits, choose_reader, find_obstacle
from lake_jobs.replication.reconciliation import Records, count, find_differences, is_explained
from lake_jobs.replication.row_transfer import ReadAhead
from lake_jobs.replication.slice_changes import ChangeQuery
from lake_jobs.replication.slice_reader import GROUP, SliceReader
from lake_jobs.replication.small_commits import SmallCommit, list_local, may_be_small, read_logs
from lake_jobs.replication.timeline_reader import TimelineReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import types as T

    from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
    from airflow_lake_provider.replication.feed import SourceTimeline
    from airflow_lake_provider.sink_options.where import ColumnComparison
    from lake_jobs.replication.file_slices import DataFile, GroupStatistics
    from lake_jobs.replication.slice_reader import RowFormat
    from lake_jobs.replication.timeline_reader import FoundSavepoint

log = logging.getLogger(__name__)

_RECORD_KEY = "_hoodie_record_key"
_PARTITION = PARTITION_PATH
_GENERATED = ("TimestampBased", "Custom")


class HudiSource:
    """Reads one table. The session's time zone must be UTC. Raises SourceRefusedError for what Hudi would garble."""

    def __init__(
        self,
        spark: SparkSession,
        base_path: str,
        mode: ChangeMode,
        key: tuple[str, ...] = (),
        reader: Reader = Reader.AUTO,
        max_transaction_rows: int = UNBOUNDED,
    ) -> None:
        self._spark = spark
        self._base_path = base_path
        self._mode = mode
        self._reader = reader
        self._most_rows = max_transaction_rows
        link = find_link_below(spark, base_path)
        if link:
            raise SourceRefusedError(f"table {base_path}: {refuse_link(link)}")
        self._files = TableFiles(spark, base_path)
        if self._files.size_of(UPGRADE_MARK) is not None:
            raise SourceRefusedError(f"table {base_path}: {describe_mark(self._files.read(UPGRADE_MARK))}")
        self._timeline = TimelineReader(spark, base_path)
        config = self._timeline.table.meta_client.getTableConfig()
        self._version = self._timeline.version
        self._merging = read_merging(config)
        fields = config.getRecordKeyFields()
        partitions = config.getPartitionFields()
        self._record_key = tuple(fields.get()) if fields.isPresent() else ()
        self._partition = tuple(partitions.get()) if partitions.isPresent() else ()
        self._key = key
        self._schemas: dict[str, T.StructType] = {}
        self._layouts: dict[str, RowFormat] = {}
        self._ahead = ReadAhead[CommitRef, Sequence[Change]](self._read_in_turn, bytes_of)
        self._ends_s: dict[str, float] = {}
        self._by_key = set[str]()
        self._rules = ColumnRules(base_path)
        self.readers: Counter[str] = Counter()
        self._require_replicable(bool(config.populateMetaFields()))
        self._timeline.read_newest()
        names = self.columns
        # Hudi's rows are unique in their partition only, unless the index is global, and no property says which.
        place = (PARTITION_PATH,) if self._is_path_made else tuple(n for n in self._partition if n in names)
        self._key = key or tuple(dict.fromkeys((*self._record_key, *place)))
        has_change_data = bool(config.isCDCEnabled())
        unfit = find_unfit_column(self._schema()) if has_change_data else None
        self._traits = TableTraits(
            self._version,
            has_change_data,
            self._timeline.table.table_type == MERGE_ON_READ,
            unfit or "",
            PARTITION_PATH in self._key,
        )
        obstacle = find_obstacle(self._traits)
        if reader is Reader.CDC and (obstacle or mode is ChangeMode.LATEST):
            raise SourceRefusedError(
                f"table {base_path} has reader: cdc, and {obstacle or 'mode latest needs no change data'}: set "
                "reader: auto, which compares file slices instead"
            )

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the present active timeline.

        The metadata of writes that `known` has are not read, so the answer does not show whether those changed rows.
        """
        return self._timeline.read(known)

    def find_savepoints(self, made_by: str) -> tuple[FoundSavepoint, ...]:
        """Return the completed savepoints of one maker on the timeline that was read last."""
        return self._timeline.find_savepoints(made_by)

    def let_out(self, rules: ColumnRules) -> None:
        """Read rows as these rules let them out from now on. They are the table's own."""
        self._rules = rules

    def expect(self, commits: Sequence[CommitRef]) -> None:
        """Read these ahead, one after another, in a thread of its own."""
        self._ahead.expect(commits)

    def read_blocks(self, commit: CommitRef, after: str = "") -> Iterator[Sequence[Change]]:
        """Return the changes of one completed commit alone, in order per key, in blocks of some thousand.

        Raises SourceRefusedError when the key `after`, where a run ended, is of other fields than the stream's.
        """
        if not after:
            return self._ahead.read(commit)
        self._ahead.stop()
        fields = tuple(json.loads(after))
        if fields != self._key:
            raise SourceRefusedError(
                f"commit {commit.requested_time} of table {self._base_path} is in the sink in part, with key "
                f"{', '.join(fields)}, and key names {', '.join(self._key)} now: name those until the commit is there "
                "as a whole, or request a new snapshot"
            )
        return next(self._read_in_turn([commit], after))

    def is_by_key(self, commit: CommitRef) -> bool:
        """Whether a commit, of which a block was read, is read in the order of its keys."""
        return commit.requested_time in self._by_key

    def read_end_s(self, commit: CommitRef) -> float:
        """Return when all of a commit that was asked for had been read, in seconds of `time.monotonic`."""
        return self._ends_s.pop(commit.requested_time)

    def read(self, commit: CommitRef) -> Iterator[Change]:
        """Return the changes of one completed commit alone, in order per key."""
        return chain.from_iterable(self.read_blocks(commit))

    @property
    def base_path(self) -> str:
        """Where the table is."""
        return self._base_path

    @property
    def has_own_logs(self) -> bool:
        """Whether each log file names the commit that wrote it."""
        return self._version >= FIRST_VERSION_OF_OWN_LOGS

    def describe(self, commit: CommitRef) -> Description:
        """Read a commit's own metadata, and choose how it is read. Raises ReplicationGapError."""
        if commit.requested_time not in self._timeline.times.completed:
            self.read_timeline()
        written = self._timeline.read_statistics(commit)
        statistics = written.groups
        follows_names = not written.has_schema_history
        choice = self._choose(commit, statistics)
        repeats = self._may_repeat_keys(statistics)
        schema = self.schema_of(commit)
        found = Description(commit, statistics, choice, schema, repeats, self._most_rows, follows_names)
        if found.is_by_key:
            self._by_key.add(commit.requested_time)
        return found

    def read_small(self, found: Description) -> Any:
        """Return the changes of a small commit as a record batch, read by this process; None to have Spark read them.

        They are as many as the commit's own statistics say. Raises ReplicationGapError.
        """
        commit = found.commit
        statistics = found.statistics
        is_small = found.is_small and may_be_small(statistics, with_logs=self._merging.is_plain and self.has_own_logs)
        columns = plain_columns(found.schema) if is_small else None
        is_plain = self._rules.is_empty and self._merging.keeps_versions
        if not is_plain or not columns or not can_be_key(columns, self._key):
            return None
        try:
            local = self._files.local
            files = self.list_files(statistics) if local is None else list_local(local, statistics)
            groups = find_groups(files, self._timeline.table, commit, statistics, self._timeline.times)
            with_before = self._mode is ChangeMode.CHANGES
            logs = read_logs(columns, self._merging, self._files.read_directly) if self.has_own_logs else None
            small = SmallCommit(commit, groups, columns, self._key, with_before, self._open_file, found.schema, logs)
            read = small.read()
            differences = find_differences(statistics, count(count_changes(read, GROUP)))
            if not all(is_explained(each, small.records.get(each.position, Records())) for each in differences):
                # What it cannot explain is Spark's to explain, or to refuse.
                raise NotAlikeError(str(differences[0]))
        except (NotAlikeError, OSError) as why:
            log.debug("Spark reads commit %s of table %s: %s", commit.requested_time, self._base_path, why)
            return None
        self.readers[f"{found.choice.reader}: {found.choice.reason}"] += 1
        return read

    def _open_file(self, path: str) -> Any:
        import pyarrow as pa

        local = self._files.local
        return str(local / path) if local is not None else pa.BufferReader(self._files.read(path))

    def list_files(self, groups: Sequence[GroupStatistics]) -> dict[tuple[str, str], list[DataFile]]:
        """Return all files of some file groups, by partition and file id."""
        return list_files(self._slices, self._timeline.table, groups)

    def open(
        self, found: Description, files: Mapping[tuple[str, str], Sequence[DataFile]]
    ) -> ChangeDataReading | SliceReading:
        """Prepare the reading of a commit. Raises ReplicationGapError."""
        # Threads have sessions of their own otherwise, without this one's time zone.
        self._spark._jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        commit = found.commit
        statistics = found.statistics
        self.readers[f"{found.choice.reader}: {found.choice.reason}"] += 1
        if found.choice.reader is Reader.CDC:
            rows = self._reader_of_rows()
            schema = self._schema_at(commit)
            return ChangeDataReading(rows, self._base_path, commit, statistics, schema, self._key, self._rules)
        query = ChangeQuery(
            self._slices,
            self._layout(commit),
            (commit,),
            self._key,
            self._version,
            with_before=self._mode is ChangeMode.CHANGES,
            keeps_versions=self._merging.keeps_versions,
            rules=self._rules,
        )
        groups = find_groups(files, self._timeline.table, commit, statistics, self._timeline.times)
        return SliceReading(query, groups, self._merging)

    def _read_in_turn(self, commits: Sequence[CommitRef], after: str = "") -> Iterator[Iterator[Sequence[Change]]]:
        for commit, blocks in zip(commits, CommitsInTurn(self, commits).read(after), strict=True):
            yield self._until_end(commit, blocks)

    def _until_end(self, commit: CommitRef, blocks: Iterator[Sequence[Change]]) -> Iterator[Sequence[Change]]:
        yield from blocks
        self._ends_s[commit.requested_time] = time.monotonic()

    def _may_repeat_keys(self, statistics: Sequence[GroupStatistics]) -> bool:
        """Whether one key may be deleted here and inserted there: a row that moved, or one of an overwritten group.

        A key with all fields of record key and partition names a row of one file group.
        """
        if any(group.is_replaced for group in statistics):
            return True
        if any({*self._record_key, *place} <= set(self._key) for place in (self._partition, (PARTITION_PATH,))):
            return False
        return any(group.is_log or group.deletes for group in statistics)

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        """Return the rows of the table at an instant behind `progress.after`, in the order of their keys."""
        for row in self.snapshot_rows(progress).orderBy(KEY).toLocalIterator():
            yield Change(Op.READ, row.key, None, row.after)

    def count_snapshot(self, progress: SnapshotProgress) -> int | None:
        """Return how many rows the table has at an instant: of files without log files their footers say it.

        None once a clean has passed the instant: Hudi then begins no reading there, also where the files are kept.
        """
        try:
            rows = self._reader_of_rows().option("as.of.instant", progress.instant).load(self._base_path)
            return int(rows.count())
        except Py4JJavaError as error:
            why = describe(causes_of(error.java_exception))
            log.warning("the rows of the snapshot at %s were not counted: %s", progress.instant, why)
            return None

    def snapshot_rows(self, progress: SnapshotProgress, until: str = "") -> DataFrame:
        """Return key and JSON (`after`) of the table's rows at an instant behind `progress.after`, up to a last key."""
        rows = self._as_written(self._reader_of_rows().option("as.of.instant", progress.instant).load(self._base_path))
        found = rows.select(key_json(self._key).alias(KEY), self._rules.image(data_schema(rows.schema)).alias(AFTER))
        if progress.after is not None:
            found = found.where(F.col(KEY) > progress.after)
        return found.where(F.col(KEY) <= until) if until else found

    def plan_rows(self, partitions: Sequence[ColumnComparison] = ()) -> Callable[[], Iterator[tuple[str, str]]]:
        """Decide now which files are read; the function that is returned reads each row's key and JSON.

        `partitions` compares partition fields: Hudi then reads no file of the others.
        """
        rows = self._as_written(self._reader_of_rows().load(self._base_path))
        for each in partitions:
            rows = rows.where(_predicate(each))
        found = rows.select(key_json(self._key), self._rules.image(data_schema(rows.schema)))
        # Spark lists the files here, once, whenever it reads them.
        found._jdf.queryExecution().toRdd()
        return lambda: ((key, row) for key, row in found.toLocalIterator(prefetchPartitions=True))

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's fields."""
        return self._key

    @property
    def partition(self) -> tuple[str, ...]:
        """The fields by whose values, as they are, the table is partitioned; empty where Hudi makes them of others."""
        return () if self._is_path_made else self._partition

    @cached_property
    def _is_path_made(self) -> bool:
        """Whether Hudi makes the partitions' paths of the fields' values by a rule of the table's own."""
        generator = str(self._timeline.table.meta_client.getTableConfig().getKeyGeneratorClassName() or "")
        return bool(self._partition) and any(name in generator for name in _GENERATED)

    def _as_written(self, rows: DataFrame) -> DataFrame:
        """Return rows with the types in which commits wrote them.

        Hudi's reader types a partition field as text where it makes the path of it, whatever the table's schema says.
        """
        if not self._is_path_made:
            return rows
        written = {field.name: field.dataType for field in self._slices.layout_at(rows).schema.fields}
        columns = []
        for field in rows.schema.fields:
            value = kept = F.col(f"`{field.name}`")
            kind = written.get(field.name, field.dataType)
            if field.name in self._partition and kind != field.dataType:
                value = kept.cast(kind)
                what = f"column {field.name} of table {self._base_path} is no {kind.simpleString()} in its files"
                value = F.when(kept.isNotNull() & value.isNull(), F.raise_error(what).cast(kind)).otherwise(value)
            columns.append(value.alias(field.name))
        return rows.select(*columns)

    @property
    def schema(self) -> T.StructType:
        """The table's columns, in its newest schema."""
        return self._schema()

    @property
    def time_zone(self) -> str:
        """The zone in which the table's instants are named, in Hudi's spelling."""
        return str(self._timeline.table.meta_client.getTableConfig().getTimelineTimezone().name())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns, in its newest schema."""
        # Spark would open the table for them.
        return names_in(self._timeline.newest_schema) or tuple(self._schema().names)

    def schema_of(self, commit: CommitRef) -> str:
        """Return the Avro schema that the commit wrote with; empty when it names none."""
        return self._timeline.schema_of(commit)

    def _choose(self, commit: CommitRef, statistics: Sequence[GroupStatistics]) -> Choice:
        if self._mode is ChangeMode.LATEST:
            return Choice(Reader.SLICES, "mode latest needs no change data")
        return choose_reader(
            self._reader, self._traits, statistics, self.schema_of(commit), self._timeline.newest_schema
        )

    def _schema_at(self, commit: CommitRef) -> T.StructType:
        """Return the columns as a commit wrote them: its change data has no others."""
        return data_schema(self._layout(commit).schema)

    def _layout(self, commit: CommitRef) -> RowFormat:
        schema = self.schema_of(commit)
        if schema not in self._layouts or not schema:
            rows = self._reader_of_rows().option("as.of.instant", commit.requested_time).load(self._base_path)
            self._layouts = {schema: self._slices.layout_at(rows)}
        return self._layouts[schema]

    def change_data(self, commit: CommitRef) -> DataFrame:
        """Return Hudi's own change data of one commit, as it is."""
        reader = self._reader_of_rows()
        schema = self._schema()
        return ChangeDataReading(reader, self._base_path, commit, (), schema, self._key, self._rules).rows()

    def _reader_of_rows(self) -> DataFrameReader:
        return self._spark.read.format("hudi")

    @cached_property
    def _slices(self) -> SliceReader:
        return SliceReader(self._spark, self._base_path)

    def _schema(self) -> T.StructType:
        # Of the newest commit: what it added is null in the rows of earlier ones. Opening the table takes a while.
        if self._timeline.newest not in self._schemas:
            rows = self._as_written(self._reader_of_rows().load(self._base_path))
            self._schemas = {self._timeline.newest: data_schema(rows.schema)}
        return self._schemas[self._timeline.newest]

    def _require_replicable(self, has_meta_fields: bool) -> None:  # noqa: FBT001 - the table's own property
        what = f"table {self._base_path}"
        if not has_meta_fields:
            raise SourceRefusedError(
                f"{what} has no meta fields (hoodie.populate.meta.fields=false), so its rows carry no keys"
            )
        config = self._timeline.table.meta_client.getTableConfig()
        if bool(config.shouldDropPartitionColumns()):
            raise SourceRefusedError(
                f"{what} leaves its partition columns out of its files (hoodie.datasource.write.drop.partition.columns)"
            )
        if read_layout(dict(config.getProps()), Buckets.NONE).loses_own_merger:
            raise SourceRefusedError(f"{what}: {LOST_MERGER}, so its changes would not be those that its writers made")
        if not self._key and not self._record_key:
            raise SourceRefusedError(f"{what} has no record key: name the fields in key")


def _predicate(comparison: ColumnComparison) -> Column:
    """Return a comparison of a partition field as Spark's expression; it holds for each row that fits, at least."""
    column = F.col(f"`{comparison.column}`")
    values = [F.lit(value) for value in comparison.values]
    match comparison.operator:
        case Operator.EQUAL:
            return column == values[0]
        case Operator.IN:
            return column.isin(*values)
        case Operator.IS_NULL:
            return column.isNull()
        case Operator.LESS:
            return column < values[0]
        case Operator.AT_MOST:
            return column <= values[0]
        case Operator.MORE:
            return column > values[0]
        case Operator.AT_LEAST:
            return column >= values[0]
        case _:
            return column.isNotNull()


def one_ms_before(instant: str) -> str:
    """Return the instant time one millisecond earlier (`yyyyMMddHHmmssSSS`); ranges exclude their begin."""
    return shift_instant_time(instant, -1)

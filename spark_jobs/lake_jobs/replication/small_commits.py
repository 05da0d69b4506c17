"""A commit of few rows, in base or log files, read by this process: a Spark job for it costs ten times as much.

What is read, and what counts as a change, is as in `slice_changes`; rows leave in the text that Spark's `to_json` makes
of them. Whatever is not certain to be alike is left to Spark: other types, files that have another schema than the
commit, times in the old calendar, a key that a file group has twice, a base file beneath which there were log files,
and what `log_records` leaves to it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.replication.change import Op
from lake_jobs.replication.arrow_changes import COLUMNS
from lake_jobs.replication.file_slices import DataFile, FileSlice, parse_name
from lake_jobs.replication.log_records import (
    LogFiles,
    LogRecord,
    NotAlikeError,
    Row,
    in_order,
    merge_records,
    wins_over_base,
)
from lake_jobs.replication.plain_columns import quote
from lake_jobs.replication.reconciliation import Records
from lake_jobs.replication.slice_reader import GROUP, RECORD_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.replication.commit_reading import Merging
    from lake_jobs.replication.file_slices import GroupStatistics
    from lake_jobs.replication.plain_columns import PlainColumn
    from lake_jobs.replication.slice_changes import TouchedGroup

MAX_GROUPS = 64
MAX_BYTES = 32 * 2**20
MAX_VALUES = 60_000
"""Above these a Spark job is cheaper: file groups, bytes of their files before and after, values of changed rows."""
MAX_LOG_BYTES = 2 * 2**20
"""The same of log files, of which this process reads each record."""
MAX_BASE_VALUES = 32_000_000
MAX_BASE_BYTES = 512 * 2**20
"""What one base file may become in memory: values, and bytes of all texts."""
_COMMIT_TIME = "_hoodie_commit_time"
_SEQUENCE = "_hoodie_commit_seqno"
_BASE_FILE = ".parquet"
Open: TypeAlias = "Callable[[str], Any]"
"""Returns what Arrow reads a file from, by its path relative to the table."""


def list_local(base_path: Path, groups: Sequence[GroupStatistics]) -> dict[tuple[str, str], list[DataFile]]:
    """Return all files of some file groups of a table on this machine, by partition and file id."""
    files: dict[tuple[str, str], list[DataFile]] = {}
    for partition in {group.partition for group in groups}:
        wanted = {group.file_id for group in groups if group.partition == partition}
        folder = base_path / partition
        # A folder that is gone has no files, and what asks for them says so.
        named = map(parse_name, os.listdir(folder)) if folder.is_dir() else ()
        for file in named:
            if file is not None and file.file_id in wanted:
                # A clean may delete one of an older slice just now.
                with suppress(FileNotFoundError):
                    sized = replace(file, length=(folder / file.name).stat().st_size)
                    files.setdefault((partition, file.file_id), []).append(sized)
    return files


def may_be_small(statistics: Sequence[GroupStatistics], *, with_logs: bool) -> bool:
    """Whether what a commit says of itself lets it be read here: few file groups, and log files where they can be."""
    return len(statistics) <= MAX_GROUPS and (with_logs or not any(group.is_log for group in statistics))


@dataclass(frozen=True, slots=True)
class SmallCommit:
    """A commit, its file groups, and how its rows leave."""

    commit: CommitRef
    groups: Sequence[TouchedGroup]
    columns: Sequence[PlainColumn]
    key: Sequence[str]
    with_before: bool
    open: Open
    schema: str = ""
    """The commit's own, as Avro's JSON; `columns` are made of it."""
    logs: LogFiles | None = None
    """What reads log files; without it they are left to Spark."""
    records: dict[int, Records] = field(default_factory=dict)
    """What became of the records in log files of the commit's own, by the file group's position, once it was read."""

    def read(self) -> Any:
        """Return the changes as a record batch like that of a Spark job, deletes first. Raises NotAlikeError.

        The driver has Arrow's package, or there would be no columns.
        """
        import pyarrow as pa

        sides = [side for group in self.groups for side in (group.before, group.after) if side is not None]
        if any(side.base is not None and not side.base.name.endswith(_BASE_FILE) for side in sides):
            raise NotAlikeError("base files of another format")
        if sum(side.length for side in sides) > MAX_BYTES:
            raise NotAlikeError("its files are large")
        if sum(log.length for side in sides for log in side.logs) > 2 * MAX_LOG_BYTES:
            raise NotAlikeError("its log files are large")
        try:
            rows = [row for number, group in enumerate(self.groups) for row in self._changes(number, group)]
        except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
            raise NotAlikeError(f"{type(error).__name__}: {error}") from error
        rows.sort(key=lambda row: row[0] != Op.DELETE.value)
        texts = [pa.array([row[at] for row in rows], pa.string()) for at in range(len(COLUMNS))]
        numbers = pa.array([row[-1] for row in rows], pa.int32())
        return pa.record_batch([*texts, numbers], [*COLUMNS, GROUP])

    def _changes(self, number: int, group: TouchedGroup) -> Iterator[_Row]:
        import pyarrow.compute as pc

        if group.statistics.is_log:
            yield from self._appended(number, group)
            return
        after = self._load(group, group.after)
        before = None
        if group.before is None or after is None:
            op = Op.DELETE if after is None else Op.INSERT
            yield from self._rows(op, number, self._load(group, group.before), after)
            return
        written = after if group.may_delete else after.filter(pc.equal(after[_COMMIT_TIME], self.commit.requested_time))
        if not self.with_before and not group.may_delete:
            yield from self._rows(Op.UPDATE, number, None, written)
            return
        before = self._load(group, group.before)
        places = pc.index_in(_keys_of(written), value_set=_keys_of(before))
        is_new = pc.is_null(places)
        yield from self._rows(Op.INSERT, number, None, written.filter(is_new))
        kept = written.filter(pc.invert(is_new))
        was = before.take(places.drop_null())
        if group.may_delete:
            gone = pc.invert(pc.is_in(before[RECORD_KEY], value_set=_keys_of(after)))
            yield from self._rows(Op.DELETE, number, before.filter(gone), None)
            is_same = pc.and_(*(pc.equal(kept[name], was[name]) for name in (_COMMIT_TIME, _SEQUENCE)))
            kept, was = kept.filter(pc.invert(is_same)), was.filter(pc.invert(is_same))
        yield from self._rows(Op.UPDATE, number, was, kept)

    def _appended(self, number: int, group: TouchedGroup) -> Iterator[_Row]:
        """Return the changes of a file group to which the commit appended: of the keys in its own log files.

        All else is the same before and after it: one base file, and the log files of other commits.
        """
        before = group.before
        after = group.after
        base = after.base if after is not None else None
        logs = after.logs if after is not None else ()
        own = group.own_logs.logs if group.own_logs is not None else ()
        others = {*(before.logs if before is not None else ())}
        if self.logs is None or (before.base if before is not None else None) != base or others != {*logs} - {*own}:
            raise NotAlikeError("log files that are read by Spark, or another base file before the commit")
        written = {log: self._records(group, log, None) for log in in_order(own)}
        mine = merge_records(record for records in written.values() for record in records)
        earlier = {log: self._records(group, log, mine.keys()) for log in others}
        every = in_order(logs)
        now = merge_records(record for log in every for record in (written | earlier)[log])
        was = merge_records(record for log in every if log in earlier for record in earlier[log])
        versions = self._versions(group, base, mine, (was, now))
        self.records[number] = self._count(mine, versions)
        for op in (Op.DELETE, Op.INSERT, Op.UPDATE):
            pairs = [pair for pair in versions.pairs.values() if versions.op_of(*pair) is op]
            sides = (
                None if any(place is None for place in places) else versions.rows.take(list(places))
                for places in zip(*pairs, strict=True)
            )
            if pairs:
                yield from self._rows(op, number, *sides)

    def _versions(
        self,
        group: TouchedGroup,
        base: DataFile | None,
        keys: Collection[str],
        merged: Sequence[Mapping[str, LogRecord]],
    ) -> _Versions:
        """Return the rows of some keys before and after the commit, as what log files hold of them says."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds = self._kinds()
        rows = pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
        if base is not None:
            rows = self._load(group, FileSlice(base, ()))
            rows = rows.filter(pc.is_in(rows[RECORD_KEY], value_set=pa.array(keys, pa.string())))
            # Without what the file says of nulls: those of log files are put next to them.
            rows = pa.table({name: rows[name] for name in kinds})
        at_base = {key: at for at, key in enumerate(_keys_of(rows).to_pylist())}
        ordering = self.logs.ordering if self.logs is not None else ""
        orders = rows[ordering].to_pylist() if ordering else [0] * rows.num_rows
        added: dict[int, int] = {}
        found: list[Row] = []

        def place(key: str, record: LogRecord | None) -> int | None:
            at = at_base.get(key)
            if record is None or (at is not None and not wins_over_base(record, orders[at])):
                return at
            if record.row is None:
                return None
            if id(record) not in added:
                added[id(record)] = rows.num_rows + len(found)
                found.append(record.row)
            return added[id(record)]

        pairs = {key: (place(key, merged[0].get(key)), place(key, merged[1].get(key))) for key in keys}
        more = pa.table({name: _array([row[name] for row in found], kind) for name, kind in kinds.items()})
        return _Versions(pa.concat_tables([rows, more]).combine_chunks(), pairs)

    def _count(self, mine: Mapping[str, LogRecord], versions: _Versions) -> Records:
        """Return what became of the commit's own records: as `ChangeQuery.count_records`, not from how they merged."""
        ordering = self.logs.ordering if self.logs is not None else ""
        times = versions.rows[_COMMIT_TIME].to_pylist()
        orders = versions.rows[ordering].to_pylist() if ordering else [0] * len(times)
        kept = lost = missing = 0
        for key, record in mine.items():
            at = versions.pairs[key][1]
            if record.row is None:
                continue
            if at is not None and times[at] == self.commit.requested_time:
                kept += 1
            elif ordering and (at is None or orders[at] >= record.order):
                # Where no row is left an earlier delete had the higher value.
                lost += 1
            else:
                missing += 1
        return Records(kept, lost, missing)

    def _records(self, group: TouchedGroup, log: DataFile, keys: Collection[str] | None) -> list[LogRecord]:
        assert self.logs is not None
        return self.logs.records(group.statistics.partition, log, self.schema, keys)

    def _rows(self, op: Op, number: int, before: Any, after: Any) -> Iterator[_Row]:
        rows = after if after is not None else before
        if rows.num_rows * len(self.columns) > MAX_VALUES:
            raise NotAlikeError("it changed many rows")
        nothing = [None] * rows.num_rows
        keys = self._images(rows, self.key)
        images = [
            nothing if side is None else self._images(side, [column.name for column in self.columns])
            for side in (before if self.with_before else None, after)
        ]
        for key, was, now in zip(keys, *images, strict=True):
            yield op.value, key, was, now, number

    def _images(self, rows: Any, names: Sequence[str]) -> list[str]:
        """Return the JSON of each row, of these columns."""
        prints = {column.name: column.print for column in self.columns}
        texts = [[f"{quote(name)}:{text}" for text in prints[name](rows[name])] for name in names]
        return ["{" + ",".join(parts) + "}" for parts in zip(*texts, strict=True)]

    def _load(self, group: TouchedGroup, side: FileSlice | None) -> Any:
        """Return the rows of a slice's base file; None without a slice."""
        import pyarrow as pa
        from pyarrow import parquet

        if side is None:
            return None
        if side.base is None or side.logs:
            raise NotAlikeError("log files beneath a base file, or none of both")
        source = self.open(f"{group.statistics.partition}/{side.base.name}".lstrip("/"))
        file = parquet.ParquetFile(source)
        try:
            found = {field.name: field.type for field in file.schema_arrow}
            wanted = self._kinds()
            other = next((name for name, kind in wanted.items() if found.get(name) != kind), None)
            if other is not None:
                raise NotAlikeError(f"column {other} is {found.get(other)} in {side.base.name}, not {wanted[other]}")
            # Few bytes may be many, also rows, and a dictionary's text may stand for each of them.
            packs = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
            if file.metadata.num_rows * len(wanted) > MAX_BASE_VALUES or sum(packs) > MAX_BASE_BYTES:
                raise NotAlikeError(f"{side.base.name} has many rows")
            texts = [name for name, kind in wanted.items() if kind in (pa.string(), pa.binary())]
            with parquet.ParquetFile(source, metadata=file.metadata, read_dictionary=texts) as packed:
                rows = packed.read(list(wanted), use_threads=False)
            if sum(_unpacked_bytes(rows[name]) for name in texts) > MAX_BASE_BYTES:
                raise NotAlikeError(f"{side.base.name} has long texts")
            return rows.cast(pa.schema([file.schema_arrow.field(name) for name in wanted])).combine_chunks()
        finally:
            file.close()

    def _kinds(self) -> dict[str, Any]:
        import pyarrow as pa

        kinds = {name: pa.string() for name in (RECORD_KEY, _COMMIT_TIME, _SEQUENCE)}
        return kinds | {column.name: column.kind for column in self.columns}


@dataclass(frozen=True, slots=True)
class _Versions:
    """Rows, and of each key the places of its row before and after the commit; None where there was none."""

    rows: Any
    pairs: Mapping[str, tuple[int | None, int | None]]

    def op_of(self, before: int | None, after: int | None) -> Op | None:
        """Return what became of a row; None when it stayed as it was. A version is named by time and number."""
        if before is None or after is None:
            return Op.INSERT if after is not None else Op.DELETE if before is not None else None
        names = (_COMMIT_TIME, _SEQUENCE)
        return None if all(self.rows[name][before] == self.rows[name][after] for name in names) else Op.UPDATE


_Row: TypeAlias = tuple[str, str, str | None, str | None, int]
"""What `COLUMNS` name, and the number of the file group."""


def _keys_of(rows: Any) -> Any:
    """Return the record keys of rows. Raises NotAlikeError when two have the same."""
    import pyarrow.compute as pc

    keys = rows[RECORD_KEY]
    if keys.null_count or len(pc.unique(keys)) != len(keys):
        raise NotAlikeError("a file group has two rows of one record key")
    return keys.combine_chunks()


def _unpacked_bytes(texts: Any) -> int:
    """Return how many bytes texts have that are kept as places in a dictionary."""
    import pyarrow.compute as pc

    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).cast("int64").take(chunk.indices)).as_py() or 0
        for chunk in texts.chunks
    )


def _array(values: list[Any], kind: Any) -> Any:
    """Return values of log files as Arrow's; dates and times there are numbers already."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values, kind)


def read_logs(columns: Sequence[PlainColumn], merging: Merging, read: Callable[[str], bytes]) -> LogFiles | None:
    """Return what reads a table's log files; None where Spark has to. `read` returns a file's content by its path."""
    import pyarrow as pa

    kinds = {column.name: column.kind for column in columns}
    if not merging.is_plain or len(merging.ordering) > 1:
        return None
    if not merging.ordering:
        return LogFiles(read)
    (ordering,) = merging.ordering
    kind = kinds.get(ordering)
    # Of other types Hudi's comparisons were not tried out.
    return LogFiles(read, ordering, kind == pa.int64()) if kind in (pa.int32(), pa.int64()) else None

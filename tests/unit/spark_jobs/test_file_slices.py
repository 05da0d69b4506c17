"""Which files were a file group's rows before and after a commit, and which reader a commit gets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from airflow_lake_provider.errors import DamagedFileError, ReplicationGapError
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.sink_options.run import Reader
from lake_jobs.replication.file_slices import (
    CompletedInstants,
    DataFile,
    GroupStatistics,
    find_instant_of_logs,
    find_slice,
    parse_entries,
    parse_name,
    read_statistics,
)
from lake_jobs.replication.reader_choice import (
    FEW_ROWS,
    MAX_COMMITS,
    MAX_GROUPS,
    Choice,
    Description,
    TableTraits,
    choose_reader,
)

ID = "b85760e4-e7fb-417f-88fe-2154e311c99d-0"


def at(number: int) -> str:
    return f"202611230000000{number:02d}"


def base(instant: int) -> DataFile:
    return named(f"{ID}_0-21-19_{at(instant)}.parquet")


def log(instant: int, version: int = 1) -> DataFile:
    return named(f".{ID}_{at(instant)}.log.{version}_0-45-47")


def named(name: str) -> DataFile:
    found = parse_name(name)
    assert found is not None
    return found


def completed(**times: int) -> CompletedInstants:
    """Completion by requested time: t10=20 was requested at 10 and completed at 20."""
    return CompletedInstants({at(int(name[1:])): at(time) for name, time in times.items()}, at(10))


def test_names_of_files_with_rows_are_parsed_and_no_others() -> None:
    assert base(7) == DataFile(base(7).name, ID, at(7), is_log=False)
    assert log(7, 3) == DataFile(log(7, 3).name, ID, at(7), is_log=True)
    bucket = "00000001-3c1f-4f0c-9a3b-0c4e4b1c2d3e-0"
    assert named(f".{bucket}_{at(3)}.log.1_1-0-1").file_id == bucket
    for name in (f".{ID}_{at(7)}.log.1_0-45-47.cdc", ".hoodie_partition_metadata", f".{base(7).name}.crc", "x.parquet"):
        assert parse_name(name) is None


@pytest.mark.parametrize(
    ("files", "instants", "until", "expected"),
    [
        pytest.param([base(10), base(12)], completed(t10=11, t12=13), (13, 12), [base(12)], id="rewritten"),
        pytest.param([base(10), base(12)], completed(t10=11, t12=13), (13, 11), [base(10)], id="before-the-rewrite"),
        pytest.param([base(10), base(12)], completed(t10=11), (99, 99), [base(10)], id="of-a-pending-write"),
        pytest.param([base(5), log(12)], completed(t12=13), (13, 12), [base(5), log(12)], id="on-an-archived-base"),
        # The compaction at 14 was planned while 12 was written: what 12 wrote belongs to the slice of 14.
        pytest.param(
            [base(10), log(12)], completed(t10=11, t12=16), (16, 12), [base(10), log(12)], id="beside-a-pending-plan"
        ),
        pytest.param(
            [base(10), log(12), base(14)], completed(t10=11, t12=16, t14=15), (16, 12), [log(12), base(14)],
            id="on-the-executed-plan",
        ),
        pytest.param(
            [base(10), log(11), base(14), log(16)], completed(t10=11, t11=13, t14=15, t16=17), (17, 16),
            [base(14), log(16)], id="after-a-compaction",
        ),
        # A compaction that completed later is no part of the state at the commit.
        pytest.param(
            [base(10), log(11), base(14)], completed(t10=11, t11=13, t14=15), (13, 11), [base(10), log(11)],
            id="before-a-compaction",
        ),
        # 11 began earlier and completed later than 12.
        pytest.param(
            [base(10), log(11), log(12)], completed(t10=10, t11=15, t12=13), (13, 12), [base(10), log(12)], id="slow",
        ),
        pytest.param([log(11)], completed(t11=12), (12, 11), [log(11)], id="without-a-base-file"),
        pytest.param([log(11)], completed(t11=12), (12, 10), [], id="nothing-before"),
    ],
)  # fmt: skip
def test_slice_holds_what_was_complete(
    files: list[DataFile], instants: CompletedInstants, until: tuple[int, int], expected: list[DataFile]
) -> None:
    found = find_slice(files, instants, (at(until[0]), at(until[1])), 9)
    assert sorted(found.files if found else [], key=lambda file: file.name) == sorted(
        expected, key=lambda file: file.name
    )


def test_log_of_an_archived_slow_writer_belongs_to_the_slice_of_its_completion() -> None:
    files = [base(5), log(6), base(8)]
    assert find_slice(files, CompletedInstants({}, at(10)), (at(20), at(20)), 9) != find_slice(
        files, CompletedInstants({}, at(10), {at(6): at(9)}), (at(20), at(20)), 9
    )
    found = find_slice(files, CompletedInstants({}, at(10), {at(6): at(9)}), (at(20), at(20)), 9)
    assert found is not None
    assert set(found.files) == {base(8), log(6)}


def test_log_files_of_old_tables_carry_the_instant_of_their_base_file() -> None:
    files, instants = [base(10), log(10), log(10, 2), base(14), log(14)], completed(t10=11, t12=13, t14=15, t16=17)
    before = find_slice(files, instants, (at(13), at(12)), 6)
    after = find_slice(files, instants, (at(17), at(16)), 6)
    assert before is not None
    assert after is not None
    assert set(before.files) == {base(10), log(10), log(10, 2)}
    assert set(after.files) == {base(14), log(14)}
    pending = find_slice(files, completed(t10=11, t12=13, t16=17), (at(17), at(16)), 6)
    assert pending is not None
    assert set(pending.files) == {base(10), log(10), log(10, 2), log(14)}


STAT = {
    "fileId": ID, "path": f"p0/{base(12).name}", "prevCommit": at(10), "numWrites": 9, "numInserts": 1,
    "numUpdateWrites": 2, "numDeletes": 1,
}  # fmt: skip


def test_statistics_are_summed_up_by_file_group_and_replaced_ones_count_nothing() -> None:
    logs = [{**STAT, "path": f"p0/{log(12, n).name}", "numWrites": 3} for n in (1, 2)]
    body = {"partitionToWriteStats": {"p0": logs, "p1": [STAT]}, "partitionToReplaceFileIds": {"p2": ["other-0"]}}
    first, second, gone = read_statistics(body)
    assert (first.partition, first.is_log, first.rows, first.updates, first.previous) == ("p0", True, 6, 4, at(10))
    assert (second.partition, second.is_log, second.inserts, second.deletes) == ("p1", False, 1, 1)
    assert gone == GroupStatistics("p2", "other-0", (), "", 0, 0, 0, 0, is_log=False, is_replaced=True)
    assert read_statistics({"partitionToWriteStats": {}}) == ()


@pytest.mark.parametrize(
    "path", ["../accounts/p0", "p0/../../x", "/lake/bank/p0", "//lake/p0", "s3a://bank/p0", "file:/p0"]
)
def test_commit_that_names_files_outside_of_its_table_is_damaged(path: str) -> None:
    good = {"fileId": "a", "path": "p=a:b/..a_0-1-0_1.parquet", "numWrites": 1}
    for body in (
        {"partitionToWriteStats": {path: [good]}},
        {"partitionToWriteStats": {"p0": [{**good, "path": path}]}},
        {"partitionToWriteStats": {"p0": [{**good, "cdcStats": {path: 1}}]}},
        {"partitionToReplaceFileIds": {path: ["a"]}},
    ):
        with pytest.raises(DamagedFileError, match="is not in its table"):
            read_statistics(body)
    assert len(read_statistics({"partitionToWriteStats": {"p=a:b": [good], "": [good]}})) == 2


def test_a_file_that_a_clean_removed_is_a_gap_and_not_fewer_changes() -> None:
    changes = pytest.importorskip("lake_jobs.replication.slice_changes")
    statistics = read_statistics({"partitionToWriteStats": {"p0": [STAT]}})
    commit, instants = CommitRef(at(12), at(13)), completed(t10=11, t12=13)
    for files, said in (([base(10)], "is not there: deleted"), ([base(12)], f"whose base file of {at(10)}")):
        with pytest.raises(ReplicationGapError, match=said):
            changes.find_touched_groups(statistics, {("p0", ID): files}, instants, commit, 9)


def test_log_files_name_the_instant_of_their_slice_before_version_8_and_that_of_their_commit_since() -> None:
    assert find_instant_of_logs(f"[p0/{base(12).name}, p_2026.log/{log(10).name}, p0/{log(11).name}]") == at(10)
    assert find_instant_of_logs(f"[.{ID}_{at(9)}.log.1]") == at(9)
    assert find_instant_of_logs(f"[p0/{base(12).name}]") == find_instant_of_logs("[]") == ""


def test_a_commit_whose_files_are_in_the_slice_before_it_is_not_read() -> None:
    """A log file of version 6 in a table that was upgraded: what it deletes would be no change."""
    changes = pytest.importorskip("lake_jobs.replication.slice_changes")
    old = {**STAT, "path": f"p0/{log(10).name}", "prevCommit": at(10), "numInserts": 0, "numUpdateWrites": 0}
    statistics = read_statistics({"partitionToWriteStats": {"p0": [old]}})
    commit, instants = CommitRef(at(12), at(13)), completed(t10=11, t12=13)
    files = {("p0", ID): [base(10), log(10)]}
    assert changes.find_touched_groups(statistics, files, instants, commit, 6)[0].before is not None
    with pytest.raises(ReplicationGapError, match=r"log\.1_0-45-47 of commit .* is in its file group's slice before"):
        changes.find_touched_groups(statistics, files, instants, commit, 9)


SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
TABLE = TableTraits(9, has_change_data=True, is_merge_on_read=False)
FEW = (GroupStatistics("p0", ID, ("a.parquet",), at(10), 1, 2, 0, 1_000, is_log=False),)


@pytest.mark.parametrize(
    ("table", "statistics", "schema", "expected"),
    [
        pytest.param(TABLE, FEW, SCHEMA, "cdc: it changed only 3 of 1000 rewritten rows", id="few"),
        pytest.param(TABLE, (replace(FEW[0], rows=20),), SCHEMA, "slices: it changed 3 of 20 rewritten", id="many"),
        pytest.param(TABLE, (replace(FEW[0], is_replaced=True),), SCHEMA, "slices: it changed", id="replaced"),
        pytest.param(TABLE, FEW, SCHEMA.replace("id", "key"), "slices: the commit was written with another", id="old"),
        pytest.param(TABLE, FEW, "", "slices: the commit was written with another schema", id="unknown-schema"),
        pytest.param(replace(TABLE, has_change_data=False), FEW, SCHEMA, "slices: the table has no", id="no-cdc"),
        pytest.param(replace(TABLE, version=6), FEW, SCHEMA, "slices: Hudi 1.2 fails .* version 6", id="version"),
        pytest.param(replace(TABLE, unfit_column="price"), FEW, SCHEMA, "slices: .* column price", id="decimal"),
        pytest.param(replace(TABLE, is_merge_on_read=True), FEW, SCHEMA, "slices: .* merge-on-read", id="mor"),
    ],
)  # fmt: skip
def test_reader_is_chosen_for_each_commit_with_its_reason(
    table: TableTraits, statistics: tuple[GroupStatistics, ...], schema: str, expected: str
) -> None:
    choice = choose_reader(Reader.AUTO, table, statistics, schema, SCHEMA)
    assert Reader(choice.reader)
    assert re.match(expected, f"{choice.reader}: {choice.reason}")


def test_commit_that_logged_no_change_data_is_read_from_slices_whatever_is_wanted() -> None:
    # An `insert` into a small file, and one into a new one; an `upsert`, and a `delete` of all rows of a file.
    stats = {
        "small": {"numWrites": 30, "numInserts": 2, "prevCommit": at(10)},
        "new": {"numWrites": 2, "numInserts": 2, "prevCommit": "null", "cdcStats": None},
        "upsert": {"numWrites": 30, "numUpdateWrites": 2, "prevCommit": at(10), "cdcStats": {"p/.c.cdc": 100}},
        "emptied": {"numWrites": 0, "numDeletes": 30, "prevCommit": at(10)},
    }
    written = [{"fileId": name, "path": f"p/{name}.parquet", **stat} for name, stat in stats.items()]
    read = read_statistics({"partitionToWriteStats": {"p": written}})
    assert [group.file_id for group in read if group.lacks_change_data] == ["small"]
    for wanted in (Reader.AUTO, Reader.CDC):
        choice = choose_reader(wanted, TABLE, read[-2:], SCHEMA, SCHEMA)
        assert (choice.reader, "no change data" in choice.reason) == (Reader.SLICES, True)


def test_timestamps_in_milliseconds_are_not_read_from_change_data() -> None:
    schema = json.dumps({"type": "long", "logicalType": "timestamp-millis"})
    for wanted in (Reader.AUTO, Reader.CDC):
        choice = choose_reader(wanted, TABLE, FEW, schema, schema)
        assert (choice.reader, "milliseconds" in choice.reason) == (Reader.SLICES, True)


def test_change_data_that_is_wanted_is_read_unless_it_would_lack_columns() -> None:
    many, logs = (replace(FEW[0], rows=20),), replace(TABLE, is_merge_on_read=True)
    for table in (TABLE, logs):
        assert choose_reader(Reader.CDC, table, many, SCHEMA, SCHEMA).reader is Reader.CDC
        assert choose_reader(Reader.CDC, table, many, SCHEMA.replace("id", "key"), SCHEMA).reader is Reader.SLICES
    assert choose_reader(Reader.SLICES, TABLE, FEW, SCHEMA, SCHEMA).reader is Reader.SLICES


def described(number: int, schema: str = "s", reader: Reader = Reader.SLICES, **how: Any) -> Description:
    rows, repeats, groups = how.get("rows", 10), how.get("repeats", False), how.get("groups", 1)
    statistics = [GroupStatistics("p", f"f{n}", (), "", rows, 0, 0, rows, is_log=False) for n in range(groups)]
    ref = CommitRef(f"{number:03}", f"{number:03}")
    return Description(ref, statistics, Choice(reader, "why"), schema, may_repeat_keys=repeats)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(described(2, schema="t"), id="another schema"),
        pytest.param(described(2, reader=Reader.CDC), id="change data"),
        pytest.param(described(2, repeats=True), id="order per key"),
        pytest.param(described(2, rows=FEW_ROWS), id="too many rows"),
        pytest.param(described(2, groups=MAX_GROUPS), id="too many file groups"),
    ],
)
def test_commits_that_differ_are_not_read_together(other: Description) -> None:
    assert described(2).fits([described(1)])
    assert not other.fits([described(1)])
    assert not described(3).fits([described(n) for n in range(MAX_COMMITS)])


def test_commits_without_a_schema_are_not_read_together() -> None:
    assert not described(2, schema="").fits([described(1, schema="")])


def test_listing_is_read_from_hudis_text_or_refused() -> None:
    listing = (
        "[StoragePathInfo{path=file:/lake/t/city=Köln, West/a_0-1-2_20260101000000000.parquet, length=434571, "
        "isDirectory=false, blockReplication=1, blockSize=33554432, modificationTime=1767225600000, locations=null}, "
        "StoragePathInfo{path=s3a://b/t/.a_20260101000000000.log.1_0-1-2, length=0, isDirectory=false, "
        "blockReplication=1, blockSize=1, modificationTime=0, locations=[x, y]}]"
    )
    assert parse_entries(listing, 2) == [
        ("file:/lake/t/city=Köln, West/a_0-1-2_20260101000000000.parquet", 434571),
        ("s3a://b/t/.a_20260101000000000.log.1_0-1-2", 0),
    ]
    with pytest.raises(ValueError, match="unknown form"):
        parse_entries(listing, 3)

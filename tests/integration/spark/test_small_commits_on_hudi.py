"""Small commits of real tables, read by the driver's own process: text for text what a Spark job reads of them."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.java_gateway import GatewayClient
from pyspark.sql import functions as F
from test_log_compaction_on_hudi import TWO_LOG_FILES
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.replication.change import ChangeMode, CommitRef
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.transactions import Order
from lake_jobs.hudi.table import open_client
from lake_jobs.replication import log_records, plain_columns, reader_choice, small_commits
from lake_jobs.replication.commits_in_turn import CommitsInTurn
from lake_jobs.replication.log_records import LogFiles, LogRecord
from lake_jobs.replication.small_commits import SmallCommit
from lake_jobs.replication.source import HudiSource
from replicate import replicate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITHOUT_CHANGE_DATA = {"hoodie.table.cdc.enabled": "false"}
COMMAND_BLOCK = 0
"""The type of a rollback's block, as Hudi numbers them."""
COLUMNS = (
    "id", "part", "ts", "cast(id as int) as number", "id % 2 = 0 as even", "if(id % 3 = 0, null, name) as name",
    "encode(concat('ab', char(id), char(255)), 'ISO-8859-1') as blob",
    "date_add(date'2026-02-27', cast(id as int)) as day",
    "timestamp_micros(1772326923000045 + ts * 1000) as moment", "cast(id / 7 - 1 as decimal(38, 10)) as price",
    "cast(id - 3 as decimal(9, 2)) as cents", "cast(ts as decimal(18, 8)) as share",
)  # fmt: skip
DOUBLES = "array(0.0D, -0.0D, 0.001D, 9.5E-4D, 1.0E7D, 9999999.0D, 1.5E300D, double('NaN'), double('-Infinity'), 1 / 3)"
TEXT = 'zö 漢字 🚀 "q" \\ / \n\t\x01\x1f\x7f\u2028'


def rows(lake: Lake, ids: Any, ts: int) -> DataFrame:
    found = lake.rows(ids, ts).withColumn("name", F.concat(F.lit(TEXT), "name"))
    local = "cast(timestamp_micros(1772326923000045) as timestamp_ntz) as wall"
    return found.selectExpr(*COLUMNS, f"{DOUBLES}[id % 10] as ratio", local)


def simple_rows(lake: Lake, ids: Any, ts: int) -> DataFrame:
    """Return rows that Python's JSON reads back line by line, and compares: no NaN, and no end of a line in a text."""
    return lake.rows(ids, ts).select("id", "name", "day", "ts", "part")


def write_history(lake: Lake) -> None:
    lake.write(rows(lake, range(20), 1))
    lake.write(rows(lake, [1, 2, 3, 21, 22], 2))
    lake.write(rows(lake, [4, 5], 3).select("id", "part", "ts"), "delete")
    lake.write(rows(lake, [30], 4).withColumn("part", F.lit("p9")))
    lake.write(rows(lake, [30, 1], 5).withColumn("part", F.lit("p9")))
    lake.write(rows(lake, [2, 6], 6), "delete")


def read_by_spark(monkeypatch: pytest.MonkeyPatch, source: HudiSource, commit: CommitRef) -> list[Any]:
    with monkeypatch.context() as patch:
        patch.setattr(reader_choice, "SMALL_ROWS", -1)
        return sorted(source.read(commit), key=str)


def read_without_spark(monkeypatch: pytest.MonkeyPatch, source: HudiSource, commit: CommitRef) -> list[Any]:
    def refuse(*_: object) -> None:
        raise AssertionError("a Spark job reads it")

    with monkeypatch.context() as patch:
        patch.setattr(CommitsInTurn, "_open", refuse)
        patch.setattr(CommitsInTurn, "_collect_with_others", refuse)
        return list(source.read(commit))


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_small_commits_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    lake = Lake(spark, tmp_path, "COW", version, **WITHOUT_CHANGE_DATA)
    write_history(lake)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for mode in ChangeMode:
        source, kinds = lake.source(mode), set[str]()
        commits = sorted(source.read_timeline().completed, key=lambda commit: commit.order)
        assert len(commits) == 6
        for commit in commits:
            changes = read_without_spark(monkeypatch, source, commit)
            ops = [change.op.value for change in changes]
            assert ops == sorted(ops, key=lambda op: op != "d")
            assert sorted(changes, key=str) == read_by_spark(monkeypatch, source, commit)
            kinds |= {*ops}
        assert kinds == {"i", "u", "d"}


def test_what_this_process_cannot_read_alike_spark_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "MOR", **WITHOUT_CHANGE_DATA)
    lake.write(rows(lake, range(4), 1))
    lake.write(rows(lake, [1], 2))
    lake.write(rows(lake, [2, 9], 3).withColumn("more", F.when(F.col("id") > 0, "new")))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = lake.source()
    *plain, evolved = sorted(source.read_timeline().completed, key=lambda commit: commit.order)
    assert [len(read_without_spark(monkeypatch, source, commit)) for commit in plain] == [4, 1]
    # A base file, or an earlier log file, of another schema lies beneath it.
    assert source.read_small(source.describe(evolved)) is None
    assert sorted(source.read(evolved), key=str) == read_by_spark(monkeypatch, source, evolved)


def test_file_of_an_older_schema_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "COW", **WITHOUT_CHANGE_DATA)
    lake.write(rows(lake, range(4), 1))
    lake.write(rows(lake, [2, 9], 2).withColumn("more", F.when(F.col("id") > 0, "new")))
    lake.write(rows(lake, [2, 9], 3).withColumn("more", F.when(F.col("id") > 0, "new")))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = lake.source()
    assert source.columns[-1] == "more"
    _, evolved, last = sorted(source.read_timeline().completed, key=lambda commit: commit.order)
    assert source.read_small(source.describe(evolved)) is None
    assert len(list(source.read(evolved))) == 2
    changes = read_without_spark(monkeypatch, source, last)
    assert sorted(changes, key=str) == read_by_spark(monkeypatch, source, last)
    assert all('"more":"new"' in str(change.before) for change in changes)


def test_rows_that_are_not_there_are_not_a_small_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "COW", **WITHOUT_CHANGE_DATA)
    lake.write(rows(lake, range(4), 1))
    source = lake.source()
    (commit,) = source.read_timeline().completed
    found = source.describe(commit)
    assert source.read_small(found).num_rows == 4
    counted = [replace(group, inserts=group.inserts + 1) for group in found.statistics]
    assert source.read_small(replace(found, statistics=counted)) is None


def test_a_small_commit_of_a_kept_reader_costs_few_calls_of_java_and_no_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "COW", **WITHOUT_CHANGE_DATA)
    lake.write(simple_rows(lake, range(8), 1))
    assert lake.replicate().message == ""
    kept = lake.source()
    order = Order("events.files", ends_early=True)
    request = ReplicationRequest(
        lake.path, "events", "file", order, "", options={"path": str(tmp_path / "files"), "reader": "auto"}
    )
    calls, send = list[str](), GatewayClient.send_command

    def count(self: GatewayClient, command: str, *more: Any, **named: Any) -> Any:
        calls.append(command)
        return send(self, command, *more, **named)

    for ts in (2, 3):
        lake.write(simple_rows(lake, [ts, 10 + ts], ts))
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(GatewayClient, "send_command", count)
            result = replicate(spark, request, lambda *_: kept)
        assert (result.message, result.commits, result.rows) == ("", 1, 2)
    assert lake.replica() == lake.table()
    # Those that let go of an object are sent when Python collects it.
    asked = [call for call in calls if not call.startswith("m\n")]
    assert len(asked) <= 40, asked


def write_appended(lake: Lake) -> None:
    """Write a history of log files: late rows, deletes with and without an ordering value, keys that come again."""
    lake.write(rows(lake, range(20), 10))
    lake.write(rows(lake, [1, 2, 3, 21, 22], 12))
    # Some of these lose to a row of the base file, or of a log file; some are of the same value, and win.
    lake.write(rows(lake, [1, 4, 5], 11))
    lake.write(rows(lake, [2, 6], 9))
    lake.write(rows(lake, [7, 8], 10))
    lake.write(rows(lake, [1, 5, 9], 3), "delete")
    lake.write(rows(lake, [1, 9], 1))
    lake.write(rows(lake, [1, 9, 10], 13))
    lake.write(rows(lake, [30], 14).withColumn("part", F.lit("p9")))
    lake.write(rows(lake, [30, 1], 15).withColumn("part", F.lit("p9")))
    # One loses to a row of a log file, and one is of the same value, and wins. New keys would make it a base file.
    lake.write(rows(lake, [10, 12, 14], 18))
    lake.write(rows(lake, [10], 17))
    lake.write(rows(lake, [12], 18).withColumn("cents", F.lit("1.00").cast("decimal(9, 2)")))
    # A block for each row, and all blocks of a partition in one log file.
    lake.write(rows(lake, [1, 2, 3, 11, 12, 13, 14], 16), **{"hoodie.logfile.data.block.max.size": "1"})


@pytest.mark.parametrize(
    ("is_ordered", "modes"),
    [
        pytest.param(True, tuple(ChangeMode), id="event-time"),
        # How records are merged does not depend on the mode.
        pytest.param(False, (ChangeMode.CHANGES,), id="commit-time", marks=pytest.mark.soak),
        pytest.param(False, (ChangeMode.LATEST,), id="commit-time-latest", marks=pytest.mark.soak),
    ],
)
def test_small_commits_of_log_files_are_read_as_spark_reads_them(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_ordered: bool,
    modes: tuple[ChangeMode, ...],
) -> None:
    lake = Lake(spark, tmp_path, "MOR", **WITHOUT_CHANGE_DATA)
    if not is_ordered:
        # The later record wins.
        del lake.options["hoodie.datasource.write.precombine.field"]
    write_appended(lake)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for mode in modes:
        source, kinds, appended = lake.source(mode), set[str](), 0
        commits = sorted(source.read_timeline().completed, key=lambda commit: commit.order)
        assert len(commits) == 14
        for commit in commits:
            changes = read_without_spark(monkeypatch, source, commit)
            ops = [change.op.value for change in changes]
            assert ops == sorted(ops, key=lambda op: op != "d")
            assert sorted(changes, key=str) == read_by_spark(monkeypatch, source, commit)
            kinds |= {*ops}
            appended += any(group.is_log for group in source.describe(commit).statistics)
        assert kinds == {"i", "u", "d"}
        assert appended == 10


# --- Faults, planted on purpose: the history of log files must show each of them


def take_the_later_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_records, "_merge", lambda held, record: record)


def keep_the_record_of_an_equal_value(patch: pytest.MonkeyPatch) -> None:
    merge = log_records._merge
    patch.setattr(
        log_records,
        "_merge",
        lambda held, record: held if held.row and record.row and record.order == held.order else merge(held, record),
    )


def overwrite_the_base_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(small_commits, "wins_over_base", lambda *_: True)


def keep_the_base_file_s_row_of_an_equal_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        small_commits, "wins_over_base", lambda record, order: record.always_wins or record.order > (order or 0)
    )


def leave_out_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFiles, "_deletes", lambda *_: iter(()))


def compare_deletes_without_a_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFiles, "_delete", lambda self, key, kind, order: LogRecord(key, order))


def let_deletes_be_final(patch: pytest.MonkeyPatch) -> None:
    merge = log_records._merge
    patch.setattr(
        log_records, "_merge", lambda held, record: held if held.row is None and record.row else merge(held, record)
    )


def drop_the_first_block(patch: pytest.MonkeyPatch) -> None:
    split = log_records._split_blocks

    def planted(content: bytes) -> Any:
        blocks = list(split(content))
        return blocks[1:] or blocks

    patch.setattr(log_records, "_split_blocks", planted)


def drop_the_last_block(patch: pytest.MonkeyPatch) -> None:
    split = log_records._split_blocks

    def planted(content: bytes) -> Any:
        blocks = list(split(content))
        return blocks[:-1] or blocks

    patch.setattr(log_records, "_split_blocks", planted)


def begin_with_the_last_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(small_commits, "in_order", lambda logs: list(reversed(log_records.in_order(logs))))


def forget_earlier_log_files(patch: pytest.MonkeyPatch) -> None:
    records = SmallCommit._records
    patch.setattr(SmallCommit, "_records", lambda self, *of: [] if of[-1] is not None else records(self, *of))


def forget_the_base_file(patch: pytest.MonkeyPatch) -> None:
    versions = SmallCommit._versions
    patch.setattr(SmallCommit, "_versions", lambda self, group, base, *more: versions(self, group, None, *more))


def read_decimals_without_a_sign(patch: pytest.MonkeyPatch) -> None:
    def planted(decode: Any, scale: int) -> Any:
        def read(data: bytes, at: int) -> tuple[Decimal, int]:
            content, at = decode(data, at)
            return Decimal(f"{int.from_bytes(content, 'big')}E-{scale}"), at

        return read

    patch.setattr(log_records, "_decimal", planted)


def print_numbers_as_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plain_columns, "java_double", repr)


def escape_as_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plain_columns, "quote", json.dumps)


def cut_times(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plain_columns, "_time_text", lambda value: value.isoformat(timespec="milliseconds"))


FAULTS = (
    take_the_later_record, keep_the_record_of_an_equal_value, overwrite_the_base_file,
    keep_the_base_file_s_row_of_an_equal_value, leave_out_deletes, compare_deletes_without_a_value,
    let_deletes_be_final, drop_the_first_block, drop_the_last_block, begin_with_the_last_file, forget_earlier_log_files,
    forget_the_base_file, read_decimals_without_a_sign, print_numbers_as_python, escape_as_python, cut_times,
)  # fmt: skip


@pytest.mark.soak
def test_history_of_log_files_shows_each_fault_of_the_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "MOR", **WITHOUT_CHANGE_DATA)
    write_appended(lake)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = lake.source()
    commits = sorted(source.read_timeline().completed, key=lambda commit: commit.order)
    right = [read_by_spark(monkeypatch, source, commit) for commit in commits]

    def is_right() -> bool:
        log_records._row_form.cache_clear()
        try:
            found = [sorted(read_without_spark(monkeypatch, source, commit), key=str) for commit in commits]
        except AssertionError:
            # What was read is not what the commit's statistics say, and it is left to Spark.
            return False
        return found == right

    assert is_right()
    unseen = []
    for plant in FAULTS:
        with monkeypatch.context() as patch:
            plant(patch)
            if is_right():
                unseen.append(plant.__name__)
    assert unseen == []
    assert is_right()


# --- Blocks that a table service left


def block_kinds(lake: Lake) -> set[int]:
    """Return the types of all blocks in log files: what stands behind a block's magic, its size and its format."""
    found = set[int]()
    for path in Path(lake.path).rglob("*.log.*"):
        if not path.name.endswith(".crc") and ".hoodie" not in path.parts:
            content = path.read_bytes()
            found |= {struct.unpack_from(">i", content, at.end() + 12)[0] for at in re.finditer(b"#HUDI#", content)}
    return found


@pytest.mark.parametrize("version", [9, 6])
def test_small_commit_behind_a_rollback_is_read_without_what_was_undone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    lake = Lake(spark, tmp_path, "MOR", version, **WITHOUT_CHANGE_DATA)
    lake.write(rows(lake, range(8), 1))
    lake.write(rows(lake, [1, 3], 2))
    lake.write(rows(lake, [1, 5], 3))
    with open_client(spark, lake.path, lake.options, {}) as client:
        client.rollback(lake.commits()[-1].requested_time)
    # Before version 8 a block of the log file says so; from then on the log files are deleted.
    assert (COMMAND_BLOCK in block_kinds(lake)) is (version == 6)
    lake.write(rows(lake, [1, 5, 7], 4))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source, last = lake.source(), lake.commits()[-1]
    changes = sorted(source.read(last), key=str)
    assert changes == read_by_spark(monkeypatch, source, last)
    assert {json.loads(change.key)["id"]: json.loads(change.before)["ts"] for change in changes} == {1: 2, 5: 1, 7: 1}
    assert (source.read_small(source.describe(last)) is None) is (version == 6)


def test_small_commit_on_compacted_log_files_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "MOR", **WITHOUT_CHANGE_DATA)
    lake.write(rows(lake, range(8), 10))
    lake.write(rows(lake, [1, 3], 12))
    lake.write(rows(lake, [1, 5], 11))
    lake.write(rows(lake, [3], 13), "delete")
    done = lake.service(Service.LOGCOMPACTION, **TWO_LOG_FILES)
    assert done.outcome is Outcome.COMPLETED, done.message
    lake.write(rows(lake, [1, 3, 5, 7], 14))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source, last = lake.source(), lake.commits()[-1]
    changes = sorted(source.read(last), key=str)
    assert changes == read_by_spark(monkeypatch, source, last)
    before = {json.loads(change.key)["id"]: change.before and json.loads(change.before)["ts"] for change in changes}
    assert before == {1: 12, 3: None, 5: 11, 7: 10}
    assert source.read_small(source.describe(last)) is None

"""The pump against a table without Hudi and a sink in memory that can die at any call."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    ReplicationGapError,
    SeekRefusedError,
    SinkFencedError,
)
from airflow_lake_provider.replication.change import Change, CommitRef, Op
from airflow_lake_provider.replication.checkpoint import (
    NAMED_COMMITS,
    Checkpoint,
    CommitPart,
    SnapshotProgress,
    from_text,
    to_text,
    unread,
    with_done,
)
from airflow_lake_provider.replication.feed import SourceTimeline, find_gap, hold_of, lag_of
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import PHASES
from airflow_lake_provider.replication.transactions import Order
from tests.support.fake_sink import Died, FakeSink, replica, run
from tests.unit.replication.table_model import ModelTable, time_of


def versions(sink: FakeSink) -> list[tuple[str, str, str | None]]:
    return [(commit.requested_time, change.key, change.after) for commit, _, change in sink.records]


def test_first_run_takes_a_snapshot_and_the_next_ones_only_what_is_new() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    table.complete(3, 4, {1: 11})
    report = run(table, sink)
    assert report.snapshot_reason == "the sink has nothing of this table yet"
    assert [change.op for _, _, change in sink.records] == [Op.READ, Op.READ]
    table.complete(5, 6, {2: None, 3: 30})
    assert run(table, sink).commits == 1
    assert [change.op for _, _, change in sink.records[2:]] == [Op.DELETE, Op.INSERT]
    assert run(table, sink).commits == 0
    assert replica(sink) == table.rows() == {1: 11, 3: 30}


def test_run_that_another_one_follows_reads_the_timeline_once_before_and_once_after_each_commit() -> None:
    table, sink = BusyTable(), FakeSink()
    table.complete(1, 2, {1: 1})
    run(table, sink)
    table.complete(3, 4, {1: 3})
    # It completes while the one before it is read, and the timeline that is read next shows it.
    table.next = [(5, 6, {2: 5})]
    table.readings = 0
    report = run(table, sink, ends_early=True)
    assert (report.commits, table.readings) == (2, 3)
    assert replica(sink) == table.rows() == {1: 3, 2: 5}
    table.readings = 0
    assert run(table, sink).commits == 0


class BusyTable(ModelTable):
    """Counts how often its timeline is read, and gets commits while others are read."""

    readings = 0
    next: list[tuple[int, int, dict[int, int | None]]]

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        self.readings += 1
        return super().read_timeline(known)

    def read(self, commit: CommitRef) -> Iterator[Change]:
        yield from super().read(commit)
        while found := self.__dict__.get("next"):
            self.complete(*found.pop(0))


def test_slow_writer_is_not_lost() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    run(table, sink)
    table.begin(3)  # the slow one
    table.complete(4, 5, {1: 11})
    run(table, sink)
    table.complete(3, 6, {2: 21})
    report = run(table, sink)
    assert (report.commits, report.rows) == (1, 1)
    assert replica(sink) == table.rows() == {1: 11, 2: 21}


def test_commit_that_becomes_visible_behind_a_later_one_is_not_lost() -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {1: number})
    run(table, sink)
    table.complete(20, 23, {1: 20})
    run(table, sink)
    table.complete(21, 22, {2: 21})  # its clock was behind, or the store listed it late
    assert run(table, sink).rows == 1
    assert replica(sink)[2] == 21


def test_compactions_are_passed_over_and_do_not_read_as_a_gap() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    table.silent[time_of(3)] = CommitRef(time_of(3), time_of(4))
    report = run(table, sink)
    assert (report.commits, report.snapshot_reason) == (0, "")


def test_snapshot_goes_on_behind_the_last_part_and_then_with_changes() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    sink.dies_at = 5  # open, write, commit, write, then it dies
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=4)
    assert len(sink.records) == 4
    table.complete(3, 4, {0: 100, 11: 11})
    report = run(table, sink, snapshot_part_rows=4)
    assert report.snapshot_reason == ""
    assert [json.loads(change.key)["id"] for _, _, change in sink.records] == [*range(10), 0, 11]
    assert replica(sink) == table.rows()


def test_snapshot_next_to_a_slow_writer_has_each_commit_either_in_it_or_after_it() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    table.begin(3)
    table.complete(4, 5, {1: 11})  # completed, but not in the snapshot: the pending write is before it
    report = run(table, sink)
    assert report.commits == 1
    table.complete(3, 6, {2: 21})
    run(table, sink)
    assert versions(sink) == [
        (time_of(1), '{"id":1}', '{"id":1,"value":10}'),
        (time_of(1), '{"id":2}', '{"id":2,"value":20}'),
        (time_of(4), '{"id":1}', '{"id":1,"value":11}'),
        (time_of(3), '{"id":2}', '{"id":2,"value":21}'),
    ]


@pytest.mark.parametrize("what", ["cleaned", "archived", "another-table"])
def test_gap_is_answered_with_a_snapshot_and_a_new_generation(what: str) -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    run(table, sink)
    if what == "another-table":
        table = ModelTable()
        table.complete(10, 11, {7: 70})
    else:
        table.complete(3, 4, {2: None})
        table.complete(5, 6, {1: 12})
    if what == "cleaned":
        table.retained_from = time_of(5)
    if what == "archived":
        table.archived = {time_of(1), time_of(3)}
    report = run(table, sink)
    said = {"cleaned": "was not replicated", "archived": "not on the active timeline", "another-table": "another table"}
    assert said[what] in report.snapshot_reason
    assert report.checkpoint is not None
    assert report.checkpoint.generation == 2
    assert replica(sink) == table.rows()


def test_clean_that_passes_while_a_commit_is_read_leaves_no_gap() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    table.complete(3, 4, {1: 11})
    table.clean_during_read = time_of(9)
    before = versions(sink)
    with pytest.raises(ReplicationGapError, match="while commit"):
        run(table, sink)
    assert versions(sink) == before


def test_seek_and_snapshot_requests_are_obeyed_once() -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {1: number})
    run(table, sink)
    count = len(sink.records)
    run(table, sink, request="r1", seek_until=time_of(4))
    assert [json.loads(change.after or "")["value"] for _, _, change in sink.records[count:]] == [5, 7]
    assert run(table, sink, request="r1", seek_until=time_of(4)).commits == 0
    report = run(table, sink, request="r2", snapshot=True)
    assert report.snapshot_reason == "requested"
    assert run(table, sink, request="r2", snapshot=True).snapshot_reason == ""


def test_seek_keeps_the_rows_that_it_does_not_send_again() -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {number: number})
    run(table, sink)
    run(table, sink, request="r1", seek_until=time_of(4))
    # A reader forgets the rows of lower generations, and a seek sends those of later commits alone.
    assert replica(sink) == table.rows() == {1: 1, 3: 3, 5: 5, 7: 7}


def test_seek_within_a_snapshot_is_refused_until_that_is_whole() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    sink.dies_at = 5
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=4)
    with pytest.raises(SeekRefusedError, match=f"its snapshot at {time_of(1)} in part only.* seek to {time_of(2)}"):
        run(table, sink, request="r1", seek_until=time_of(2))
    run(table, sink, snapshot_part_rows=4)
    run(table, sink, request="r1", seek_until=time_of(2))
    assert replica(sink) == table.rows()


@pytest.mark.parametrize(
    "text", ["2026", "2026-06-01T00:00:00", "June", "20261301000000000", "2026060100000000", "٢٠٢٦"]
)
def test_time_of_a_seek_that_is_no_instant_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"seek_until is .*, allowed: an instant time .* 20260601000000000"):
        Order("t.sink", seek_until=text)


def test_time_of_a_seek_may_leave_the_milliseconds_out() -> None:
    assert Order("t.sink", seek_until="20260601000000").seek_until == "20260601000000000"


@pytest.mark.parametrize("how", [{}, {"seek_until": time_of(4), "request": "r"}], ids=["snapshot", "seek"])
def test_generation_does_not_begin_again_where_the_sink_has_lost_its_checkpoint(how: dict[str, str]) -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {number: number})
    run(table, sink)
    known = run(table, sink, request="again", snapshot=True).checkpoint
    assert known is not None
    assert known.generation == 2
    sink.text, sink.sequence = None, 0
    found = run(table, sink, generation=known.generation, **how).checkpoint
    assert found is not None
    assert found.generation == 3
    # The sink's own is the newer one where the manager missed a report.
    newest = run(table, sink, generation=1, request="once more", snapshot=True).checkpoint
    assert newest is not None
    assert newest.generation == 4


def test_schema_is_announced_when_it_changes() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    first = run(table, sink).checkpoint
    table.complete(3, 4, {1: 11})
    same = run(table, sink).checkpoint
    table.complete(5, 6, {1: 12})
    table.schemas[time_of(5)] = '{"type":"record","fields":["city"]}'
    changed = run(table, sink).checkpoint
    assert first is not None
    assert same is not None
    assert changed is not None
    assert (same.schema, same.schema_id) == ("", first.schema_id)
    assert "city" in changed.schema
    assert changed.schema_id != first.schema_id


def dies_within_a_commit(table: ModelTable, sink: FakeSink) -> Checkpoint:
    """Leave a commit of ten rows in the sink to four of them."""
    table.most_rows = 4
    table.complete(1, 2, {1: 1})
    run(table, sink)
    table.complete(3, 4, {key: key for key in range(10)})
    sink.dies_at = 4  # open, write, commit, then it dies
    with pytest.raises(Died):
        run(table, sink, max_transaction_rows=4)
    found = from_text(sink.text or "")
    assert (found.commit, found.part) == (CommitRef(time_of(3), time_of(4)), CommitPart('{"id":3}', 4))
    return found


def test_large_commit_goes_on_behind_the_key_that_is_durable_and_counts_as_unread_until_its_last_part() -> None:
    table, sink = ModelTable(), FakeSink()
    found = dies_within_a_commit(table, sink)
    timeline = table.read_timeline()
    assert (hold_of(found, timeline), lag_of(found, timeline).commits) == (time_of(3), 1)
    assert found.watermark == time_of(2)
    # It completed before, and was seen only now: it waits for the rest.
    table.complete(5, 3, {1: 5})
    report = run(table, sink, max_transaction_rows=4)
    assert report.commits == 2
    assert report.checkpoint is not None
    assert (report.checkpoint.part, report.checkpoint.watermark) == (None, time_of(4))
    seen = [(commit.requested_time, json.loads(change.key)["id"]) for commit, _, change in sink.records[1:]]
    assert seen == [*((time_of(3), key) for key in range(10)), (time_of(5), 1)]


def test_large_commit_that_a_restore_undoes_in_the_middle_is_answered_with_a_snapshot() -> None:
    table, sink = ModelTable(), FakeSink()
    dies_within_a_commit(table, sink)
    del table.commits[time_of(3)]
    table.complete(5, 6, {2: 22})
    report = run(table, sink, max_transaction_rows=4)
    assert "undone by a restore" in report.snapshot_reason
    assert report.checkpoint is not None
    assert (report.checkpoint.generation, report.checkpoint.part) == (2, None)
    assert replica(sink) == table.rows() == {1: 1, 2: 22}


def test_seek_within_a_large_commit_begins_with_its_first_row_or_leaves_it() -> None:
    table, sink = ModelTable(), FakeSink()
    dies_within_a_commit(table, sink)
    report = run(table, sink, request="back", seek_until=time_of(2), max_transaction_rows=4)
    assert (report.commits, report.rows) == (1, 10)
    assert replica(sink) == table.rows()


def test_key_is_never_in_two_transactions_of_a_commit() -> None:
    class Moved(ModelTable):
        """Each row is deleted here and inserted there."""

        def read(self, commit: CommitRef) -> Iterator[Change]:
            for change in super().read(commit):
                yield change._replace(op=Op.DELETE, after=None)
                yield change._replace(op=Op.INSERT, before=None)

    table, sink = Moved(), FakeSink()
    table.most_rows = 1
    table.complete(1, 2, {0: 0})
    run(table, sink)
    table.complete(3, 4, {key: key for key in range(1, 4)})
    texts: list[str] = []
    Pump(table, sink, Order("t.sink", max_transaction_rows=1), lambda found, _: texts.append(to_text(found))).run()
    parts = [from_text(text).part for text in texts]
    assert parts == [CommitPart('{"id":1}', 2), CommitPart('{"id":2}', 4), None]


def test_checkpoint_outside_of_a_part_has_nothing_that_an_earlier_release_does_not_know() -> None:
    plain = Checkpoint("t.sink", 3, 1, CommitRef("1", "2"))
    within = replace(plain, part=CommitPart("{}", 7))
    assert "part" not in json.loads(to_text(plain))
    assert from_text(to_text(within)) == within


@pytest.mark.parametrize("most_rows", [math.inf, 2])
@pytest.mark.parametrize("seed", range(40))
def test_every_version_arrives_once_whenever_the_process_dies(seed: int, most_rows: float) -> None:
    draw = random.Random(seed)
    table, sink = ModelTable(most_rows=most_rows), FakeSink()
    parts = {"max_transaction_rows": 2} if most_rows == 2 else {}
    slow: list[int] = []
    number = 0
    for _ in range(25):
        number += 2
        rows: dict[int, int | None] = {draw.randrange(20): number for _ in range(draw.randint(1, 6))}
        if number > 2 and draw.random() < 0.3:
            slow.append(number)
            table.begin(number)
        else:
            table.complete(number, number + 1, rows)
        if draw.random() < 0.3:
            number += 2
            table.plan_compaction(number)
        if draw.random() < 0.3:
            number += 2
            table.execute_compactions(number)
        if slow and draw.random() < 0.4:
            number += 2
            table.complete(slow.pop(0), number, {draw.randrange(20): number, 99: number})
        sink.dies_at, sink.dies_after = draw.randint(1, 12), draw.random() < 0.5
        try:
            run(table, sink, snapshot_part_rows=3, batch_rows=2, **parts)
        except Died:
            continue
    for started in slow:
        number += 2
        table.complete(started, number, {98: number})
    sink.dies_at = -1
    run(table, sink)
    seen = versions(sink)
    assert len(seen) == len(set(seen))
    assert replica(sink) == table.rows()
    snapshot = {change.key for _, _, change in sink.records if change.op is Op.READ}
    changed = {(commit, key) for commit, key, _ in seen}
    instant = min(commit.requested_time for commit, _, change in sink.records if change.op is Op.READ)
    for commit, rows_of in table.commits.values():
        for key in rows_of:
            text = f'{{"id":{key}}}'
            assert (commit.requested_time, text) in changed or (commit.requested_time <= instant and text in snapshot)


def test_checkpoint_survives_printing_and_damage_is_reported() -> None:
    checkpoint = Checkpoint(
        "t.sink",
        3,
        1,
        CommitRef("1", "2"),
        "0",
        ("1", "5"),
        "1",
        4,
        "00ff",
        "ab",
        "{}",
        SnapshotProgress("1", "k", 7),
        "r",
        "8",
    )
    assert from_text(to_text(checkpoint)) == checkpoint
    plain = replace(checkpoint, commit=None, snapshot=SnapshotProgress("1"))
    assert from_text(to_text(plain)) == plain
    for text in ("", "[]", "{}", '{"version":9}', to_text(checkpoint)[:-4]):
        with pytest.raises(CheckpointDamagedError):
            from_text(text)


def test_checkpoint_stays_small_and_forgets_no_late_commit_within_its_window() -> None:
    commits = [CommitRef(time_of(number), time_of(number + 1)) for number in range(1, 2001, 2)]
    checkpoint = Checkpoint("t.sink", 0, 1, None)
    for position, commit in enumerate(commits, 1):
        checkpoint = with_done(checkpoint, (commit.requested_time,), commits[:position])
    assert len(checkpoint.done) <= NAMED_COMMITS + 1
    late = CommitRef(time_of(1960), commits[-10].completed_time[:-1] + "0")
    assert unread(checkpoint, [*commits, late]) == [late]
    assert unread(checkpoint, commits) == []


def reads(*completed: tuple[int, int], pending: Iterable[int] = ()) -> tuple[ModelTable, list[CommitRef]]:
    table = ModelTable()
    refs = [table.complete(requested, done, {1: requested}) for requested, done in completed]
    for number in pending:
        table.begin(number)
    return table, refs


def test_hold_reaches_back_to_the_oldest_write_that_is_still_to_be_read() -> None:
    table, refs = reads((1, 2), (4, 5), (6, 7), pending=(3,))
    checkpoint = with_done(Checkpoint("s", 1, 1, refs[1]), [r.requested_time for r in refs[:2]], refs)
    assert hold_of(checkpoint, table.read_timeline()) == time_of(3)
    done = with_done(replace(checkpoint, commit=refs[2]), [refs[2].requested_time], refs)
    table.pending.clear()
    assert hold_of(done, table.read_timeline()) == time_of(6)


def test_low_watermark_is_the_newest_commit_before_all_that_may_still_complete() -> None:
    table, sink = ModelTable(), FakeSink()
    marks: list[str] = []

    def watermark() -> str:
        found = run(table, sink).checkpoint
        assert found is not None
        # It never goes back, and no commit that arrives later completed at or before it.
        assert found.watermark == max((*marks, found.watermark))
        marks.append(found.watermark)
        return found.watermark

    table.complete(1, 2, {1: 10})
    assert watermark() == time_of(2)
    table.begin(3)
    table.complete(4, 6, {1: 11})
    assert watermark() == time_of(2), "write 3 may complete before 6 by its own clock"
    table.complete(3, 5, {2: 20})
    table.plan_compaction(7)
    assert watermark() == time_of(6)
    table.begin(8)
    for number in range(9, 9 + 4 * NAMED_COMMITS, 2):
        table.complete(number, number + 1, {1: number})
    assert watermark() == time_of(9 + 4 * NAMED_COMMITS - 1 - 2 * NAMED_COMMITS), "the floor passes a dead write"
    run(table, sink, request="back", seek_until=time_of(40))
    marks.clear()
    assert from_text(sink.text or "").watermark >= time_of(40)


def test_low_watermark_of_a_checkpoint_within_a_snapshot_is_none() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    sink.dies_at = 5
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=4)
    assert from_text(sink.text or "").watermark == ""


def test_lag_within_a_snapshot_is_that_behind_its_instant_with_the_rows_so_far() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    table.complete(3, 4, {1: 5})
    sink.dies_at = 5
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=4)
    within = lag_of(from_text(sink.text or ""), table.read_timeline())
    assert (within.commits, within.oldest_completed_time, within.snapshot_rows) == (0, "", 4)
    table.complete(5, 6, {1: 6})
    later = lag_of(from_text(sink.text or ""), table.read_timeline())
    assert (later.commits, later.oldest_completed_time, later.snapshot_rows) == (1, time_of(6), 4)


def test_stream_that_starts_now_gets_what_completes_later_and_nothing_of_before() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    table.begin(3)
    assert run(table, sink, starts_now=True).snapshot_reason == ""
    assert (sink.records, from_text(sink.text or "").generation) == ([], 1)
    table.complete(5, 6, {1: 6, 2: None})
    table.complete(3, 8, {3: 7})
    assert run(table, sink, starts_now=True).commits == 2
    assert [(commit.requested_time, change.key) for commit, _, change in sink.records] == [
        (time_of(5), '{"id":1}'),
        (time_of(5), '{"id":2}'),
        (time_of(3), '{"id":3}'),
    ]


def test_stream_that_starts_now_on_a_table_without_commits_misses_none() -> None:
    table, sink = ModelTable(), FakeSink()
    run(table, sink, starts_now=True)
    table.complete(1, 2, {1: 1})
    assert run(table, sink, starts_now=True).rows == 1


def test_stream_that_started_now_takes_a_snapshot_when_it_is_asked_for_or_has_a_gap() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 1})
    run(table, sink, starts_now=True)
    assert run(table, sink, starts_now=True, snapshot=True, request="r").rows == 1
    table.complete(3, 4, {2: 2})
    table.complete(5, 6, {2: 3})
    table.retained_from = time_of(5)
    assert "clean" in run(table, sink, starts_now=True).snapshot_reason
    fresh = FakeSink()
    assert run(table, fresh, starts_now=True, snapshot=True, request="r").snapshot_reason


def test_lag_counts_what_the_sink_does_not_have() -> None:
    table, refs = reads((1, 2), (3, 4), (5, 6))
    checkpoint = with_done(Checkpoint("s", 1, 1, refs[0]), [refs[0].requested_time], refs)
    assert lag_of(checkpoint, table.read_timeline()).commits == 2
    assert lag_of(checkpoint, table.read_timeline()).oldest_completed_time == time_of(4)
    assert lag_of(None, table.read_timeline()).commits == 3
    assert lag_of(with_done(checkpoint, [r.requested_time for r in refs], refs), table.read_timeline()).commits == 0


def test_clean_without_a_bound_counts_as_passed() -> None:
    table, refs = reads((1, 2), (3, 4))
    checkpoint = with_done(Checkpoint("s", 1, 1, refs[0]), [refs[0].requested_time], refs)
    timeline = replace(table.read_timeline(), cleaned_without_bound=time_of(5))
    assert "clean" in str(find_gap(checkpoint, timeline))
    caught_up = with_done(replace(checkpoint, commit=refs[1]), [refs[1].requested_time], refs)
    assert find_gap(caught_up, timeline) is None


def test_stream_of_another_table_is_refused() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    sink.text = to_text(Checkpoint("other.sink", 1, 1, None))
    with pytest.raises(ReplicationGapError, match="must not share"):
        run(table, sink)


def test_error_of_the_sink_reaches_the_caller_and_the_sink_is_closed() -> None:
    class Fenced(FakeSink):
        closed = False

        def commit(self, checkpoint: Checkpoint) -> None:
            raise SinkFencedError("another run")

        def close(self) -> None:
            self.closed = True

    table, sink = ModelTable(), Fenced()
    table.complete(1, 2, {1: 10})
    with pytest.raises(SinkFencedError):
        run(table, sink)
    assert sink.closed


def test_timeline_is_read_once_for_each_commit_and_what_follows_is_expected() -> None:
    class Watched(ModelTable):
        reads = 0

        def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
            Watched.reads += 1
            return super().read_timeline(known)

        def expect(self, commits: Sequence[CommitRef]) -> None:
            expected.append([commit.requested_time for commit in commits])

    table, sink, expected = Watched(), FakeSink(), list[list[str]]()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    for number in range(3, 9, 2):
        table.complete(number, number + 1, {1: number})
    Watched.reads = 0
    expected.clear()
    report = run(table, sink)
    assert report.commits == 3
    # Before the first, after each of the three, and once more, since a commit may have come meanwhile.
    assert Watched.reads == 5
    assert expected == [[time_of(n) for n in range(first, 9, 2)] for first in (3, 5, 7)] + [[]]
    assert set(report.phases) == set(PHASES)
    assert min(report.phases.values()) >= 0


def test_commit_that_had_been_read_before_the_timeline_needs_no_other_timeline() -> None:
    class Watched(ModelTable):
        refreshes = 0

        def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
            Watched.refreshes += 1
            return super().read_timeline(known)

    table, sink = Watched(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    for number in range(3, 9, 2):
        table.complete(number, number + 1, {1: number})
    # The second was read ahead long ago, the third while the first was written.
    table.read_ends_s = {time_of(5): 0.0}
    Watched.refreshes = 0
    assert run(table, sink).commits == 3
    assert Watched.refreshes == 4
    assert replica(sink) == table.rows()

"""Commits that come in buckets: dead at each step, with two runs at once, continued with other settings, given up."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    ReadIncompleteError,
    ReplicationGapError,
    SinkFencedError,
    SourceRefusedError,
    StreamOvertakenError,
)
from airflow_lake_provider.replication.change import CommitRef, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitSpread, from_text, to_text
from airflow_lake_provider.replication.feed import hold_of, lag_of
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.sink import NoopSink, SinkSettings
from airflow_lake_provider.replication.sinks.file import FileSink
from airflow_lake_provider.replication.sinks.kafka import KafkaSink
from airflow_lake_provider.replication.spread import (
    BucketSink,
    bucket_stream,
    count_buckets,
    find_given_up,
    owner_of,
    send_bucket,
)
from airflow_lake_provider.replication.transactions import UNBOUNDED, Order
from tests.unit.replication.bucket_model import (
    STREAM,
    Died,
    ModelChanges,
    ModelSpreader,
    Store,
    StoreSink,
    run,
)
from tests.unit.replication.table_model import ModelTable, time_of

KAFKA = {"bootstrap_servers": "nowhere:9092", "topic": "t"}
LARGE = {key: key + 10 for key in range(9)}


def names() -> Iterator[str]:
    return (f"attempt-{number}" for number in count(1))


@pytest.fixture
def table() -> ModelTable:
    table = ModelTable()
    table.complete(1, 2, {0: 0, 1: 1, 2: 2})
    return table


@pytest.fixture
def store(table: ModelTable) -> Store:
    """What a first run left: the snapshot."""
    store = Store()
    run(table, store)
    return store


@pytest.fixture
def spreader(table: ModelTable, store: Store) -> ModelSpreader:
    return ModelSpreader(table, store, attempts=names())


def require_each_change_once(table: ModelTable, store: Store) -> None:
    versions = store.versions()
    assert len(versions) == len(set(versions))
    assert store.rows() == table.rows()


def test_large_commit_comes_in_buckets_between_two_checkpoints_of_the_stream(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    small = table.complete(3, 4, {0: 1})
    large = table.complete(5, 6, LARGE)
    report = run(table, store, spreader)
    after = table.complete(7, 8, {0: 100})
    run(table, store, spreader)
    own = [from_text(text) for text in store.texts[STREAM]]
    begun, whole = (checkpoint for checkpoint in own if checkpoint.commit == large)
    assert (begun.spread, begun.rows) == (CommitSpread(3, "attempt-1", ("id",)), 0)
    assert whole.spread is None
    assert (whole.rows, whole.checksum) == (9, f"{checksum_of(table.read(large)):016x}")
    assert begun.has(small)
    assert not begun.has(large)
    buckets = [store.last(bucket_stream(STREAM, at)) for at in range(3)]
    assert sum(bucket.rows for bucket in buckets) == 9
    assert {(bucket.commit, bucket.spread) for bucket in buckets} == {(large, begun.spread)}
    assert (report.rows, report.commits) == (10, 2)
    assert store.last().commit == after
    require_each_change_once(table, store)


def test_commit_of_which_nothing_is_whole_is_held_and_lacking(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)

    def check(begun: Checkpoint) -> None:
        timeline = table.read_timeline()
        assert hold_of(begun, timeline) == begun.hold == large.requested_time
        assert lag_of(begun, timeline).commits == 1
        assert begun.watermark == time_of(2)

    spreader.before_send = check
    run(table, store, spreader)
    assert store.last().watermark == time_of(4)


@pytest.mark.parametrize("next_buckets", [3, 1, 5], ids=["as-before", "switched-off", "more"])
@pytest.mark.parametrize("dies_after", [False, True])
def test_run_that_died_at_any_call_is_continued_whatever_the_setting_is_then(
    dies_after: bool, next_buckets: int
) -> None:
    dies_at = 0
    while True:
        dies_at += 1
        table, store = ModelTable(), Store()
        table.complete(1, 2, {0: 0, 1: 1, 2: 2})
        run(table, store)
        table.complete(3, 4, LARGE)
        table.complete(5, 6, {0: 100, 1: None})
        store.dies_at, store.dies_after = dies_at, dies_after
        attempts = names()
        try:
            run(table, store, ModelSpreader(table, store, attempts=attempts))
        except Died:
            store.dies_at = -1
        else:
            break
        begun = store.last().spread
        following = ModelSpreader(table, store, buckets=next_buckets, attempts=attempts)
        run(table, store, following)
        require_each_change_once(table, store)
        assert store.last().spread is None
        seen = {from_text(text).spread for text in store.texts[STREAM]} - {None}
        if begun is not None:
            # It goes on in as many buckets as before, and those that were there are not sent again.
            assert seen == {begun}
    assert dies_at > 15


def test_kills_and_settings_at_random_leave_each_change_once() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        table, store, attempts, number = ModelTable(), Store(), names(), 1
        table.complete(1, 2, {0: 0})
        for _ in range(6):
            number += 2
            present = table.rows()
            rows = {
                key: None if key in present and draw.random() < 0.2 else number
                for key in draw.sample(range(12), draw.randint(1, 9))
            }
            table.complete(number, number + 1, rows)
            store.dies_at, store.dies_after = draw.choice([-1, draw.randint(1, 25)]), draw.random() < 0.5
            spreader = ModelSpreader(table, store, draw.randint(1, 4), attempts=attempts)
            spreader.in_order = lambda buckets, draw=draw: draw.sample(buckets, len(buckets))  # type: ignore[misc]
            with contextlib.suppress(Died):
                run(table, store, spreader)
            store.dies_at = -1
        run(table, store, ModelSpreader(table, store, attempts=attempts))
        require_each_change_once(table, store)


def dead_after(table: ModelTable, store: Store, spreader: ModelSpreader, commits_of_buckets: int) -> Checkpoint:
    """Let a run die when so many buckets are durable; return the stream's checkpoint."""
    spreader.in_order = lambda buckets: buckets[:commits_of_buckets]
    spreader.before_send = lambda begun: None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelChanges, "send", _send_some)
            run(table, store, spreader)
    except Died:
        pass
    spreader.in_order = lambda buckets: buckets
    return store.last()


def _send_some(changes: ModelChanges, begun: Checkpoint, schema: str) -> None:
    for bucket in changes.spreader.in_order(sorted(changes.found)):
        changes.task(begun, bucket)
    raise Died


def changes_of(spreader: ModelSpreader, commit: CommitRef, spread: CommitSpread) -> ModelChanges:
    with spreader.read(commit, spread) as changes:
        return changes


def test_commit_that_has_begun_is_ended_first_though_an_earlier_one_turns_up(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(5, 6, LARGE)
    dead_after(table, store, spreader, 1)
    # The clocks of writers differ.
    table.complete(3, 4, dict.fromkeys(range(20, 26), 3))
    run(table, store, spreader)
    whole = [found.commit for found in map(from_text, store.texts[STREAM]) if not found.is_within_commit]
    assert [commit.requested_time for commit in whole[-2:] if commit] == [large.requested_time, time_of(3)]
    require_each_change_once(table, store)


def test_seek_in_the_middle_sends_every_bucket_again(table: ModelTable, store: Store, spreader: ModelSpreader) -> None:
    large = table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 2)
    assert begun.spread is not None
    before = len(store.records)
    run(table, store, spreader, request="back", seek_until=time_of(2))
    again = store.records[before:]
    assert sorted(change.key for _, _, change in again) == sorted(f'{{"id":{key}}}' for key in LARGE)
    assert {generation for _, generation, _ in store.records} == {1}
    assert (store.last().commit, store.last().rows, store.rows()) == (large, 9, table.rows())


def test_task_of_a_dead_run_commits_nothing_after_a_seek(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 1)
    assert begun.spread is not None
    changes = changes_of(spreader, large, begun.spread)
    # It has opened its bucket and found that its run is the last one, and has yet to commit.
    slow = StoreSink(store, bucket_stream(STREAM, 2))
    slow.open()
    store.dies_at, store.dies_after = 8, False
    with pytest.raises(Died):
        run(table, store, spreader, request="back", seek_until=time_of(2))
    assert [call for call in store.calls if call.startswith("end ")] == [f"end {STREAM}#{at}" for at in range(3)]
    with pytest.raises(SinkFencedError):
        slow.commit(replace(begun, stream=bucket_stream(STREAM, 2), sequence=1))
    # And one that begins only now does not even take the bucket from the next run.
    epochs = dict(store.epochs)
    with pytest.raises(StreamOvertakenError):
        changes.task(begun, 2)
    assert store.epochs == epochs


def test_task_that_is_late_finds_that_another_run_went_on(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 1)
    assert begun.spread is not None
    changes = changes_of(spreader, large, begun.spread)
    late: list[str] = []

    def check(later: Checkpoint) -> None:
        assert later.spread == begun.spread
        assert later.sequence == begun.sequence + 1
        for bucket in (0, 2):
            with pytest.raises(StreamOvertakenError, match=f"gone on with stream {STREAM}"):
                changes.task(begun, bucket)
            late.append(bucket_stream(STREAM, bucket))

    spreader.before_send = check
    run(table, store, spreader)
    assert len(late) == 2
    table.complete(5, 6, dict.fromkeys(LARGE, 99))
    spreader.before_send = lambda begun: None
    run(table, store, spreader)
    # The buckets have another commit by now, and this task one that they do not name.
    with pytest.raises(StreamOvertakenError):
        changes.task(begun, 2)
    require_each_change_once(table, store)


def test_task_that_is_overtaken_as_it_opens_its_bucket_sends_nothing(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 1)
    assert begun.spread is not None
    changes = changes_of(spreader, large, begun.spread)

    class Overtaken(StoreSink):
        def open(self) -> str | None:
            # The other run sends this commit, and then another one: the bucket does not name this attempt any more.
            run(table, store, spreader)
            table.complete(5, 6, dict.fromkeys(LARGE, 99))
            run(table, store, spreader)
            return super().open()

    with pytest.raises(StreamOvertakenError):
        send_bucket(changes.order(begun, 2), lambda settings: Overtaken(store, settings.stream), [changes.found[2]])
    require_each_change_once(table, store)


def test_of_two_tasks_of_one_bucket_one_sends_it(table: ModelTable, store: Store, spreader: ModelSpreader) -> None:
    large = table.complete(3, 4, LARGE)

    def race(begun: Checkpoint) -> None:
        assert begun.spread is not None
        twin = changes_of(spreader, large, begun.spread)
        rows = iter([twin.found[1]])

        def slow() -> Iterator[list]:  # type: ignore[type-arg]
            yield from rows
            twin.task(begun, 1)  # the other one opens the bucket, and is done, before this one commits

        with pytest.raises(SinkFencedError):
            send_bucket(twin.order(begun, 1), spreader.sink, slow())

    spreader.before_send = race
    run(table, store, spreader)
    require_each_change_once(table, store)


def test_bucket_that_does_not_get_what_was_counted_is_not_sent(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    table.complete(3, 4, LARGE)

    def lose_a_file(changes: ModelChanges, begun: Checkpoint, schema: str) -> None:
        order = changes.order(begun, 0)
        send_bucket(order, spreader.sink, [changes.found[0][1:]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelChanges, "send", lose_a_file)
        with pytest.raises(ReadIncompleteError, match="were counted: the table's files have changed meanwhile"):
            run(table, store, spreader)
    assert bucket_stream(STREAM, 0) not in store.texts
    run(table, store, spreader)
    require_each_change_once(table, store)


def test_clean_before_the_first_bucket_leaves_the_sink_as_it_was(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    table.complete(3, 4, LARGE)
    before = store.last()
    table.clean_during_read = time_of(5)
    with pytest.raises(ReplicationGapError, match="a snapshot follows"):
        run(table, store, spreader)
    assert store.last() == before
    assert list(store.texts) == [STREAM]


def test_commit_that_can_no_longer_be_read_is_given_up_for_a_snapshot(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 2)
    slow = StoreSink(store, bucket_stream(STREAM, 2))
    slow.open()
    table.complete(5, 6, {0: 50})
    table.retained_from = time_of(5)
    report = run(table, store, spreader)
    assert "clean kept only" in report.snapshot_reason
    assert store.last().generation == begun.generation + 1
    with pytest.raises(SinkFencedError):
        slow.commit(replace(begun, stream=bucket_stream(STREAM, 2), sequence=1))
    assert store.rows() == table.rows()


@pytest.mark.parametrize("dies_at", range(2, 7))
def test_run_that_dies_as_it_gives_a_commit_up_is_followed_by_a_snapshot(
    table: ModelTable, store: Store, spreader: ModelSpreader, dies_at: int
) -> None:
    table.complete(3, 4, LARGE)
    begun = dead_after(table, store, spreader, 2)
    store.dies_at = dies_at
    with pytest.raises(Died):
        run(table, store, spreader, snapshot=True, request="by hand")
    was_given_up = bool(find_given_up(store.last()))
    assert was_given_up == (dies_at > 2)
    # The request is gone with its task, and this run knows nothing of it.
    report = run(table, store, spreader)
    assert ("gave it up" in report.snapshot_reason) == was_given_up
    assert store.last().generation == begun.generation + was_given_up
    assert store.rows() == table.rows()
    assert store.last().spread is None


def test_buckets_of_a_lost_stream_do_not_pass_for_sent(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)
    before = list(store.texts[STREAM])
    run(table, store, spreader)
    # The topic of checkpoints went back to where it was, and kept those of the buckets.
    store.texts[STREAM] = before
    sent = len(store.records)
    run(table, store, spreader)
    assert [commit for commit, _, _ in store.records[sent:]] == [large] * 9


def test_restore_of_a_commit_that_is_there_in_part_brings_a_snapshot(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    large = table.complete(3, 4, LARGE)
    dead_after(table, store, spreader, 1)
    del table.commits[large.requested_time]
    report = run(table, store, spreader)
    assert large.requested_time in report.snapshot_reason
    assert store.rows() == table.rows()


def test_run_without_executors_says_that_a_commit_came_in_buckets(table: ModelTable, store: Store) -> None:
    table.complete(3, 4, LARGE)
    dead_after(table, store, ModelSpreader(table, store, attempts=names()), 1)
    with pytest.raises(ConfigError, match="in part, in 3 buckets"):
        run(table, store)
    run(table, store, snapshot=True, request="by hand")
    assert store.rows() == table.rows()


def test_bucket_that_has_other_rows_than_are_read_now_is_refused(
    table: ModelTable, store: Store, spreader: ModelSpreader
) -> None:
    table.complete(3, 4, LARGE)
    dead_after(table, store, spreader, 2)
    del table.commits[time_of(3)][1][max(LARGE)], table.commits[time_of(3)][1][min(LARGE)]
    with pytest.raises((SourceRefusedError, ReadIncompleteError)):
        run(table, store, spreader)


def test_checkpoint_with_a_spread_is_read_back_and_one_without_is_as_it_was() -> None:
    plain = Checkpoint("t.sink", 3, 1, CommitRef("1", "2"))
    assert "spread" not in json.loads(to_text(plain))
    assert from_text(to_text(plain)) == plain
    spread = replace(plain, spread=CommitSpread(8, "a1", ("id", "day")))
    assert from_text(to_text(spread)) == spread
    assert spread.is_within_commit
    assert not plain.is_within_commit
    with pytest.raises(CheckpointDamagedError):
        from_text(to_text(spread).replace('"buckets":8', '"pieces":8'))


def test_name_of_a_bucket_leads_to_its_stream_alone() -> None:
    assert owner_of(bucket_stream("abc.kafka", 12)) == "abc.kafka"
    assert [owner_of(name) for name in ("abc.kafka", "abc#x", "#3")] == ["abc.kafka", "abc#x", "#3"]


def test_large_commits_have_as_many_buckets_as_their_transactions_need() -> None:
    assert [count_buckets(8, rows, 1_000_000) for rows in (10, 8_000_000, 8_000_001, 0)] == [8, 8, 9, 8]
    assert count_buckets(8, 10**12, UNBOUNDED) == 8


def test_settings_of_buckets_are_the_runs_and_not_the_sinks() -> None:
    options = {"topic": "t", "buckets": "8", "buckets_from_rows": "1000"}
    request = ReplicationRequest("/lake/t", "t", "kafka", Order("t.kafka"), "", options=options)
    assert (request.run_options.buckets, request.buckets_from_rows) == (8, 1000)
    assert dict(request.sink_settings.options) == {"topic": "t"}
    assert replace(request, options={}).buckets_from_rows == UNBOUNDED
    assert replace(request, options={"buckets": "2"}).buckets_from_rows == 500_000
    with pytest.raises(ConfigError, match="buckets is '0', allowed: a number of buckets from 1 on"):
        _ = replace(request, options={"buckets": "0"}).run_options


def test_sinks_that_one_process_writes_get_no_buckets() -> None:
    assert isinstance(StoreSink(Store(), STREAM), BucketSink)
    assert isinstance(KafkaSink(SinkSettings(STREAM, "t", options=KAFKA)), BucketSink)
    assert not isinstance(FileSink(SinkSettings(STREAM, "t", options={"path": "/out"})), BucketSink)
    assert not isinstance(NoopSink(SinkSettings(STREAM, "t")), BucketSink)


def test_debeziums_transactions_come_from_one_process() -> None:
    def obstacle(**options: str) -> str:
        return KafkaSink(SinkSettings(STREAM, "t", options={**KAFKA, **options})).find_bucket_obstacle()

    assert obstacle() == obstacle(format="debezium") == ""
    said = obstacle(format="debezium", **{"provide.transaction.metadata": "true"})
    assert said == "provide.transaction.metadata numbers a commit's events in one order"

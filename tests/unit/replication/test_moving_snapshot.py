"""A snapshot that lets commits pass: it moves to newer instants, and each change is in it or behind it, once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count

import pytest

from airflow_lake_provider.errors import ConfigError, ReplicationGapError
from airflow_lake_provider.replication import snapshot_run
from airflow_lake_provider.replication.change import Change, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, from_text, to_text
from airflow_lake_provider.replication.feed import CleansAfter, lag_of, move_snapshot
from tests.support.fake_sink import Died, FakeSink, replica, run
from tests.unit.replication import bucket_model
from tests.unit.replication.bucket_model import ModelSpreader, Store
from tests.unit.replication.bucket_model import run as run_in_buckets
from tests.unit.replication.table_model import ModelTable, time_of


class BusyTable(ModelTable):
    """Writers commit while the rows of a snapshot are read; what a reading shows was listed when it began."""

    number = 10
    left = 0
    """Commits that are still to come."""
    chance = random.Random(0)
    stretches: list[str]
    """The instants of all readings."""

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        self.__dict__.setdefault("stretches", []).append(progress.instant)
        for row in super().read_snapshot(progress):
            yield row
            if self.left and self.chance.random() < 0.6:
                self.commit_something()

    def commit_something(self) -> None:
        self.left -= 1
        keys = [self.chance.randrange(30) for _ in range(3)]
        rows = {key: None if self.chance.random() < 0.2 else self.number for key in keys}
        state = self.rows()
        self.number += 2
        self.complete(self.number, self.number + 1, {k: v for k, v in rows.items() if v is not None or k in state})


def busy(seed: int, commits: int = 12) -> BusyTable:
    table = BusyTable()
    table.chance, table.left = random.Random(seed), commits
    table.complete(1, 2, {key: key for key in range(0, 30, 2)})
    return table


def require_each_change_once(table: ModelTable, sink: FakeSink | Store) -> None:
    """Each key has the value of one instant and then every later change, in order; or all since it was not there."""
    commits = sorted((commit for commit, _ in table.commits.values()), key=lambda commit: commit.order)
    for key in {json.loads(change.key)["id"] for _, _, change in sink.records}:
        found = [change for _, _, change in sink.records if json.loads(change.key)["id"] == key]
        history = [rows[key] for commit in commits if key in (rows := table.commits[commit.requested_time][1])]
        values = [None if change.after is None else json.loads(change.after)["value"] for change in found]
        assert values == history[len(history) - len(values) :], key
        assert [change.op for change in found[1:]].count(Op.READ) == 0, key
        if found[0].op is not Op.READ:
            assert history[: len(history) - len(values)][-1:] in ([], [None]), key


def test_commits_pass_a_snapshot_that_has_taken_a_while() -> None:
    table, sink = busy(1), FakeSink()
    report = run(table, sink, snapshot_part_rows=2, snapshot_pause_s=0.0)
    ops = [change.op for _, _, change in sink.records]
    last_read = len(ops) - 1 - ops[::-1].index(Op.READ)
    assert {*ops[:last_read]} > {Op.READ}
    assert len(table.stretches) > 3
    assert table.stretches == sorted(table.stretches)
    assert report.checkpoint is not None
    assert (report.checkpoint.generation, report.checkpoint.snapshot) == (1, None)
    assert replica(sink) == table.rows()
    require_each_change_once(table, sink)


class KeepingSink(FakeSink):
    """Keeps the text of each checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def commit(self, checkpoint: Checkpoint) -> None:
        super().commit(checkpoint)
        self.texts.append(to_text(checkpoint))


class CountedTable(ModelTable):
    counts = 0
    can_say = True

    def count_snapshot(self, progress: SnapshotProgress) -> int | None:
        self.counts += 1
        return len(self.rows()) if self.can_say else None


@pytest.mark.parametrize(
    ("after_s", "can_say", "totals"), [(0.0, True, {15}), (60.0, True, {None}), (0.0, False, {None})]
)
def test_rows_of_a_long_snapshot_are_counted_once(
    monkeypatch: pytest.MonkeyPatch, after_s: float, can_say: bool, totals: set[int | None]
) -> None:
    monkeypatch.setattr(snapshot_run, "COUNTED_AFTER_S", after_s)
    table, sink = CountedTable(), KeepingSink()
    table.can_say = can_say
    table.complete(1, 2, {key: key for key in range(15)})
    report = run(table, sink, snapshot_part_rows=4)
    seen = [found.snapshot for found in map(from_text, sink.texts) if found.snapshot is not None]
    assert [progress.rows for progress in seen] == [4, 8, 12, 15]
    assert {progress.total for progress in seen[1:]} == totals
    assert table.counts == (after_s == 0)
    (within,) = [lag_of(from_text(text), table.read_timeline()) for text in sink.texts[1:2]]
    assert (within.snapshot_rows, within.snapshot_total) == (8, *totals)
    assert report.checkpoint is not None
    assert report.checkpoint.snapshot is None


def test_snapshot_stays_at_its_instant_until_commits_have_waited() -> None:
    table, sink = busy(1), FakeSink()
    run(table, sink, snapshot_part_rows=2, snapshot_pause_s=3600.0)
    assert len(table.stretches) == 1
    assert replica(sink) == table.rows()
    require_each_change_once(table, sink)


@pytest.mark.parametrize("seed", range(60))
def test_each_change_is_in_the_sink_once_wherever_runs_die(seed: int) -> None:
    table, sink = busy(seed), FakeSink()
    chance = random.Random(seed)
    for _ in range(40):
        sink.dies_at, sink.dies_after = chance.randrange(2, 12), chance.random() < 0.5
        most = chance.choice([2, 2**62])
        table.most_rows = most
        try:
            run(table, sink, snapshot_part_rows=chance.choice([1, 3]), snapshot_pause_s=0.0, max_transaction_rows=most)
        except Died:
            continue
        if not table.left and sink.dies_at > 0:
            break
    sink.dies_at, table.left = -1, 0
    run(table, sink, snapshot_part_rows=3, snapshot_pause_s=0.0)
    assert replica(sink) == table.rows()
    require_each_change_once(table, sink)
    assert {generation for _, generation, _ in sink.records} == {1}


@pytest.mark.parametrize("seed", range(60))
def test_each_change_is_there_once_wherever_runs_die_that_send_the_snapshot_in_buckets(seed: int) -> None:
    table, store, chance = busy(seed), Store(), random.Random(seed)
    attempts = (f"attempt-{number}" for number in count())
    for _ in range(60):
        store.dies_at, store.dies_after = chance.randrange(2, 40), chance.random() < 0.5
        spreader = ModelSpreader(
            table, store, chance.choice([1, 2, 3]), chance.choice([2, 9]), attempts,
            snapshot_from_rows=chance.choice([0, 5, 99]), chunk_rows=chance.choice([1, 4]),
        )  # fmt: skip
        try:
            run_in_buckets(table, store, spreader, snapshot_part_rows=2, snapshot_pause_s=0.0)
        except bucket_model.Died:
            continue
        if not table.left and store.dies_at > 0:
            break
    store.dies_at, table.left = -1, 0
    run_in_buckets(table, store, ModelSpreader(table, store, attempts=attempts), snapshot_pause_s=0.0)
    assert store.rows() == table.rows()
    require_each_change_once(table, store)
    assert {generation for _, generation, _ in store.records} == {1}


def test_snapshot_comes_in_chunks_of_neighbouring_keys_each_in_buckets() -> None:
    table, store = ModelTable(), Store()
    table.complete(1, 2, {key: key for key in range(9)})
    attempts = (f"attempt-{number}" for number in count())
    report = run_in_buckets(table, store, ModelSpreader(table, store, attempts=attempts, snapshot_from_rows=9))
    own = [from_text(text) for text in store.texts[bucket_model.STREAM]]
    chunks = [checkpoint.spread.until for checkpoint in own if checkpoint.spread is not None]
    assert chunks == ['{"id":2}', '{"id":5}', '{"id":8}']
    assert [checkpoint.snapshot.after for checkpoint in own if checkpoint.snapshot and not checkpoint.spread] == chunks
    assert [checkpoint.rows for checkpoint in own] == [0, 3, 0, 3, 0, 3, 0]
    assert (report.rows, store.rows()) == (9, table.rows())
    assert {change.op for _, _, change in store.records} == {Op.READ}


def test_chunk_that_has_begun_needs_executors() -> None:
    table, store = ModelTable(), Store()
    table.complete(1, 2, {key: key for key in range(9)})
    attempts = (f"attempt-{number}" for number in count())
    store.dies_at = 6
    with pytest.raises(bucket_model.Died):
        run_in_buckets(table, store, ModelSpreader(table, store, attempts=attempts, snapshot_from_rows=9))
    store.dies_at = -1
    with pytest.raises(ConfigError, match=r"the snapshot at .* is in the sink in part, in 3 buckets"):
        run_in_buckets(table, store)
    run_in_buckets(table, store, request="again", snapshot=True)
    assert store.rows() == table.rows()


def test_commit_that_becomes_visible_while_a_chunk_is_sent_waits_for_the_chunk() -> None:
    table, store = ModelTable(), Store()
    table.complete(1, 2, {key: key for key in range(9)})
    table.complete(5, 6, {5: 50})
    attempts = (f"attempt-{number}" for number in count())
    store.dies_at = 16  # the second chunk has begun
    with pytest.raises(bucket_model.Died):
        run_in_buckets(table, store, ModelSpreader(table, store, attempts=attempts, snapshot_from_rows=9))
    spread = store.last().spread
    assert spread is not None
    assert spread.until == '{"id":5}'
    store.dies_at = -1
    late = table.complete(3, 4, {0: 100, 8: 100})
    run_in_buckets(table, store, ModelSpreader(table, store, attempts=attempts, snapshot_from_rows=9))
    assert store.rows() == table.rows()
    assert [key for at, _, key in store.versions() if at == late.requested_time] == ['{"id":0}']


def test_snapshot_does_not_move_past_a_pending_write() -> None:
    class Slow(BusyTable):
        def commit_something(self) -> None:
            super().commit_something()
            if self.left == 6:
                self.begin(self.number + 1)
                self.slow = self.number + 1
                self.number += 2

    table, sink = Slow(), FakeSink()
    table.chance, table.left = random.Random(4), 12
    table.complete(1, 2, {key: key for key in range(0, 30, 2)})
    run(table, sink, snapshot_part_rows=1, snapshot_pause_s=0.0)
    assert max(table.stretches) < time_of(table.slow)
    table.complete(table.slow, table.number + 9, {0: 1000, 28: 1000})
    run(table, sink)
    assert replica(sink) == table.rows()
    require_each_change_once(table, sink)


def test_commit_that_becomes_visible_behind_the_snapshots_instant_is_in_it_or_behind_it() -> None:
    class Late(ModelTable):
        def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
            for number, row in enumerate(super().read_snapshot(progress)):
                yield row
                if number == 4:
                    self.complete(3, 4, {0: 100, 8: 100})

    table, sink = Late(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    table.complete(5, 6, {5: 50})
    run(table, sink, snapshot_part_rows=2)
    assert replica(sink) == table.rows()
    assert [json.loads(change.key)["id"] for _, _, change in sink.records].count(8) == 1


def test_snapshot_stays_where_a_clean_has_taken_what_the_commits_in_between_need() -> None:
    table = ModelTable()
    table.complete(1, 2, {1: 1})
    for number in range(3, 9, 2):
        table.complete(number, number + 1, {1: number})
    within = Checkpoint("t.s", 1, 1, None, done=(time_of(1),), snapshot=SnapshotProgress(time_of(1), '{"id":1}'))
    moved = move_snapshot(within, table.read_timeline())
    assert moved is not None
    assert moved.snapshot == SnapshotProgress(time_of(7), '{"id":1}')
    table.retained_from = time_of(5)
    # A savepoint keeps what it reads now.
    table.saved = {time_of(1): CleansAfter("", "")}
    assert move_snapshot(within, table.read_timeline()) is None
    assert (
        move_snapshot(
            Checkpoint("t.s", 1, 1, None, snapshot=SnapshotProgress(time_of(1))), ModelTable().read_timeline()
        )
        is None
    )


def test_clean_that_passes_the_commits_in_between_makes_the_snapshot_begin_again() -> None:
    table, sink = busy(1), FakeSink()
    table.clean_during_read = time_of(5000)
    with pytest.raises(ReplicationGapError, match="a snapshot follows"):
        run(table, sink, snapshot_part_rows=2, snapshot_pause_s=0.0)
    table.clean_during_read, table.retained_from, table.left = "", time_of(table.number), 0
    report = run(table, sink, snapshot_part_rows=2)
    assert "a clean kept only" in report.snapshot_reason
    assert replica(sink) == table.rows()


def test_savepoint_moves_with_the_snapshot() -> None:
    table, sink = busy(1), FakeSink()
    table.keeps = True
    kept: list[tuple[str, ...]] = []
    let_go = table.let_go

    def note(instant: str) -> None:
        let_go(instant)
        kept.append(tuple(table.kept))

    table.let_go = note  # type: ignore[method-assign]
    run(table, sink, snapshot_part_rows=2, snapshot_pause_s=0.0)
    assert [at for at, *others in filter(None, kept) if not others] == [at for at, *_ in filter(None, kept)]
    assert {at for at, *_ in filter(None, kept)} == {*table.stretches}
    assert table.kept == []
    assert replica(sink) == table.rows()


def test_snapshot_that_an_earlier_release_began_begins_again_in_a_new_generation() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {key: key for key in range(10)})
    sink.dies_at = 5
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=4)
    body = json.loads(sink.text or "")
    body["snapshot"]["after"] = ["000003", ""]
    assert "is_in_old_order" not in body["snapshot"]
    sink.text = json.dumps(body)
    assert to_text(from_text(sink.text)) == json.dumps(
        {**body, "snapshot": {**body["snapshot"], "after": None}}, separators=(",", ":"), sort_keys=True
    )
    report = run(table, sink)
    assert "earlier release" in report.snapshot_reason
    assert report.checkpoint is not None
    assert report.checkpoint.generation == 2
    assert replica(sink) == table.rows()

"""Each commit is in exactly one event, and its range has no other, whatever the timeline shows when."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.manager.loop.commit_events import (
    MAX_DONE,
    MAX_NAMED,
    CommitEvent,
    EventCursor,
    begin_cursor,
    find_events,
    parse_cursor,
)
from airflow_lake_provider.shared.actions import Action, State


def at(second: int) -> str:
    return f"20261121{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}000"


@dataclass(frozen=True)
class Write:
    """A write of the model: `completed` is None of one that is rolled back, at `gone`."""

    requested: int
    completed: int | None
    operation: str = "UPSERT"
    partition: str = "p"
    shows_late_s: int = 0
    gone: int = 0

    def instant(self, now: int) -> Instant | None:
        """Return what a listing at a time shows of it."""
        if self.completed is None:
            is_there = self.requested <= now < self.gone
            return Instant(at(self.requested), Action.DELTACOMMIT, State.INFLIGHT, None, "f") if is_there else None
        if now >= self.completed + self.shows_late_s:
            return Instant(at(self.requested), Action.DELTACOMMIT, State.COMPLETED, at(self.completed), "f")
        if now >= self.requested + self.shows_late_s:
            return Instant(at(self.requested), Action.DELTACOMMIT, State.INFLIGHT, None, "f")
        return None


def timeline_of(writes: list[Write], now: int) -> Timeline:
    return Timeline(tuple(instant for write in writes if (instant := write.instant(now)) is not None))


def commits_of(writes: list[Write]) -> dict[str, CommitMetadata]:
    return {
        at(w.requested): CommitMetadata(w.operation, (WriteStat(w.partition, "f", "x", 10, 10),), changed_rows=3)
        for w in writes
    }


def evaluate(cursor: EventCursor, writes: list[Write], now: int) -> tuple[EventCursor, tuple[CommitEvent, ...]]:
    return find_events(cursor, timeline_of(writes, now), commits_of(writes))


@pytest.mark.parametrize("seed", range(300))
def test_random_writers_every_commit_is_in_one_event_whose_range_has_no_other(seed: int) -> None:
    rng = random.Random(seed)
    writes = []
    # A lock gives each completion its own time; a slow writer begins long before, a dead one never completes.
    completions = rng.sample(range(60, 600), rng.randint(1, 40))
    for completed in completions:
        began = completed - rng.choice((1, 2, 5, 55))
        late = rng.choice((0, 0, 0, 7)) if seed % 3 == 0 else 0
        operation = rng.choice(("UPSERT", "UPSERT", "CLUSTER", "COMPACT"))
        writes.append(Write(began, completed, operation, rng.choice("abc"), late))
    writes += [Write(began, None, gone=began + rng.randint(5, 200)) for began in rng.sample(range(5, 60), 3)]
    # Requested times are unique as well.
    writes = list({write.requested: write for write in writes}.values())
    is_change = {at(w.requested): w.completed for w in writes if w.completed and w.operation == "UPSERT"}

    begun_s = rng.randint(0, 200)
    cursor = begin_cursor(timeline_of(writes, begun_s), commits_of(writes))
    before = {i.requested_time for i in timeline_of(writes, begun_s).completed()}
    reported: list[str] = []
    for now in [*sorted(rng.sample(range(begun_s, 700), 60)), 800, 801]:
        # What survives a crash is the text.
        cursor = parse_cursor(cursor.to_text())
        cursor, events = evaluate(cursor, writes, now)
        shown = {i.requested_time for i in timeline_of(writes, now).completed()}
        for event in events:
            reported += event.instants
            inside = [time for time, done in is_change.items() if event.after < at(done) <= event.until]
            inside = [time for time in inside if time in shown]
            assert sorted(inside) == sorted(event.instants), f"{event} at {now}"
            assert event.commits == len(event.instants)
            assert event.rows == 3 * event.commits
        if seed % 3:
            open_writes = [w for w in writes if (i := w.instant(now)) is not None and not i.is_completed]
            assert all(at(w.requested) > cursor.complete_until for w in open_writes if w.requested >= begun_s)
    assert sorted(reported) == sorted(is_change.keys() - before)
    assert len(reported) == len(set(reported))
    assert cursor.complete_until == cursor.until


def test_commits_between_two_evaluations_are_one_event() -> None:
    writes = [Write(second, second + 1, partition=f"d={second}") for second in range(10, 40, 2)]
    cursor = begin_cursor(timeline_of(writes, 12), commits_of(writes))
    _, events = evaluate(cursor, writes, 100)
    (event,) = events
    assert (event.after, event.until, event.complete_until) == (at(11), at(39), at(39))
    assert (event.commits, event.rows, event.written_bytes, event.partition_count) == (14, 42, 140, 14)
    assert event.partitions[0] == "d=12"


def test_a_slow_writer_holds_completeness_back_but_no_event() -> None:
    writes = [Write(1, 2), Write(5, 60), Write(10, 11)]
    cursor, _ = evaluate(begin_cursor(timeline_of(writes, 3), commits_of(writes)), writes, 3)
    cursor, events = evaluate(cursor, writes, 20)
    assert [(e.instants, e.until, e.complete_until) for e in events] == [((at(10),), at(11), at(2))]
    _, events = evaluate(cursor, writes, 70)
    assert [(e.instants, e.after, e.complete_until) for e in events] == [((at(5),), at(11), at(60))]


def test_an_older_write_that_is_rolled_back_completes_the_range_with_an_event_without_commits() -> None:
    writes = [Write(1, 2), Write(5, None, gone=50), Write(10, 11)]
    cursor = begin_cursor(timeline_of(writes, 3), commits_of(writes))
    cursor, _ = evaluate(cursor, writes, 20)
    cursor, events = evaluate(cursor, writes, 60)
    assert [(e.commits, e.after, e.until, e.complete_until) for e in events] == [(0, at(11), at(11), at(11))]
    assert evaluate(cursor, writes, 90) == (cursor, ())


def test_a_service_is_no_event() -> None:
    writes = [Write(1, 2), Write(5, 6, "CLUSTER"), Write(7, 8, "COMPACT")]
    cursor = begin_cursor(timeline_of(writes, 3), commits_of(writes))
    assert evaluate(cursor, writes, 20) == (cursor, ())


def test_a_restore_is_named_and_a_commit_that_cannot_be_read_counts() -> None:
    restore = Instant(at(9), Action.RESTORE, State.COMPLETED, at(10), "f")
    unread = Instant(at(11), Action.COMMIT, State.COMPLETED, at(12), "f")
    _, (event,) = find_events(EventCursor(at(1), at(1), at(1)), Timeline((restore, unread)), {})
    assert (event.restored, event.instants, event.commits, event.is_cut) == ((at(9),), (at(11),), 1, True)


def test_commits_that_were_archived_unseen_stay_in_the_range() -> None:
    writes = [Write(second, second + 1) for second in (100, 110)]
    _, (event,) = evaluate(EventCursor(at(2), at(2), at(2)), writes, 200)
    assert (event.after, event.until, event.is_cut) == (at(2), at(111), True)


def test_an_event_and_a_cursor_are_bounded() -> None:
    writes = [Write(2 * n, 2 * n + 1, partition=f"{'x' * 200}{n}") for n in range(1, 1000)]
    stuck = [Write(1, None, gone=9999), *writes]
    cursor, (event,) = evaluate(EventCursor(), stuck, 5000)
    assert (event.commits, len(event.instants), event.partition_count) == (999, MAX_NAMED, 999)
    assert sum(map(len, event.partitions)) <= 10_000
    assert len(cursor.done) == MAX_DONE
    assert len(str(event.to_extra("/lake/orders", "orders"))) < 20_000
    assert evaluate(cursor, stuck, 5001) == (cursor, ())


def test_a_damaged_cursor_is_refused() -> None:
    for text in ("", "[]", "{}", '{"until":1}', "null"):
        with pytest.raises(ValueError, match=r"cursor|JSON|Expecting"):
            parse_cursor(text)
    assert parse_cursor(replace(EventCursor(), done=("1",)).to_text()).done == ("1",)

"""Random schedules of two to six guarded writers, judged by Hudi's rule as this file states it.

The judge has no part of the provider. A commit is rejected when another write of one of its file groups committed after
it began. Of two that are at work the older goes on; one that already loses stands in no other's way.
`LAKE_GUARD_MODELS` sets how many are played.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from datetime import UTC

import pytest

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.guard import GuardWatch, Outlook
from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.storage.table_storage import Storage
from tests.unit.conflict.fake_table import BASE, RULE, FakeTable

SCHEDULES = int(os.environ.get("LAKE_GUARD_MODELS", "100"))
PERIOD_MS = 10_000
TICK_MS = 500
SETTLED_MS = 60_000
GROUPS = [("Oslo", "f1-0"), ("Oslo", "f2-0"), ("Bonn", "f3-0"), ("Cork", "f4-0"), ("", "f5-0")]


@dataclass
class Writer:
    """One guarded write: what it will do, and what became of it. Times in ms since the epoch."""

    begins: int
    plans: int
    commits: int
    groups: list[tuple[str, str]]
    by_server: bool
    phase: int
    instant: str = ""
    marked: int = 0
    state: str = "idle"
    watch: GuardWatch | None = None
    ended: int = 0
    seen_planned: int = 0
    others: list[Writer] = field(default_factory=list)

    def meets(self, other: Writer) -> bool:
        return other is not self and not set(self.groups).isdisjoint(other.groups)

    def is_rejected(self) -> bool:
        """Hudi's rule."""
        return any(self.meets(other) and other.state == "committed" and other.ended > self.begins for other in self.all)

    @property
    def all(self) -> list[Writer]:
        return self.others


def may_win(writers: list[Writer], now: int) -> set[str]:
    """Return the instants that nothing known makes lose, oldest first."""
    winners: list[Writer] = []
    for writer in sorted((w for w in writers if w.state == "writing" and w.plans <= now), key=lambda w: w.instant):
        if not writer.is_rejected() and not any(writer.meets(other) for other in winners):
            winners.append(writer)
    return {writer.instant for writer in winners}


def play(seed: int) -> dict[str, int]:
    draw = random.Random(seed)
    table = FakeTable()
    start = table.now_ms
    writers = []
    for _ in range(draw.randint(2, 6)):
        begins = start + draw.randrange(0, 120_000, TICK_MS)
        plans = begins + draw.randrange(1_000, 40_000, TICK_MS)
        commits = plans + draw.randrange(2_000, 200_000, TICK_MS)
        groups = draw.sample(GROUPS, draw.randint(1, 3))
        writers.append(Writer(begins, plans, commits, groups, draw.random() < 0.5, draw.randrange(0, PERIOD_MS, 500)))
    for number, writer in enumerate(writers):
        writer.others = writers
        writer.begins += number  # no two instants of one millisecond
    counts = {"ended": 0, "rejected": 0, "committed": 0}
    for now in range(start, max(writer.commits for writer in writers) + TICK_MS, TICK_MS):
        table.now_ms = now
        for writer in draw.sample(writers, len(writers)):
            step(table, writer, now, draw)
        for writer in draw.sample(writers, len(writers)):
            if writer.state == "writing" and (now - start) % PERIOD_MS == writer.phase:
                check(table, writer, now)
    for writer in writers:
        counts[writer.state] += 1
    judge(writers)
    return counts


def step(table: FakeTable, writer: Writer, now: int, draw: random.Random) -> None:
    if writer.state == "idle" and now >= writer.begins:
        writer.state, writer.instant = "writing", format_instant_time(writer.begins, UTC)
        table.begin(writer.instant)
        opened = ConflictTable(Storage(BASE, table.store, BASE), table.snapshot, RULE)
        writer.watch = GuardWatch(opened, table.snapshot, lambda _: writer.instant, 120.0)
    if writer.state != "writing":
        return
    table.beat(writer.instant)
    if now >= writer.plans and not writer.marked:
        table.announce(writer.instant, writer.groups)
        writer.marked = 1
    elif writer.marked and draw.random() < 0.3:
        writer.marked = min(writer.marked + 1, len(writer.groups))
        mark = table.mark_by_server if writer.by_server else table.mark_direct
        mark(writer.instant, writer.groups[: writer.marked])
    if now >= writer.commits:
        writer.ended = now
        if writer.is_rejected():
            writer.state = "rejected"
            leave(table, writer)
        else:
            writer.state = "committed"
            table.remove(f"timeline/{writer.instant}")
            table.commit(writer.instant, format_instant_time(now, UTC), writer.groups)


def leave(table: FakeTable, writer: Writer) -> None:
    for path in (f"timeline/{writer.instant}", f".temp/{writer.instant}", f".heartbeat/{writer.instant}"):
        table.remove(path)


def check(table: FakeTable, writer: Writer, now: int) -> None:
    assert writer.watch is not None
    forecast = writer.watch.check(now)
    if writer.plans <= now and not writer.seen_planned:
        writer.seen_planned = now
    assert not forecast.clashes or forecast.outlook is Outlook.LOSES
    if forecast.outlook is Outlook.LOSES:
        assert writer.is_rejected() or any(
            other.instant in may_win(writer.all, now) and other.instant < writer.instant and writer.meets(other)
            for other in writer.all
        ), "false alarm"
        writer.state, writer.ended = "ended", now
        leave(table, writer)


def judge(writers: list[Writer]) -> None:
    """No loser came to its commit that could be known to lose for two periods; each conflict left a commit."""
    for writer in writers:
        rivals = [other for other in writers if writer.meets(other)]
        if writer.state == "rejected":
            # What completed while a write was beginning counts a minute later, or where it was seen to have planned.
            won = min(other.ended for other in rivals if other.state == "committed" and other.ended > writer.begins)
            is_planned = writer.seen_planned and won > writer.seen_planned
            known = won if is_planned else max(won, writer.plans + PERIOD_MS)
            is_certain = is_planned or won >= writer.begins + SETTLED_MS
            assert not is_certain or writer.ended - known < 2 * PERIOD_MS, "known to lose, and not ended"
        if writer.state != "committed":
            assert any(other.state == "committed" for other in reach(writer)), "a conflict without a winner"


def reach(writer: Writer) -> list[Writer]:
    found, waiting = [writer], [writer]
    while waiting:
        here = waiting.pop()
        new = [other for other in here.all if here.meets(other) and other not in found]
        found += new
        waiting += new
    return found


@pytest.mark.parametrize("block", range(4))
def test_losers_are_ended_in_time_and_only_they(block: int) -> None:
    total = {"ended": 0, "rejected": 0, "committed": 0}
    for seed in range(block, SCHEDULES, 4):
        try:
            counts = play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        total = {state: total[state] + counts[state] for state in total}
    assert total["ended"] > total["rejected"], total
    assert total["committed"] > 0
    print(total)

"""Random interleavings of two to five writers: each check says what a checker says that knows all of them.

The knowing one has no part of the provider: it compares every pair of file groups of every pair of writers, from what
the writers did and not from what they left on storage. `LAKE_INTERLEAVINGS` sets how many are tried.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from airflow_lake_provider.conflict.contention import WriteIntent
from airflow_lake_provider.conflict.strategies import BUILT_IN, StrategySettings, make_strategy
from tests.unit.conflict.fake_table import RULE, FakeTable, keys

INTERLEAVINGS = int(os.environ.get("LAKE_INTERLEAVINGS", "500"))
STEPS = 30
PARTITIONS = ("", "2026/01/01", "event_date=1", "event_date=2", "a_b")
FILE_IDS = ("f1-0", "f2-0")
CUT = 5

Group = tuple[str, str]


@dataclass
class Writer:
    """What one writer did so far."""

    instant: str
    wanted: list[Group]
    uses_server: bool
    announces: bool
    state: str = "idle"
    marked: list[Group] = field(default_factory=list)
    beat_ms: int = 0
    completed: str = ""
    is_cut: bool = False


def run(seed: int) -> tuple[int, int]:
    """Play one interleaving; return how many checks were made and how many found a clash."""
    draw = random.Random(seed)
    table, clock = FakeTable(), [20_000]
    writers: list[Writer] = []
    opened = table.open()
    checks = clashes = 0
    for _ in range(STEPS):
        table.now_ms += draw.choice((10, 1_000, 50_000))
        step(draw, table, writers, clock)
        for writer in writers:
            if writer.state == "writing" and draw.random() < 0.5:
                strategy = make_strategy(draw.choice(STRATEGIES), NO_PAUSE)
                checks += 1
                clashes += compare(strategy.check(opened, claim_of(writer), table.now_ms), table, writers, writer)
    return checks, clashes


STRATEGIES, NO_PAUSE = sorted(BUILT_IN), StrategySettings(period_s=0)


def step(draw: random.Random, table: FakeTable, writers: list[Writer], clock: list[int]) -> None:
    if len(writers) < 2 or (len(writers) < 5 and draw.random() < 0.2):
        clock[0] += 1
        groups = [(partition, file_id) for partition in PARTITIONS for file_id in FILE_IDS]
        wanted = draw.sample(groups, draw.randint(1, 4))
        writer = Writer(tick(clock), wanted, draw.random() < 0.5, draw.random() < 0.3)
        writers.append(writer)
        table.begin(writer.instant)
        writer.state, writer.beat_ms = "writing", table.now_ms
        if writer.announces:
            table.announce(writer.instant, wanted)
        return
    writer = draw.choice(writers)
    if writer.state != "writing":
        return
    draw.choice((mark, mark, beat, finish))(draw, table, writer, clock)


def mark(draw: random.Random, table: FakeTable, writer: Writer, clock: list[int]) -> None:
    left = [group for group in writer.wanted if group not in writer.marked]
    if left:
        writer.marked.append(left[0])
    if not writer.uses_server:
        table.mark_direct(writer.instant, writer.marked, is_log=draw.random() < 0.5)
        return
    writer.is_cut = draw.random() < 0.2
    table.mark_by_server(writer.instant, writer.marked, CUT if writer.is_cut else 0)


def beat(draw: random.Random, table: FakeTable, writer: Writer, clock: list[int]) -> None:
    writer.beat_ms = table.now_ms
    table.beat(writer.instant)


def finish(draw: random.Random, table: FakeTable, writer: Writer, clock: list[int]) -> None:
    writer.completed, writer.state, writer.is_cut = tick(clock), "completed", False
    table.commit(writer.instant, writer.completed, writer.wanted)


def tick(clock: list[int]) -> str:
    clock[0] += 1
    return f"2026112110{clock[0]:07d}"


def claim_of(writer: Writer) -> WriteIntent:
    return WriteIntent(writer.instant, keys(writer.wanted), since=writer.instant)


def compare(verdict: object, table: FakeTable, writers: list[Writer], me: Writer) -> bool:
    """Assert that a verdict is that of a checker that knows all writers; return whether there is a clash."""
    certain, possible, is_doubtful = set(), set(), False
    for other in writers:
        for group in me.wanted:
            if other is me:
                continue
            if other.state == "completed":
                if other.completed > me.instant and group in other.wanted:
                    certain.add((other.instant, group))
                continue
            is_live = table.now_ms - other.beat_ms <= RULE.interval_ms * RULE.tolerable_misses
            if not is_live or other.instant > me.instant:
                continue
            is_doubtful = is_doubtful or other.is_cut
            if group in (other.wanted if other.announces else other.marked):
                (possible if other.is_cut and not other.announces else certain).add((other.instant, group))
    found = {
        (clash.instant, group) for clash in verdict.clashes for group in me.wanted if keys([group]) <= clash.file_groups
    }
    assert certain <= found <= certain | possible
    assert bool(verdict.unread) is is_doubtful
    assert verdict.is_free is (not found and not is_doubtful)
    return bool(found)


@pytest.mark.parametrize("block", range(10))
def test_verdicts_are_those_of_a_checker_that_knows_all(block: int) -> None:
    checks = clashes = 0
    for seed in range(block, INTERLEAVINGS, 10):
        try:
            some = run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        checks, clashes = checks + some[0], clashes + some[1]
    # Neither answer may be the only one that was ever asked for.
    assert checks > clashes > 0

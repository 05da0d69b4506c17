"""Runs as real processes against a real broker: killed before, in and after each step, doubled, cleared and repeated;
the broker killed meanwhile. A consumer that reads committed records must see every row version once, in order per key.

`LAKE_REPLICATION_SEEDS` says how many seeded histories; the short form has one.
"""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path

import pytest

from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from tests.support.killed_streams import RUN_TIMEOUT_S, Story, draw_death, with_deletes
from tests.unit.replication.table_model import time_of

SEEDS = int(os.environ.get("LAKE_REPLICATION_SEEDS", "1"))


@pytest.fixture
def story(broker: LocalKafka, tmp_path: Path) -> Story:
    return Story(tmp_path, broker.bootstrap, f"orders-{tmp_path.name.replace('_', '-')}-{os.getpid()}.kafka")


@pytest.mark.parametrize(
    ("call", "number", "when"),
    [
        pytest.param(call, number, when, id=f"{when}-{call}-{number}")
        for call, number in (("open", 1), ("write", 2), ("commit", 1), ("commit", 3))
        for when in ("before", "after")
    ],
)
def test_killed_at_a_step(story: Story, call: str, number: int, when: str) -> None:
    story.table.complete(1, 2, {key: key for key in range(10)})
    story.table.complete(3, 4, {1: 100, 2: None})
    assert story.run({"call": call, "number": number, "when": when}) == -9, story.log()
    story.table.complete(5, 6, {1: 101, 11: 110})
    assert story.run() == 0, story.log()
    story.verify()


@pytest.mark.parametrize(
    ("call", "number", "when"),
    [
        # Nine rows in transactions of at least four: two blocks of three rows, and one.
        pytest.param(call, number, when, id=f"{when}-{call}-{number}", marks=() if is_short else pytest.mark.soak)
        for call, number, when, is_short in (
            ("write", 2, "before", False),
            ("write", 2, "after", False),
            ("commit", 1, "before", False),
            ("commit", 1, "after", True),
            ("write", 3, "before", False),
            ("write", 3, "after", True),
            ("commit", 2, "before", False),
            ("commit", 2, "after", False),
        )
    ],
)
def test_killed_within_and_between_the_parts_of_a_large_commit(story: Story, call: str, number: int, when: str) -> None:
    story.table.complete(1, 2, {1: 1})
    assert story.run() == 0, story.log()
    story.table.most_rows = 4
    story.table.complete(3, 4, {key: key + 10 for key in range(9)})
    assert story.run({"call": call, "number": number, "when": when}) == -9, story.log()
    checkpoints = [record.value for record in read_topic(story.bootstrap, f"{story.stream}.checkpoints")]
    seen = [record for record in read_topic(story.bootstrap, story.stream) if record.value["op"] != "r"]
    # A reader has a prefix of the commit in the order of its keys, whole parts of it, and the checkpoint that says so.
    assert len(seen) in (0, 6, 9)
    assert len(seen) == checkpoints[-1].get("part", {"rows": 9 if len(seen) == 9 else 0})["rows"]
    story.table.complete(5, 6, {1: 101, 11: 110})
    assert story.run() == 0, story.log()
    story.verify()


@pytest.mark.parametrize("most_rows", [math.inf, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_seeded_history_of_kills(story: Story, broker: LocalKafka, seed: int, most_rows: float) -> None:
    draw = random.Random(seed)
    story.table.most_rows = most_rows
    number, slow, broker_kills = 0, [], 0
    for round_number in range(6):
        for _ in range(draw.randint(1, 4)):
            number += 2
            rows: dict[int, int | None] = {draw.randrange(15): number for _ in range(draw.randint(1, 8))}
            if number > 2 and draw.random() < 0.25:
                story.table.begin(number)
                slow.append(number)
            else:
                story.table.complete(number, number + 1, with_deletes(story.table, rows, draw))
        if slow and draw.random() < 0.5:
            number += 2
            story.table.complete(slow.pop(0), number, {draw.randrange(15): number})
        runs = [story.start(draw_death(draw))]
        if draw.random() < 0.4:  # the task was cleared while its driver lived: two at once
            runs.append(story.start(draw_death(draw)))
        if round_number == 3 or draw.random() < 0.1:
            time.sleep(draw.random())
            broker.kill()
            broker_kills += 1
            broker.start()
        for run in runs:
            run.wait(RUN_TIMEOUT_S)
    for started in slow:
        number += 2
        story.table.complete(started, number, {draw.randrange(15): number})
    assert broker_kills
    assert story.run() == 0, story.log()
    story.verify()


def test_times_of_the_model_are_read_back() -> None:
    assert int(time_of(17)[10:]) == 17

"""Runs that copy rows into a real PostgreSQL are killed between COPY, merge and checkpoint, and so is the server.

Afterwards the mirror has the table's rows, and a trigger, which notes each version of a row that the mirror got, has
each one once. `LAKE_REPLICATION_SEEDS` says how many seeded histories the long form has.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from local_stack.postgres import LocalPostgres
from tests.support.killed_mirrors import MirrorStory
from tests.support.killed_streams import RUN_TIMEOUT_S, draw_death, with_deletes

SEEDS = int(os.environ.get("LAKE_REPLICATION_SEEDS", "4"))
STATEMENTS = ("copy", "create temporary", "truncate", "delete from", "insert into")
CONSTRAINTS = (", primary key (id)", "")


@pytest.fixture
def story(postgres: LocalPostgres, tmp_path: Path) -> MirrorStory:
    return MirrorStory(tmp_path, postgres.url, f"m{uuid.uuid4().hex[:12]}")


def is_short(call: str, number: int, when: str, constraint: str) -> bool:
    return (call, number, when, bool(constraint)) in {
        ("copy", 2, "after", True),
        ("insert into", 1, "before", True),
        ("insert into", 2, "after", True),
        ("delete from", 2, "after", False),
    }


@pytest.mark.parametrize(
    ("call", "number", "when", "constraint"),
    [
        pytest.param(
            *case, id="-".join(map(str, case[:3])) + ("" if case[3] else "-no-key"),
            marks=() if is_short(*case) else pytest.mark.soak,
        )
        for call in STATEMENTS
        for number in (1, 2)
        for when in ("before", "after")
        for constraint in CONSTRAINTS
        for case in [(call, number, when, constraint)]
    ],
)  # fmt: skip
def test_killed_at_a_statement(story: MirrorStory, call: str, number: int, when: str, constraint: str) -> None:
    story.make(constraint)
    story.table.complete(1, 2, {key: key for key in range(10)})
    assert story.run() == 0, story.log()
    # Two blocks, with rows to insert, update and delete.
    story.table.complete(3, 4, {1: 100, 2: None, 11: 110, 4: 140, 5: None, 3: 130})
    assert story.run({"call": call, "number": number, "when": when}) == -9, story.log()
    story.table.complete(5, 6, {1: 101, 12: 110})
    assert story.run() == 0, story.log()
    story.verify()


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=["key", "no-key"])
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.soak
def test_seeded_history_of_kills(story: MirrorStory, postgres: LocalPostgres, seed: int, constraint: str) -> None:
    """Runs die at calls, statements and moments, two go at once, and the server dies under them."""
    draw = random.Random(seed)
    story.make(constraint)
    number = 0
    for round_number in range(8):
        for _ in range(draw.randint(1, 4)):
            number += 2
            rows: dict[int, int | None] = {draw.randrange(15): number for _ in range(draw.randint(1, 8))}
            story.table.complete(number, number + 1, with_deletes(story.table, rows, draw))
        runs = [story.start(draw_death_of_copy(draw))]
        if draw.random() < 0.4:
            runs.append(story.start(draw_death_of_copy(draw)))
        if round_number == 3 or draw.random() < 0.2:
            time.sleep(draw.uniform(0.5, 3))
            postgres.kill()
            postgres.start()
        for run in runs:
            run.wait(RUN_TIMEOUT_S)
    assert story.run() == 0, story.log()
    story.verify()


def draw_death_of_copy(draw: random.Random) -> dict[str, Any] | None:
    if draw.random() < 0.5:
        return draw_death(draw)
    return {
        "call": draw.choice(STATEMENTS), "number": draw.randint(1, 4), "when": draw.choice(["before", "after"])
    }  # fmt: skip

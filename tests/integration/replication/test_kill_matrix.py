"""Runs as real processes against a real broker: killed before, in and after each step, doubled, cleared and repeated;
the broker killed meanwhile. A consumer that reads committed records must see every row version once, in order per key.

`LAKE_REPLICATION_SEEDS` says how many seeded histories; the short form has one.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_lake_provider.replication.change import Change, Op, checksum_of
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from tests.unit.replication.table_model import ModelTable, time_of

ROOT = Path(__file__).parents[3]
RUNNER = Path(__file__).with_name("runner.py")
SEEDS = int(os.environ.get("LAKE_REPLICATION_SEEDS", "1"))
RUN_TIMEOUT_S = 120


@dataclass
class Story:
    """A table's history, the topic it goes to, and the runs that bring it there."""

    folder: Path
    bootstrap: str
    stream: str
    table: ModelTable = field(default_factory=ModelTable)
    number: int = 0

    kind: ClassVar[str] = "kafka"

    def options(self) -> dict[str, str]:
        return {
            "bootstrap_servers": self.bootstrap,
            "topic": self.stream,
            "create_topics": "true",
            "partitions": "3",
            "timeout_s": "60",
        }

    def start(self, die: dict[str, Any] | None = None) -> subprocess.Popen[bytes]:
        self.number += 1
        table, request = self.folder / f"table-{self.number}.json", self.folder / f"request-{self.number}.json"
        commits = [
            [int(ref.requested_time[10:]), int(ref.completed_time[10:]), rows]
            for ref, rows in self.table.commits.values()
        ]
        pending = [int(time[10:]) for time in self.table.pending]
        body = {"commits": commits, "pending": pending, "most_rows": self.table.most_rows}
        table.write_text(json.dumps(body), encoding="utf-8")
        body = {"table": str(table), "kind": self.kind, "options": self.options(), "stream": self.stream, "die": die}
        request.write_text(json.dumps(body), encoding="utf-8")
        with (self.folder / f"run-{self.number}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(RUNNER), str(request)], stdout=log, stderr=log, cwd=ROOT, env=environment()
            )

    def run(self, die: dict[str, Any] | None = None) -> int:
        return self.start(die).wait(RUN_TIMEOUT_S)

    def log(self) -> str:
        return (self.folder / f"run-{self.number}.log").read_text(errors="replace")[-3000:]

    def verify(self) -> None:
        """Hold the topic against the table: each version once, per key in order, count and checksum per commit."""
        records = read_topic(self.bootstrap, self.stream)
        seen = [(record.headers["commit"], record.key["id"]) for record in records]
        assert len(seen) == len(set(seen)), "a row version was delivered twice"
        (instant,) = {record.headers["commit"] for record in records if record.value["op"] == "r"}
        expected = {
            (ref.requested_time, key)
            for ref, rows in self.table.commits.values()
            for key in rows
            if ref.requested_time > instant
        }
        changes = [record for record in records if record.value["op"] != "r"]
        assert {(record.headers["commit"], record.key["id"]) for record in changes} == expected
        self._verify_order(records)
        self._verify_commits(changes)

    def _verify_order(self, records: list[Record]) -> None:
        rows: dict[int, int] = {}
        places = defaultdict(set)
        for record in records:
            key, after = record.key["id"], record.value["after"]
            places[key].add(record.partition)
            if record.value["op"] != "r":
                before = None if record.value["before"] is None else record.value["before"]["value"]
                assert before == rows.get(key), f"key {key} is out of order"
            if after is None:
                rows.pop(key, None)
            else:
                rows[key] = after["value"]
        assert rows == self.table.rows()
        assert all(len(partitions) == 1 for partitions in places.values())

    def _verify_commits(self, changes: list[Record]) -> None:
        checkpoints = [record.value for record in read_topic(self.bootstrap, f"{self.stream}.checkpoints")]
        assert [checkpoint["sequence"] for checkpoint in checkpoints] == list(range(1, len(checkpoints) + 1))
        delivered = defaultdict(list)
        for record in changes:
            delivered[record.headers["commit"]].append(as_change(record))
        reported = defaultdict(list)
        for checkpoint in checkpoints:
            if checkpoint["snapshot"] is None:
                reported[checkpoint["commit"]["requested_time"]].append(checkpoint)
        for ref, rows in self.table.commits.values():
            if ref.requested_time in delivered:
                found, parts = delivered[ref.requested_time], reported[ref.requested_time]
                assert len(found) == len(rows) == sum(part["rows"] for part in parts)
                assert checksum_of(found) == sum(int(part["checksum"], 16) for part in parts)
                assert checksum_of(found) == checksum_of(self.table.read(ref))
                # All but the last say how far they are: transactions of at least so many rows, and whole keys.
                assert ["part" in part for part in parts] == [True] * (len(parts) - 1) + [False]


def as_change(record: Record) -> Change:
    def text(body: Any) -> str | None:
        return None if body is None else json.dumps(body, separators=(",", ":"))

    body = record.value
    return Change(Op(body["op"]), str(text(record.key)), text(body["before"]), text(body["after"]))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


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


def draw_death(draw: random.Random) -> dict[str, Any] | None:
    kind = draw.random()
    if kind < 0.2:
        return None
    if kind < 0.5:
        return {"after_s": draw.uniform(0.1, 2.0)}
    call = draw.choice(["open", "write", "commit"])
    number = 1 if call == "open" else draw.randint(1, 4)
    return {"call": call, "number": number, "when": draw.choice(["before", "after"])}


def with_deletes(table: ModelTable, rows: dict[int, int | None], draw: random.Random) -> dict[int, int | None]:
    """Delete some of the rows that are there; a delete of what is not there is no change."""
    present = table.rows()
    return {key: None if key in present and draw.random() < 0.2 else value for key, value in rows.items()}


def test_times_of_the_model_are_read_back() -> None:
    assert int(time_of(17)[10:]) == 17

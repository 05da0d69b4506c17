"""A history of a table, and the runs that bring it to a topic or a mirror while they are killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from airflow_lake_provider.replication.change import Change, Op, checksum_of
from local_stack.kafka_consumer import Record, read_topic
from tests.unit.replication.table_model import ModelTable

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tests" / "integration" / "replication" / "runner.py"
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

"""The part of the story about replication: a table's changes arrive in a Kafka topic, each exactly once.

Played together with the rest, one step at a time: broker, first commits, DAG `lake_replication`, the snapshot in the
topic, a writer that continues, the changes in the topic. Then the topic is compared with the table, commit by commit.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.planner.table_view import TableViewCache
from demo.scene import CHANGES_TABLE, CHANGES_TOPIC, LATE_WRITER, ROOT, commits_of, early_commits, start_writer
from local_stack import kafka
from local_stack.airflow import HUDI_JAR, LocalAirflow, scratch_env
from local_stack.hudi_bundle import SPARK_PYTHON, spark_env
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from local_stack.processes import ServerProcess, start

DAG = "lake_replication"
_LATE = "late-writer"

Row = dict[str, Any]
Version = Mapping[int, Row]
"""A table's rows at one instant, by id."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the topic has of one commit."""

    commit: str
    kind: str
    """`snapshot` or `changes`."""
    records: int
    is_exact: bool
    """Whether they equal the table's changes, each once."""


@dataclass
class ChangesInKafka:
    """One broker, one table with a sink, and the steps of this part of the story."""

    airflow: LocalAirflow
    lake: Path
    writers: list[ServerProcess]
    say: Callable[[str], None]
    failure: str = ""
    """Why this part is not played; empty when it is."""
    problem: str = ""
    """The last problem that the manager reported of the sink."""
    ended: bool = False
    arrivals: tuple[Arrival, ...] = ()
    broker: LocalKafka | None = None
    reader: ServerProcess | None = None
    versions: dict[str, Version] = field(default_factory=dict)
    steps: Iterator[None] | None = None

    @property
    def base_path(self) -> Path:
        return self.lake / CHANGES_TABLE

    @property
    def is_written(self) -> bool:
        """Whether the last writer was started."""
        return any(writer.name == _LATE for writer in self.writers)

    def open(self, folder: Path) -> str:
        """Start the broker; return its address, empty when there can be none."""
        if not kafka.LIB.is_dir():
            self.say("fetching Kafka's jars with Maven (once)")
        self.broker = LocalKafka(folder)
        try:
            self.broker.start()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            # No Maven, no network, no free memory: the rest of the story continues, and the end reports this failure.
            self.broker.stop()
            why = "; ".join(str(error).split("\n")).strip("; ")
            self.failure = f"no Kafka broker: {why or type(error).__name__}"
            self.say(f"THE CHANGES IN KAFKA CANNOT BE SHOWN. {self.failure}")
            return ""
        self.say(f"a Kafka broker serves on {self.broker.bootstrap}")
        return self.broker.bootstrap

    def advance(self) -> None:
        """Continue the story as far as it is possible now."""
        if self.steps is None:
            self.steps = self._play()
        if next(self.steps, self) is self:
            self.ended = True

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
        if self.broker is not None:
            self.broker.stop()

    def check(self) -> list[tuple[str, bool]]:
        """Return what must hold at the end."""
        if self.failure:
            return [(f"changes of {CHANGES_TABLE} in Kafka: {self.failure}", False)]
        kinds = [arrival.kind for arrival in self.arrivals]
        return [
            (
                f"topic {CHANGES_TOPIC}: a snapshot, then the changes of {kinds.count('changes')} commits, "
                "for readers that read committed",
                kinds[:1] == ["snapshot"] and kinds[1:] == ["changes"] * LATE_WRITER[0].commits,
            ),
            (
                f"each commit's records are the rows of {CHANGES_TABLE} that it changed, each exactly once",
                bool(self.arrivals) and all(arrival.is_exact for arrival in self.arrivals),
            ),
        ]

    def print_arrivals(self) -> None:
        """Print one line for each commit."""
        for arrival in self.arrivals:
            verdict = "as in the table, each once" if arrival.is_exact else "NOT AS IN THE TABLE"
            what = f"{arrival.kind:<9}{arrival.records:>5} records, {verdict}"
            print(f"  {CHANGES_TABLE:<11}commit {arrival.commit}  {what}")

    def _play(self) -> Iterator[None]:
        while (
            sum(len([c for c in commits_of(w) if c["table"] == CHANGES_TABLE]) for w in self.writers) < early_commits()
        ):
            yield
        if not self.failure:
            self.airflow.pause(DAG, is_paused=False)
            self.say(f"{CHANGES_TABLE} has a sink of kind kafka: DAG {DAG} is switched on")
            while not self._is_up_to_date():
                yield
            self.say(f"{CHANGES_TABLE}: a snapshot is in topic {CHANGES_TOPIC}; a third writer continues the table")
        late = start_writer(_LATE, LATE_WRITER, self.lake, self.airflow)
        self.writers.append(late)
        while late.alive():
            yield
        if self.failure:
            return
        # Its schedule would do it as well, within a minute.
        self._trigger()
        while not self._is_up_to_date():
            yield
        self.say(f"{CHANGES_TABLE}: the changes are in topic {CHANGES_TOPIC}; comparing it with the table")
        self.reader = start_versions_reader(self.airflow, str(self.base_path), self._commits())
        while self.reader.alive():
            yield
        self.versions = parse_versions(self.reader.log_path.read_text(encoding="utf-8"))
        assert self.broker is not None
        self.arrivals = compare(read_topic(self.broker.bootstrap, CHANGES_TOPIC), self._commits(), self.versions)

    def _written(self) -> int:
        commits = [commit for writer in self.writers for commit in commits_of(writer)]
        return sum(commit["table"] == CHANGES_TABLE for commit in commits)

    def _commits(self) -> list[str]:
        timeline = TableViewCache().refresh(str(self.base_path)).timeline
        return [instant.requested_time for instant in timeline.completed_writes]

    def _is_up_to_date(self) -> bool:
        """Whether the sink's checkpoint has the table's last commit, with no snapshot under way."""
        answer = self.airflow.get(f"/v1/hoodie/tables/{table_id_of(str(self.base_path))}/sinks")
        for sink in [] if answer is None else answer["sinks"]:
            if sink["problem"] not in {"", self.problem}:
                self.say(f"{CHANGES_TABLE}: the sink {sink['name']} has a problem: {sink['problem']}")
            self.problem = sink["problem"]
            checkpoint = sink["checkpoint"]
            if checkpoint and checkpoint["snapshot"] is None and not sink["running"]:
                return bool(checkpoint["commit"]["requested_time"] == self._commits()[-1])
        return False

    def _trigger(self) -> None:
        run = {"logical_date": None, "dag_run_id": f"demo-{time.time_ns()}"}
        self.airflow.change("POST", f"/api/v2/dags/{DAG}/dagRuns", run)


def start_versions_reader(airflow: LocalAirflow, base_path: str, commits: Sequence[str]) -> ServerProcess:
    """Start a reader that prints the table's rows after each of the commits, by stock Spark's time travel."""
    return start(
        "table-versions",
        [str(SPARK_PYTHON), str(ROOT / "demo" / "table_versions.py"), base_path, str(HUDI_JAR), *commits],
        airflow.home / "logs" / "table-versions.log",
        env=spark_env() | scratch_env(airflow.home / "tmp") | {"PYTHONPATH": str(ROOT / "local_stack")},
        cwd=airflow.home,
    )


def parse_versions(output: str) -> dict[str, Version]:
    """Return the table's rows by instant, from what `table_versions.py` printed."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"instant"')]
    return {line["instant"]: {row["id"]: row for row in line["rows"]} for line in lines}


def compare(records: Sequence[Record], commits: Sequence[str], versions: Mapping[str, Version]) -> tuple[Arrival, ...]:
    """Compare each commit's records with the difference of the table's versions before and after it."""
    by_commit: dict[str, list[Record]] = {}
    for record in records:
        by_commit.setdefault(record.headers["commit"], []).append(record)
    arrivals = []
    for commit in sorted(by_commit):
        found, after = by_commit[commit], versions.get(commit, {})
        number = commits.index(commit) if commit in commits else 0
        before = versions.get(commits[number - 1], {}) if number else {}
        is_snapshot = all(record.value["op"] == "r" for record in found)
        expected = snapshot_of(after) if is_snapshot else changes_between(before, after)
        arrivals.append(
            Arrival(commit, "snapshot" if is_snapshot else "changes", len(found), to_lines(found) == sorted(expected))
        )
    return tuple(arrivals)


def snapshot_of(version: Version) -> list[str]:
    return [_line("r", key, None, row) for key, row in version.items()]


def changes_between(before: Version, after: Version) -> list[str]:
    """Return what one commit did, as lines like those of `to_lines`."""
    lines = [_line("d", key, row, None) for key, row in before.items() if key not in after]
    for key, row in after.items():
        if key not in before:
            lines.append(_line("i", key, None, row))
        elif before[key] != row:
            lines.append(_line("u", key, before[key], row))
    return lines


def to_lines(records: Sequence[Record]) -> list[str]:
    """Return the records as sorted lines: a record that arrived twice is there twice."""
    values = [record.value for record in records]
    return sorted(_line(value["op"], value["key"]["id"], value["before"], value["after"]) for value in values)


def _line(op: str, key: int, before: Row | None, after: Row | None) -> str:
    return json.dumps([op, key, before, after], sort_keys=True)

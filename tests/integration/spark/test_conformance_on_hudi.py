"""What a table shows of its writer's settings, on real Hudi: each setting that is wrong by itself, and corrected.

The writer's own settings are known here, and nothing of them reaches the report but through the table and the callback.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, run

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.supervision.writers_and_sinks import newest_commits
from airflow_lake_provider.planner.conformance import NOTHING_LEARNT, Check, Conformance, Conformity, Registered
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.planner.writer_rules import check_writers
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICY = TablePolicy(hudi_options={key: value for key, value in LOCK.items() if key.startswith("hoodie.write.lock.")})
MULTI_WRITER = "hoodie.write.concurrency.mode=optimistic_concurrency_control"
PROVIDER = "hoodie.write.lock.provider=" + LOCK["hoodie.write.lock.provider"]
LATER_MS = 180_000
"""A check that long after a commit expects its notice."""


class Receiver:
    """Notes the commits that Hudi's callback announces."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.announced.append(body["commitTime"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        callback = "hoodie.write.commit.callback"
        url = f"http://127.0.0.1:{self.server.server_port}/callback"
        return {f"{callback}.on": "true", f"{callback}.http.url": url, f"{callback}.http.timeout.seconds": "5"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@dataclass
class Watched:
    """A table that a manager watches: after each commit it checks, and keeps what it learnt."""

    spark: SparkSession
    table: Table
    receiver: Receiver
    commit: int = 3
    registered_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    views: TableViewCache = field(default_factory=TableViewCache)
    served: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.learnt = NOTHING_LEARNT
        self.check()

    def check(self) -> Conformance:
        view = self.views.refresh(str(self.table.path))
        signs = self.views.load_signs(view, newest_commits(view), reads_headers=True)
        registered = Registered(self.registered_ms, frozenset(self.receiver.announced), frozenset(self.served))
        now_ms = int(time.time() * 1000)
        self.learnt = check_writers(Check(view, POLICY, signs, registered, now_ms), self.learnt)
        # Stored by the manager at once; a notice is expected only later.
        later = check_writers(Check(view, POLICY, signs, registered, now_ms + LATER_MS), self.learnt)
        return Conformance(later.rows)

    def write(self, options: Mapping[str, str], commits: int = 1) -> Conformance:
        report = Conformance()
        for _ in range(commits):
            written = self.table.written
            settings = lake_writer.write_options(written, self.commit, None, {})
            settings |= {**self.receiver.settings, **options}
            lake_writer.write_commit(self.spark, written, self.commit, {k: v for k, v in settings.items() if v})
            self.commit += 1
            report = self.check()
        return report


@dataclass(frozen=True)
class Wrong:
    """One way in which a writer is configured wrongly. An empty value leaves a setting out."""

    options: Mapping[str, str]
    broken: Mapping[str, tuple[str, ...]]
    commits: int = 1
    right_commits: int = 1
    type: str = "MOR"


NO_LOCK = {"hoodie.write.concurrency.mode": "", "hoodie.write.lock.provider": ""}
SERVICES_ON = {"hoodie.table.services.enabled": ""}
CLUSTERS = {
    "hoodie.clustering.inline": "true",
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "100000000",
}
WRONG = {
    "single-writer mode": Wrong(
        NO_LOCK,
        {"heartbeat": (MULTI_WRITER,), "lock": (MULTI_WRITER,)},
    ),
    "single-writer mode with heartbeats": Wrong(
        {**NO_LOCK, "hoodie.clean.failed.writes.policy": "LAZY"},
        {"lock": (MULTI_WRITER, PROVIDER)},
    ),
    "a lock within one process": Wrong(
        {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"},
        {"lock": (MULTI_WRITER, PROVIDER)},
    ),
    "a lock file elsewhere": Wrong(
        {"hoodie.write.lock.filesystem.path": "/tmp/lake-locks-of-another-place"},
        {"lock": (MULTI_WRITER, PROVIDER)},
    ),
    "compacts inline": Wrong(
        {**SERVICES_ON, "hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"},
        {"services": ("hoodie.compact.inline=false",)},
        commits=2,
        right_commits=2,
    ),
    "cleans": Wrong(
        {**SERVICES_ON, "hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"},
        {"services": ("hoodie.clean.automatic=false",)},
        commits=3,
        right_commits=2,
        type="COW",
    ),
    "clusters inline": Wrong(
        {**SERVICES_ON, **CLUSTERS}, {"services": ("hoodie.clustering.inline=false",)}, commits=2, right_commits=2
    ),
    "without a callback": Wrong(
        {"hoodie.write.commit.callback.on": "false"}, {"notices": ("hoodie.write.commit.callback.on=true",)}
    ),
    "drops the metadata table": Wrong(
        {"hoodie.metadata.enable": "false", "hoodie.metadata.auto.delete.partitions": "true"},
        {"indexes": ("hoodie.metadata.enable=true",)},
        right_commits=2,
    ),
}
SHORT = ("single-writer mode", "compacts inline", "without a callback")
"""These differ in what they leave behind; the others are the same rules again."""


def broken_of(report: Conformance) -> dict[str, tuple[str, ...]]:
    return {row.requirement.value: row.settings for row in report.broken()}


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(way, id=name, marks=() if name in SHORT else pytest.mark.soak) for name, way in WRONG.items()],
)
def test_report_names_the_one_wrong_setting_until_it_is_corrected(
    spark: SparkSession, make_table: MakeTable, receiver: Receiver, wrong: Wrong
) -> None:
    watched = Watched(spark, make_table(type=wrong.type), receiver)
    assert broken_of(watched.check()) == {}
    assert broken_of(watched.write(wrong.options, wrong.commits)) == wrong.broken
    corrected = watched.write({}, wrong.right_commits)
    assert broken_of(corrected) == {}
    states = {row.requirement.value: row.state for row in corrected.rows}
    assert {name: states[name] for name in wrong.broken} == dict.fromkeys(wrong.broken, Conformity.MET)


def test_writers_that_update_the_metadata_table_in_two_ways_are_named(
    spark: SparkSession, make_table: MakeTable, receiver: Receiver
) -> None:
    watched = Watched(spark, make_table(), receiver)
    at_commit = {"hoodie.metadata.streaming.write.enabled": "false"}
    assert broken_of(watched.write(at_commit)) == {}
    named = {"metadata_writes": ("hoodie.metadata.streaming.write.enabled=false",)}
    assert broken_of(watched.write({"hoodie.metadata.streaming.write.enabled": "true"})) == named


@pytest.mark.soak
def test_commits_that_a_writer_leaves_out_of_the_metadata_table_are_named_until_it_is_built_anew(
    spark: SparkSession, make_table: MakeTable, receiver: Receiver
) -> None:
    watched = Watched(spark, make_table(), receiver)
    without = {"hoodie.metadata.enable": "false"}
    named = {"indexes": ("hoodie.metadata.enable=true",)}
    assert broken_of(watched.write(without)) == named
    reader = spark.read.format("hudi")
    path = str(watched.table.path)
    rows = reader.option("hoodie.metadata.enable", "false").load(path).count()
    assert reader.option("hoodie.metadata.enable", "true").load(path).count() < rows, "readers miss rows"
    assert broken_of(watched.write({})) == named
    watched.write({**without, "hoodie.metadata.auto.delete.partitions": "true"})
    assert broken_of(watched.write({}, 2)) == {}
    counts = {reader.option("hoodie.metadata.enable", flag).load(path).count() for flag in ("true", "false")}
    assert len(counts) == 1


@pytest.mark.soak(covered_by="tests/unit/planner/test_conformance.py")
def test_index_that_a_writer_drops_is_named_and_one_that_it_keeps_is_not(
    spark: SparkSession, make_table: MakeTable, receiver: Receiver
) -> None:
    table = make_table()
    index = {"hoodie.metadata.record.index.enable": "true"}
    watched = Watched(spark, table, receiver)
    assert broken_of(watched.write(index)) == {}
    assert "record_index" in table.properties()["hoodie.table.metadata.partitions"]
    assert broken_of(watched.write({})) == {}
    drops = {"hoodie.metadata.auto.delete.partitions": "true"}
    assert broken_of(watched.write(drops)) == {"indexes": ("hoodie.metadata.auto.delete.partitions=false",)}
    assert "record_index" not in table.properties()["hoodie.table.metadata.partitions"]


def test_services_of_a_job_are_its_own_only_when_it_reports_them(
    spark: SparkSession, make_table: MakeTable, receiver: Receiver
) -> None:
    table = make_table()
    reported, silent = Watched(spark, table, receiver), Watched(spark, table, receiver)
    for _ in range(2):
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.COMPACTION))
        assert result.completed_instants
        reported.served.update(result.completed_instants)
        silent.check()
        assert broken_of(reported.write({})) == {}
    assert broken_of(silent.check()) == {"services": ("hoodie.compact.inline=false",)}

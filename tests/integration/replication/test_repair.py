"""`verify --repair` on a mirror in PostgreSQL that was spoilt behind the sink's back; plain SQL is the judge."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError, SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order
from local_stack.postgres import LocalPostgres
from tests.support.killed_mirrors import MirrorStory
from tests.unit.replication.table_model import ModelTable

sys.path.append(str(Path(__file__).parents[3] / "spark_jobs"))

from lake_jobs.replication.repair import send_again
from lake_jobs.replication.verification import Verification, verify

FIELDS = [{"name": name, "type": ["null", "long"]} for name in ("id", "value")]


class ComparedModel(ModelTable):
    """A model whose rows can be compared."""

    key = ("id",)
    columns = ("id", "value")
    on_read: Callable[[], None] = staticmethod(lambda: None)  # type: ignore[assignment]

    def plan_rows(self) -> Callable[[], Iterator[tuple[str, str]]]:
        rows = self.rows()

        def read() -> Iterator[tuple[str, str]]:
            self.on_read()
            for number, value in rows.items():
                yield f'{{"id":{number}}}', f'{{"id":{number},"value":{value}}}'

        return read


@dataclass
class Spoilt:
    """A table, its mirror, and what goes wrong with it."""

    story: MirrorStory

    def __post_init__(self) -> None:
        self.source = ComparedModel()
        self.source.complete(1, 2, {number: number for number in range(20)})
        self.source.complete(3, 4, {3: 30, 4: None})
        schema = json.dumps({"type": "record", "name": "r", "fields": FIELDS})
        self.source.schemas = dict.fromkeys(self.source.commits, schema)

    def sink(self) -> Sink:
        stream = f"{self.story.stream}.s"
        return create_sink("database", SinkSettings(stream, "t", ChangeMode.LATEST, self.story.options()))

    def catch_up(self) -> Checkpoint | None:
        return Pump(self.source, self.sink(), Order(f"{self.story.stream}.s")).run().checkpoint

    def verify(self, *, repairs: bool = False) -> Verification:
        def repair(found: Verification, rows: Callable[[], Iterator[tuple[str, str]]], at: Checkpoint) -> None:
            send_again(found, rows, at, self.sink(), self.source)

        return verify(self.source, self.sink(), self.catch_up, repair if repairs else None)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.story.sql(statement.replace("mirror", self.story.stream))

    def spoil(self) -> None:
        self.sql("delete from mirror where id in (1, 2)")
        self.sql("update mirror set value = 99 where id = 3")
        self.sql("insert into mirror values (77, 1)")


@pytest.fixture(params=[", primary key (id)", ""], ids=["key", "no-key"])
def spoilt(postgres: LocalPostgres, tmp_path: Path, request: pytest.FixtureRequest) -> Spoilt:
    story = MirrorStory(tmp_path, postgres.url, f"r{abs(hash(tmp_path)):x}"[:20])
    story.make(request.param)
    found = Spoilt(story)
    assert found.verify().is_same
    found.spoil()
    if not request.param:
        found.sql("insert into mirror select * from mirror where id = 5")
    found.sql("truncate mirror_got")
    return found


def test_only_the_rows_that_differ_are_sent_again(spoilt: Spoilt, request: pytest.FixtureRequest) -> None:
    assert not spoilt.verify().is_same
    done = spoilt.verify(repairs=True)
    wrong = {1, 2, 3} if "no-key" not in request.node.name else {1, 2, 3, 5}
    assert (done.is_same, done.repaired) == (True, len(wrong) + 1)
    assert f"{len(wrong) + 1} keys differed, and their rows were sent again" in str(done)
    assert sorted(spoilt.sql("select * from mirror")) == sorted(spoilt.source.rows().items())
    assert {row[0] for row in spoilt.sql("select id from mirror_got")} == wrong
    # The stream goes on from there, and a mirror that is right gets nothing.
    spoilt.source.complete(5, 6, {1: 100, 6: None})
    assert spoilt.verify(repairs=True).repaired == 0
    assert sorted(spoilt.sql("select * from mirror")) == sorted(spoilt.source.rows().items())


def test_commit_that_completes_during_the_repair_comes_after_it(spoilt: Spoilt) -> None:
    reads = iter([lambda: None, lambda: spoilt.source.complete(5, 6, {1: 100, 2: None, 8: 80}) and None])
    spoilt.source.on_read = lambda: next(reads, lambda: None)()  # type: ignore[method-assign]
    assert spoilt.verify(repairs=True).is_same
    assert sorted(spoilt.sql("select * from mirror")) == sorted(spoilt.source.rows().items())


def test_run_that_takes_over_meanwhile_ends_the_repair(spoilt: Spoilt) -> None:
    found, checkpoint = spoilt.verify(), spoilt.catch_up()
    assert checkpoint is not None
    spoilt.source.complete(5, 6, {1: 100})
    spoilt.catch_up()
    with pytest.raises(SinkUnavailableError, match="another run has moved the stream"):
        send_again(found, spoilt.source.plan_rows(), checkpoint, spoilt.sink(), spoilt.source)
    assert spoilt.sql("select value from mirror where id = 3") == [(99,)]


def test_sinks_that_keep_earlier_versions_are_not_repaired(spoilt: Spoilt, tmp_path: Path) -> None:
    checkpoint = spoilt.catch_up()
    assert checkpoint is not None
    sink = create_sink("file", SinkSettings("s", "t", ChangeMode.CHANGES, {"path": str(tmp_path / "files")}))
    with pytest.raises(ConfigError, match="cannot be repaired, only database can: take a new snapshot"):
        send_again(spoilt.verify(), spoilt.source.plan_rows(), checkpoint, sink, spoilt.source)

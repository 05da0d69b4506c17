"""No commit is skipped because it was archived, and the archive is not read while nothing is archived."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.instant import ArchivedInstant, ArchivedTimeline, Instant, archived_timeline_of
from airflow_lake_provider.hudi.properties import TableProperties, build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action, State
from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery, ArchiveTail
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import NOW, TimelineSnapshot
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView, MemoryTimelineView, TableTimelineView
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, find_changes, find_commits_after
from tests.unit.timeline_server.histories import new_history
from tests.unit.timeline_server.hudi_archiver import Archiver, Step

HISTORIES = int(os.environ.get("LAKE_HISTORIES", "15"))
FINAL = {"compaction": "commit", "clustering": "replacecommit"}


def properties_of(layout: int) -> TableProperties:
    raw = {
        "hoodie.table.name": "orders",
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.table.version": "6" if layout == 1 else "9",
        "hoodie.timeline.layout.version": str(layout),
    }
    return build_table_properties(raw, "/lake/orders")


@dataclass
class Model:
    """A table's timeline and archive as Hudi would leave them, without files."""

    layout: int
    archiver: Archiver
    steps: set[Step] = field(default_factory=set)
    archive: list[Step] = field(default_factory=list)
    loads: int = 0
    clock: int = 20260101000000000

    def tick(self) -> str:
        self.clock += 1
        return str(self.clock)

    def request(self, action: str) -> Step:
        step = Step(self.tick(), action)
        self.steps.add(step)
        return step

    def complete(self, step: Step) -> Step:
        done = Step(step.requested, FINAL.get(step.action, step.action), self.tick())
        self.steps.remove(step)
        self.steps.add(done)
        return done

    def commit(self, action: str = "deltacommit") -> Step:
        return self.complete(self.request(action))

    def run_archiver(self) -> int:
        taken = self.archiver.take(self.steps)
        self.archive += taken
        self.steps -= set(taken)
        return len(taken)

    def snapshot(self) -> TimelineSnapshot:
        states = {True: State.COMPLETED, False: State.REQUESTED}
        instants = tuple(
            Instant(s.requested, Action(s.action), states[bool(s.completed)], s.completed or None, f"{s}")
            for s in sorted(self.steps)
        )
        version = str(hash(instants))
        return TimelineSnapshot("/lake/orders", version, properties_of(self.layout), Timeline(instants), self.clock)

    def load(self) -> ArchivedTimeline:
        self.loads += 1
        return archived_timeline_of(
            (ArchivedInstant(s.requested, Action(s.action), s.completed, "archive") for s in self.archive), ()
        )


@dataclass
class Reader:
    """A sensor's rule: read, report what is new, go on from the last completion."""

    model: Model
    tail: ArchiveTail
    after: str
    actions: frozenset[str] = COMPLETED_WRITE_ACTIONS
    found: list[str] = field(default_factory=list)

    def find_changes(self) -> list[str]:
        snapshot = self.model.snapshot()
        archive = self.tail.read(ArchiveQuery(snapshot, self.after, self.actions), self.model.load)
        new = find_commits_after(snapshot.timeline, self.after, self.actions, archive)
        self.after = max([self.after, *(str(instant.completed_time) for instant in new)])
        self.found += [instant.requested_time for instant in new]
        return [instant.requested_time for instant in new]


def do_something(model: Model, chance: random.Random) -> None:
    pending = sorted(step for step in model.steps if not step.completed)
    completed = sorted(step for step in model.steps if step.completed)
    kind = chance.choice(["request"] * 4 + ["complete"] * 5 + ["fail", "clean", "savepoint", "delete", "archive"])
    if kind == "request" and len(pending) < 6:
        actions = ["commit", "deltacommit", "deltacommit", "compaction", "clustering", "indexing", "restore"]
        model.request(chance.choice(actions))
    elif kind == "complete" and pending:
        model.complete(chance.choice(pending))
    elif kind == "fail" and pending:
        rollback = model.request("rollback")
        model.steps.remove(chance.choice(pending))
        model.complete(rollback)
    elif kind == "clean":
        model.commit("clean")
    elif kind == "savepoint" and completed:
        saved = chance.choice(completed)
        model.steps.add(Step(saved.requested, "savepoint", model.tick()))
    elif kind == "delete":
        model.steps -= {step for step in model.steps if step.action == "savepoint"}
    elif kind == "archive":
        model.run_archiver()


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_readers_find_every_commit_once_whatever_was_archived_meanwhile(layout: int, seed: int) -> None:
    chance = random.Random(seed)
    keep_min = chance.randint(1, 4)
    archiver = Archiver(keep_min, keep_min + chance.randint(1, 3), chance.random() < 0.5, layout == 1)
    model = Model(layout, archiver)
    shared, readers, expected = ArchiveTail(), [], {model.commit()}
    for _ in range(600):
        known = {step for step in model.steps if step.completed}
        do_something(model, chance)
        expected |= {step for step in model.steps if step.completed} - known
        if chance.random() < 0.03 and len(readers) < 12:
            apart = frozenset({"clean"}), frozenset({"rollback"})
            actions = chance.choice([COMPLETED_WRITE_ACTIONS, COMPLETED_WRITE_ACTIONS, *apart])
            # A cursor of any age, also one that lies in the archive.
            after = chance.choice([step.completed for step in sorted(expected)])
            readers.append((after, Reader(model, chance.choice([shared, ArchiveTail()]), after, actions)))
        if readers and chance.random() < 0.2:
            chance.choice(readers)[1].find_changes()
    assert model.archive
    for after, reader in readers:
        reader.find_changes()
        due = [step.requested for step in expected if step.action in reader.actions and step.completed > after]
        assert sorted(reader.found) == sorted(due)


def test_commits_behind_a_completed_index_build_are_read_from_the_archive() -> None:
    """Hudi archives no `indexing`: it stays at the head of the timeline, before each later cursor."""
    model = Model(2, Archiver(2, 4))
    model.commit("indexing")
    reader = Reader(model, ArchiveTail(), model.commit().completed)
    written = [model.commit().requested for _ in range(12)]
    assert model.run_archiver()
    assert reader.find_changes() == written


def test_slow_writers_commit_that_is_archived_before_the_next_refresh_is_found() -> None:
    model = Model(2, Archiver(2, 4))
    model.commit()
    slow = model.request("deltacommit")
    for _ in range(5):
        model.commit()
    reader = Reader(model, ArchiveTail(), model.commit().completed)
    assert reader.find_changes() == []
    model.complete(slow)
    model.run_archiver()
    assert slow.requested in {step.requested for step in model.archive}
    assert reader.find_changes() == [slow.requested]


@pytest.mark.parametrize("savepoints", [0, 2], ids=["no-commit", "savepoints-only"])
def test_archival_that_leaves_everything_that_was_seen_is_noticed(savepoints: int) -> None:
    """Nothing that was on the timeline at the first read is archived, and still commits came and were archived."""
    model = Model(2, Archiver(2, 4, is_beyond_savepoint=True))
    model.commit("indexing")
    for _ in range(savepoints):
        model.steps.add(Step(model.commit().requested, "savepoint", model.tick()))
    reader = Reader(model, ArchiveTail(), model.tick())
    assert reader.find_changes() == []
    written = [model.commit().requested for _ in range(6)]
    assert model.run_archiver()
    assert reader.find_changes() == written


def test_archive_is_read_once_per_archival_and_not_once_per_refresh() -> None:
    model = Model(2, Archiver(5, 8))
    model.commit("indexing")
    tail, archivals = ArchiveTail(), 0
    reader = Reader(model, tail, model.commit().completed)
    for _ in range(200):
        model.commit()
        for _ in range(3):
            reader.find_changes()
            Reader(model, tail, reader.after).find_changes()
        archivals += bool(model.run_archiver())
    assert archivals > 10
    assert model.loads <= archivals + 2


@pytest.mark.parametrize("seed", range(2))
def test_sensors_on_files_find_every_commit_once_from_memory_and_from_the_file_system(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    history = new_history(tmp_path / "table", seed)
    history.archiver = Archiver(2, 4, is_beyond_savepoint=chance.random() < 0.5)
    path = str(history.table.path)
    timelines = SharedTimelines()
    views = [MemoryTimelineView(path, timelines), FileSystemTimelineView(path)]
    cursors = [["20260101000000000", view, []] for view in views]
    written: set[str] = set()
    for step in range(1000):
        history.step()
        written |= {name for name in history.completed if name.split(".")[1] in COMPLETED_WRITE_ACTIONS}
        if chance.random() > 0.03 and step < 999:
            continue
        for cursor in cursors:
            after, view, found = cursor
            watch = Watch(WatchKind.COMMIT, ((path, after),))
            (finding,) = find_changes(watch, _Views(view), NOW)
            assert (finding.error, finding.incomplete) == (None, "")
            found += [instant.requested_time for instant in finding.instants]
            cursor[0] = max(after, finding.to_dict()["after"])
    assert "archive" in history.done
    for _, _, found in cursors:
        assert len(set(found)) == len(found)
        # What a restore took back before any read was never there.
        assert {name.split("_")[0] for name in written} - set(found) <= history.taken_back


class _Views:
    def __init__(self, view: TableTimelineView) -> None:
        self._view = view

    def get_view(self, base_path: str) -> TableTimelineView:
        return self._view

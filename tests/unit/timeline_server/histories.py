"""A random but seeded history of one table on local disk: writers, services, rollbacks, restores, archival, failures.

It only touches timeline files, in the order and under the names that Hudi would use (layout 2).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tables import HandMadeTable
from tests.unit.timeline_server.hudi_archiver import Archiver, HandMadeArchive, Step


@dataclass
class History:
    """Applies random steps. Each step leaves the timeline in a state that Hudi could have left."""

    table: HandMadeTable
    seed: int
    clock: int = 20260101000000000
    pending: list[tuple[str, str]] = field(default_factory=list)
    """Requested time and action of what is not completed."""
    completed: list[str] = field(default_factory=list)
    """File names of completed instants, by completion."""
    indexes: list[str] = field(default_factory=list)
    """What hoodie.properties lists as complete."""
    taken_back: set[str] = field(default_factory=set)
    """Requested times of what was restored away."""
    done: set[str] = field(default_factory=set)
    """Kinds of steps that had an effect."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.timeline = self.table.path / ".hoodie" / "timeline"
        self.properties = (self.table.path / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")
        self.archives = HandMadeArchive(self.timeline / "history")
        self.archiver = Archiver(10, 20, self.random.random() < 0.5)

    def tick(self) -> str:
        self.clock += self.random.randint(1, 997)
        return str(self.clock)

    def step(self) -> None:
        """Do one thing."""
        choices = [self.request, self.request, self.complete, self.complete, self.complete, self.fail, self.savepoint]
        choices += [self.restore, self.archive, self.delete_savepoint, self.drop_index]
        self.random.choice(choices)()

    def request(self) -> None:
        """A writer or a service begins; a service's plan may stay requested."""
        action = self.random.choice(
            ["deltacommit", "commit", "compaction", "clustering", "clean", "indexing", "replacecommit"]
        )
        requested = self.tick()
        self.touch(f"{requested}.{action}.requested")
        if self.random.random() < 0.7:
            self.touch(f"{requested}.inflight" if action == "commit" else f"{requested}.{action}.inflight")
        self.pending.append((requested, action))

    def complete(self) -> None:
        """One that is pending completes, under the action that Hudi gives it then."""
        if not self.pending:
            return
        requested, action = self.pending.pop(self.random.randrange(len(self.pending)))
        if action == "indexing":
            self.indexes.append(f"index_{requested}")
            self.write_properties()
        final = {"compaction": "commit", "clustering": "replacecommit"}.get(action, action)
        name = f"{requested}_{self.tick()}.{final}"
        self.touch(name)
        self.completed.append(name)

    def drop_index(self) -> None:
        """A writer drops an index: no instant says so."""
        if self.indexes:
            self.done.add("drop_index")
            self.indexes.pop(self.random.randrange(len(self.indexes)))
            self.write_properties()

    def write_properties(self) -> None:
        """Replace hoodie.properties whole, at a later time than before: tests are faster than a store's clock."""
        text = self.properties + f"\nhoodie.table.metadata.partitions={','.join(self.indexes)}\n"
        file = self.table.path / ".hoodie" / "hoodie.properties"
        file.write_text(text, encoding="utf-8")
        moment_ns = (self.clock - 20260101000000000) * 1_000_000
        os.utime(file, ns=(moment_ns, moment_ns))

    def fail(self) -> None:
        """A failed write is rolled back: its files go, a rollback instant comes."""
        if not self.pending:
            return
        self.done.add("fail")
        requested, action = self.pending.pop(self.random.randrange(len(self.pending)))
        rollback = self.tick()
        self.touch(f"{rollback}.rollback.requested")
        self.touch(f"{rollback}.rollback.inflight")
        self.remove(requested, action)
        name = f"{rollback}_{self.tick()}.rollback"
        self.touch(name)
        self.completed.append(name)

    def savepoint(self) -> None:
        if not self.completed:
            return
        requested = self.random.choice(self.completed).split("_")[0]
        if list(self.timeline.glob(f"{requested}*.savepoint*")):
            return
        self.done.add("savepoint")
        self.touch(f"{requested}.savepoint.inflight")
        name = f"{requested}_{self.tick()}.savepoint"
        self.touch(name)
        self.completed.append(name)

    def delete_savepoint(self) -> None:
        for name in self.completed:
            if name.endswith(".savepoint"):
                self.done.add("delete_savepoint")
                self.completed.remove(name)
                (self.timeline / name).unlink()
                (self.timeline / f"{name.split('_')[0]}.savepoint.inflight").unlink()
                return

    def restore(self) -> None:
        """The newest few completed instants are taken back."""
        if self.random.random() > 0.1 or len(self.completed) < 5:
            return
        self.done.add("restore")
        restore = self.tick()
        self.touch(f"{restore}.restore.requested")
        for name in self.completed[-3:]:
            self.completed.remove(name)
            (self.timeline / name).unlink()
            requested, action = name.split("_")[0], name.split(".")[1]
            self.remove(requested, action)
            self.taken_back.add(requested)
        name = f"{restore}_{self.tick()}.restore"
        self.touch(name)
        self.completed.append(name)

    def archive(self) -> None:
        """Hudi's archiver runs: its instants go to a file of the archive, then pending states first, completed next."""
        if self.random.random() > 0.3:
            return
        taken = self.archiver.take(self.steps())
        if not taken:
            return
        self.done.add("archive")
        self.archives.add([(step.requested, step.completed, step.action) for step in taken])
        for step in taken:
            self.remove(step.requested, step.action)
        for step in taken:
            name = f"{step.requested}_{step.completed}.{step.action}"
            self.completed.remove(name)
            (self.timeline / name).unlink()

    def steps(self) -> list[Step]:
        """Return what is on the active timeline."""
        steps = [Step(requested, action) for requested, action in self.pending]
        for name in self.completed:
            times, action = name.split(".")
            requested, completed = times.split("_")
            steps.append(Step(requested, action, completed))
        return steps

    def touch(self, name: str) -> None:
        (self.timeline / name).write_bytes(b"")

    def remove(self, requested: str, action: str) -> None:
        pending = {"commit": ("commit", "compaction"), "replacecommit": ("replacecommit", "clustering")}
        for one in pending.get(action, (action,)):
            for state in ("requested", "inflight"):
                (self.timeline / f"{requested}.{one}.{state}").unlink(missing_ok=True)
        if action in {"commit", "compaction"}:
            (self.timeline / f"{requested}.inflight").unlink(missing_ok=True)


def new_history(path: Path, seed: int) -> History:
    return History(HandMadeTable.create(path), seed)

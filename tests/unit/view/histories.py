"""A random but seeded history of one table on local disk: writers, services, rollbacks, restores, archival, failures.

It only touches timeline files, in the order and under the names that Hudi would use (layout 2).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.tables import HandMadeTable


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
    done: set[str] = field(default_factory=set)
    """Kinds of steps that had an effect."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.timeline = self.table.path / ".hoodie" / "timeline"

    def tick(self) -> str:
        self.clock += self.random.randint(1, 997)
        return str(self.clock)

    def step(self) -> None:
        """Do one thing."""
        choices = [self.request, self.request, self.complete, self.complete, self.complete, self.fail, self.savepoint]
        choices += [self.restore, self.archive, self.delete_savepoint]
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
        final = {"compaction": "commit", "clustering": "replacecommit"}.get(action, action)
        name = f"{requested}_{self.tick()}.{final}"
        self.touch(name)
        self.completed.append(name)

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
        name = f"{restore}_{self.tick()}.restore"
        self.touch(name)
        self.completed.append(name)

    def archive(self) -> None:
        """The oldest completed instants leave the active timeline: pending states first, then the completed file."""
        if self.random.random() > 0.3 or len(self.completed) < 30:
            return
        for name in sorted(self.completed)[:10]:
            if name.endswith(".savepoint"):
                continue
            self.done.add("archive")
            self.completed.remove(name)
            self.remove(name.split("_")[0], name.split(".")[1])
            (self.timeline / name).unlink()

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

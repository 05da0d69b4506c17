"""A small table with a random history, which knows by itself which of its files are needed, and by what.

The model keeps objects, not names: what a file is to the table follows from what made it and what became of that. It
never asks the rules of the code under test. It writes the documents that Hudi would write, and those are the evidence.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC

from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS, format_instant_time
from lake_jobs.services.orphan_rules import (
    AgeLimits,
    FileFinding,
    FileStanding,
    ListedFile,
    Names,
    TableEvidence,
    judge_files,
)

BEGIN_MS = 1_700_000_000_000
PARTITIONS = ("p=1", "p=2", "")
MIN_AGE_MS = 3 * DAY_MS


class NeededFileMovedError(Exception):
    """A writer, plan, savepoint, rollback or reader needs a file that was moved."""


@dataclass(eq=False)
class File:
    """A file of the table, and the write that made it."""

    path: str
    write: Write
    group: str
    modified_ms: int
    is_log: bool = False
    is_committed: bool = False
    """Whether the write's metadata names it, or will."""


@dataclass(eq=False)
class Write:
    """A write or a service that rewrites; `state` is pending, completed, or gone (rolled back)."""

    instant: str
    action: str
    is_alive: bool = True
    state: str = "pending"
    is_archived: bool = False
    is_lost: bool = False
    """Whether a person removed its part of the archive, to save space."""
    is_announced: bool = True
    files: list[File] = field(default_factory=list)
    reads: list[File] = field(default_factory=list)
    """What it merges: it fails without them."""


@dataclass(eq=False)
class Holder:
    """A pending plan, a savepoint or a pending rollback: something on the timeline that names files."""

    instant: str
    action: str
    files: list[File]
    removes: Write | None = None


class ModelTable:
    """A table that lives for some weeks. `version` below 8 names log files after their file slice."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.version = self.random.choice((6, 8, 9))
        self.has_metadata_table = self.random.random() < 0.5
        self.now_ms = BEGIN_MS
        self.files: dict[str, File] = {}
        self.writes: list[Write] = []
        self.plans: list[Holder] = []
        self.savepoints: list[Holder] = []
        self.rollbacks: list[Holder] = []
        self.moved: list[File] = []
        self.archives_beyond_savepoints = self.random.random() < 0.3
        self.token = 0

    # --- What needs which file, by what the model did

    def find_need(self, file: File) -> str:
        """Return why a file is needed; empty when nothing will ever read it."""
        write = file.write
        if write.state == "pending":
            return f"{write.instant} is pending: it commits the file, or its rollback removes it"
        if write.state == "completed" and file.is_committed:
            return f"{write.instant} committed it: readers and time travel need it"
        for writer in self.writes:
            if writer.state == "pending" and writer.is_alive and file in writer.reads:
                return f"the living writer {writer.instant} merges it"
        for holder in (*self.plans, *self.savepoints, *self.rollbacks):
            if file in holder.files:
                return f"the {holder.action} {holder.instant} names it"
        return ""

    def is_certain_orphan(self, file: File) -> bool:
        """Whether any search must find a file, on a table where nothing is pending: a failed attempt's own group."""
        others = [other for other in self.files.values() if other.group == file.group and other is not file]
        is_dated = not (file.is_log and self.version < 8)
        return (
            not self.find_need(file)
            and is_dated
            and file.write.state == "completed"
            and not file.write.is_archived
            and not others
            and not file.is_committed
            # A later write that took it for the committed file names it as its previous base file.
            and not any(file in write.reads for write in self.writes)
        )

    # --- Steps of its life

    def live(self, steps: int) -> None:
        """Take random steps."""
        for _ in range(steps):
            self.now_ms += self.random.choice((HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS))
            self.random.choice(self.STEPS)(self)

    def settle(self) -> None:
        """Let everything end: living writers complete, dead ones are rolled back, plans are executed."""
        for write in [write for write in self.writes if write.state == "pending"]:
            if write.is_alive:
                self.complete(write)
            else:
                self.end_rollback(self.begin_rollback(write))
        for rollback in list(self.rollbacks):
            self.end_rollback(rollback)
        while self.plans:
            self.execute_plan()
        self.now_ms += 60 * DAY_MS

    def begin_write(self) -> None:
        # Two writers at once are as many as the model needs.
        if sum(write.state == "pending" and write.is_alive for write in self.writes) > 1:
            return
        action = self.random.choice(("commit", "deltacommit", "deltacommit", "replacecommit"))
        write = Write(self.instant(), action, is_announced=self.random.random() < 0.8)
        self.writes.append(write)
        self.put_files(write)

    def put_files(self, write: Write) -> None:
        """Let a write's tasks write: each attempt that fails leaves a file, the last one's is committed."""
        for _ in range(self.random.randint(1, 3)):
            partition = self.random.choice(PARTITIONS)
            here = (f for f in self.files.values() if f.is_committed and f.path.rpartition("/")[0] == partition)
            groups = sorted({file.group for file in here})
            updates = groups and write.action != "replacecommit" and self.random.random() < 0.7
            known = self.random.choice(groups) if updates else ""
            base = self.pick(known)
            if base is not None:
                write.reads.append(base)
            for attempt in range(self.random.choice((1, 1, 2, 3))):
                group = known or self.new_group()
                file = self.put(write, partition, group, base)
                file.is_committed = attempt == 0

    def put(self, write: Write, partition: str, group: str, base: File | None) -> File:
        self.token += 1
        is_log = write.action == "deltacommit" and base is not None
        name = f"{group}_{self.token}-1-0_{write.instant}.parquet"
        if is_log:
            assert base is not None
            named = write.instant if self.version >= 8 else base.write.instant
            suffix = self.random.choice(("", "", ".cdc"))
            name = f".{group}_{named}.log.{self.random.randint(1, 3)}_{self.token}-1-0{suffix}"
        path = f"{partition}/{name}" if partition else name
        file = File(path, write, group, self.now_ms, is_log)
        self.files[path] = file
        write.files.append(file)
        return file

    def put_late(self) -> None:
        """Let a task attempt that outlived its write's end write one more file."""
        ended = [write for write in self.writes if write.state != "pending"]
        if ended:
            write = self.random.choice(ended)
            base = self.pick(self.random.choice([f.group for f in write.files])) if write.files else None
            group = base.group if base is not None and self.random.random() < 0.5 else self.new_group()
            self.put(write, self.random.choice(PARTITIONS), group, base)

    def end_write(self) -> None:
        pending = [write for write in self.writes if write.state == "pending" and write.is_alive]
        if pending:
            write = self.random.choice(pending)
            if self.random.random() < 0.7:
                self.complete(write)
            else:
                write.is_alive = False

    def complete(self, write: Write) -> None:
        missing = [file for file in write.reads if file.path not in self.files and file in self.moved]
        if missing:
            raise NeededFileMovedError(f"{write.instant} fails: {missing[0].path} was moved")
        write.state = "completed"
        for file in write.files:
            # Hudi removes the attempts that it knows of (`reconcileAgainstMarkers`), and may fail to.
            if not file.is_committed and self.random.random() < 0.5:
                self.files.pop(file.path, None)

    def roll_back(self) -> None:
        dead = [write for write in self.writes if write.state == "pending" and not write.is_alive]
        if dead:
            rollback = self.begin_rollback(self.random.choice(dead))
            if self.random.random() < 0.7:
                self.end_rollback(rollback)
        elif self.rollbacks:
            self.end_rollback(self.rollbacks[0])

    def begin_rollback(self, write: Write) -> Holder:
        rollback = Holder(self.instant(), "rollback", [f for f in write.files if f.path in self.files], write)
        # The write's instants go first.
        write.state = "gone"
        self.rollbacks.append(rollback)
        return rollback

    def end_rollback(self, rollback: Holder) -> None:
        for file in rollback.files:
            if file in self.moved:
                raise NeededFileMovedError(f"the rollback {rollback.instant} misses {file.path}")
            if self.random.random() < 0.8:  # some deletions fail
                self.files.pop(file.path, None)
        self.rollbacks.remove(rollback)

    def plan(self) -> None:
        action = self.random.choice(("compaction", "clustering", "clean"))
        visible = self.visible()
        if visible:
            named = self.random.sample(visible, min(len(visible), 3))
            self.plans.append(Holder(self.instant(), action, named))

    def execute_plan(self) -> None:
        if not self.plans:
            return
        plan = self.plans.pop(0)
        for file in plan.files:
            if file in self.moved:
                raise NeededFileMovedError(f"the {plan.action} {plan.instant} misses {file.path}")
        if plan.action == "clean":
            return
        write = Write(plan.instant, "commit" if plan.action == "compaction" else "replacecommit")
        self.writes.append(write)
        for source in plan.files:
            partition = source.path.rpartition("/")[0]
            group = source.group if plan.action == "compaction" else self.new_group()
            for attempt in range(self.random.choice((1, 2))):
                self.put(write, partition, group, None).is_committed = attempt == 0
        self.complete(write)

    def savepoint(self) -> None:
        completed = [write for write in self.writes if write.state == "completed" and not write.is_archived]
        taken = {holder.instant for holder in self.savepoints}
        if completed and completed[-1].instant not in taken:
            self.savepoints.append(Holder(completed[-1].instant, "savepoint", self.visible()))

    def delete_savepoint(self) -> None:
        if self.savepoints:
            self.savepoints.pop(self.random.randrange(len(self.savepoints)))

    def clean(self) -> None:
        """Remove all but the newest committed file of each group, and what nothing holds."""
        newest: dict[str, File] = {}
        for file in self.files.values():
            known = newest.get(file.group)
            is_newer = known is None or known.write.instant < file.write.instant
            if file.is_committed and file.write.state == "completed" and is_newer:
                newest[file.group] = file
        held = [file for holder in (*self.plans, *self.savepoints) for file in holder.files]
        held += [file for write in self.writes if write.state == "pending" for file in write.reads]
        for file in list(self.files.values()):
            is_old = file.is_committed and file.write.state == "completed" and newest[file.group] is not file
            if is_old and file not in held and self.random.random() < 0.7:
                self.files.pop(file.path)

    def archive(self) -> None:
        active = sorted((w for w in self.writes if w.state != "gone" and not w.is_archived), key=lambda w: w.instant)
        saved = [holder.instant for holder in self.savepoints]
        limits = [holder.instant for holder in self.plans] + ([] if self.archives_beyond_savepoints else saved)
        for write in active[: max(0, len(active) - self.random.randint(1, 4))]:
            if write.state == "pending" or write.instant >= min(limits, default="9"):
                return
            write.is_archived = write.instant not in saved

    def lose_archive(self) -> None:
        """Let a person remove the older part of the archive, or all of it."""
        archived = sorted((write for write in self.writes if write.is_archived), key=lambda write: write.instant)
        if archived and not self.archives_beyond_savepoints and self.random.random() < 0.3:
            for write in archived[: self.random.randint(1, len(archived))]:
                write.is_lost = True

    def restore(self) -> None:
        """Take the table back to a savepoint; all writers are stopped."""
        is_busy = any(write.state == "pending" for write in self.writes) or self.plans or self.rollbacks
        if is_busy or not self.savepoints:
            return
        point = self.savepoints[-1].instant
        for write in self.writes:
            if write.state == "completed" and write.instant > point and not write.is_archived:
                write.state = "gone"
                for file in write.files:
                    if self.random.random() < 0.8:
                        self.files.pop(file.path, None)

    STEPS = (
        begin_write, begin_write, begin_write, end_write, end_write, end_write, put_late, roll_back, plan, execute_plan,
        savepoint, delete_savepoint, clean, archive, archive, lose_archive, restore,
    )  # fmt: skip

    # --- What Hudi would show

    def evidence(self) -> TableEvidence:
        """Return what timeline, archive, plans, savepoints and the metadata table say now."""
        named = Names()
        completed: dict[str, str] = {}
        pending: dict[str, str] = {}
        busy: dict[str, str] = {}
        living: dict[str, str] = {}
        archived = [write.instant for write in self.writes if write.is_archived and not write.is_lost]
        for write in self.writes:
            if write.state == "pending":
                pending[write.instant] = f"the pending {write.action} {write.instant}"
                if write.is_alive:
                    living[write.instant] = write.instant
                    touched = (*write.files, *write.reads) if write.is_announced else ()
                    busy |= {file.path.rpartition("/")[0]: write.instant for file in touched}
            elif write.state == "completed" and not write.is_lost:
                completed[write.instant] = ""
                named.add(commit_document(write))
        mentioned = []
        for holder in (*self.plans, *self.savepoints, *self.rollbacks):
            document = json.dumps({"files": [file.path for file in holder.files]}).encode()
            mentioned.append((f"the {holder.action} {holder.instant}", Names([document])))
            if holder.action != "savepoint":
                pending[holder.instant] = holder.instant
            if holder.removes is not None:
                pending[holder.removes.instant] = f"what {holder.instant} rolls back"
        listed = Names()
        if self.has_metadata_table:
            committed = (f for f in self.files.values() if f.is_committed and f.write.state == "completed")
            listed = Names(file.path.encode() for file in committed)
        saved = {holder.instant for holder in self.savepoints}
        active = sorted(w.instant for w in self.writes if w.state == "completed" and not w.is_archived)
        first = min(archived, default="") or next((instant for instant in active if instant not in saved), "")
        return TableEvidence(
            self.version, self.version, named, completed, first, pending, tuple(mentioned), listed, living, busy
        )

    def limits(self) -> AgeLimits:
        return AgeLimits(self.now_ms - MIN_AGE_MS, format_instant_time(self.now_ms - MIN_AGE_MS, UTC))

    def has_unknown_writer(self) -> bool:
        """Whether the job would refuse to move anything."""
        return any(w.state == "pending" and w.is_alive and not w.is_announced for w in self.writes)

    def search(self, evidence: TableEvidence) -> tuple[FileFinding, ...]:
        listing = [ListedFile(file.path, 1, file.modified_ms) for file in self.files.values()]
        return judge_files(listing, evidence, self.limits())

    def take(self, findings: tuple[FileFinding, ...]) -> list[File]:
        """Move the orphans away. Raises NeededFileMovedError when one of them is needed."""
        taken = [self.files[found.file.path] for found in findings if found.standing is FileStanding.ORPHAN]
        for file in taken:
            need = self.find_need(file)
            if need:
                raise NeededFileMovedError(f"{file.path}: {need}")
            self.moved.append(self.files.pop(file.path))
        return taken

    # --- Small parts

    def visible(self) -> list[File]:
        """Return for each group one file that a reader may take for its newest: a listing without metadata table
        does not distinguish a failed attempt of a completed write from the committed one.
        """
        groups: dict[str, list[File]] = {}
        for file in self.files.values():
            is_shown = file.is_committed or not self.has_metadata_table
            if file.write.state == "completed" and is_shown:
                groups.setdefault(file.group, []).append(file)
        found = []
        for files in groups.values():
            newest = max(file.write.instant for file in files)
            found.append(self.random.choice([file for file in files if file.write.instant == newest]))
        return found

    def pick(self, group: str) -> File | None:
        return next((file for file in self.visible() if file.group == group), None)

    def new_group(self) -> str:
        return f"{self.random.getrandbits(64):016x}-0"

    def instant(self) -> str:
        self.now_ms += 1000
        return format_instant_time(self.now_ms, UTC)


def commit_document(write: Write) -> bytes:
    """Return a write's metadata as Hudi writes it, as far as it names files."""
    stats = [{"fileId": f.group, "path": f.path, "cdcStats": None} for f in write.files if f.is_committed]
    bases = [f.path.rpartition("/")[2] for f in write.reads]
    return json.dumps({"partitionToWriteStats": {"p": stats}, "bases": bases}).encode()

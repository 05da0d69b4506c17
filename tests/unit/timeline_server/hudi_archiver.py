"""Which instants Hudi's archivers take (`TimelineArchiverV2`, `TimelineArchiverV1` of 1.2), and where they go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

WRITES = ("commit", "deltacommit", "replacecommit")
PENDING_WRITES = (*WRITES, "compaction", "logcompaction", "clustering")


@dataclass(frozen=True, order=True)
class Step:
    """One action of a timeline; `completed` is empty while it is pending."""

    requested: str
    action: str
    completed: str = ""


@dataclass(frozen=True)
class Archiver:
    """Hudi's settings `hoodie.keep.min.commits`, `hoodie.keep.max.commits`, `hoodie.archive.beyond.savepoint`."""

    keep_min: int
    keep_max: int
    is_beyond_savepoint: bool = False
    takes_cleans_apart: bool = False
    """Whether it is the archiver of layout 1."""

    def take(self, steps: Iterable[Step]) -> list[Step]:
        """Return what leaves the active timeline, in the order in which it is deleted there."""
        timeline = sorted(steps)
        commits = self._take_commits(timeline)
        others = [step for step in timeline if step.completed and step.action in {"clean", "rollback"}]
        if self.takes_cleans_apart:
            for action in ("clean", "rollback"):
                mine = [step for step in others if step.action == action]
                commits += mine[: len(mine) - self.keep_min] if len(mine) > self.keep_max else []
        elif commits:
            commits += [step for step in others if step.requested < commits[-1].requested]
        return sorted(commits)

    def _take_commits(self, timeline: list[Step]) -> list[Step]:
        commits = [step for step in timeline if step.completed and step.action in WRITES]
        if len(commits) <= self.keep_max:
            return []
        saved = [step.requested for step in timeline if step.action == "savepoint" and step.completed]
        candidates = commits
        pending = [step for step in timeline if not step.completed and step.action in PENDING_WRITES]
        if pending:
            before = [step.requested for step in commits if step.requested < pending[0].requested]
            retained = max(before, default=pending[0].requested)
            candidates = [step for step in candidates if step.requested < retained]
        if self.is_beyond_savepoint:
            candidates = [step for step in candidates if step.requested not in saved]
        elif saved:
            candidates = [step for step in candidates if step.requested < saved[0]]
        return candidates[: len(commits) - self.keep_min]


@dataclass(frozen=True)
class HandMadeArchive:
    """The archive of a table of layout 2, in Hudi's format: one Parquet file per archival, one manifest of all."""

    path: Path

    def add(self, instants: Sequence[tuple[str, str, str]]) -> None:
        """Archive instants: requested time, completed time and action of each."""
        self.path.mkdir(exist_ok=True)
        rows = [
            {"instantTime": requested, "completionTime": completed, "action": action, "version": 1}
            for requested, completed, action in sorted(instants)
        ]
        file = self.path / f"{rows[0]['instantTime']}_{rows[-1]['instantTime']}_0.parquet"
        columns = [("instantTime", pa.string()), ("completionTime", pa.string()), ("action", pa.string())]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([*columns, ("version", pa.int32())])), file)
        number = len(list(self.path.glob("manifest_*"))) + 1
        files = [{"fileName": file.name, "fileLen": file.stat().st_size} for file in self.path.glob("*.parquet")]
        (self.path / f"manifest_{number}").write_text(json.dumps({"files": files}))
        (self.path / "_version_").write_text(str(number))

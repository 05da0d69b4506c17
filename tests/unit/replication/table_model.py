"""A table as the pump sees it, without Hudi: commits with requested and completed times, rows, cleaning, archiving."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_lake_provider.replication.change import Change, CommitRef, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
from airflow_lake_provider.replication.feed import CleansAfter, SourceTimeline


def time_of(number: int) -> str:
    return f"2026010100{number:07d}"


@dataclass
class ModelTable:
    """Commits by their requested times; a commit is a mapping of key to value, None for a delete."""

    commits: dict[str, tuple[CommitRef, dict[int, int | None]]] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    silent: dict[str, CommitRef] = field(default_factory=dict)
    compactions: set[str] = field(default_factory=set)
    """Planned ones; those that were executed are in `silent` as well."""
    archived: set[str] = field(default_factory=set)
    retained_from: str = ""
    clean_during_read: str = ""
    read_ends_s: dict[str, float] = field(default_factory=dict)
    """When commits were read ahead; none of the others are."""
    cleaned_without_bound: str = ""
    has_savepoints: bool = False
    restored: str = ""
    from_before_upgrade: frozenset[str] = frozenset()
    schemas: dict[str, str] = field(default_factory=dict)
    saved: dict[str, CleansAfter] = field(default_factory=dict)
    keeps: bool = False
    kept: list[str] = field(default_factory=list)
    """The instants of snapshots for which savepoints stand: a `Keeper` adds and removes them."""
    most_rows: float = math.inf
    """A commit of more is read in the order of its keys."""

    def begin(self, requested: int) -> None:
        self.pending.add(time_of(requested))

    def complete(self, requested: int, completed: int, rows: dict[int, int | None]) -> CommitRef:
        commit = CommitRef(time_of(requested), time_of(completed))
        self.pending.discard(commit.requested_time)
        self.commits[commit.requested_time] = (commit, rows)
        return commit

    def plan_compaction(self, requested: int) -> None:
        self.compactions.add(time_of(requested))

    def execute_compactions(self, completed: int) -> None:
        for requested in self.compactions - set(self.silent):
            self.silent[requested] = CommitRef(requested, time_of(completed))

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        active = [time for time in (*self.commits, *self.silent, *self.pending) if time not in self.archived]
        return SourceTimeline(
            completed=tuple(commit for time, (commit, _) in self.commits.items() if time not in self.archived),
            silent=frozenset(self.silent),
            pending=tuple(sorted(self.pending)),
            compactions=frozenset(self.compactions),
            earliest=min(active, default=""),
            retained_from=self.retained_from,
            has_history=bool(self.archived),
            cleaned_without_bound=self.cleaned_without_bound,
            has_savepoints=self.has_savepoints,
            saved=self.saved,
            restored=self.restored,
            from_before_upgrade=self.from_before_upgrade,
        )

    def expect(self, commits: Sequence[CommitRef]) -> None:
        """Nothing is read ahead here."""

    def read_blocks(self, commit: CommitRef, after: str = "") -> Iterator[Sequence[Change]]:
        changes = [change for change in self.read(commit) if change.key > after]
        yield sorted(changes, key=lambda change: change.key) if self.is_by_key(commit) else changes

    def is_by_key(self, commit: CommitRef) -> bool:
        return len(self.commits[commit.requested_time][1]) > self.most_rows

    def read_end_s(self, commit: CommitRef) -> float:
        return self.read_ends_s.get(commit.requested_time, math.inf)

    def read(self, commit: CommitRef) -> Iterator[Change]:
        state = self._state(before=commit)
        for key, value in self.commits[commit.requested_time][1].items():
            old = state.get(key)
            op = Op.DELETE if value is None else (Op.INSERT if old is None else Op.UPDATE)
            yield Change(op, f'{{"id":{key}}}', _row(key, old), _row(key, value))
        if self.clean_during_read:
            self.retained_from = self.clean_during_read

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        state: dict[int, int] = {}
        for commit, rows in sorted(self.commits.values(), key=lambda entry: entry[0].order):
            # Every commit wrote log files of one file group, and those of a slice are read from its instant on.
            if max(commit.requested_time, self._slice_of(commit)) <= progress.instant:
                _apply(state, rows)
        rows = [Change(Op.READ, f'{{"id":{key}}}', None, _row(key, value)) for key, value in state.items()]
        for row in sorted(rows, key=lambda row: row.key):
            if progress.after is None or row.key > progress.after:
                yield row

    @contextmanager
    def open(self) -> Iterator[Callable[[str], bool]]:
        def keep(instant: str) -> bool:
            if self.keeps:
                self.kept.append(instant)
                self.saved = {instant: CleansAfter("", ""), **self.saved}
            return self.keeps

        yield keep

    def let_go(self, instant: str) -> None:
        self.saved = {saved: after for saved, after in self.saved.items() if saved not in self.kept or saved == instant}
        self.kept = [kept for kept in self.kept if kept == instant]

    def schema_of(self, commit: CommitRef) -> str:
        return self.schemas.get(commit.requested_time, '{"type":"record"}')

    def rows(self) -> dict[int, int]:
        """What a reader of the table sees, in the order of completion."""
        state: dict[int, int] = {}
        for _, rows in sorted(self.commits.values(), key=lambda entry: entry[0].order):
            _apply(state, rows)
        return state

    def _slice_of(self, commit: CommitRef) -> str:
        """As Hudi's HoodieFileGroup.getBaseInstantTime: by the completion of the log file's commit."""
        return max((begun for begun in self.compactions if begun <= commit.completed_time), default="")

    def _state(self, before: CommitRef) -> dict[int, int]:
        state: dict[int, int] = {}
        for commit, rows in sorted(self.commits.values(), key=lambda entry: entry[0].order):
            if commit.order < before.order:
                _apply(state, rows)
        return state


def _apply(state: dict[int, int], rows: dict[int, int | None]) -> None:
    for key, value in rows.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def _row(key: int, value: int | None) -> str | None:
    return None if value is None else f'{{"id":{key},"value":{value}}}'

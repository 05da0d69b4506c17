"""Where orphan files wait before they are deleted: moved, put back and deleted so that a kill at any step does no harm.

One folder per run, below `.hoodie/.aux`, which no reader of Hudi lists, in either timeline layout:

    .hoodie/.aux/lake_quarantine/<time>/manifest.json   written first: what is moved, with size, time and reason
                                       /files/<path>    the files, by their paths below the table
                                       /moved           written last: the move ended
                                       /undo, /undone   a person puts the files back; they are back
                                       /deleting        the files' time is over; then the whole folder goes

A run that finds a folder without its last mark ends what the dead one began. Every file is in its place or in the
quarantine at each moment; on stores that rename by copying it may be in both, and then the one in its place counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.table_layout import stays_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lake_jobs.services.orphan_rules import FileFinding

FOLDER = ".hoodie/.aux/lake_quarantine"
MANIFEST = "manifest.json"
MOVED = "moved"
UNDO = "undo"
UNDONE = "undone"
DELETING = "deleting"
VERSION = 1


class UndoRefusedError(Exception):
    """A quarantine cannot be put back: it is not there, or its files are deleted."""


class Files(Protocol):
    """The files below a table's base path; every path is relative to it. Each call is one step that may be the last."""

    def size_of(self, path: str) -> int | None:
        """Return a file's size in bytes; None when it is not there."""

    def names_in(self, folder: str) -> list[str]:
        """Return the names in a folder; none when it is not there."""

    def read(self, path: str) -> bytes:
        """Return a file's content."""

    def create(self, path: str, content: bytes) -> None:
        """Create a file as a whole, and the folders that it needs."""

    def move(self, source: str, target: str) -> None:
        """Move a file to a path where none is, and create the folders that it needs."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it is there."""


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """One file of a manifest."""

    path: str
    size_bytes: int
    modified_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one run moved."""

    id: str
    made_ms: int
    job_id: str
    entries: tuple[QuarantinedFile, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """Files and their bytes."""

    files: int = 0
    size_bytes: int = 0

    def plus(self, size_bytes: int) -> Total:
        """Return the total with one more file."""
        return Total(self.files + 1, self.size_bytes + size_bytes)

    def __str__(self) -> str:
        return f"{self.files} files of {self.size_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The quarantine of one table."""

    files: Files

    def list_ids(self) -> list[str]:
        """Return the ids of all quarantines, oldest first."""
        return sorted(name for name in self.files.names_in(FOLDER) if name.isascii() and name.isdigit())

    def finish(self) -> None:
        """End what earlier runs began and did not end: a move stays as far as it came, an undo and a deletion go on."""
        for id in self.list_ids():
            marks = self._marks(id)
            if MANIFEST not in marks or DELETING in marks:
                # Without a manifest nothing was moved.
                self.files.delete(f"{FOLDER}/{id}")
            elif UNDO in marks and UNDONE not in marks:
                self._put_back(id)
            elif MOVED not in marks:
                for entry in self.read(id).entries:
                    # Copied and not removed yet: whether it is still an orphan is for the next list to say.
                    if self.files.size_of(entry.path) is not None:
                        self.files.delete(_place(id, entry.path))
                self.files.create(f"{FOLDER}/{id}/{MOVED}", b"")

    def take(
        self,
        id: str,
        made_ms: int,
        job_id: str,
        findings: Sequence[FileFinding],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Total:
        """Move files into a new quarantine; return what was moved. A file that has vanished is left out.

        It ends early when it may not go on: what is in its place then is for the next run.
        """
        entries = tuple(
            QuarantinedFile(found.file.path, found.file.size_bytes, found.file.modified_ms, found.reason)
            for found in findings
        )
        manifest = Manifest(id, made_ms, job_id, entries)
        self.files.create(f"{FOLDER}/{id}/{MANIFEST}", _to_json(manifest))
        total = Total()
        for entry in entries:
            if not may_go_on():
                break
            if self.files.size_of(entry.path) is None:
                continue
            self.files.move(entry.path, _place(id, entry.path))
            total = total.plus(entry.size_bytes)
        self.files.create(f"{FOLDER}/{id}/{MOVED}", b"")
        return total

    def undo(self, ids: Iterable[str] = ()) -> Total:
        """Put the files of these quarantines back, or of all; return what is back. Raises UndoRefusedError.

        The manifest stays, so that no later run moves the same files again.
        """
        known = self.list_ids()
        wanted = tuple(ids)
        total = Total()
        for id in wanted:
            if id not in known:
                raise UndoRefusedError(f"there is no quarantine {id}; there are {', '.join(known) or 'none'}")
        for id in wanted or known:
            marks = self._marks(id)
            if DELETING in marks:
                raise UndoRefusedError(f"the files of quarantine {id} are being deleted: its time is over")
            if MANIFEST not in marks or UNDONE in marks:
                continue
            self.files.create(f"{FOLDER}/{id}/{UNDO}", b"")
            back = self._put_back(id)
            total = Total(total.files + back.files, total.size_bytes + back.size_bytes)
        return total

    def delete_expired(self, made_before_ms: int) -> Total:
        """Delete quarantines that were made before a time, ms since the epoch; return what is deleted."""
        total = Total()
        for id in self.list_ids():
            manifest = self.read(id)
            if manifest.made_ms >= made_before_ms or self._marks(id) & {UNDO, UNDONE}:
                continue
            self.files.create(f"{FOLDER}/{id}/{DELETING}", b"")
            for entry in manifest.entries:
                if self.files.size_of(_place(id, entry.path)) is not None:
                    total = total.plus(entry.size_bytes)
            self.files.delete(f"{FOLDER}/{id}")
        return total

    def list_put_back(self) -> frozenset[str]:
        """Return the paths that were put back from a quarantine."""
        undone = (id for id in self.list_ids() if self._marks(id) >= {MANIFEST, UNDO})
        return frozenset(entry.path for id in undone for entry in self.read(id).entries)

    def read(self, id: str) -> Manifest:
        """Return a manifest. Raises ValueError, KeyError for one that is damaged."""
        body = json.loads(self.files.read(f"{FOLDER}/{id}/{MANIFEST}"))
        if body["version"] != VERSION:
            raise ValueError(f"{FOLDER}/{id}/{MANIFEST} has version {body['version']}, this release reads {VERSION}")
        entries = tuple(
            QuarantinedFile(
                str(entry["path"]), int(entry["size_bytes"]), int(entry["modified_ms"]), str(entry["reason"])
            )
            for entry in body["files"]
        )
        leaves = next((entry.path for entry in entries if not stays_below(entry.path)), None)
        if leaves is not None:
            raise ValueError(
                f"{FOLDER}/{id}/{MANIFEST} names {leaves!r}, which lies outside the table: nothing is moved; "
                "remove the folder of this quarantine"
            )
        return Manifest(id, int(body["made_ms"]), str(body["job_id"]), entries)

    def _put_back(self, id: str) -> Total:
        total = Total()
        for entry in self.read(id).entries:
            kept = _place(id, entry.path)
            size = self.files.size_of(kept)
            if size is None:
                continue
            there = self.files.size_of(entry.path)
            if there is None:
                self.files.move(kept, entry.path)
            elif there == size:
                self.files.delete(kept)  # copied back and not removed yet
            else:
                raise UndoRefusedError(
                    f"{entry.path} exists again, with another size than the quarantined {kept}: move one away by hand"
                )
            total = total.plus(size)
        self.files.create(f"{FOLDER}/{id}/{UNDONE}", b"")
        return total

    def _marks(self, id: str) -> frozenset[str]:
        return frozenset(self.files.names_in(f"{FOLDER}/{id}"))


def _place(id: str, path: str) -> str:
    return f"{FOLDER}/{id}/files/{path}"


def _to_json(manifest: Manifest) -> bytes:
    body = {
        "version": VERSION,
        "made_ms": manifest.made_ms,
        "job_id": manifest.job_id,
        "files": [
            {"path": e.path, "size_bytes": e.size_bytes, "modified_ms": e.modified_ms, "reason": e.reason}
            for e in manifest.entries
        ],
    }
    return json.dumps(body, indent=1).encode()

"""Orphan files are moved, put back and deleted so that a kill before or after any step loses and doubles none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.table_layout import stays_below
from lake_jobs.services.orphan_rules import FileFinding, FileStanding, ListedFile
from lake_jobs.services.quarantine import FOLDER, Quarantine, Total, UndoRefusedError

PATHS = ("city=Oslo/a_0-1-0_1.parquet", "city=Oslo/b_0-1-0_1.parquet", "c_0-1-0_1.parquet")
CONTENT = {path: f"rows of {path}".encode() for path in PATHS}
FINDINGS = [FileFinding(ListedFile(path, len(CONTENT[path]), 5), FileStanding.ORPHAN, "why") for path in PATHS]


class KilledError(BaseException):
    """The process dies."""


class MemoryFiles:
    """A store in memory; `copies` renames by copying, as object stores do. `kill_at` counts changes."""

    def __init__(self, copies: bool = False) -> None:
        self.content: dict[str, bytes] = dict(CONTENT)
        self.copies = copies
        self.kill_at = -1
        self.changes = 0

    def size_of(self, path: str) -> int | None:
        return len(self.content[path]) if path in self.content else None

    def names_in(self, folder: str) -> list[str]:
        below = (path.removeprefix(f"{folder}/") for path in self.content if path.startswith(f"{folder}/"))
        return sorted({name.partition("/")[0] for name in below})

    def read(self, path: str) -> bytes:
        return self.content[path]

    def create(self, path: str, content: bytes) -> None:
        self._step()
        self.content[path] = content

    def move(self, source: str, target: str) -> None:
        assert target not in self.content
        self._step()
        self.content[target] = self.content[source]
        if self.copies:
            self._step()
        del self.content[source]

    def delete(self, path: str) -> None:
        self._step()
        for found in sorted(self.content):
            if found == path or found.startswith(f"{path}/"):
                del self.content[found]
                if found != path:
                    self._step()  # a folder goes file by file

    def _step(self) -> None:
        if self.changes == self.kill_at:
            raise KilledError
        self.changes += 1

    def data(self) -> dict[str, bytes]:
        return {path: body for path, body in self.content.items() if not path.startswith(".hoodie")}


def kill_at_each_step(begin: Callable[[], MemoryFiles], act: Callable[[Quarantine], object]) -> list[MemoryFiles]:
    """Return the store after a kill at each step of an action, and after all of it."""
    stores = []
    for step in range(100):
        files = begin()
        files.changes, files.kill_at = 0, step
        try:
            act(Quarantine(files))
        except KilledError:
            pass
        else:
            return [*stores, files]
        finally:
            files.kill_at = -1
        stores.append(files)
    raise AssertionError("it never ends")


def fresh(copies: bool) -> Callable[[], MemoryFiles]:
    return lambda: MemoryFiles(copies)


def filled(copies: bool) -> Callable[[], MemoryFiles]:
    def make() -> MemoryFiles:
        files = MemoryFiles(copies)
        assert Quarantine(files).take("100", 1000, "job", FINDINGS) == Total(3, sum(map(len, CONTENT.values())))
        assert files.data() == {}
        return files

    return make


def all_content(files: MemoryFiles) -> set[bytes]:
    return {body for path, body in files.content.items() if path.endswith(".parquet")}


@pytest.mark.parametrize("copies", [False, True])
def test_killed_move_is_ended_and_undone_without_loss(copies: bool) -> None:
    stores = kill_at_each_step(fresh(copies), lambda quarantine: quarantine.take("100", 1000, "job", FINDINGS))
    assert len(stores) > len(PATHS)
    for files in stores:
        assert all_content(files) == set(CONTENT.values())
        Quarantine(files).finish()
        # Each is in one place, and what is still in its own can be judged again.
        assert sorted(body for path, body in files.content.items() if path.endswith(".parquet")) == sorted(
            CONTENT.values()
        )
        rest = [found for found in FINDINGS if found.file.path in files.content]
        Quarantine(files).take("200", 2000, "job", rest)
        assert files.data() == {}
        Quarantine(files).undo()
        assert files.data() == CONTENT


@pytest.mark.parametrize("copies", [False, True])
def test_killed_undo_goes_on_with_the_next_run(copies: bool) -> None:
    for files in kill_at_each_step(filled(copies), lambda quarantine: quarantine.undo(["100"])):
        assert all_content(files) == set(CONTENT.values())
        quarantine = Quarantine(files)
        quarantine.finish()
        if quarantine.list_put_back():
            assert files.data() == CONTENT
            assert quarantine.list_put_back() == set(PATHS)
        else:  # the kill came first
            assert files.data() == {}
        quarantine.undo()
        assert files.data() == CONTENT
        # Its manifest stays: what a person put back is not moved again, and not deleted.
        quarantine.delete_expired(10_000)
        assert files.data() == CONTENT
        assert quarantine.list_put_back() == set(PATHS)


@pytest.mark.parametrize("copies", [False, True])
def test_killed_deletion_goes_on_and_touches_nothing_else(copies: bool) -> None:
    def two() -> MemoryFiles:
        files = filled(copies)()
        files.content |= {"d_0-1-0_2.parquet": b"d"}
        young = FileFinding(ListedFile("d_0-1-0_2.parquet", 1, 5), FileStanding.ORPHAN, "why")
        Quarantine(files).take("200", 5000, "job", [young])
        return files

    for files in kill_at_each_step(two, lambda quarantine: quarantine.delete_expired(5000)):
        has_begun = "deleting" in files.names_in(f"{FOLDER}/100")
        Quarantine(files).finish()
        # What has begun ends, even where the policy keeps files for longer by now.
        assert "100" not in Quarantine(files).list_ids() or not has_begun
        Quarantine(files).delete_expired(5000)
        assert Quarantine(files).list_ids() == ["200"]
        assert all_content(files) == {b"d"}


def test_deletion_counts_and_waits_for_its_time() -> None:
    files = filled(False)()
    assert Quarantine(files).delete_expired(1000) == Total()
    assert Quarantine(files).delete_expired(1001) == Total(3, sum(map(len, CONTENT.values())))
    assert files.content == {}


def test_undo_is_refused_in_words() -> None:
    files = filled(False)()
    with pytest.raises(UndoRefusedError, match="no quarantine 7; there are 100"):
        Quarantine(files).undo(["7"])
    files.content[PATHS[0]] = b"another file of this name"
    with pytest.raises(UndoRefusedError, match="exists again"):
        Quarantine(files).undo(["100"])
    assert files.content[f"{FOLDER}/100/files/{PATHS[0]}"] == CONTENT[PATHS[0]]
    files = filled(False)()
    files.create(f"{FOLDER}/100/deleting", b"")
    with pytest.raises(UndoRefusedError, match="being deleted"):
        Quarantine(files).undo(["100"])


def test_what_vanished_meanwhile_is_left_out() -> None:
    files = MemoryFiles()
    del files.content[PATHS[1]]
    assert Quarantine(files).take("100", 1000, "job", FINDINGS).files == 2
    assert Quarantine(files).undo().files == 2


def test_move_that_may_not_go_on_leaves_the_rest_to_the_next_run() -> None:
    files, answers = MemoryFiles(), iter([True, False])
    assert Quarantine(files).take("100", 1000, "job", FINDINGS, lambda: next(answers)).files == 1
    assert set(files.data()) == set(PATHS[1:])
    assert Quarantine(files).take("200", 2000, "job", FINDINGS[1:]).files == 2
    assert Quarantine(files).undo() == Total(3, sum(map(len, CONTENT.values())))
    assert files.data() == CONTENT


class DiskFiles:
    """A table's files on this machine's disk, without any check of ours."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def size_of(self, path: str) -> int | None:
        return (self.base / path).stat().st_size if (self.base / path).exists() else None

    def names_in(self, folder: str) -> list[str]:
        return [found.name for found in (self.base / folder).iterdir()] if (self.base / folder).exists() else []

    def read(self, path: str) -> bytes:
        return (self.base / path).read_bytes()

    def create(self, path: str, content: bytes) -> None:
        (self.base / path).parent.mkdir(parents=True, exist_ok=True)
        (self.base / path).write_bytes(content)

    def move(self, source: str, target: str) -> None:
        (self.base / target).parent.mkdir(parents=True, exist_ok=True)
        (self.base / source).rename(self.base / target)

    def delete(self, path: str) -> None:
        found = self.base / path
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("path", "mark"),
    [
        pytest.param("../../../../bank/accounts", "", id="a folder that an unfinished move would delete"),
        pytest.param("../../../../../../bank/accounts/rows", "", id="a file that an unfinished move would delete"),
        pytest.param("../../bank/accounts/rows", "undo", id="a file that an undo would write"),
        pytest.param("p/../../../bank/accounts/rows", "undo", id="dots in the middle"),
        pytest.param("p\\..\\..\\bank", "undo", id="backslashes"),
        pytest.param("/etc/passwd", "undo", id="an absolute path"),
        pytest.param("", "undo", id="the table itself"),
        pytest.param(".", "", id="the table itself as a dot"),
    ],
)
def test_manifest_of_a_writer_reaches_no_file_outside_the_table(tmp_path: Path, path: str, mark: str) -> None:
    other, table = tmp_path / "bank" / "accounts", tmp_path / "shop" / "orders"
    for folder in (other, table):
        folder.mkdir(parents=True)
        (folder / "rows").write_bytes(b"rows")
    files = DiskFiles(table)
    entry = {"path": path, "size_bytes": 4, "modified_ms": 1, "reason": "none"}
    manifest = {"version": 1, "made_ms": 1, "job_id": "j", "files": [entry]}
    files.create(f"{FOLDER}/1/manifest.json", json.dumps(manifest).encode())
    if mark:
        files.create(f"{FOLDER}/1/{mark}", b"")
    before = {found: found.read_bytes() for found in tmp_path.rglob("*") if found.is_file()}
    for act in (Quarantine(files).finish, lambda: Quarantine(files).undo(["1"])):
        with pytest.raises(ValueError, match="lies outside the table"):
            act()
    marks = {table / FOLDER / "1" / "undo"}
    after = {found: found.read_bytes() for found in tmp_path.rglob("*") if found.is_file() and found not in marks}
    assert after == {found: content for found, content in before.items() if found not in marks}


def test_paths_of_tables_stay_below_them() -> None:
    assert all(map(stays_below, (*PATHS, "a/..b/c.", "p=%2E%2E/x", ".hoodie/timeline/1.commit", "p=a:b/x")))
    assert not any(map(stays_below, ("", "/", "/a", "a//b", "a/", "..", "a/..", "../a", "a/./b", "a\\..\\b", "a\0b")))

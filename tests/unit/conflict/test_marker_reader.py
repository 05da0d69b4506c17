"""Markers as they lie on storage: read only where something changed, and never free by an unusual name."""

from __future__ import annotations

import os
import random
import time
import uuid
from pathlib import Path

import pytest

from airflow_lake_provider.conflict import marker_reader
from airflow_lake_provider.conflict.marker_reader import InstantMarkers, MarkerReader
from airflow_lake_provider.hudi.active_writes import MarkerKind
from airflow_lake_provider.storage.store import MAX_FILE_BYTES
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.support.marker_partitions import PARTITIONS
from tests.unit.conflict.fake_table import BASE, FakeStore, FakeTable, keys, marker

W1 = "20261121100000001"
ELSEWHERE = ("Oslo", "f2-0")


@pytest.fixture
def markers(tmp_path: Path) -> Path:
    folder = tmp_path / ".hoodie" / ".temp" / W1
    folder.mkdir(parents=True)
    return folder


def test_unchanged_markers_are_not_read_again(tmp_path: Path, markers: Path) -> None:
    (markers / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    for index in range(20):
        (markers / f"MARKERS{index}").write_text(f"{marker(W1, 'Oslo', f'f{index}-0')}\n")
    storage, now_ms = open_storage(str(tmp_path)), int(time.time() * 1000)
    reader = MarkerReader(storage)
    first = reader.read(W1, now_ms)
    assert (first.kind, first.count, storage.calls.opens) == (MarkerKind.TIMELINE_SERVER_BASED, 20, 20)
    assert reader.read(W1, now_ms) is first
    assert storage.calls.opens == 20
    with (markers / "MARKERS7").open("a") as stream:
        stream.write(f"{marker(W1, 'Oslo', 'new-0')}\n")
    assert reader.read(W1, now_ms).count == 21
    assert storage.calls.opens == 21


def test_only_folders_of_the_claims_partitions_are_listed(tmp_path: Path, markers: Path) -> None:
    for index in range(50):
        (markers / f"p={index}").mkdir()
        (markers / f"p={index}" / marker(W1, "", f"f{index}-0")).touch()
    for folder in (markers, *markers.iterdir()):
        os.utime(folder, (1, 1))
    storage, now_ms = open_storage(str(tmp_path)), int(time.time() * 1000)
    reader = MarkerReader(storage)
    found = reader.read(W1, now_ms, {"p=3", "p=4", "p=none"})
    assert found.file_groups() == keys([("p=3", "f3-0"), ("p=4", "f4-0")])
    lists = storage.calls.lists
    assert lists <= 4
    assert reader.read(W1, now_ms).count == 50
    lists = storage.calls.lists
    assert reader.read(W1, now_ms).count == 50
    assert storage.calls.lists == lists, "folders that did not change are stat'ed, not listed"


def test_unusual_names_below_the_marker_folder_do_no_harm(tmp_path: Path, markers: Path) -> None:
    (markers / "2026" / "01").mkdir(parents=True)
    (markers / "2026" / "01" / marker(W1, "", "f1-0")).touch()
    (markers / "stray-file").write_text("?")
    (markers / "empty-folder").mkdir()
    (markers / "Oslo").mkdir()
    (markers / "Oslo" / "no-underscore.marker.MERGE").touch()
    (markers / "Oslo" / f".{marker(W1, '', 'f2-0')}.crc").touch()
    os.makedirs(os.path.join(os.fsencode(markers), b"\xff\xfe"))
    found = MarkerReader(open_storage(str(tmp_path))).read(W1, int(time.time() * 1000))
    assert found.file_groups() == keys([("2026/01", "f1-0")])
    assert len(found.unread) == 1
    assert MarkerReader(open_storage(str(tmp_path))).list_instants() == (W1,)


def read_locally(tmp_path: Path, groups: list[tuple[str, str]], partitions: set[str] | None) -> InstantMarkers:
    for group in groups:
        path = tmp_path / ".hoodie" / ".temp" / W1 / marker(W1, *group)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0")
    return MarkerReader(open_storage(str(tmp_path))).read(W1, int(time.time() * 1000), partitions)


def read_in_memory(tmp_path: Path, groups: list[tuple[str, str]], partitions: set[str] | None) -> InstantMarkers:
    table = FakeTable()
    table.mark_direct(W1, groups)
    return MarkerReader(Storage(BASE, table.store, BASE)).read(W1, table.now_ms, partitions)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("reads_all", [True, False])
@pytest.mark.parametrize("read", [read_locally, read_in_memory])
def test_direct_markers_are_read_in_partitions_of_any_name(read, partition, reads_all, tmp_path) -> None:
    groups = [(partition, "f1-0"), ELSEWHERE]
    found = read(tmp_path, groups, None if reads_all else {partition, ELSEWHERE[0]})
    assert (found.file_groups(), found.kind, found.unread) == (keys(groups), MarkerKind.DIRECT, ())


class LossyStore(FakeStore):
    """A store on which a listed file can be gone when it is read."""

    lost: str = ""

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        if self.lost and path.endswith(self.lost):
            raise FileNotFoundError(path)
        return super().read_bytes(path, limit_bytes)


def test_server_file_that_vanishes_is_not_known_while_its_folder_remains() -> None:
    store = LossyStore()
    table = FakeTable(store)
    groups = [("Oslo", "f1-0"), ("Bonn", "f2-0")]
    table.mark_by_server(W1, groups)
    reader = MarkerReader(Storage(BASE, store, BASE))
    assert reader.read(W1, table.now_ms).unread == ()

    table.now_ms += 50
    table.mark_by_server(W1, groups)
    store.lost = "MARKERS1"
    found = reader.read(W1, table.now_ms)
    assert (found.file_groups(), found.unread) == (keys(groups), (f".hoodie/.temp/{W1}/MARKERS1",))
    fresh = MarkerReader(Storage(BASE, store, BASE)).read(W1, table.now_ms)
    assert (fresh.file_groups(), fresh.unread) == (keys(groups[:1]), (f".hoodie/.temp/{W1}/MARKERS1",))

    store.lost = ""
    table.remove(f".temp/{W1}/MARKERS1")
    found = reader.read(W1, table.now_ms)
    assert (found.file_groups(), found.unread) == (keys(groups), (f".hoodie/.temp/{W1}/MARKERS1",))
    table.mark_by_server(W1, groups)
    assert (reader.read(W1, table.now_ms).unread, reader.read(W1, table.now_ms).count) == ((), 2)
    table.remove(f".temp/{W1}")
    assert reader.read(W1, table.now_ms).count == 0


def test_server_file_that_is_gone_with_its_folder_is_in_no_servers_way() -> None:
    class Committing(FakeStore):
        def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
            self.files.clear()
            return super().read_bytes(path, limit_bytes)

    store = Committing()
    table = FakeTable(store)
    table.mark_by_server(W1, [ELSEWHERE])
    found = MarkerReader(Storage(BASE, store, BASE)).read(W1, table.now_ms)
    assert (found.count, found.unread) == (0, ())


@pytest.mark.parametrize("seed", range(12))
def test_many_markers_are_read_as_few_are(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reader scans whole files, the other one takes each line; files grow, are cut, shrink and vanish meanwhile."""
    draw, folder = random.Random(seed), tmp_path / ".hoodie" / ".temp" / W1
    folder.mkdir(parents=True)
    (folder / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    lines: dict[int, list[str]] = {}
    readers = [MarkerReader(open_storage(str(tmp_path))) for _ in range(2)]
    scanned = 0
    for _ in range(15):
        for number in draw.sample(range(4), 2):
            new = [marker(W1, f"p={draw.randrange(3)}", f"{uuid.UUID(int=draw.getrandbits(128))}-0") for _ in range(9)]
            lines[number] = new[:2] if draw.random() < 0.1 else [*lines.get(number, []), *new]
            text = "".join(f"{line}\n" for line in lines[number])
            (folder / f"MARKERS{number}").write_text(text[: -draw.randrange(99)] if draw.random() < 0.1 else text)
        if draw.random() < 0.1:
            (folder / f"MARKERS{draw.choice(list(lines))}").unlink(missing_ok=True)
        found = []
        for reader, least in zip(readers, (1, 1 << 30), strict=True):
            monkeypatch.setattr(marker_reader, "MIN_SCANNED_BYTES", least)
            found.append(reader.read(W1, int(time.time() * 1000)))
        scanned += any(hasattr(part.held, "scan") for part in found[0].parts)
        groups = sorted(found[1].file_groups())
        for _ in range(3):
            asked = frozenset(draw.sample(groups, draw.choice((0, 0, 1, len(groups) // 2)))) | {b"p=1/other-0"}
            assert found[0].overlap(asked) == found[1].overlap(asked) == asked - {b"p=1/other-0"}
        assert (found[0].count, found[0].unread) == (found[1].count, found[1].unread)
        if draw.random() < 0.3:
            assert found[0].file_groups() == found[1].file_groups()
    assert scanned

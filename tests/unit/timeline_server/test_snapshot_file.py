from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.saved import restore, save
from airflow_lake_provider.timeline_server.snapshot import pack, unpack
from tests.support.fixture_tables import NAMES
from tests.support.fixture_tables import unpack as unpack_table
from tests.support.tables import HandMadeTable


def filled(tmp_path: Path, count: int = 3) -> SharedTimelines:
    timelines = SharedTimelines()
    for number in range(count):
        table = HandMadeTable.create(tmp_path / f"t{number}")
        table.commit(number)
        timelines.snapshot(str(table.path))
    return timelines


@pytest.mark.parametrize("name", NAMES)
def test_unpack_of_a_packed_real_timeline_gives_it_back(name: str, tmp_path: Path) -> None:
    snapshot = SharedTimelines().snapshot(str(unpack_table(name, tmp_path).path))
    assert unpack(pack(snapshot), snapshot.base_path, snapshot.version, snapshot.as_of_ms) == snapshot


@pytest.mark.parametrize("content", [b"", b"x", b"\x78\x9c", pack.__doc__.encode(), b"\x03\x00"])
def test_unpack_of_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedFileError):
        unpack(content, "/lake/orders", "", 0)


def test_restore_gives_every_saved_table_back_and_compares_it_with_storage(tmp_path: Path) -> None:
    timelines = filled(tmp_path)
    file = tmp_path / "timelines"
    assert save(timelines, file) == 3
    HandMadeTable(tmp_path / "t1").commit(30)
    again = SharedTimelines()
    assert restore(again, file) == 3
    assert again.calls.lists == again.calls.stats == 0
    assert len(again.snapshot(str(tmp_path / "t1")).timeline.instants) == 2
    assert len(again.snapshot(str(tmp_path / "t0")).timeline.instants) == 1


def test_restore_of_a_file_cut_anywhere_uses_what_is_whole(tmp_path: Path) -> None:
    timelines = filled(tmp_path)
    file = tmp_path / "timelines"
    save(timelines, file)
    whole = file.read_bytes()
    counts = set()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        counts.add(restore(SharedTimelines(), file))
    assert counts == {0, 1, 2}


def test_restore_of_a_file_with_a_flipped_byte_stops_there(tmp_path: Path) -> None:
    timelines = filled(tmp_path)
    file = tmp_path / "timelines"
    save(timelines, file)
    whole = bytearray(file.read_bytes())
    for position in range(20, len(whole), 11):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        file.write_bytes(damaged)
        assert restore(SharedTimelines(), file) < 3


def test_restore_without_a_file_is_nothing(tmp_path: Path) -> None:
    assert restore(SharedTimelines(), tmp_path / "nothing") == 0


def test_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timelines = filled(tmp_path)
    file = tmp_path / "state" / "timelines"
    save(timelines, file)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="space"):
        save(timelines, file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["timelines"]


def test_restore_remembers_which_tables_announce_their_commits(tmp_path: Path) -> None:
    timelines = filled(tmp_path, 2)
    timelines.hint(str(tmp_path / "t0"), ["20261121120000000"], is_by_writer=True)
    timelines.refresh_if_due(str(tmp_path / "t0"), is_hinted=True)
    save(timelines, tmp_path / "timelines")
    again = SharedTimelines()
    restore(again, tmp_path / "timelines")
    assert [again.memory.get(str(tmp_path / name)).is_announced for name in ("t0", "t1")] == [True, False]

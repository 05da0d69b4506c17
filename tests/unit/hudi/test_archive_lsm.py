"""Archives of layout 2 that are damaged, unknown, or change while they are read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi import archive_lsm
from airflow_lake_provider.hudi.archive import load_archive
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.storage.table_storage import open_storage
from tests.unit.hudi.archive_tables import LSM, before_reads, completed, load, outcome, seen, unpack_history


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    return unpack_history(LSM, tmp_path)


def newest(history: Path) -> Path:
    return history / f"manifest_{(history / '_version_').read_text()}"


def named_files(history: Path) -> list[Path]:
    return [history / entry["fileName"] for entry in json.loads(newest(history).read_text())["files"]]


def rewrite(history: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Rewrite the first file of the newest snapshot, and its size in the manifest."""
    file = named_files(history)[0]
    pq.write_table(change(pq.read_table(file)), file)
    set_size(history, file, file.stat().st_size)
    return file


def set_size(history: Path, file: Path, size: Any) -> None:
    body = json.loads(newest(history).read_text())
    for entry in body["files"]:
        if entry["fileName"] == file.name:
            entry["fileLen"] = size
    newest(history).write_text(json.dumps(body))


def test_truncated_files_of_the_snapshot_are_never_taken_for_whole(table: tuple[Path, Path]) -> None:
    path, history = table
    for file in (*named_files(history), newest(history)):
        content = file.read_bytes()
        for length in {*range(0, len(content), max(1, len(content) // 40)), len(content) - 1}:
            file.write_bytes(content[:length])
            found, reasons = outcome(path)
            assert found is None, (file.name, length)
            assert file.name in reasons[0]
        file.write_bytes(content)
    assert len(load(path).instants) == len(completed(LSM))


def test_truncated_file_is_damage_even_when_the_range_excludes_it(table: tuple[Path, Path]) -> None:
    path, history = table
    file = named_files(history)[0]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=file.name):
        load(path, after=file.name.split("_")[1])


def test_flipped_bytes_are_noticed_or_change_nothing(table: tuple[Path, Path]) -> None:
    path, history = table
    expected = load(path, with_content=True)
    draw = random.Random(7)
    noticed = 0
    for file in named_files(history):
        content = file.read_bytes()
        for position in draw.sample(range(len(content)), 250):
            damaged = bytearray(content)
            damaged[position] ^= 1 << draw.randrange(8)
            file.write_bytes(damaged)
            found, reasons = outcome(path, with_content=True)
            assert found == expected or reasons, (file.name, position)
            noticed += bool(reasons)
        file.write_bytes(content)
    assert noticed > 100


@pytest.mark.parametrize(
    "damage", [None, b"", b"x", b"-1", b"1" * 40], ids=["missing", "empty", "text", "sign", "long"]
)
def test_without_a_usable_version_file_the_newest_manifest_counts(
    table: tuple[Path, Path], damage: bytes | None
) -> None:
    path, history = table
    whole = seen(load(path))
    (history / "_version_").unlink()
    if damage is not None:
        (history / "_version_").write_bytes(damage)
    archive = load(path)
    assert seen(archive) == whole
    assert bool(archive.problems) == bool(damage)


def test_version_file_that_was_cut_off_names_no_old_snapshot(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = seen(load(path))
    manifest = newest(history)
    manifest.rename(history / "manifest_10")
    (history / "manifest_1").write_text('{"files": []}')
    (history / "_version_").write_text("1")  # of 10
    archive = load(path)
    assert seen(archive) == whole
    assert [problem.file_name for problem in archive.problems] == ["_version_"]


def test_manifest_beyond_the_version_file_does_not_count_yet(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = load(path)
    (history / f"manifest_{int((history / '_version_').read_text()) + 1}").write_text('{"fi')
    assert load(path) == whole


def test_missing_newest_manifest_is_damage(table: tuple[Path, Path]) -> None:
    path, history = table
    manifest = newest(history)
    manifest.unlink()
    with pytest.raises(DamagedFileError, match=manifest.name):
        load(path)


def test_files_without_any_manifest_are_damage(table: tuple[Path, Path]) -> None:
    path, history = table
    for file in (*history.glob("manifest_*"), history / "_version_"):
        file.unlink()
    with pytest.raises(DamagedFileError, match="manifest_"):
        load(path)


def test_first_file_without_its_manifest_is_reported(table: tuple[Path, Path]) -> None:
    path, history = table
    file = next(history.glob("*_0.parquet"))
    for other in set(history.iterdir()) - {file}:
        other.unlink()
    archive = load(path)
    assert archive.instants == ()
    assert [problem.file_name for problem in archive.problems] == [file.name]


def test_missing_file_of_the_snapshot_is_damage(table: tuple[Path, Path]) -> None:
    path, history = table
    for file in named_files(history):
        content = file.read_bytes()
        file.unlink()
        for after in ("", "9"):
            with pytest.raises(DamagedFileError, match=rf"{history}/{file.name}: missing"):
                load(path, after=after)
        file.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"files": {}}',
        '{"files": [1]}',
        '{"files": [{"fileName": "../../x.parquet", "fileLen": 1}]}',
        '{"files": [{"fileName": "1_2_0.parquet", "fileLen": true}]}',
        '{"files": [{"fileName": "1_2_0.parquet", "fileLen": -1}]}',
        '{"files": [{"fileName": "1_2_0.orc", "fileLen": 1}]}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_manifests_of_another_shape_are_damage(table: tuple[Path, Path], content: str) -> None:
    path, history = table
    newest(history).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedFileError, match=newest(history).name):
        load(path)


def test_overlapping_layers_give_every_instant_once(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = load(path, with_content=True)
    manifest = newest(history)
    body = json.loads(manifest.read_text())
    known = {entry["fileName"] for entry in body["files"]}
    sources = [file for file in history.glob("*_0.parquet") if file.name not in known]
    assert sources
    body["files"] += [{"fileName": file.name, "fileLen": file.stat().st_size} for file in sources]
    manifest.write_text(json.dumps(body))
    again = load(path, with_content=True)
    assert [(i.requested_time, i.metadata) for i in again.instants] == [
        (i.requested_time, i.metadata) for i in whole.instants
    ]
    assert again.problems == ()


def set_column(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.schema.get_field_index(name), name, values)


def first_replaced(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        column = rows.column(name)
        return set_column(name, pa.array([value, *column.to_pylist()[1:]], column.type))(rows)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (first_replaced("version", 2), "version 2"),
        (first_replaced("version", None), "version None"),
        (first_replaced("action", "vacuum"), "unknown action 'vacuum'"),
        (first_replaced("action", None), "unknown action"),
        (lambda rows: rows.drop_columns(["action"]), "column action is None"),
        (lambda rows: set_column("version", rows.column("version").cast(pa.int64()))(rows), "version is int64"),
    ],
)
def test_unknown_rows_are_unsupported(
    table: tuple[Path, Path], change: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    path, history = table
    file = rewrite(history, change)
    with pytest.raises(UnsupportedTableError, match=f"{file.name}.*{reason}"):
        load(path)


@pytest.mark.parametrize("value", [None, "", "2026-01-01", "\u0662\u0660"])
def test_rows_without_a_time_are_damage(table: tuple[Path, Path], value: str | None) -> None:
    path, history = table
    file = rewrite(history, first_replaced("instantTime", value))
    with pytest.raises(DamagedFileError, match=file.name):
        load(path)


def test_rows_unlike_the_name_of_their_file_are_reported(table: tuple[Path, Path]) -> None:
    path, history = table
    file = rewrite(history, first_replaced("instantTime", "1"))
    assert [problem.file_name for problem in load(path).problems] == [file.name]


def test_files_that_the_range_excludes_are_not_opened(table: tuple[Path, Path]) -> None:
    path, history = table
    storage = open_storage(str(path))
    properties = load_table_properties(storage)
    opens = []
    for after in ("", max(file.name for file in named_files(history)).split("_")[0], "9"):
        storage.calls.opens = 0
        load_archive(storage, properties, after=after)
        opens.append(storage.calls.opens)
    assert opens == [2 + len(named_files(history)), 3, 2]


@pytest.mark.parametrize("limit", ["MAX_FILE_BYTES", "MAX_UNPACKED_BYTES", "MAX_ROWS", "MAX_MANIFEST_BYTES"])
def test_sizes_beyond_belief_are_refused(table: tuple[Path, Path], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_lsm, limit, 1)
    with pytest.raises(DamagedFileError, match="bytes"):
        load(table[0])


# --- writers that go on while we read ---------------------------------------------------------------------


def next_snapshot(history: Path) -> None:
    """Publish the same files as another snapshot, and take the last one away."""
    old = newest(history)
    number = int((history / "_version_").read_text()) + 1
    (history / f"manifest_{number}").write_bytes(old.read_bytes())
    (history / "_version_").write_text(str(number))
    old.unlink()


def test_manifest_that_vanishes_while_it_is_read_is_searched_again(
    table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = table
    whole = seen(load(path))
    raced = []

    def publish(name: str) -> None:
        if name.startswith("manifest_") and len(raced) < 2:
            raced.append(name)
            next_snapshot(history)

    before_reads(monkeypatch, publish)
    assert seen(load(path)) == whole
    assert len(raced) == 2


def test_file_that_vanishes_with_its_snapshot_is_no_damage(
    table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = table
    whole = seen(load(path))
    last_file = named_files(history)[-1]

    def merge(name: str) -> None:
        if name == last_file.name and last_file.exists():  # into the next layer, under another name
            first, last, _ = name.split("_")
            merged = last_file.rename(history / f"{first}_{last}_7.parquet")
            body = json.loads(newest(history).read_text())
            body["files"][-1]["fileName"] = merged.name
            newest(history).write_text(json.dumps(body))
            next_snapshot(history)

    before_reads(monkeypatch, merge)
    assert seen(load(path)) == whole


def test_version_file_that_is_deleted_while_it_is_read_is_no_damage(
    table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = table
    whole = seen(load(path))
    before_reads(monkeypatch, lambda name: name == "_version_" and (history / name).unlink())
    assert seen(load(path)) == whole


def test_writer_that_never_rests_is_an_error_in_the_end(
    table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = table
    before_reads(monkeypatch, lambda name: next_snapshot(history) if name.startswith("manifest_") else None)
    with pytest.raises(DamagedFileError, match="manifest_"):
        load(path)

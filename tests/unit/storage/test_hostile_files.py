"""Files of a table that are none, or that are larger than their kind can be: refused before anything is allocated."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.errors import DamagedFileError, StorageError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.storage.store import MIB
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.patience import patient


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_file(path: Path) -> None:
    secret = path.with_name("secret")
    secret.write_bytes(b'{"operationType": "secret"}')
    path.symlink_to(secret)


def make_sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(6_000 * MIB)


HOSTILE = [make_pipe, make_socket, link_to_zeros, link_to_a_file, make_sparse]


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_regular_file_of_its_kind_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    make(Path("1.commit"))
    storage, errors = open_storage(str(tmp_path)), list[BaseException]()

    def read() -> None:
        try:
            storage.read_bytes("1.commit")
        except BaseException as error:  # noqa: BLE001 - the test's thread judges it
            errors.append(error)

    tracemalloc.start()
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not reader.is_alive(), "the read never returned"
    assert isinstance(errors[0], DamagedFileError)
    assert str(tmp_path / "1.commit") in str(errors[0])
    assert peak_bytes < MIB


def test_device_is_refused() -> None:
    with pytest.raises(DamagedFileError, match="device"):
        open_storage("/dev").read_bytes("zero")


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Is a directory"):
        open_storage(str(tmp_path)).read_bytes("")


@pytest.mark.parametrize("make", [make_pipe, make_sparse, link_to_zeros])
def test_table_with_hostile_properties_is_a_damaged_table(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / ".hoodie").mkdir()
    make(tmp_path / ".hoodie" / "hoodie.properties")
    began_s = time.monotonic()
    with pytest.raises(DamagedFileError, match=r"hoodie\.properties"):
        load_table_properties(open_storage(str(tmp_path)))
    assert time.monotonic() - began_s < patient(5)


@pytest.mark.parametrize("url", ["", "memory://"])
def test_limit_of_a_kind_counts_on_every_store(tmp_path: Path, url: str) -> None:
    storage = open_storage(f"{url}{tmp_path}")
    storage.create("small", b"x" * 100)
    assert storage.read_bytes("small", 100) == b"x" * 100
    with pytest.raises(DamagedFileError, match="small: 100 bytes, more than the 99"):
        storage.read_bytes("small", 99)


def test_properties_of_a_megabyte_and_more_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    text = "hoodie.table.name=t\nhoodie.table.version=9\n"
    (tmp_path / ".hoodie" / "hoodie.properties").write_text(text + "#" * MIB, encoding="utf-8")
    with pytest.raises(DamagedFileError, match="more than the 1048576"):
        load_table_properties(open_storage(str(tmp_path)))


@pytest.mark.parametrize("key", ["hoodie.table.name", "hoodie.database.name"])
def test_name_with_a_character_that_no_database_keeps_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / ".hoodie").mkdir()
    text = f"hoodie.table.name=t\nhoodie.table.version=9\n{key}=a\\u0000b\n"
    (tmp_path / ".hoodie" / "hoodie.properties").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError, match="NUL"):
        load_table_properties(open_storage(str(tmp_path)))


@pytest.mark.parametrize("linked", [".hoodie", ".hoodie/timeline", ".hoodie/timeline/history", ".hoodie/metadata"])
def test_linked_folder_shows_nothing_of_another_table(tmp_path: Path, linked: str) -> None:
    for team in ("shop", "bank"):
        (tmp_path / team / ".hoodie/timeline/history").mkdir(parents=True)
        (tmp_path / team / ".hoodie/metadata").mkdir()
        for folder in (".hoodie", ".hoodie/timeline", ".hoodie/timeline/history", ".hoodie/metadata"):
            (tmp_path / team / folder / "file").write_text(team)
    shutil.rmtree(tmp_path / "shop" / linked)
    (tmp_path / "shop" / linked).symlink_to(tmp_path / "bank" / linked)
    storage = open_storage(str(tmp_path / "shop"))
    for question in (storage.list_names, storage.list_entries, storage.stat):
        with pytest.raises(DamagedFileError, match="a link"):
            question(linked)
    with pytest.raises(DamagedFileError, match="a link"):
        storage.read_bytes(f"{linked}/file")
    (tmp_path / "alias").symlink_to(tmp_path / "bank")
    assert open_storage(str(tmp_path / "alias")).read_bytes(".hoodie/timeline/file") == b"bank", "the table itself may"


def test_linked_file_of_the_metadata_shows_nothing_of_another_table(tmp_path: Path) -> None:
    (tmp_path / "shop/.hoodie/timeline").mkdir(parents=True)
    (tmp_path / "bank").write_text("bank")
    (tmp_path / "shop/.hoodie/timeline/file").symlink_to(tmp_path / "bank")
    storage = open_storage(str(tmp_path / "shop"))
    for question in (storage.read_bytes, storage.stat, storage.list_names):
        with pytest.raises(DamagedFileError, match="a link"):
            question(".hoodie/timeline/file")
    assert storage.stat(".hoodie/none/file") is None


@pytest.mark.parametrize("path", ["../bank/file", ".hoodie/../../bank/file", "a\\..\\..\\bank\\file", ".."])
def test_path_that_a_table_names_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    for folder in ("shop/.hoodie", "bank"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bank" / "file").write_text("bank")
    (tmp_path / "shop" / "a..b").write_text("shop")
    storage = open_storage(str(tmp_path / "shop"))
    questions: tuple[Callable[[], object], ...] = (
        lambda: storage.list_names(path),
        lambda: storage.list_entries(path),
        lambda: storage.stat(path),
        lambda: storage.read_bytes(path),
        lambda: storage.write(path),
        lambda: storage.create(path, b""),
        lambda: storage.remove(path),
        lambda: storage.move("a..b", path),
        lambda: storage.move(path, "c"),
    )
    for ask in questions:
        with pytest.raises(DamagedFileError, match="leads out of the table"):
            ask()
    assert (tmp_path / "bank" / "file").read_text() == storage.read_bytes("a..b").decode().replace("shop", "bank")

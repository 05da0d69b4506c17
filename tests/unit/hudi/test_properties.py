from __future__ import annotations

import time
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_lake_provider.errors import DamagedFileError, TableNotFoundError, UnsupportedTableError
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.properties import TableProperties, load_table_properties, parse_java_properties
from airflow_lake_provider.storage.store import MAX_FILE_BYTES
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.support.patience import patient


def properties(name: str = "t", version: str = "9", **more: str) -> str:
    values = {"hoodie.table.name": name, "hoodie.table.version": version} | more
    values["hoodie.table.checksum"] = str(zlib.crc32(f".{name}".encode()))
    return "\n".join(f"{key}={value}" for key, value in values.items())


def load(folder: Path, **files: str) -> TableProperties:
    meta = folder / ".hoodie"
    meta.mkdir(exist_ok=True)
    for name, text in files.items():
        (meta / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return load_table_properties(open_storage(str(folder)))


@pytest.mark.parametrize(
    ("version", "layout", "timeline_path"),
    [
        ("6", Layout.V1, ".hoodie"),
        ("8", Layout.V2, ".hoodie/timeline"),
        ("9", Layout.V2, ".hoodie/timeline"),
    ],
)
def test_load_of_each_version_finds_its_timeline(
    tmp_path: Path, version: str, layout: Layout, timeline_path: str
) -> None:
    loaded = load(tmp_path, hoodie_properties=properties(version=version))
    assert (loaded.layout, loaded.timeline_path) == (layout, timeline_path)


@pytest.mark.parametrize("version", ["5", "7", "10", "", "x", "²", "9" * 5000])
def test_load_of_another_version_names_it(tmp_path: Path, version: str) -> None:
    with pytest.raises(UnsupportedTableError, match=f"version='{version}'"):
        load(tmp_path, hoodie_properties=properties(version=version))


@pytest.mark.parametrize("table_type", ["BROKEN", "merge_on_read", "MERGE_ON_READ2"])
def test_load_of_a_type_that_hudi_does_not_know_is_damaged(tmp_path: Path, table_type: str) -> None:
    with pytest.raises(DamagedFileError, match=f"hoodie.table.type='{table_type}'"):
        load(tmp_path, hoodie_properties=properties(**{"hoodie.table.type": table_type}))


def test_load_without_main_file_reads_the_backup(tmp_path: Path) -> None:
    """Hudi deletes the main file while it updates it."""
    assert load(tmp_path, hoodie_properties_backup=properties("from-backup")).name == "from-backup"


def test_load_of_a_half_written_main_file_reads_the_backup(tmp_path: Path) -> None:
    half = properties("half")[:40]
    assert load(tmp_path, hoodie_properties=half, hoodie_properties_backup=properties("whole")).name == "whole"


def test_load_of_a_main_file_with_another_tables_checksum_reads_the_backup(tmp_path: Path) -> None:
    edited = properties("before").replace("name=before", "name=after")
    assert load(tmp_path, hoodie_properties=edited, hoodie_properties_backup=properties("before")).name == "before"


@pytest.mark.parametrize("seen", ["", properties("half")[:40], None], ids=["empty", "half", "deleted"])
def test_load_while_an_update_ends_between_the_reads_sees_the_new_main_file(tmp_path: Path, seen: str | None) -> None:
    """The main file is not whole yet when it is read; when the backup is, that is gone and the main file is new."""
    meta = tmp_path / ".hoodie"
    meta.mkdir()
    if seen is not None:
        (meta / "hoodie.properties").write_text(seen, encoding="utf-8")

    class UpdateEnds(Storage):
        __slots__ = ()

        def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
            if path.endswith(".backup"):
                (meta / "hoodie.properties").write_text(properties("updated"), encoding="utf-8")
            return Storage.read_bytes(self, path, limit_bytes)

    storage = open_storage(str(tmp_path))
    storage.__class__ = UpdateEnds
    assert load_table_properties(storage).name == "updated"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"hoodie.timeline.path": "../../other/.hoodie/timeline"}, id="timeline"),
        pytest.param({"hoodie.timeline.history.path": ".."}, id="history"),
        pytest.param({"hoodie.timeline.path": "a\\u0000b"}, id="nul"),
    ],
)
def test_load_of_a_timeline_outside_the_table_is_refused(tmp_path: Path, more: dict[str, str]) -> None:
    with pytest.raises(DamagedFileError, match="outside the table"):
        load(tmp_path, hoodie_properties=properties(**more))


def test_load_of_a_main_file_without_checksum_is_good_enough_alone(tmp_path: Path) -> None:
    assert load(tmp_path, hoodie_properties="hoodie.table.name=old\nhoodie.table.version=6").name == "old"


def test_load_of_an_empty_main_file_alone_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="names no table"):
        load(tmp_path, hoodie_properties="")


def test_load_of_no_table_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nothing here"):
        load_table_properties(open_storage(str(tmp_path / "nothing here")))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("a=b", {"a": "b"}, id="equals"),
        pytest.param("a : b", {"a": "b"}, id="colon-and-blanks"),
        pytest.param("a b c", {"a": "b c"}, id="blank"),
        pytest.param("# x\n! y\n\na=1", {"a": "1"}, id="comments"),
        pytest.param("a=1\\\n  2", {"a": "12"}, id="continued"),
        pytest.param("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}, id="escaped-backslash-continues-nothing"),
        pytest.param("a\\=b\\ c=\\u00fc\\t\\:", {"a=b c": "ü\t:"}, id="escapes"),
        pytest.param("a=\\ud83d\\ude00", {"a": "😀"}, id="surrogates"),
        pytest.param("a=\\u12", {"a": "u12"}, id="half-escape"),
        pytest.param("a", {"a": ""}, id="no-value"),
        pytest.param("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}, id="line-ends"),
        pytest.param('s={"a"\\:1, "b"\\=2}', {"s": '{"a":1, "b"=2}'}, id="json-as-hudi-writes-it"),
    ],
)
def test_parse_java_properties(text: str, values: dict[str, str]) -> None:
    assert parse_java_properties(text) == values


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a\n" * 500_000, id="lines"),
        pytest.param("a\r" * 500_000, id="lines of an old Mac"),
        pytest.param("\\u0041" * 170_000, id="escapes"),
        pytest.param("k=\\\n" * 200_000, id="continued lines"),
        pytest.param("\\" * 1_000_000, id="backslashes"),
        pytest.param("a\n" * 19_999 + "x" * 900_000, id="just within the limits"),
        pytest.param("=:" * 500_000, id="separators"),
    ],
)
def test_file_of_properties_within_its_limit_costs_little_time(text: str) -> None:
    began_s = time.process_time()
    with suppress(DamagedFileError):
        parse_java_properties(text)
    assert time.process_time() - began_s < patient(0.3)

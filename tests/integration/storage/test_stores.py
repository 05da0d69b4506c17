"""What a store promises, on each of them: names, times, folders, errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.storage.store import FileEntry
from airflow_lake_provider.storage.table_storage import Storage
from tests.integration.storage.lakes import BUCKET, AzureLake, HdfsLake, Lake, S3Lake

HOSTILE_NAMES = [
    "a b",
    "ü%41%2F",
    "#?*[x]{a,b}",
    "a\\b",
    "it's",
    '"quoted"',
    "+&=;,@$",
    "\u200b\U0001f4a5",
    "..x",
    "-rf",
    "~",
    "x" * 200,
]


def test_listing_has_every_file_of_a_folder_that_takes_two_answers(lake: Lake) -> None:
    """Both stores list at most 1,000 files in an answer."""
    names = {f"f{number:05d}.commit" for number in range(1100)}
    lake.put_many({f"/large/folder/{name}": b"" for name in names})
    storage = lake.open("/large")
    assert set(storage.list_names("folder")) == names
    entries = storage.list_entries("folder")
    assert {entry.name for entry in entries} == names
    assert not [entry for entry in entries if entry.is_folder or entry.size_bytes]
    recent_ms = time.time() * 1000 - 600_000
    assert min(entry.modified_ms for entry in entries) > recent_ms


def test_hostile_names_are_listed_stated_and_read(lake: Lake) -> None:
    names = [name for name in HOSTILE_NAMES if not lake.forbids or lake.forbids not in name]
    for name in names:
        lake.put(f"/hostile/{name}/{name}", name.encode())
    storage = lake.open("/hostile")
    assert sorted(storage.list_names("")) == sorted(names)
    for name in names:
        assert lake.open(f"/hostile/{name}").list_names("") == [name]
        assert storage.read_bytes(f"{name}/{name}") == name.encode()
        found = storage.stat(f"{name}/{name}")
        assert found is not None
        assert (found.name, found.size_bytes, found.is_folder) == (name, len(name.encode()), False)


def test_child_of_its_folders_name_is_listed(lake: Lake) -> None:
    lake.put("/same/same/same", b"")
    assert lake.open("/same").list_names("same") == ["same"]


def test_stat_of_files_and_folders(lake: Lake) -> None:
    lake.put("/stat/folder/file", b"12345")
    storage = lake.open("/stat")
    file, folder = storage.stat("folder/file"), storage.stat("folder")
    assert file is not None
    assert folder is not None
    assert (file.name, file.size_bytes, file.is_folder) == ("file", 5, False)
    assert (folder.name, folder.is_folder) == ("folder", True)
    assert abs(file.modified_ms - time.time() * 1000) < 60_000
    listed = storage.list_entries("folder")
    assert [(entry.name, entry.size_bytes) for entry in listed] == [("file", 5)]
    assert abs(listed[0].modified_ms - file.modified_ms) < 1000, "S3 gives one of them in whole seconds"
    assert storage.stat("") is not None


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda storage: storage.list_names("nothing"), id="list-names"),
        pytest.param(lambda storage: storage.list_entries("nothing"), id="list-entries"),
        pytest.param(lambda storage: storage.read_bytes("nothing"), id="read"),
        pytest.param(lambda storage: storage.list_names("file"), id="list-a-file"),
        pytest.param(lambda storage: storage.read_bytes("folder"), id="read-a-folder"),
        pytest.param(lambda storage: storage.read_bytes("file/below"), id="read-below-a-file"),
    ],
)
def test_what_is_not_there_is_not_found(lake: Lake, ask: Callable[[Storage], object]) -> None:
    lake.put("/absent/file", b"")
    lake.put("/absent/folder/x", b"")
    with pytest.raises(FileNotFoundError):
        ask(lake.open("/absent"))


def test_path_that_leads_out_of_its_folder_is_refused(lake: Lake) -> None:
    lake.put("/absent/folder/x", b"")
    with pytest.raises(DamagedFileError, match="leads out of the table"):
        lake.open("/absent").list_names("folder/../folder")


def test_stat_of_what_is_not_there_is_none(lake: Lake) -> None:
    assert lake.open("/absent").stat("nothing") is None
    assert lake.open("/absent").stat("nothing/below") is None


def test_nothing_is_remembered_between_two_calls(lake: Lake) -> None:
    storage = lake.open("/fresh")
    lake.put("/fresh/a", b"1")
    assert storage.list_names("") == ["a"]
    assert storage.read_bytes("a") == b"1"
    lake.put("/fresh/b", b"")
    lake.put("/fresh/a", b"22")
    assert sorted(storage.list_names("")) == ["a", "b"]
    assert storage.read_bytes("a") == b"22"
    found = storage.stat("a")
    assert found is not None
    assert found.size_bytes == 2


def test_store_still_answers_in_a_forked_process(lake: Lake) -> None:
    """Airflow forks: neither a client's threads nor ours are there in the child."""
    lake.put("/fork/a", b"")
    storage = lake.open("/fork")
    assert storage.list_names("") == ["a"]
    child = os.fork()
    if child == 0:
        try:
            is_right = storage.list_names("") == ["a"] and storage.stat("a") is not None
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.list_names("") == ["a"]


def test_hdfs_forbids_names_with_a_colon_and_we_say_that_they_are_not_there(hdfs_lake: HdfsLake) -> None:
    storage = hdfs_lake.open("/colon")
    assert storage.stat("a:b") is None
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("a:b")


def test_listing_on_hdfs_has_the_times_that_webhdfs_reports(hdfs_lake: HdfsLake) -> None:
    for name in ("a", "b"):
        hdfs_lake.put(f"/times/{name}", b"x")
    hdfs_lake.set_modified_ms("/times/a", 1_234_567_890_123)
    listed = {entry.name: entry.modified_ms for entry in hdfs_lake.open("/times").list_entries("")}
    assert listed == hdfs_lake.modified_ms("/times")
    assert listed["a"] == 1_234_567_890_123


def test_one_slash_is_as_good_as_two(lake: Lake) -> None:
    lake.put("/slashes/x", b"1")
    assert lake.open("//slashes//").read_bytes("x") == b"1"


@pytest.mark.soak
def test_folder_on_azure_is_listed_once_next_to_its_marker(azure_lake: AzureLake) -> None:
    azure_lake.put("/marked/folder", b"", hdi_isfolder="true")
    azure_lake.put("/marked/folder/file", b"")
    storage = azure_lake.open("/marked")
    assert [(entry.name, entry.is_folder) for entry in storage.list_entries("")] == [("folder", True)]
    assert storage.list_names("folder") == ["file"]


@pytest.mark.soak
def test_folder_whose_marker_hides_its_files_from_adlfs_is_listed(azure_lake: AzureLake) -> None:
    azure_lake.put("/hidden/folder/", b"")
    storage = azure_lake.open("/hidden")
    assert storage.list_names("folder") == []
    for name in ("file", "below/a", "below/b"):
        azure_lake.put(f"/hidden/folder/{name}", b"")
    found = {entry.name: entry.is_folder for entry in storage.list_entries("folder")}
    assert found == {"file": False, "below": True}


def test_folders_of_an_object_store_may_be_marker_objects(s3_lake: S3Lake) -> None:
    storage = s3_lake.open("/markers")
    s3_lake.put("/markers/folder/", b"")
    s3_lake.put("/markers/folder_$folder$", b"")
    s3_lake.put("/markers/folder/file", b"")
    assert storage.list_entries("") == [FileEntry("folder", 0, 0, is_folder=True)]
    assert storage.list_names("folder") == ["file"]
    s3_lake.put("/markers/empty/", b"")
    assert storage.list_names("empty") == []
    found = storage.stat("empty")
    assert found is not None
    assert found.is_folder


def test_key_with_two_slashes_is_read_as_hadoop_does(s3_lake: S3Lake) -> None:
    s3_lake.put("/slashes/x", b"1")
    assert s3_lake.open("//slashes//").read_bytes("x") == b"1"
    assert s3_lake.open("//slashes//").root == f"{BUCKET}/slashes"

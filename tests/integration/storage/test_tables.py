"""Real tables on real stores: what is read there equals what Hudi said of them, as it does on the local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.errors import TableNotFoundError
from airflow_lake_provider.hudi.base_path import discover_tables
from airflow_lake_provider.hudi.commit_metadata import parse_commit_metadata
from airflow_lake_provider.hudi.file_content import decode
from airflow_lake_provider.hudi.properties import TableProperties, load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from tests.integration.storage.lakes import HdfsLake, Lake, S3Lake, timeline_files, upload
from tests.support.fixture_tables import NAMES, FixtureTable, unpack

TABLES = [name for name in NAMES if name.endswith(("_v6", "_v9"))]


def as_hudi_says(timeline: Timeline) -> list[dict[str, str | None]]:
    return [
        {
            "requested_time": instant.requested_time,
            "action": instant.action.value,
            "state": instant.state.value,
            "completed_time": instant.completed_time,
        }
        for instant in timeline.instants
    ]


def load(storage: Storage) -> tuple[TableProperties, Timeline]:
    properties = load_table_properties(storage)
    return properties, load_timeline(storage, properties)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> FixtureTable:
    return unpack(request.param, tmp_path)


def test_fixtures_cover_both_layouts() -> None:
    assert {name[-2:] for name in TABLES} == {"v6", "v9"}


def test_timeline_on_hdfs_equals_what_hudi_says(hdfs_lake: HdfsLake, table: FixtureTable) -> None:
    """Layout 1 shows completion by modification time, which HDFS lets us set as the local test does."""
    path = f"/equal/{table.path.name}"
    upload(hdfs_lake, table.path, path)
    for file in timeline_files(table.path):
        hdfs_lake.set_modified_ms(f"{path}/{file.relative_to(table.path)}", file.stat().st_mtime_ns // 1_000_000)
    _, timeline = load(hdfs_lake.open(path))
    assert as_hudi_says(timeline) == table.expected
    assert timeline.problems == ()
    found = timeline.latest_write_without_holes()
    assert (found.requested_time if found else None) == table.latest_write_without_holes


def test_timeline_on_an_object_store_equals_what_hudi_says(object_lake: Lake, table: FixtureTable) -> None:
    """No client can set an object's time, so layout 1's completion times are those of the upload, and not compared."""
    path = f"/equal/{table.path.name}"
    upload(object_lake, table.path, path)
    properties, timeline = load(object_lake.open(path))
    found, expected = as_hudi_says(timeline), table.expected
    if properties.layout.completion_is_modification:
        now = [instant.pop("completed_time") for instant in found]
        assert [time is not None for time in now] == [instant["state"] == "COMPLETED" for instant in expected]
        expected = [{key: value for key, value in instant.items() if key != "completed_time"} for instant in expected]
    assert found == expected
    assert timeline.problems == ()


def test_properties_and_every_commit_are_read_as_on_the_local_disk(lake: Lake, table: FixtureTable) -> None:
    path = f"/content/{table.path.name}"
    upload(lake, table.path, path)
    local, remote = open_storage(str(table.path)), lake.open(path)
    properties, timeline = load(remote)
    assert properties == load_table_properties(local)
    for instant in timeline.instants:
        name = f"{properties.timeline_path}/{instant.file_name}"
        assert remote.read_bytes(name) == local.read_bytes(name)
        if instant.action.value in {"commit", "deltacommit"} and instant.is_completed:
            assert parse_commit_metadata(decode(remote.read_bytes(name), name), name).stats


def test_s3_and_s3a_are_the_same_table(s3_lake: S3Lake, table: FixtureTable) -> None:
    path = f"/schemes/{table.path.name}"
    upload(s3_lake, table.path, path)
    first, second = (load(s3_lake.open(path, scheme)) for scheme in s3_lake.schemes)
    assert first[1] == second[1]


def test_tables_below_a_root_are_discovered_and_viewed(lake: Lake, tmp_path: Path) -> None:
    found_at = {
        f"/found/{part}/{name}": unpack(name, tmp_path).path for part, name in (("a", "cow_v9"), ("b", "mor_v9"))
    }
    for path, source in found_at.items():
        upload(lake, source, path)
    root = lake.open("/found").base_path

    def open_below(path: str) -> Storage:
        return lake.open("/found" + path.partition("/found")[2])

    found = discover_tables(root, open_below, depth=2)
    assert (len(found.tables), found.problems, found.is_complete) == (2, (), True)
    for table, path in zip(found.tables, found_at, strict=True):
        view = FileSystemTimelineView(table.base_path, open_below)
        assert view.timeline().instants == load(lake.open(path))[1].instants


def test_missing_table_is_not_found(lake: Lake) -> None:
    with pytest.raises(TableNotFoundError, match="nothing/here"):
        load_table_properties(lake.open("/nothing/here"))


def test_table_in_a_missing_bucket_is_not_found(s3_lake: S3Lake) -> None:
    storage = open_storage("s3://no-such-bucket/table", s3_lake.server.storage_options)
    with pytest.raises(TableNotFoundError, match="no-such-bucket"):
        load_table_properties(storage)
    with pytest.raises(FileNotFoundError):
        storage.list_names(".hoodie")


def test_table_below_the_default_file_system_is_found(hdfs_lake: HdfsLake, tmp_path: Path) -> None:
    upload(hdfs_lake, unpack("cow_v9", tmp_path).path, "/default/cow_v9")
    storage = open_storage("hdfs:///default/cow_v9", {"fs.defaultFS": hdfs_lake.cluster.url})
    assert load(storage)[1].instants


def test_table_of_a_nameservice_is_found_past_a_dead_namenode(hdfs_lake: HdfsLake, tmp_path: Path) -> None:
    upload(hdfs_lake, unpack("cow_v9", tmp_path).path, "/ha/cow_v9")
    options = {
        "dfs.nameservices": "cluster",
        "dfs.ha.namenodes.cluster": "dead,alive",
        "dfs.namenode.rpc-address.cluster.dead": "127.0.0.1:1",
        "dfs.namenode.rpc-address.cluster.alive": f"127.0.0.1:{hdfs_lake.cluster.rpc_port}",
    }
    assert load(open_storage("hdfs://cluster/ha/cow_v9", options))[1].instants


def test_table_of_a_view_file_system_is_found(hdfs_lake: HdfsLake, tmp_path: Path) -> None:
    upload(hdfs_lake, unpack("cow_v9", tmp_path).path, "/view/cow_v9")
    url = hdfs_lake.cluster.url
    options = {"fs.viewfs.mounttable.all.link./lake": f"{url}/view", "fs.viewfs.mounttable.all.linkFallback": url}
    assert load(open_storage("viewfs://all/lake/cow_v9", options))[1].instants


@pytest.mark.parametrize("is_named", [True, False], ids=["option", "environment"])
def test_settings_are_read_from_the_configuration_folder(
    hdfs_lake: HdfsLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    upload(hdfs_lake, unpack("cow_v9", tmp_path).path, "/conf/cow_v9")
    folder = tmp_path / "conf"
    folder.mkdir()
    setting = f"<property><name>fs.defaultFS</name><value>{hdfs_lake.cluster.url}</value></property>"
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", "" if is_named else str(folder))
    options = {"config_dir": str(folder)} if is_named else {}
    assert load(open_storage("hdfs:///conf/cow_v9", options))[1].instants

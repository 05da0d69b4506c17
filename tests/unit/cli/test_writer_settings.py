"""The settings of writers: one list for a job and for a cluster, and the lock's own settings for each class."""

from __future__ import annotations

import pytest

from airflow_lake_provider.cli.writer_settings import (
    FILE_LOCK,
    FLINK_SERVICES,
    flink_text,
    hudi_defaults_text,
    lock_options,
    spark_text,
    suggest_lock,
    writer_options,
)

URL = "http://airflow:8080/v1/hoodie/callback"


def test_file_of_a_cluster_holds_the_settings_of_a_writer_and_nothing_of_a_table() -> None:
    options = writer_options(URL, FILE_LOCK)
    lines = [line for line in hudi_defaults_text(options).splitlines() if not line.startswith("#")]
    assert lines == spark_text(options).splitlines()
    assert not [line for line in lines if line.startswith(("hoodie.table.name", "hoodie.datasource"))]
    assert f"hoodie.write.commit.callback.http.url={URL}" in lines


@pytest.mark.parametrize(
    ("provider", "settings"),
    [
        (FILE_LOCK, {"hoodie.write.lock.filesystem.expire"}),
        (
            "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider",
            {"hoodie.write.lock.zookeeper.url"},
        ),
        ("com.example.OwnLock", set()),
    ],
)
def test_lock_comes_with_the_settings_of_its_class(provider: str, settings: set[str]) -> None:
    assert lock_options(provider).pop("hoodie.write.lock.provider") == provider
    assert set(lock_options(provider)) == settings | {"hoodie.write.lock.provider"}


@pytest.mark.parametrize(
    ("paths", "lock"),
    [
        ([], FILE_LOCK),
        (["/lake/orders", "hdfs://nn/lake", "file:///lake"], FILE_LOCK),
        (["s3a://lake/orders"], "ZookeeperBasedImplicitBasePathLockProvider"),
        (["/lake/orders", "abfss://c@a.dfs.core.windows.net/lake"], "ZookeeperBasedImplicitBasePathLockProvider"),
    ],
)
def test_lock_without_a_choice_works_in_the_stores_of_the_tables(paths: list[str], lock: str) -> None:
    """Hudi refuses its lock of a file on an object store with each write."""
    assert suggest_lock(paths).endswith(lock)


def test_flinks_own_switches_are_off() -> None:
    text = flink_text(writer_options(URL, FILE_LOCK))
    assert all(f"'{switch}' = 'false'" in text for switch in FLINK_SERVICES)

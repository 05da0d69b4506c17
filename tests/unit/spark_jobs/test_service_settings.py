import pytest
from service_settings import ALWAYS, WHEN_SCHEDULING, service_settings, wait_for_lock_without_end

PACKAGE = "org.apache.hudi.client.transaction.lock."
SHARED = {"hoodie.write.lock.provider": PACKAGE + "ZookeeperBasedLockProvider"}


@pytest.mark.parametrize("key", [*ALWAYS, *WHEN_SCHEDULING])
def test_settings_that_keep_the_table_whole_cannot_be_overridden(key: str) -> None:
    must = {**ALWAYS, **WHEN_SCHEDULING}[key]
    assert service_settings({key: "something else"}, 9, {"files"})[key] == must


def test_indexes_of_the_table_are_never_dropped_and_the_plan_is_not_handed_on() -> None:
    settings = service_settings({}, 9, {"files"})
    assert settings["hoodie.metadata.auto.delete.partitions"] == "false"
    assert settings["hoodie.table.service.manager.enabled"] == "false"
    assert settings["hoodie.write.concurrency.mode"] == "optimistic_concurrency_control"


@pytest.mark.parametrize(
    ("partitions", "metadata", "column_stats"),
    [
        pytest.param(set(), "false", "false", id="no-metadata-table"),
        pytest.param({"files", "record_index"}, "true", "false", id="no-column-statistics"),
        pytest.param({"files", "column_stats", "partition_stats"}, "true", "true", id="both"),
    ],
)
def test_metadata_table_is_kept_as_its_owner_has_it(partitions: set[str], metadata: str, column_stats: str) -> None:
    settings = service_settings({}, 6, partitions)
    assert settings["hoodie.metadata.enable"] == metadata
    assert settings["hoodie.metadata.index.column.stats.enable"] == column_stats
    assert settings["hoodie.write.table.version"] == "6"


def test_caller_may_set_what_is_not_guarded() -> None:
    options = {"hoodie.compaction.target.io": "100", "hoodie.metadata.enable": "false", **SHARED}
    settings = service_settings(options, 9, {"files"})
    assert {key: settings[key] for key in options} == options


def test_only_a_lock_file_is_waited_for_without_end() -> None:
    retries = {"hoodie.write.lock.client.num_retries": "3"}
    lock_file = {"hoodie.write.lock.provider": PACKAGE + "FileSystemBasedLockProvider"}
    assert wait_for_lock_without_end({**SHARED, **retries}) == {**SHARED, **retries}
    assert int(wait_for_lock_without_end({**lock_file, **retries})["hoodie.write.lock.client.num_retries"]) > 10**6

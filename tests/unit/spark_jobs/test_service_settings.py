import pytest

from airflow_lake_provider.config.owned_options import OWNED_OPTIONS
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.shared.hudi_settings import STREAMING_WRITES
from lake_jobs.hudi.settings import (
    ALWAYS,
    RECENT_WRITES,
    WHEN_SCHEDULING,
    MetadataWriteMode,
    decide_metadata_write_mode,
    service_settings,
    wait_for_lock_without_end,
    write_metadata_as_writers,
)

PACKAGE = "org.apache.hudi.client.transaction.lock."
SHARED = {"hoodie.write.lock.provider": PACKAGE + "ZookeeperBasedLockProvider"}


@pytest.mark.parametrize("service", Service)
@pytest.mark.parametrize("key", ALWAYS)
def test_settings_that_keep_the_table_whole_cannot_be_overridden(service: Service, key: str) -> None:
    assert service_settings(service, {key: "something else"}, 9, {"files"})[key] == ALWAYS[key]


@pytest.mark.parametrize(
    ("service", "key"), [(service, key) for service in Service for key in WHEN_SCHEDULING.get(service, {})]
)
def test_gate_of_hudi_stands_open_for_the_service_that_is_scheduled(service: Service, key: str) -> None:
    settings = service_settings(service, {key: "1000"}, 9, {"files"})
    assert settings[key] == WHEN_SCHEDULING[service][key]


@pytest.mark.parametrize("service", Service)
def test_gates_of_other_services_are_left_as_the_caller_has_them(service: Service) -> None:
    others = {key: "1000" for other in Service if other is not service for key in WHEN_SCHEDULING.get(other, {})}
    settings = service_settings(service, others, 9, {"files"})
    assert {key: settings[key] for key in others} == others


@pytest.mark.parametrize("service", Service)
def test_no_service_rides_along_with_another(service: Service) -> None:
    settings = service_settings(service, {}, 9, {"files"})
    for key in (
        "hoodie.clean.automatic",
        "hoodie.archive.automatic",
        "hoodie.compact.inline",
        "hoodie.compact.schedule.inline",
        "hoodie.clustering.inline",
        "hoodie.clustering.schedule.inline",
        "hoodie.clustering.async.enabled",
        "hoodie.log.compaction.inline",
        "hoodie.partition.ttl.inline",
    ):
        assert settings[key] == "false"
    # The switch for services that are called by name, as this one is.
    assert settings["hoodie.table.services.enabled"] == "true"


@pytest.mark.parametrize("service", Service)
def test_indexes_of_the_table_are_never_dropped_and_the_plan_is_not_handed_on(service: Service) -> None:
    settings = service_settings(service, {}, 9, {"files"})
    assert settings["hoodie.metadata.auto.delete.partitions"] == "false"
    assert settings["hoodie.table.service.manager.enabled"] == "false"
    assert settings["hoodie.write.concurrency.mode"] == "optimistic_concurrency_control"
    assert settings["hoodie.clean.failed.writes.policy"] == "LAZY"


@pytest.mark.parametrize("service", Service)
@pytest.mark.parametrize(
    ("partitions", "metadata", "column_stats"),
    [
        pytest.param(set(), "false", "false", id="no-metadata-table"),
        pytest.param({"files", "record_index"}, "true", "false", id="no-column-statistics"),
        pytest.param({"files", "column_stats", "partition_stats"}, "true", "true", id="both"),
    ],
)
def test_metadata_table_is_kept_as_its_owner_has_it(
    service: Service, partitions: set[str], metadata: str, column_stats: str
) -> None:
    settings = service_settings(service, {}, 6, partitions)
    assert settings["hoodie.metadata.enable"] == metadata
    assert settings["hoodie.metadata.index.column.stats.enable"] == column_stats
    assert settings["hoodie.write.table.version"] == "6"


@pytest.mark.parametrize(
    ("service", "options"),
    [
        pytest.param(Service.COMPACTION, {"hoodie.compaction.target.io": "100"}, id="compaction"),
        pytest.param(Service.CLUSTERING, {"hoodie.clustering.plan.strategy.sort.columns": "city"}, id="clustering"),
        pytest.param(
            Service.CLEAN,
            {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "2"},
            id="clean",
        ),
        pytest.param(Service.ARCHIVE, {"hoodie.keep.min.commits": "4", "hoodie.keep.max.commits": "5"}, id="archive"),
    ],
)
def test_caller_may_set_what_is_not_guarded(service: Service, options: dict[str, str]) -> None:
    asked = {"hoodie.metadata.enable": "false", **options, **SHARED}
    settings = service_settings(service, asked, 9, {"files"})
    assert {key: settings[key] for key in asked} == asked


def test_only_a_lock_file_is_waited_for_without_end() -> None:
    retries = {"hoodie.write.lock.client.num_retries": "3"}
    lock_file = {"hoodie.write.lock.provider": PACKAGE + "FileSystemBasedLockProvider"}
    assert wait_for_lock_without_end({**SHARED, **retries}) == {**SHARED, **retries}
    assert int(wait_for_lock_without_end({**lock_file, **retries})["hoodie.write.lock.client.num_retries"]) > 10**6


def test_what_a_service_sets_itself_is_refused_in_the_tables_file() -> None:
    # Of the metadata table: only one service sets these, and the writers' values hold for all others.
    shared = {
        "hoodie.metadata.compact.max.delta.commits",
        "hoodie.metadata.table.service.manager.enabled",
        "hoodie.metadata.streaming.write.enabled",
    }
    own = ALWAYS.keys() | {key for settings in WHEN_SCHEDULING.values() for key in settings}
    assert own - shared <= OWNED_OPTIONS.keys()


@pytest.mark.parametrize(
    ("options", "mode", "expected"),
    [
        pytest.param({}, MetadataWriteMode.AT_COMMIT, {STREAMING_WRITES: "false"}, id="as-writers-of-1.0"),
        pytest.param({}, MetadataWriteMode.STREAMING, {}, id="hudis-default"),
        pytest.param({}, MetadataWriteMode.UNKNOWN, {}, id="nothing-is-known"),
        pytest.param(
            {STREAMING_WRITES: "true"},
            MetadataWriteMode.AT_COMMIT,
            {STREAMING_WRITES: "true"},
            id="the-tables-owner-knows-better",
        ),
    ],
)
def test_services_update_the_metadata_table_as_writers_do(
    options: dict[str, str], mode: MetadataWriteMode, expected: dict[str, str]
) -> None:
    assert write_metadata_as_writers(options, mode) == expected


# --- How the writers update the metadata table, by the last writes (newest first)

UPSERT, AT_COMMIT, STREAMING = ("UPSERT", False), MetadataWriteMode.AT_COMMIT, MetadataWriteMode.STREAMING
STREAMED, UNSEEN, STREAMED_COMPACTION = ("UPSERT", True), ("UPSERT", None), ("COMPACT", True)


@pytest.mark.parametrize(
    ("writes", "of_writers", "of_all"),
    [
        pytest.param([], MetadataWriteMode.UNKNOWN, MetadataWriteMode.UNKNOWN, id="no-writes"),
        pytest.param([UNSEEN], MetadataWriteMode.UNKNOWN, MetadataWriteMode.UNKNOWN, id="nothing-shows-it"),
        pytest.param([UNSEEN, UPSERT], AT_COMMIT, AT_COMMIT, id="at-commit"),
        pytest.param([UPSERT] * 3 + [STREAMED], STREAMING, STREAMING, id="one-streaming-writer-is-enough"),
        pytest.param([UPSERT] * RECENT_WRITES + [STREAMED], AT_COMMIT, AT_COMMIT, id="writers-that-streamed-long-ago"),
        # A compaction that once streamed would otherwise make every later service stream, against the writers.
        pytest.param([STREAMED_COMPACTION, UPSERT], AT_COMMIT, STREAMING, id="services-say-nothing-of-writers"),
        pytest.param(
            [STREAMED_COMPACTION, ("CLUSTER", False), ("LOG_COMPACT", True)] * 5 + [UPSERT],
            AT_COMMIT,
            STREAMING,
            id="many-services-hide-no-writer",
        ),
    ],
)
def test_metadata_is_written_as_the_last_writers_do(
    writes: list[tuple[str, bool | None]], of_writers: MetadataWriteMode, of_all: MetadataWriteMode
) -> None:
    asked = [(operation, lambda streamed=streamed: streamed) for operation, streamed in writes]
    assert decide_metadata_write_mode(asked, without_services=True) is of_writers
    assert decide_metadata_write_mode(asked, without_services=False) is of_all

"""Which buckets a table has, and which services its layout forbids."""

from __future__ import annotations

import pytest

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.shared.hudi_settings import (
    CONFLICT_RESOLUTION_STRATEGY,
    MERGER_CLASSES,
    WRITE_PARTITION_FIELDS,
    WRITE_RECORD_KEY,
)
from airflow_lake_provider.table_layout import (
    CONFLICTS_BY_BUCKET,
    CONFLICTS_BY_FILE_GROUP,
    CONSISTENT_CLUSTERING,
    HASH_FIELD,
    KEY_GENERATOR,
    Buckets,
    find_buckets,
    find_layout_problem,
    give_layout,
    read_layout,
)

NAMED = {"hoodie.index.type": "bucket"}
CONSISTENT = {**NAMED, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}
NUMBERED = ("00000000-3a4f-4ad8-9c4e-0a5bb2b2d0a1-0", "00000017-91d2-4f38-8f7d-2f6d2b0f11aa-0")
FIXED = ("00000000-0000-0000-0000-000000000000-0", "00000001-0000-0000-0000-000000000000-0")
NON_BLOCKING = {**NAMED, "hoodie.write.concurrency.mode": "non_blocking_concurrency_control"}
RANDOM = "6e55376a-91d2-4f38-8f7d-2f6d2b0f11aa-0"


@pytest.mark.parametrize(
    ("file_ids", "has_hashing_metadata", "options", "buckets"),
    [
        pytest.param(NUMBERED, False, {}, Buckets.SIMPLE, id="all-file-ids-have-numbers"),
        pytest.param((*NUMBERED, *FIXED), False, {}, Buckets.FIXED_NAMES, id="file-ids-follow-from-numbers"),
        pytest.param(NUMBERED, False, NON_BLOCKING, Buckets.FIXED_NAMES, id="new-file-ids-will-follow-from-numbers"),
        pytest.param((*NUMBERED, RANDOM), False, {}, Buckets.NONE, id="one-has-none"),
        pytest.param(("61553760-91d2-4f38",), False, {}, Buckets.NONE, id="random-digits-are-no-bucket"),
        pytest.param((RANDOM,), True, {}, Buckets.CONSISTENT, id="hashing-metadata"),
        pytest.param(NUMBERED, True, NAMED, Buckets.CONSISTENT, id="the-table-wins-over-its-options"),
        pytest.param((), False, {}, Buckets.NONE, id="empty"),
        pytest.param((), False, NAMED, Buckets.SIMPLE, id="empty-and-named"),
        pytest.param((), False, CONSISTENT, Buckets.CONSISTENT, id="empty-and-named-consistent"),
        pytest.param((RANDOM,), False, {"hoodie.index.type": "BLOOM"}, Buckets.NONE, id="another-index"),
    ],
)
def test_buckets_are_found_by_the_table(
    file_ids: tuple[str, ...], has_hashing_metadata: bool, options: dict[str, str], buckets: Buckets
) -> None:
    assert find_buckets(file_ids, has_hashing_metadata=has_hashing_metadata, hudi_options=options) is buckets


KEYED = {"hoodie.table.recordkey.fields": "id"}
COMPOSITE = {"hoodie.table.recordkey.fields": "id,day"}
LIMITS = {"hoodie.bucket.index.min.num.buckets": "1", "hoodie.bucket.index.max.num.buckets": "8"}
VIRTUAL = {**KEYED, "hoodie.populate.meta.fields": "false", "hoodie.table.partition.fields": "city"}
COMPLEX = {**VIRTUAL, "hoodie.table.keygenerator.type": "COMPLEX"}
OF_A_USER = {**VIRTUAL, "hoodie.table.keygenerator.class": "com.acme.SimpleKeys"}
OWN_MERGER = {
    **KEYED,
    "hoodie.record.merge.mode": "CUSTOM",
    "hoodie.record.merge.strategy.id": "1897ef5f-18bc-4557-939c-9d6a8afd1519",
}
PAYLOAD = {**OWN_MERGER, "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000"}
LOST_MERGER = {
    **KEYED,
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
    "hoodie.compaction.record.merger.strategy": "8b1f7e66-8f2c-4f57-8f0a-2d9d1c8f2a11",
}
EVENT_TIME = {**LOST_MERGER, "hoodie.compaction.record.merger.strategy": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"}
UNAVAILABLE = {
    **KEYED,
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.table.partial.update.mode": "FILL_UNAVAILABLE",
}
BY_COLUMN = {"lake.ttl.column": "seen"}
CUSTOM = {**VIRTUAL, "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator"}


@pytest.mark.parametrize(
    ("service", "mode", "buckets", "properties", "options", "words"),
    [
        (Service.CLUSTERING, Mode.SCHEDULE, Buckets.SIMPLE, KEYED, {}, "no bucket number"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.SIMPLE, KEYED, {}, "no bucket number"),
        (Service.CLUSTERING, Mode.WITHDRAW, Buckets.SIMPLE, KEYED, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.CONSISTENT, KEYED, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.CONSISTENT, COMPOSITE, {}, "hoodie.bucket.index.hash.field: set"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.CONSISTENT, COMPOSITE, {HASH_FIELD: "id"}, ""),
        (Service.CLUSTERING, Mode.SCHEDULE, Buckets.CONSISTENT, KEYED, {}, "min.num.buckets, hoodie.bucket.index.max"),
        (Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, Buckets.CONSISTENT, KEYED, LIMITS, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, VIRTUAL, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, CUSTOM, {}, "virtual keys"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, COMPLEX, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, OF_A_USER, {}, "virtual keys"),
        (
            Service.CLUSTERING,
            Mode.SCHEDULE,
            Buckets.NONE,
            OWN_MERGER,
            {MERGER_CLASSES: "com.acme.Own"},
            "does not give to a clustering",
        ),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.NONE, OWN_MERGER, {}, "set their hoodie.write.record.merge.custom"),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.NONE, OWN_MERGER, {MERGER_CLASSES: "com.acme.Own"}, ""),
        (Service.COMPACTION, Mode.WITHDRAW, Buckets.NONE, OWN_MERGER, {}, ""),
        (Service.CLUSTERING, Mode.SCHEDULE, Buckets.NONE, PAYLOAD, {}, ""),
        *(
            (service, Mode.EXECUTE, Buckets.NONE, LOST_MERGER, {MERGER_CLASSES: "com.acme.Own"}, "in its place")
            for service in (Service.COMPACTION, Service.LOGCOMPACTION, Service.CLUSTERING, Service.TTL)
        ),
        (Service.CLUSTERING, Mode.WITHDRAW, Buckets.NONE, LOST_MERGER, {}, ""),
        (Service.CLEAN, Mode.EXECUTE, Buckets.NONE, LOST_MERGER, {}, ""),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.NONE, EVENT_TIME, {}, ""),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.NONE, LOST_MERGER | {"hoodie.table.type": "COPY_ON_WRITE"}, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, UNAVAILABLE, {}, "placeholder in the place of the values"),
        (Service.CLUSTERING, Mode.WITHDRAW, Buckets.NONE, UNAVAILABLE, {}, ""),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.NONE, UNAVAILABLE, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, UNAVAILABLE | {"hoodie.table.type": "COPY_ON_WRITE"}, {}, ""),
        (Service.TTL, Mode.EXECUTE, Buckets.CONSISTENT, KEYED, {}, "consistent hashing"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.FIXED_NAMES, KEYED, {}, "no bucket number"),
        (Service.TTL, Mode.EXECUTE, Buckets.FIXED_NAMES, KEYED, {}, "fixed name: rows that come back"),
        (Service.TTL, Mode.EXECUTE, Buckets.SIMPLE, KEYED, {}, ""),
        (Service.TTL, Mode.EXECUTE, Buckets.NONE, VIRTUAL, {}, ""),
        (Service.TTL, Mode.EXECUTE, Buckets.NONE, VIRTUAL, BY_COLUMN, "virtual keys"),
        (Service.TTL, Mode.EXECUTE, Buckets.NONE, OWN_MERGER, BY_COLUMN, "may keep a row that was deleted"),
        (Service.TTL, Mode.EXECUTE, Buckets.CONSISTENT, KEYED, BY_COLUMN, "deletion of rows was not tried"),
        (Service.TTL, Mode.EXECUTE, Buckets.FIXED_NAMES, KEYED, BY_COLUMN, "pass over the table's lock"),
        (Service.TTL, Mode.EXECUTE, Buckets.SIMPLE, KEYED, BY_COLUMN, ""),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.SIMPLE, KEYED, {}, ""),
    ],
)
def test_layout_forbids_what_would_lose_rows(
    service: Service,
    mode: Mode,
    buckets: Buckets,
    properties: dict[str, str],
    options: dict[str, str],
    words: str,
) -> None:
    problem = find_layout_problem(service, mode, read_layout(properties, buckets), options)
    assert words in problem
    assert bool(problem) is bool(words)


def test_client_gets_keys_and_consistent_hashing_from_the_table() -> None:
    layout = read_layout(COMPOSITE, Buckets.CONSISTENT)
    by_file_group = {CONFLICT_RESOLUTION_STRATEGY: CONFLICTS_BY_FILE_GROUP}
    assert give_layout(Service.COMPACTION, {}, layout, "x") == {WRITE_RECORD_KEY: "id,day", **by_file_group}
    given = give_layout(Service.COMPACTION, {WRITE_RECORD_KEY: "id"}, layout, "x")
    assert given == {WRITE_RECORD_KEY: "id", **by_file_group}
    given = give_layout(Service.CLUSTERING, {"hoodie.index.type": "BLOOM"}, layout, "x")
    assert given == {WRITE_RECORD_KEY: "id,day", **by_file_group, **CONSISTENT_CLUSTERING}


@pytest.mark.parametrize(
    ("named", "given"),
    [("", CONFLICTS_BY_FILE_GROUP), (CONFLICTS_BY_BUCKET, CONFLICTS_BY_FILE_GROUP), ("our.Strategy", "our.Strategy")],
)
def test_client_of_consistent_hashing_reads_no_bucket_number_from_file_ids(named: str, given: str) -> None:
    options = {CONFLICT_RESOLUTION_STRATEGY: named, **CONSISTENT_CLUSTERING}
    for service in (Service.LOGCOMPACTION, Service.CLUSTERING):
        found = give_layout(service, options, read_layout(COMPOSITE, Buckets.CONSISTENT), "x")
        assert found[CONFLICT_RESOLUTION_STRATEGY] == given
        found = give_layout(service, options, read_layout(COMPOSITE, Buckets.SIMPLE), "x")
        assert found[CONFLICT_RESOLUTION_STRATEGY] == named


def test_client_of_a_table_with_virtual_keys_gets_its_key_generator() -> None:
    given = give_layout(Service.CLUSTERING, {}, read_layout(VIRTUAL, Buckets.NONE), "some.KeyGenerator")
    assert given == {WRITE_RECORD_KEY: "id", WRITE_PARTITION_FIELDS: "city", KEY_GENERATOR: "some.KeyGenerator"}

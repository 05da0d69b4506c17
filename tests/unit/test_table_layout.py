"""Which buckets a table has, and which services its layout forbids."""

from __future__ import annotations

import pytest

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.table_layout import Buckets, find_buckets, find_layout_problem

NAMED = {"hoodie.index.type": "bucket"}
CONSISTENT = {**NAMED, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}
NUMBERED = ("00000000-3a4f-4ad8-9c4e-0a5bb2b2d0a1-0", "00000017-91d2-4f38-8f7d-2f6d2b0f11aa-0")
RANDOM = "6e55376a-91d2-4f38-8f7d-2f6d2b0f11aa-0"


@pytest.mark.parametrize(
    ("file_ids", "has_hashing_metadata", "options", "buckets"),
    [
        pytest.param(NUMBERED, False, {}, Buckets.SIMPLE, id="all-file-ids-have-numbers"),
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


@pytest.mark.parametrize(
    ("service", "mode", "buckets", "properties", "words"),
    [
        (Service.CLUSTERING, Mode.SCHEDULE, Buckets.SIMPLE, {}, "no bucket number"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.CONSISTENT, {}, "consistent hashing"),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, {"hoodie.populate.meta.fields": "false"}, "virtual keys"),
        (Service.TTL, Mode.EXECUTE, Buckets.CONSISTENT, {}, "consistent hashing"),
        (Service.CLUSTERING, Mode.WITHDRAW, Buckets.SIMPLE, {}, ""),
        (Service.CLUSTERING, Mode.EXECUTE, Buckets.NONE, {"hoodie.populate.meta.fields": "true"}, ""),
        (Service.TTL, Mode.EXECUTE, Buckets.SIMPLE, {}, ""),
        (Service.COMPACTION, Mode.EXECUTE, Buckets.SIMPLE, {}, ""),
    ],
)
def test_layout_forbids_what_would_lose_rows(
    service: Service, mode: Mode, buckets: Buckets, properties: dict[str, str], words: str
) -> None:
    problem = find_layout_problem(service, mode, buckets, properties)
    assert words in problem
    assert bool(problem) is bool(words)

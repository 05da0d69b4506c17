"""No service rewrites a table on which a rewrite would have changed what readers see."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.hudi.rewrite_block import load_rewrite_block
from airflow_lake_provider.job_contract import (
    REWRITE_BLOCK,
    REWRITES,
    VERIFY,
    RowsDiffer,
    Service,
    describe_block,
    to_json,
)
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.rules import Decision, Verdict, block_rewrites

DUE = tuple(Decision(service, Verdict.DUE, "it is due") for service in Service)
FOUND = RowsDiffer(Service.COMPACTION, "20260101000000000", "partition 'p', file group f: keys: 7 (other values)")


def test_only_services_that_rewrite_rows_are_blocked_and_only_when_there_is_a_problem() -> None:
    blocked = block_rewrites(DUE, "rows differ")

    assert {each.service for each in blocked if each.verdict is Verdict.BLOCKED} == REWRITES
    assert all(each.reason == "it is due, but rows differ" for each in blocked if each.service in REWRITES)
    assert block_rewrites(DUE, "") == DUE


def test_the_mark_says_what_differs_and_what_to_do_and_one_that_is_damaged_blocks_too() -> None:
    text = describe_block(to_json(FOUND).encode())

    assert "compaction 20260101000000000 would have changed what readers see: partition 'p'" in text
    assert REWRITE_BLOCK in text
    assert describe_block(b"\xff{").startswith("a service would have changed what readers see. ")


class FakeStorage:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def read_bytes(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]


def test_a_table_without_the_mark_is_not_blocked() -> None:
    assert load_rewrite_block(FakeStorage({})) == ""  # type: ignore[arg-type]
    assert load_rewrite_block(FakeStorage({REWRITE_BLOCK: b""})) != ""  # type: ignore[arg-type]


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLUSTERING])
def test_the_policy_reaches_the_job(service: Service) -> None:
    strict = TablePolicy.model_validate({service.value: {"verify": "all"}})

    assert service_options(service, strict)[VERIFY] == "all"
    assert VERIFY not in service_options(service, TablePolicy())

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import FailureKind, JobResult, Outcome, Service, ServiceResult
from airflow_lake_provider.operators.memory import earlier_results, ran_out_of_memory, with_more_memory


def result(kind: FailureKind | None) -> JobResult:
    outcome = Outcome.COMPLETED if kind is None else Outcome.FAILED
    return JobResult("job", (ServiceResult(Service.COMPACTION, outcome, failure_kind=kind),))


@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ([], False),
        ([None, result(FailureKind.LOCK)], False),
        ([result(FailureKind.OUT_OF_MEMORY), result(FailureKind.LOCK), None], True),
    ],
)
def test_any_earlier_try_that_ran_out_of_memory_counts(results: list[JobResult | None], answer: bool) -> None:
    assert ran_out_of_memory(results) is answer
    assert earlier_results(len(results) + 1, lambda number: results[number - 1]) == results


def test_memory_of_driver_and_executors_is_doubled_and_other_settings_stay() -> None:
    conf = {"spark.executor.memory": "4g", "spark.x": "1"}
    assert with_more_memory(conf) == {"spark.executor.memory": "8g", "spark.driver.memory": "2g", "spark.x": "1"}
    assert with_more_memory({"spark.driver.memory": "512MB"})["spark.driver.memory"] == "1024M"


def test_memory_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory is 'much'"):
        with_more_memory({"spark.driver.memory": "much"})

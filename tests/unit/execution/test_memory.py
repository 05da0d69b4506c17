from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.job import earlier_results, find_out_of_memory, with_more_memory
from airflow_lake_provider.job_contract import FailureKind, JobResult, Outcome, Service, ServiceResult


def result(kind: FailureKind | None, **memory: str) -> JobResult:
    outcome = Outcome.COMPLETED if kind is None else Outcome.FAILED
    had = {f"spark.{who}.memory": size for who, size in memory.items()}
    return JobResult("job", (ServiceResult(Service.COMPACTION, outcome, failure_kind=kind),), memory=had)


FAILED = result(FailureKind.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ([], False),
        ([None, result(FailureKind.LOCK)], False),
        ([result(FailureKind.OUT_OF_MEMORY), result(FailureKind.LOCK), None], True),
    ],
)
def test_any_earlier_try_that_ran_out_of_memory_counts(results: list[JobResult | None], answer: bool) -> None:
    assert (find_out_of_memory(results) is not None) is answer
    assert earlier_results(len(results) + 1, lambda number: results[number - 1]) == results


def test_memory_of_driver_and_executors_is_doubled_and_other_settings_stay() -> None:
    conf = {"spark.executor.memory": "4g", "spark.x": "1"}
    assert with_more_memory(conf, FAILED) == {
        "spark.executor.memory": "8g",
        "spark.driver.memory": "2g",
        "spark.x": "1",
    }
    assert with_more_memory({"spark.driver.memory": "512MB"}, FAILED)["spark.driver.memory"] == "1024M"


def test_memory_of_the_failed_try_is_doubled_wherever_it_was_set_and_once() -> None:
    """Spark's defaults file may say 8g; what this task does not know it must not make smaller."""
    first = result(FailureKind.OUT_OF_MEMORY, driver="8g")
    second = result(FailureKind.OUT_OF_MEMORY, driver="16g", executor="2g")
    failed = find_out_of_memory([None, first, second])
    assert failed is first
    assert with_more_memory({}, failed) == {"spark.driver.memory": "16g", "spark.executor.memory": "2g"}


def test_memory_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory is 'much'"):
        with_more_memory({"spark.driver.memory": "much"}, FAILED)

"""More memory for the tries after one that ran out of it: twice as much, once. Pure, but for reading results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.job_contract import JobResult

MEMORY_KEYS = ("spark.driver.memory", "spark.executor.memory")
# Spark's own default for both.
_DEFAULT = "1g"
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)


def ran_out_of_memory(results: Iterable[JobResult | None]) -> bool:
    """Whether one of the earlier tries says that it ran out of memory."""
    return any(
        service.failure_kind is FailureKind.OUT_OF_MEMORY
        for result in results
        if result is not None
        for service in result.services
    )


def with_more_memory(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings with twice the memory for driver and executors. Raises ConfigError."""
    return {**conf, **{key: _doubled(key, conf.get(key, _DEFAULT)) for key in MEMORY_KEYS}}


def earlier_results(try_number: int, read: Callable[[int], JobResult | None]) -> list[JobResult | None]:
    """Return the results of the tries before this one; tries count from 1."""
    return [read(number) for number in range(1, try_number)]


def _doubled(key: str, size: str) -> str:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ConfigError(f"{key} is {size!r}: not a size such as 512m or 4g")
    return f"{int(match['number']) * 2}{match['unit']}"

"""More memory for the tries after one that ran out of it: twice as much, once. Pure, but for reading results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import MEMORY_KEYS, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.job_contract import JobResult

# Spark's own default for both.
_DEFAULT = "1g"
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)


def find_out_of_memory(results: Iterable[JobResult | None]) -> JobResult | None:
    """Return what the first of the earlier tries that ran out of memory left; None when none did."""
    return next(
        (
            result
            for result in results
            if result is not None
            and any(service.failure_kind is FailureKind.OUT_OF_MEMORY for service in result.services)
        ),
        None,
    )


def with_more_memory(conf: Mapping[str, str], failed: JobResult) -> dict[str, str]:
    """Return the Spark settings with twice what driver and executors of the failed try had. Raises ConfigError.

    That may stand in spark-defaults.conf or the connection; what is set here wins over both.
    """
    had = {**conf, **failed.memory}
    return {**conf, **{key: _doubled(key, had.get(key, _DEFAULT)) for key in MEMORY_KEYS}}


def earlier_results(try_number: int, read: Callable[[int], JobResult | None]) -> list[JobResult | None]:
    """Return the results of the tries before this one; tries count from 1."""
    return [read(number) for number in range(1, try_number)]


def _doubled(key: str, size: str) -> str:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ConfigError(f"{key} is {size!r}: not a size such as 512m or 4g")
    return f"{int(match['number']) * 2}{match['unit']}"

"""More memory for the tries after one that ran out of it: twice as much, once.

How much that try had is in its result, in `[lake] work_dir`. Airflow's store of the task's state has it as well: the
next try may begin on a worker that has a disk of its own.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.job_files import find_result
from airflow_lake_provider.job_contract import MEMORY_KEYS, FailureKind, JobResult
from airflow_lake_provider.replication.job import ReplicationResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from airflow_lake_provider.execution.engines.job_files import JobFolder

Result: TypeAlias = JobResult | ReplicationResult

log = logging.getLogger(__name__)

_KEPT = "lake_out_of_memory"
"""The key in the store of the task's state."""
# Spark's own default for both.
_DEFAULT = "1g"
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)


def find_shortage(context: Context, folder: JobFolder, kind: type[Result]) -> Mapping[str, str] | None:
    """Return the memory of this task's first earlier try that ran out of it; None when none did.

    Settings whose values that try did not report are missing. `kind` is what its tries leave as a result.
    """
    here = first_shortage(
        find_result(replace(folder, try_number=number).result_path, kind) for number in range(1, folder.try_number)
    )
    return _recall(context) if here is None and folder.try_number > 1 else here


def first_shortage(results: Iterable[Result | None]) -> Mapping[str, str] | None:
    """Return the memory of the first result of a try that ran out of it; None when none did. Pure."""
    return next((result.memory for result in results if result is not None and _ran_out(result)), None)


def with_more_memory(conf: Mapping[str, str], shortage: Mapping[str, str] | None) -> dict[str, str]:
    """Return the Spark settings with twice the memory that a failed try's driver and executors had. Raises ConfigError.

    The memory may be set in spark-defaults.conf or the connection; these settings override both. Pure.
    """
    if shortage is None:
        return dict(conf)
    had = {**conf, **shortage}
    return {**conf, **{key: _doubled(key, had.get(key, _DEFAULT)) for key in MEMORY_KEYS}}


def keep_shortage(context: Context, memory: Mapping[str, str]) -> None:
    """Keep the memory of this try, which ran out of it, for the task's next one on any worker.

    A failure is only logged: the next try may still find the result.
    """
    store: Any = context.get("task_state_store")
    try:
        if store is not None:
            store.set(_KEPT, dict(memory))
    except Exception as error:  # noqa: BLE001 - Airflow's, of the way to its server and of a backend that anyone wrote
        log.warning("a try on another worker will not know that this one ran out of memory: %s", error)


def _recall(context: Context) -> Mapping[str, str] | None:
    store: Any = context.get("task_state_store")
    try:
        kept = None if store is None else store.get(_KEPT)
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("whether an earlier try ran out of memory on another worker is not known: %s", error)
        return None
    if not isinstance(kept, dict):
        return None
    return {key: str(kept[key]) for key in MEMORY_KEYS if key in kept}


def _ran_out(result: Result) -> bool:
    kinds = [result.failure_kind] if isinstance(result, ReplicationResult) else _kinds_of(result)
    return FailureKind.OUT_OF_MEMORY in kinds


def _kinds_of(result: JobResult) -> list[FailureKind | None]:
    return [service.failure_kind for service in result.services]


def _doubled(key: str, size: str) -> str:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ConfigError(f"{key} is {size!r}: not a size such as 512m or 4g")
    return f"{int(match['number']) * 2}{match['unit']}"

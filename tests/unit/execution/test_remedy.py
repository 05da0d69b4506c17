from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_lake_provider.errors import (
    EngineAwayError,
    EngineError,
    ExecutorBusyError,
    LakeError,
    LeaseLostError,
    ManagerUnreachableError,
    ServiceFailedError,
    ServiceRefusedError,
    StorageError,
    StorageOptionError,
    WorkDirError,
    WriterUnguardedError,
)
from airflow_lake_provider.execution.retry import (
    MAX_WAIT_S,
    MAX_WAITS,
    REMEDIES,
    Pauses,
    as_task_error,
    find_wait_s,
    pause_s,
)
from airflow_lake_provider.job_contract import FailureKind

PAUSES = Pauses(delay_s=30, max_delay_s=200)


@pytest.mark.parametrize(
    ("kind", "pauses_s"),
    [
        pytest.param(FailureKind.LOCK, [30, 60, 90, 120], id="lock-later-and-later"),
        pytest.param(FailureKind.BUSY, [60, 120, 180, 200], id="busy-until-the-other-is-done"),
        pytest.param(FailureKind.CONFLICT, [60, 120, 180, 200], id="conflict-waits-for-the-writer"),
        pytest.param(FailureKind.OUT_OF_MEMORY, [0, 0, 0, 0], id="memory-at-once"),
        pytest.param(FailureKind.OTHER, [30, 60, 120, 200], id="other-doubles"),
    ],
)
def test_pause_is_what_the_failure_calls_for(kind: FailureKind, pauses_s: list[float]) -> None:
    assert [pause_s(REMEDIES[kind], number, PAUSES) for number in (1, 2, 3, 4)] == pauses_s


PATH = "/lake/orders"


@pytest.mark.parametrize(
    ("error", "waits", "wait_s"),
    [
        pytest.param(StorageError(PATH), 0, 30, id="store"),
        pytest.param(ManagerUnreachableError(PATH), 1, 60, id="manager-again"),
        pytest.param(WorkDirError(PATH), 20, MAX_WAIT_S, id="work-dir-for-long"),
        pytest.param(ExecutorBusyError(PATH), 0, 30, id="lease-is-held"),
        pytest.param(LeaseLostError(PATH), 0, 30, id="lease-is-lost"),
        pytest.param(EngineAwayError(PATH), 0, 30, id="cluster-is-away"),
        pytest.param(EngineError(PATH), 0, None, id="cluster-rejects-the-job"),
        pytest.param(WriterUnguardedError(PATH), 0, 30, id="writer-without-lock"),
        pytest.param(StorageError(PATH), MAX_WAITS, None, id="too-long"),
        pytest.param(StorageOptionError(PATH), 0, None, id="no-retry-helps"),
        pytest.param(ServiceFailedError(PATH), 0, None, id="verdict"),
        pytest.param(ServiceFailedError(PATH, FailureKind.BUSY), 0, None, id="job-reported-busy"),
        pytest.param(ServiceRefusedError(PATH), 0, None, id="refused"),
    ],
)
def test_only_infrastructure_is_waited_for_and_not_without_end(
    error: LakeError, waits: int, wait_s: float | None
) -> None:
    assert find_wait_s(error, waits, PAUSES) == wait_s


def test_all_waits_of_a_try_together_last_for_hours_and_end() -> None:
    waits = [find_wait_s(StorageError(PATH), number, Pauses(30, 1800)) for number in range(MAX_WAITS + 1)]
    assert waits[-1] is None
    assert 6 * 3600 < sum(wait for wait in waits if wait is not None) < 7 * 3600


def test_every_kind_of_failure_has_a_remedy() -> None:
    assert set(REMEDIES) == set(FailureKind)


@pytest.mark.parametrize(("delay_s", "least_s"), [(1.0, 7.0), (30.0, 30.0)])
def test_wait_is_long_enough_for_airflow_to_hear_of_the_processs_end(delay_s: float, least_s: float) -> None:
    """Or the scheduler attributes that report to the next process of the same try, and fails it."""
    task = SimpleNamespace(retry_delay=timedelta(seconds=delay_s), max_retry_delay=timedelta(hours=1))
    before = datetime.now(UTC)
    error = as_task_error(StorageError("away"), {"task": task})  # type: ignore[typeddict-item]
    assert isinstance(error, AirflowRescheduleException)
    waits_s = (error.reschedule_date - before).total_seconds()
    assert least_s <= waits_s < least_s + 5

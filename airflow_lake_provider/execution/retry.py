"""What became of a try, and when to retry a failed one: what it needs, not one pause for all."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_lake_provider.errors import (
    ExecutorBusyError,
    LakeError,
    LeaseLostError,
    ServiceFailedError,
    ServiceRefusedError,
    WriterUnguardedError,
    backoff,
)
from airflow_lake_provider.execution.engines.job_files import read_result, require_writable
from airflow_lake_provider.hooks.lake import as_airflow_error
from airflow_lake_provider.job_contract import FailureKind, Outcome
from airflow_lake_provider.metrics import outcomes
from airflow_lake_provider.planner.verdict import judge
from airflow_lake_provider.triggers.work import find_rest_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from airflow.sdk.exceptions import AirflowException

    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.job_contract import JobRequest
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.verdict import RunVerdict, TableReader

log = logging.getLogger(__name__)

# --- What a failure needs, and how long the pause before the next try is. Pure


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a failure needs. The pause is `factor` times the task's `retry_delay`, or grows with each try."""

    factor: float
    message: str
    grows: bool = False
    doubles: bool = False


REMEDIES: Mapping[FailureKind, Remedy] = MappingProxyType(
    {
        FailureKind.LOCK: Remedy(1, "the table's lock could not be acquired: again later", grows=True),
        # A dead executor's heartbeat, or its lease, has to end first.
        FailureKind.BUSY: Remedy(2, "another executor is running: again later", grows=True),
        FailureKind.CONFLICT: Remedy(2, "a writer is in the way: again when it may have ended", grows=True),
        FailureKind.OUT_OF_MEMORY: Remedy(0, "it ran out of memory: again immediately, with twice the memory"),
        FailureKind.PLAN_GONE: Remedy(0, "its plan does not exist any more: the manager decides again"),
        FailureKind.INFRASTRUCTURE: Remedy(1, "the store, work_dir or the manager fails: again later", doubles=True),
        FailureKind.REFUSED: Remedy(0, "it was refused: what its reason names must change first"),
        FailureKind.OTHER: Remedy(1, "again after a pause that doubles with each try", doubles=True),
    }
)


@dataclass(frozen=True, slots=True)
class Pauses:
    """The task's own settings, seconds."""

    delay_s: float
    max_delay_s: float


def pause_s(remedy: Remedy, try_number: int, pauses: Pauses) -> float:
    """Return the pause before the next try; tries count from 1."""
    growth = backoff(1, try_number) if remedy.doubles else try_number if remedy.grows else 1
    return min(remedy.factor * pauses.delay_s * growth, pauses.max_delay_s)


# --- The verdict on a job that has ended, by a fresh reading of the table: the kind of a failure


def judge_run(
    metrics: Metrics, table: TableReader, before: Timeline, request: JobRequest, *, has_more_memory: bool
) -> RunVerdict:
    """Return the verdict on a run that has ended; `has_more_memory`: its job had twice the memory of the table's.

    Raises ServiceRefusedError for a failure that no retry helps, ServiceFailedError with its kind for another, and
    OSError when the job's folder takes no result.
    """
    service = request.services[0].service
    result = read_result(request.result_path)
    answer = None if result is None else result.find(service)
    verdict = judge(before, table.timeline_of(service), request.services[0], answer)
    if verdict.done:
        return verdict
    if result is None:
        # A full or read-only work_dir took no result either, which says nothing about the plan.
        require_writable(request.result_path)
    metrics.incr(outcomes(service, Outcome.FAILED))
    message = f"table {table.base_path}: {service} failed: {verdict.reason}"
    if verdict.failure_kind in {FailureKind.PLAN_GONE, FailureKind.REFUSED}:
        raise ServiceRefusedError(message)
    kind = verdict.failure_kind or FailureKind.OTHER
    if kind is FailureKind.OUT_OF_MEMORY and has_more_memory:
        # Still more memory would not help either; a pause may.
        kind, message = FailureKind.OTHER, f"{message}; it had twice the memory already: set more in spark_conf"
    raise ServiceFailedError(message, kind)


# --- What is no try of the plan: the task waits in Airflow's state `up_for_reschedule`, which counts no try
#
# A store, a disk or a manager that is away for minutes would otherwise use up all tries, and the manager would give up
# a plan that is well.

MIN_WAIT_S = 1.0
MAX_WAIT_S = 900.0
MAX_WAITS = 30
"""After so many waits in one try, about seven hours, the fault fails the try: without end it would go unseen where
nothing watches the run."""


def find_wait_s(error: LakeError, waits: int, pauses: Pauses) -> float | None:
    """Return how long a task waits for infrastructure after `waits` waits of this try; None for a failed try.

    Infrastructure is the store, work_dir, the manager, an executor's lease that another executor holds, and a writer
    that takes no lock, whose commit may take hours. What a job reported after it ran is a failed try, whatever the
    reason.
    """
    is_others = isinstance(error, (ExecutorBusyError, LeaseLostError, WriterUnguardedError))
    if not error.retriable or waits >= MAX_WAITS or not (is_others or error.failure_kind == FailureKind.INFRASTRUCTURE):
        return None
    return backoff(max(pauses.delay_s, MIN_WAIT_S), waits + 1, MAX_WAIT_S)


def as_task_error(error: LakeError, context: Context) -> AirflowException:
    """Return the error with which Airflow fails the try, or waits for infrastructure without counting one."""
    waits = int(context.get("task_reschedule_count") or 0)
    wait_s = find_wait_s(error, waits, _pauses_of(context))
    if wait_s is None:
        return as_airflow_error(error)
    now = datetime.now(UTC)
    # Else the scheduler takes the report of this process's end for one of the next, and fails the try.
    again = now + timedelta(seconds=max(wait_s, find_rest_s(now.timestamp(), now.timestamp())))
    log.warning(
        "%s. The task waits, which is not a failed try: again at %s UTC (wait %d of %d)",
        error, again.strftime("%H:%M:%S"), waits + 1, MAX_WAITS,
    )  # fmt: skip
    wait = AirflowRescheduleException(again)  # type: ignore[no-untyped-call]
    wait.args = (str(error),)
    return wait


DEFAULT_DELAY_S = 30.0
LONGEST_DELAY_S = 24 * 3600.0


class FailureRetryPolicy(RetryPolicy):
    """Airflow's retry policy of service tasks: Airflow logs its reason, and shows it next to the try."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the failure's kind. Other packages' failures keep Airflow's own pauses."""
        error = exception.__cause__ if isinstance(exception.__cause__, LakeError) else exception
        if not isinstance(error, LakeError):
            return RetryDecision.default()
        kind = FailureKind(error.failure_kind)
        remedy = REMEDIES[kind]
        pause = timedelta(seconds=pause_s(remedy, try_number, _pauses_of(context)))
        reason = f"failed ({kind}), {remedy.message}; "
        if try_number > max_tries:
            return RetryDecision.retry(pause, reason + "that was the last try")
        at = (datetime.now(UTC) + pause).strftime("%H:%M:%S")
        return RetryDecision.retry(pause, f"{reason}try {try_number + 1} of {max_tries + 1} at {at} UTC")


def _pauses_of(context: Context | None) -> Pauses:
    task = None if context is None else context.get("task")
    delay = getattr(task, "retry_delay", None)
    longest = getattr(task, "max_retry_delay", None)
    return Pauses(_seconds(delay, DEFAULT_DELAY_S), _seconds(longest, LONGEST_DELAY_S))


def _seconds(value: timedelta | float | None, default: float) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return default if value is None else float(value)


# --- How long Airflow itself lets a task run during an outage of the API server, by Airflow's settings
#
# Read from Airflow 3.3's source: the task's supervisor ends the task after `[workers] max_failed_heartbeats`
# heartbeats that failed; the scheduler, which needs no API server, fails it when its heartbeat is older than
# `[scheduler] task_instance_heartbeat_timeout`; and the server rejects a task's token that has expired meanwhile. The
# API server renews a token when a fifth of `[execution_api] jwt_expiration_time` is left.

WANTED_S = 600.0
RETURN_S = 40.0
"""How long the supervisor, whose pauses between attempts grow, may take to reach a server that is back."""
RECOMMENDED = {
    "[workers] max_failed_heartbeats": 180,
    "[scheduler] task_instance_heartbeat_timeout": 900,
    "[execution_api] jwt_expiration_time": 3600,
}


@dataclass(frozen=True, slots=True)
class AirflowLimits:
    """Airflow's settings that end a task during an outage of the API server. Times in seconds."""

    max_failed_heartbeats: int
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    token_s: float

    def find_short(self, wanted_s: float = WANTED_S) -> dict[str, float]:
        """Return which settings end a task before `wanted_s`, and after how many seconds at the earliest."""
        survived = {
            "[workers] max_failed_heartbeats": (self.max_failed_heartbeats - 1) * self.heartbeat_interval_s,
            "[scheduler] task_instance_heartbeat_timeout": self.heartbeat_timeout_s
            - self.heartbeat_interval_s
            - RETURN_S,
            "[execution_api] jwt_expiration_time": self.token_s / 5 - self.heartbeat_interval_s - RETURN_S,
        }
        return {setting: max(0.0, survived_s) for setting, survived_s in survived.items() if survived_s < wanted_s}


def read_limits() -> AirflowLimits:
    """Return the settings of this worker; scheduler and API server should have the same."""
    return AirflowLimits(
        conf.getint("workers", "max_failed_heartbeats"),
        conf.getfloat("workers", "min_heartbeat_interval"),
        conf.getfloat("scheduler", "task_instance_heartbeat_timeout"),
        conf.getfloat("execution_api", "jwt_expiration_time"),
    )


def explain_short(limits: AirflowLimits) -> str:
    """Return which settings to change so that a job survives ten minutes without API server; empty when none."""
    short = limits.find_short()
    if not short:
        return ""
    settings = ", ".join(f"{name} = {RECOMMENDED[name]} (now: {s:.0f} s)" for name, s in short.items())
    return f"Airflow ends this task during an API server outage of less than {WANTED_S:.0f} s; set {settings}"

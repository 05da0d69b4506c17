"""When a failed try is repeated: what the failure calls for, not one pause for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

# --- What a failure calls for, and how long the pause before the next try is. Pure


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a failure calls for. The pause is `factor` times the task's `retry_delay`, or grows with each try."""

    factor: float
    says: str
    grows: bool = False
    doubles: bool = False


REMEDIES: Mapping[FailureKind, Remedy] = MappingProxyType(
    {
        FailureKind.LOCK: Remedy(1, "the table's lock could not be had: again later", grows=True),
        # A dead executor's heartbeat, or its lease, has to run out first.
        FailureKind.BUSY: Remedy(2, "another executor is at work: again later", grows=True),
        FailureKind.CONFLICT: Remedy(2, "a writer stands in the way: again when it may have ended", grows=True),
        FailureKind.OUT_OF_MEMORY: Remedy(0, "it ran out of memory: again at once, with twice the memory"),
        FailureKind.PLAN_GONE: Remedy(0, "its plan is gone: the manager decides anew"),
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
    growth = 2 ** (try_number - 1) if remedy.doubles else try_number if remedy.grows else 1
    return min(remedy.factor * pauses.delay_s * growth, pauses.max_delay_s)


DEFAULT_DELAY_S = 30.0
LONGEST_DELAY_S = 24 * 3600.0


class FailureRetryPolicy(RetryPolicy):
    """Airflow's retry policy of service tasks: Airflow logs its reason, and shows it beside the try."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the failure's kind. Failures that are not ours keep Airflow's own pauses."""
        error = exception.__cause__ if isinstance(exception.__cause__, LakeError) else exception
        if not isinstance(error, LakeError):
            return RetryDecision.default()
        kind = FailureKind(error.failure_kind)
        remedy = REMEDIES[kind]
        pause = timedelta(seconds=pause_s(remedy, try_number, _pauses_of(context)))
        reason = f"failed ({kind}), {remedy.says}; "
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


# --- For how long Airflow itself lets a task run while the API server is away, by Airflow's settings
#
# Read from Airflow 3.3's source: the task's supervisor ends the task after `[workers] max_failed_heartbeats`
# heartbeats that failed; the scheduler, which needs no API server, fails it when its heartbeat is older than
# `[scheduler] task_instance_heartbeat_timeout`; and a task's token that has run out meanwhile is accepted no more.
# The API server renews a token when a fifth of `[execution_api] jwt_expiration_time` is left.

WANTED_S = 600.0
RETURN_S = 40.0
"""Until the supervisor, which pauses longer and longer between its attempts, reaches a server that is back."""
RECOMMENDED = {
    "[workers] max_failed_heartbeats": 180,
    "[scheduler] task_instance_heartbeat_timeout": 900,
    "[execution_api] jwt_expiration_time": 3600,
}


@dataclass(frozen=True, slots=True)
class AirflowLimits:
    """Airflow's settings that end a task while the API server is away. Times in seconds."""

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
    """Return which settings to change so that a job bears ten minutes without the API server; empty when none."""
    short = limits.find_short()
    if not short:
        return ""
    settings = ", ".join(f"{name} = {RECOMMENDED[name]} (now it holds {s:.0f} s)" for name, s in short.items())
    return f"Airflow ends this task when the API server is away for less than {WANTED_S:.0f} s; set {settings}"

"""When a failed try is repeated: what the failure calls for, not one pause for all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.operators.remedy import REMEDIES, Pauses, pause_s

if TYPE_CHECKING:
    from airflow.sdk import Context

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

"""What this package's sensors share: one poke in the worker, then a wait in the triggerer."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.hooks.lake import as_airflow_error

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_lake_provider.triggers.polling import PollingTrigger


class DeferrableSensor(RendersOwnText, BaseSensorOperator):
    """Pokes once in the worker, and defers to the trigger of `build_trigger` when that finds nothing.

    :param deferrable: wait in the triggerer instead of a worker; by default as `[operators] default_deferrable` says.
    """

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Poke in the worker, or defer to the triggerer when the first poke finds nothing."""
        if not self.deferrable:
            return super().execute(context)
        answer = self.poke(context)
        if not answer:
            self.defer(
                trigger=self.build_trigger(), method_name="execute_complete", timeout=timedelta(seconds=self.timeout)
            )
        return answer.xcom_value if isinstance(answer, PokeReturnValue) else None

    def build_trigger(self) -> BaseTrigger:
        """Return the trigger that continues to poll."""
        raise NotImplementedError

    def execute_complete(self, context: Context, event: dict[str, Any] | None) -> Any:
        """Resume with the trigger's event."""
        validate_event(event)


class PollingSensor(DeferrableSensor):
    """Asks in the worker what its trigger asks in the triggerer."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Ask once. What may change by itself, such as a manager that is away, is asked again."""
        try:
            answer = self.trigger.ask()
        except LakeError as error:
            if not error.retriable:
                raise as_airflow_error(error) from error
            self.log.warning("%s", error)
            answer = None
        if answer is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self.result_of(answer))

    def execute_complete(self, context: Context, event: dict[str, Any] | None) -> Any:
        """Resume with what the sensor returns without a triggerer."""
        return self.result_of(validate_event(event))

    def result_of(self, answer: dict[str, Any]) -> Any:
        """Return what is pushed as XCom of the trigger's answer: nothing."""

    def build_trigger(self) -> PollingTrigger:
        """Return the trigger that asks."""
        raise NotImplementedError

    @cached_property
    def trigger(self) -> PollingTrigger:
        """The trigger, of which this task asks itself."""
        return self.build_trigger()


def validate_event(event: dict[str, Any] | None) -> dict[str, Any]:
    """Return a trigger's event of success; no event, an error and an unknown status all fail."""
    if event is None:
        raise AirflowException("the trigger ended without an event")
    if event.get("status") == "success":
        return event
    if event.get("status") == "error":
        raise AirflowFailException(event["message"])
    raise AirflowException(f"the trigger's event has an unknown status: {event!r}")

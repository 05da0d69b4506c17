"""A person's approval of what a check has found."""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from airflow_lake_provider.execution.arguments import is_true
from airflow_lake_provider.execution.rendering import RendersOwnText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

MAX_SHOWN = 20_000
"""Characters of the report that a person is shown for approval; the log of *check* has all of it."""
ASKED_AGAIN: Mapping[str, Any] = MappingProxyType({"retries": 2, "retry_delay": timedelta(seconds=5)})
"""An answer in the second in which the task begins to wait may end its try: Airflow takes the worker's report of the
first half for that of the second. Then the question is asked again."""


class LakeApprovalOperator(RendersOwnText, ApprovalOperator):
    """Asks a person for approval (*Required Actions* in Airflow); a rejection skips what follows.

    :param is_asked: false goes on without a person (templated).
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "is_asked")

    def __init__(self, *, is_asked: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_asked = is_asked

    def execute(self, context: Context) -> Any:
        """Ask, or go on."""
        if is_true(self.is_asked):
            return super().execute(context)
        self.log.info("the run's Params ask no person")
        return None

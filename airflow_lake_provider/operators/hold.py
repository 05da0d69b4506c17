"""Hold the files that the tasks of a DAG read: a setup task and its teardown.

A single task holds with `LakeHook().hold_table(...)`, whose process renews the hold. No process lives as long as
several tasks do, and a deferred one has none: their hold lives until its end, or until the teardown, which Airflow runs
whether the tasks between succeed or fail.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook, as_airflow_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

POLL_S = 5.0


class LakeHoldOperator(RendersOwnText, BaseOperator):
    """Hold a table's files; the setup of tasks that read the table.

    :param table: base path, or id in the registry
    :param lasts_s: the hold ends after so many seconds, released or not: longer than the tasks take
    :param reason: why, for people
    :param at_instant: the instant as of which the tasks read; empty: the table as it is when this task runs
    :param lake_conn_id: connection of the manager
    """

    template_fields: Sequence[str] = ("table", "reason", "at_instant")
    ui_color = "#e6f1d8"

    def __init__(
        self,
        *,
        table: str,
        lasts_s: float,
        reason: str = "",
        at_instant: str = "",
        lake_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.lasts_s = lasts_s
        self.reason = reason
        self.at_instant = at_instant
        self.lake_conn_id = lake_conn_id
        self._held: Mapping[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Hold, and wait for cleans that began before; return what the teardown needs, and the held instant."""
        hook = LakeHook(self.lake_conn_id)
        reader = f"{self.dag_id}.{self.task_id}"[:100]
        reason = " ".join(f"{self.reason} ({context['run_id']})".split())[:300]
        wanted = {"reader": reader, "reason": reason, "at_instant": self.at_instant or None}
        try:
            held = hook.add_hold(self.table, wanted | {"ttl_s": self.lasts_s, "lasts_s": self.lasts_s})
            self._held = held
            while not held["is_firm"]:
                self.log.info("table %s: the runs %s began before the hold", self.table, ", ".join(held["waits_for"]))
                time.sleep(POLL_S)
                held = hook.renew_hold(self._held["table_id"], self._held["hold_id"])
        except LakeError as error:
            self.on_kill()
            raise as_airflow_error(error) from error
        return {"table_id": self._held["table_id"], "hold_id": self._held["hold_id"], "instant": held["hold"]}

    def on_kill(self) -> None:
        """Release what no teardown will know of."""
        if self._held is not None:
            LakeHook(self.lake_conn_id).end_hold(self._held["table_id"], self._held["hold_id"])


class LakeReleaseOperator(RendersOwnText, BaseOperator):
    """Release a hold; the teardown of the tasks that read the table.

    :param hold: the output of the LakeHoldOperator
    :param lake_conn_id: connection of the manager
    """

    template_fields: Sequence[str] = ("hold",)
    ui_color = "#e6f1d8"

    def __init__(self, *, hold: Mapping[str, Any] | Any, lake_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hold = hold
        self.lake_conn_id = lake_conn_id

    def execute(self, context: Context) -> None:
        """Release the hold; one that has ended already is no error."""
        if not self.hold:
            self.log.info("the setup left no hold")
            return
        try:
            LakeHook(self.lake_conn_id).end_hold(str(self.hold["table_id"]), str(self.hold["hold_id"]))
        except LakeError as error:
            raise as_airflow_error(error) from error

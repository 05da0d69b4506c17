"""The trigger of both sensors: polls the tables' timelines without blocking the triggerer's event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lake_provider.view.watch import Watch, WatchKind, found, look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TimelineTrigger(BaseTrigger):
    """Fires once, when one of the tables shows what is waited for, or when none of them can ever be read.

    The event is `{"status": "success", "findings": [...]}` or `{"status": "error", "message": ...}`. Its whole state
    is in its arguments, so a restarted triggerer goes on without losing or repeating anything.
    """

    def __init__(
        self,
        kind: str,
        tables: list[list[str]],
        poll_interval_s: float,
        actions: list[str],
        storage_options: dict[str, Any],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.tables = tables
        self.poll_interval_s = poll_interval_s
        self.actions = actions
        self.storage_options = storage_options

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.timeline.TimelineTrigger",
            {
                "kind": self.kind,
                "tables": self.tables,
                "poll_interval_s": self.poll_interval_s,
                "actions": self.actions,
                "storage_options": self.storage_options,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, sleep, look again; the looking itself happens in a thread."""
        watch = Watch(
            WatchKind(self.kind),
            tuple((base_path, after) for base_path, after in self.tables),
            frozenset(self.actions),
            self.storage_options,
        )
        while True:
            findings = await asyncio.to_thread(look, watch)
            hopeless = [f for f in findings if f.error is not None and not f.error.retriable]
            if len(hopeless) == len(findings):
                yield _event(status="error", message="; ".join(str(f.error) for f in hopeless))
                return
            new = found(findings)
            if new:
                yield _event(status="success", findings=[finding.to_dict() for finding in new])
                return
            await asyncio.sleep(self.poll_interval_s)


def _event(**payload: Any) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]

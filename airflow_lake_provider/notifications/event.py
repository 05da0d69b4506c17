"""What people are told, as a value: one shape for webhooks, for templates of any notifier, and for tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.manager.instances import Instance


class EventKind(StrEnum):
    """Why somebody is told."""

    FAILED = "failed"
    """The last try of a run has failed."""
    DEADLINE = "deadline"
    """The manager ended a run that passed its `deadline_s`."""
    STUCK = "stuck"
    """Something stands in one state past its deadline, and its owner has not acted."""


@dataclass(frozen=True, slots=True)
class LakeEvent:
    """One thing to be told. `at` is ISO 8601 with zone; what is not known is empty."""

    kind: EventKind
    base_path: str
    service: str
    reason: str
    at: str
    table: str = ""
    run_id: str = ""
    instants: tuple[str, ...] = ()
    state: str = ""
    owner: str = ""
    """Who has to act: the manager, Airflow's scheduler, a worker."""
    try_number: int = 0
    log_url: str = ""

    @property
    def text(self) -> str:
        """One sentence."""
        what = f"{self.service} of {self.table or self.base_path}"
        verb = {EventKind.FAILED: "failed", EventKind.DEADLINE: "passed its deadline", EventKind.STUCK: "is stuck"}
        return f"{what} {verb[self.kind]}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that webhooks post, and templates find under `lake_event`."""
        body = asdict(self) | {"kind": self.kind.value, "instants": list(self.instants), "text": self.text}
        return {"event": f"lake.service.{self.kind.value}", **body}


def event_of_instance(kind: EventKind, base_path: str, instance: Instance, at: str) -> LakeEvent:
    """Return the event of an instance that the manager's sweep speaks of."""
    return LakeEvent(
        kind=kind,
        base_path=base_path,
        service=instance.service,
        reason=instance.reason,
        at=at,
        table=base_path.rsplit("/", 1)[-1],
        run_id=instance.run_id,
        instants=instance.plans,
        state=instance.state.value,
        owner=instance.owner,
        try_number=instance.tries,
    )


def event_of_failure(context: Mapping[str, Any], at: str) -> LakeEvent:
    """Return the event of a failed task of the service DAG, from what Airflow hands to `on_failure_callback`."""
    params = dict(context.get("params") or {})
    instance = context.get("ti") or context.get("task_instance")
    return LakeEvent(
        kind=EventKind.FAILED,
        base_path=str(params.get("base_path", "")),
        service=str(params.get("service", "")),
        reason=str(context.get("exception") or context.get("reason") or "no reason was given"),
        at=at,
        table=str(params.get("table_name", "")),
        run_id=str(context.get("run_id") or getattr(instance, "run_id", "")),
        instants=tuple(str(instant) for instant in params.get("instants") or ()),
        state="failed",
        try_number=int(getattr(instance, "try_number", 0) or 0),
        log_url=str(getattr(instance, "log_url", "") or ""),
    )

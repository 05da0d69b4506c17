"""What the planner says of one service of one table, with its reason in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from airflow_lake_provider.job_contract import Mode, Service, find_lock_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

Evidence: TypeAlias = "Mapping[str, int | float | str | None]"
"""The numbers and instants that a decision rests on."""


class Verdict(StrEnum):
    """Whether a service shall run now."""

    DUE = "due"
    NOT_DUE = "not_due"
    BLOCKED = "blocked"
    """It would be due, but must not run until somebody changes what the reason names."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What is remembered of a decision when a run is created for it (`turns.Turn`)."""

    basis: str = ""
    """A digest of what it rests on beside new writes. A run that had an effect changes it."""
    newest_write: str = ""
    """Completed time of the newest completed write."""
    kept_from: str = ""
    """Cleaning leaves what writes that completed from this moment on replaced; empty is not known."""
    is_certain: bool = True
    """Whether the timeline shows that there is something to do; otherwise only a run finds out."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One service of one table, decided.

    `key_instant` names what the decision rests on (a pending plan, else the newest completed write): the same
    state of the table gives the same key, so that asking twice cannot start two runs. Empty unless due.
    """

    service: Service
    verdict: Verdict
    reason: str
    mode: Mode = Mode.SCHEDULE_AND_EXECUTE
    key_instant: str = ""
    plan_instants: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Hudi settings that carry the policy into the job (retention, ...)."""
    look_again_ms: int | None = None
    """When time alone may change the decision, ms since the epoch; None when only the table can."""
    footing: Footing = field(default_factory=Footing)


def not_due(
    service: Service, reason: str, evidence: Evidence = MappingProxyType({}), look_again_ms: int | None = None
) -> Decision:
    """Return the decision that a service need not run."""
    return Decision(service, Verdict.NOT_DUE, reason, evidence=evidence, look_again_ms=look_again_ms)


def block_without_lock(due: Decision, hudi_options: Mapping[str, str]) -> Decision:
    """Return a due decision, or, when the options hold no lock that reaches the writers, that it is blocked."""
    problem = find_lock_problem(hudi_options)
    if problem is None:
        return due
    return Decision(due.service, Verdict.BLOCKED, f"{due.reason}, but {problem}", evidence=due.evidence)

"""What a failure calls for, and how long the pause before the next try is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping


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

"""What a loop says of itself, in its own process or to the one that started it, and the sentences made of that."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class StuckEvaluation:
    """An evaluation that should have returned."""

    base_path: str
    store: str
    age_s: float


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """State of one loop. `silent_s` is the time since its last pass; None before the first one."""

    silent_s: float | None = None
    stuck: tuple[StuckEvaluation, ...] = ()
    per_store: int = 0
    """How many evaluations that do not return stop a store's tables."""

    def to_line(self) -> bytes:
        """Return the status as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> LoopStatus:
        """Return the status of a line. Raises ValueError, TypeError or KeyError for any other line."""
        found = json.loads(line)
        stuck = tuple(StuckEvaluation(**one) for one in found["stuck"])
        return cls(found["silent_s"], stuck, found["per_store"])


def describe_loop(status: LoopStatus, interval_s: float, sees: Callable[[str], bool]) -> tuple[str, ...]:
    """Return one sentence for each store with stuck evaluations, and one for a loop that makes no pass.

    `sees` says which base paths they may name.
    """
    problems = describe_stuck(status, sees)
    if status.silent_s is None or status.silent_s <= 10 * interval_s + 30:
        return problems
    return (*problems, f"the manager's loop has made no pass for {status.silent_s:,.0f} s: see this API server's log")


def describe_stuck(status: LoopStatus, sees: Callable[[str], bool]) -> tuple[str, ...]:
    """Return one sentence for each store."""
    stuck = status.stuck
    return tuple(
        f"{count} evaluations of {store or 'local paths'} have not returned for up to "
        f"{max(one.age_s for one in stuck if one.store == store):,.0f} s"
        f"{_name_one(one.base_path for one in stuck if one.store == store and sees(one.base_path))}; "
        f"{status.per_store} such calls stop "
        "this store's tables in this process: check whether the store answers, then restart the API server"
        for store, count in Counter(one.store for one in stuck).items()
    )


def _name_one(paths: Iterable[str]) -> str:
    path = next(iter(paths), "")
    return f", among them table {path}" if path else ""

"""Lets due services through only when no writer stands in their way; before a run is created."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.admission import AdmissionVerdict
from airflow_lake_provider.conflict.conflict_table import open_conflict_table
from airflow_lake_provider.conflict.gate import ask_admission, needs_admission
from airflow_lake_provider.job_contract import Mode
from airflow_lake_provider.planner.decision import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.conflict.conflict_table import ConflictTable
    from airflow_lake_provider.planner.decision import Decision
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.table_view import TableView

_MOST_TABLES = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """What is remembered of one table; who looks at it holds `lock`."""

    table: ConflictTable
    lock: threading.Lock = field(default_factory=threading.Lock)


class AdmissionDesk:
    """Asks early conflict detection about due decisions, for any number of threads: the loop's and a sweep's."""

    def __init__(self, open_table: Callable[[str], Storage]) -> None:
        self._open_table = open_table
        self._lock = threading.Lock()
        self._places: OrderedDict[str, _Place] = OrderedDict()

    def admit(self, view: TableView, policy: TablePolicy, decision: Decision, now_ms: int) -> Decision:
        """Return the decision as it may be acted upon: as it is, in fewer partitions, blocked, or turned into the
        withdrawal of a plan that holds a writer up. Raises LakeError of a table that cannot be looked at.
        """
        if decision.verdict is not Verdict.DUE or not needs_admission(decision.service, decision.mode, policy.conflict):
            return decision
        place = self._place_of(view.base_path, policy)
        with place.lock:
            found = ask_admission(
                decision.service, place.table, view.commits, decision.plan_instants, policy.conflict, now_ms
            )
        reason = f"{decision.reason}; {found.reason}"
        if found.verdict is AdmissionVerdict.GO:
            return decision
        if found.verdict is AdmissionVerdict.SHRINK:
            options = MappingProxyType({**decision.options, **found.options})
            return replace(decision, reason=reason, options=options)
        if found.withdraw:
            return replace(decision, reason=reason, mode=Mode.WITHDRAW, plan_instants=found.withdraw)
        return replace(decision, reason=reason, verdict=Verdict.BLOCKED, look_again_ms=found.look_again_ms)

    def _place_of(self, base_path: str, policy: TablePolicy) -> _Place:
        with self._lock:
            place = self._places.get(base_path)
            if place is None or place.table.hudi_options != policy.hudi_options:
                table = open_conflict_table(self._open_table(base_path), policy.hudi_options)
                place = self._places[base_path] = _Place(table)
            self._places.move_to_end(base_path)
            while len(self._places) > _MOST_TABLES:
                self._places.popitem(last=False)
            return place

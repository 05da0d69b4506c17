"""Lets due clusterings through only when no writer stands in their way; before a run is created."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.admission import AdmissionVerdict
from airflow_lake_provider.conflict.conflict_table import ConflictTable
from airflow_lake_provider.conflict.gate import ask_admission, needs_admission
from airflow_lake_provider.job_contract import Mode
from airflow_lake_provider.planner.decision import Verdict
from airflow_lake_provider.timeline.heartbeat import heartbeat_rule
from airflow_lake_provider.view.file_system_view import FileSystemTimelineView

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.planner.decision import Decision
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.table_view import TableView

_MOST_TABLES = 256


class AdmissionDesk:
    """Asks early conflict detection about due decisions; for one thread at a time, as the manager's loop is one."""

    def __init__(self, open_table: Callable[[str], Storage]) -> None:
        self._open_table = open_table
        self._tables: OrderedDict[str, ConflictTable] = OrderedDict()

    def admit(self, view: TableView, policy: TablePolicy, decision: Decision, now_ms: int) -> Decision:
        """Return the decision as it may be acted upon: as it is, in fewer partitions, blocked, or turned into the
        withdrawal of a plan that holds a writer up. Raises LakeError of a table that cannot be looked at.
        """
        if decision.verdict is not Verdict.DUE or not needs_admission(decision.service, decision.mode, policy.conflict):
            return decision
        table = self._table_of(view.base_path, policy)
        found = ask_admission(table, view.commits, decision.plan_instants, policy.conflict, now_ms)
        reason = f"{decision.reason}; {found.reason}"
        if found.verdict is AdmissionVerdict.GO:
            return decision
        if found.verdict is AdmissionVerdict.SHRINK:
            options = MappingProxyType({**decision.options, **found.options})
            return replace(decision, reason=reason, options=options)
        if found.withdraw:
            return replace(decision, reason=reason, mode=Mode.WITHDRAW, plan_instants=found.withdraw)
        return replace(decision, reason=reason, verdict=Verdict.BLOCKED, look_again_ms=found.look_again_ms)

    def _table_of(self, base_path: str, policy: TablePolicy) -> ConflictTable:
        rule = heartbeat_rule(policy.hudi_options)
        table = self._tables.get(base_path)
        if table is None or table.rule != rule:
            storage = self._open_table(base_path)
            view = FileSystemTimelineView(base_path, lambda _: storage)
            table = self._tables[base_path] = ConflictTable(storage, view.snapshot, rule)
        self._tables.move_to_end(base_path)
        while len(self._tables) > _MOST_TABLES:
            self._tables.popitem(last=False)
        return table

"""Early conflict detection as a service's task uses it: asked before the job, and watching beside it."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.admission import Admission, AdmissionVerdict
from airflow_lake_provider.conflict.conflict_table import open_conflict_table
from airflow_lake_provider.conflict.gate import (
    GO_UNASKED,
    ask_admission,
    find_pending_plans,
    needs_admission,
    needs_watch,
)
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.located import Located, SettingError
from airflow_lake_provider.policies import ConflictPolicy
from airflow_lake_provider.setting_kinds import Section, apply_changes
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.view_cache import TableViewCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.job_contract import ServiceRequest
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.storage import Storage


class ServiceAdmission:
    """One table as a service's task asks about it."""

    def __init__(
        self, base_path: str, open_table: Callable[[str], Storage], policy: ConflictPolicy, options: Mapping[str, str]
    ) -> None:
        self._base_path = base_path
        self._open_table = open_table
        self._table = open_conflict_table(open_table(base_path), options)
        self.policy = policy

    def ask(self, wanted: ServiceRequest) -> Admission:
        """Return whether the service may begin now. Raises what looking at a table raises."""
        if not needs_admission(wanted.service, wanted.mode, self.policy):
            return GO_UNASKED
        now_ms = int(time.time() * 1000)
        service, plans = wanted.service, wanted.instants
        if not plans and wanted.mode is not Mode.SCHEDULE:
            plans = find_pending_plans(self._table, service, now_ms)
        return ask_admission(service, self._table, self._commits(service), plans, self.policy, now_ms)

    def watch(self, wanted: ServiceRequest) -> ServiceWatch | None:
        """Return what watches the service while it runs; None where nothing can come in its way."""
        if not needs_watch(wanted.service, wanted.mode, self.policy):
            return None
        return ServiceWatch(self._table, self.policy)

    def _commits(self, service: Service) -> Mapping[str, CommitMetadata]:
        if service is not Service.CLUSTERING:
            return {}
        return TableViewCache(SharedTimelines(open_table=self._open_table)).refresh(self._base_path).commits


def narrow(wanted: ServiceRequest, admission: Admission) -> ServiceRequest:
    """Return the request as it was admitted: as it is, in fewer partitions, or as the withdrawal of its plan."""
    if admission.verdict is AdmissionVerdict.SHRINK:
        return replace(wanted, options=MappingProxyType({**wanted.options, **admission.options}))
    if admission.withdraw:
        return replace(wanted, mode=Mode.WITHDRAW, instants=admission.withdraw)
    return wanted


def parse_conflict_policy(settings: Mapping[str, str], base_path: str) -> ConflictPolicy:
    """Return the policy of an operator's argument, whose values are rendered from templates to text.

    The settings are those of the tables file. Raises ServiceRefusedError that names table and setting: a policy that
    is misread as "off" would fail writers.
    """
    known = ConflictPolicy()
    values = {key: Located(_read(text, getattr(known, key, "")), 0, text) for key, text in settings.items()}
    try:
        changes = Section(ConflictPolicy).parse(Located(values, 0), "conflict")
    except SettingError as error:
        raise ServiceRefusedError(f"table {base_path}: conflict: {error}") from error
    return apply_changes(known, changes)


def _read(text: str, example: object) -> bool | float | str:
    """Return what a text says, of the type of an example; the text itself when it says nothing of the kind."""
    plain = text.strip()
    if isinstance(example, bool):
        return {"true": True, "false": False}.get(plain.lower(), text)
    if isinstance(example, float):
        try:
            return float(plain)
        except ValueError:
            return text
    return plain

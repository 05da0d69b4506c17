"""Early conflict detection as a service's task uses it: asked before the job, and watching beside it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.config.kinds import Located, Section, SettingError, apply_changes
from airflow_lake_provider.config.policies import ConflictPolicy
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import (
    GO_UNASKED,
    Admission,
    AdmissionVerdict,
    ask_admission,
    find_pending_plans,
    needs_admission,
    needs_watch,
)
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.errors import LakeError, ServiceRefusedError
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from airflow_lake_provider.conflict.service_watch import ServiceConflict
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.job_contract import ServiceRequest
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)


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


# --- A thread that watches for writers while a service runs, and ends the service for them

STOP_AGAIN_AFTER_S = 1.0


class ConflictWatch:
    """Checks each `period_s`, first after `initial_delay_s`; on a conflict it calls `stop` until the block is left.

    `conflict` is what it found. Without a `watch` it does nothing.
    """

    def __init__(
        self, watch: ServiceWatch | None, stop: Callable[[], None], period_s: float, initial_delay_s: float
    ) -> None:
        self._watch = watch
        self._stop = stop
        self._period_s = period_s
        self._initial_delay_s = initial_delay_s
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self.conflict: ServiceConflict | None = None

    def __enter__(self) -> ConflictWatch:
        if self._watch is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._watch,), name="lake-conflict-watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, watch: ServiceWatch) -> None:
        pause_s = self._initial_delay_s
        while not self._left.wait(pause_s):
            pause_s = self._period_s
            try:
                self.conflict = watch.check(int(time.time() * 1000))
            except LakeError as error:
                log.warning("writers cannot be watched for now: %s", error)
            if self.conflict is not None:
                # The job may only be starting just now, when there is nothing to end yet: it is ended again and again.
                self._stop()
                while not self._left.wait(STOP_AGAIN_AFTER_S):
                    self._stop()
                return

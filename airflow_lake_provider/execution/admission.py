"""Early conflict detection for a service's task: a check before the job, and a watch while it runs."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from airflow_lake_provider.config.kinds import describe
from airflow_lake_provider.config.policies import ConflictPolicy
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import (
    GO_UNCHECKED,
    Admission,
    AdmissionVerdict,
    ask_admission,
    find_pending_plans,
    needs_admission,
    needs_watch,
)
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.errors import LakeError, ServiceRefusedError
from airflow_lake_provider.job_contract import WRITERS_FIRST, Mode, Service
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
    """Early conflict detection on one table, for a service's task."""

    def __init__(
        self, base_path: str, open_table: Callable[[str], Storage], policy: ConflictPolicy, options: Mapping[str, str]
    ) -> None:
        self._base_path = base_path
        self._open_table = open_table
        self._table = open_conflict_table(open_table(base_path), options)
        self.policy = policy

    def check(self, wanted: ServiceRequest) -> Admission:
        """Return whether the service may begin now. Raises what reading the table raises."""
        if not needs_admission(wanted.service, wanted.mode, self.policy):
            return GO_UNCHECKED
        now_ms = int(time.time() * 1000)
        service, plans = wanted.service, wanted.instants
        if not plans and wanted.mode is not Mode.SCHEDULE:
            plans = find_pending_plans(self._table, service, now_ms)
        return ask_admission(service, self._table, self._commits(service), plans, self.policy, now_ms)

    def watch(self, wanted: ServiceRequest) -> ServiceWatch | None:
        """Return the watch of the service while it runs; None where no writer can get in its way."""
        if not needs_watch(wanted.service, wanted.mode, self.policy):
            return None
        return ServiceWatch(self._table, self.policy)

    def _commits(self, service: Service) -> Mapping[str, CommitMetadata]:
        if service is not Service.CLUSTERING:
            return {}
        return TableViewCache(SharedTimelines(open_table=self._open_table)).refresh(self._base_path).commits


def narrow(wanted: ServiceRequest, admission: Admission) -> ServiceRequest:
    """Return the request as admitted: in all partitions, in fewer, or as the withdrawal of its plan.

    The job asks once more when it plans: until Spark has started, other writers may have begun.
    """
    if admission is GO_UNCHECKED:
        return wanted
    if admission.verdict is AdmissionVerdict.SHRINK:
        wanted = replace(wanted, options=MappingProxyType({**wanted.options, **admission.options}))
    if admission.withdraw:
        return replace(wanted, mode=Mode.WITHDRAW, instants=admission.withdraw)
    return replace(wanted, options=MappingProxyType({**wanted.options, WRITERS_FIRST: "true"}))


def parse_conflict_policy(settings: Mapping[str, str], base_path: str) -> ConflictPolicy:
    """Return the policy of an operator's argument, whose values templates render to text.

    The settings are those of the tables file. Raises ServiceRefusedError that names table and setting: a policy that
    is misread as "off" would fail writers.
    """
    known = ConflictPolicy()
    try:
        return ConflictPolicy.model_validate(
            {key: _read(text, getattr(known, key, "")) for key, text in settings.items()}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        mistake = describe(ConflictPolicy, wrong, lambda place: settings[str(place[-1])], "conflict")
        raise ServiceRefusedError(f"table {base_path}: conflict: {mistake}") from error


def _read(text: str, example: object) -> bool | float | str:
    """Parse a text to the type of an example; return the text itself when that fails."""
    plain = text.strip()
    if isinstance(example, bool):
        return {"true": True, "false": False}.get(plain.lower(), text)
    if isinstance(example, float):
        try:
            return float(plain)
        except ValueError:
            return text
    return plain


# --- A thread that watches for writers while a service runs, and stops the service for them

STOP_AGAIN_AFTER_S = 1.0


class ConflictWatch:
    """Checks each `period_s`, first after `initial_delay_s`; after a conflict it calls `stop` until the block ends.

    `conflict` is the result. Without a `watch` it does nothing.
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
                log.warning("the watch cannot read the table's writers for now: %s", error)
            if self.conflict is not None:
                # The job may still be starting, when there is nothing to stop yet: so this stops it repeatedly.
                self._stop()
                while not self._left.wait(STOP_AGAIN_AFTER_S):
                    self._stop()
                return

"""One evaluation of a table: refresh its view, decide about each service, admit what is due, start runs.

It runs in a thread of the manager's loop, which holds the table's lease.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from cachetools import LRUCache

from airflow_lake_provider.config.own_settings import apply_own
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import AdmissionVerdict, ask_admission, needs_admission
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import store_of, table_id_of
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.db.history import RUNNING
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import PausedService
from airflow_lake_provider.manager.loop.registered_paths import RegisteredPaths
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartDecision, StartVerdict, active_run_check_ms
from airflow_lake_provider.manager.supervision.writers_and_sinks import Checked, find_changed_time, recorded_report
from airflow_lake_provider.metrics import (
    decisions,
    runs_started,
)
from airflow_lake_provider.planner.conformance import block_unconforming
from airflow_lake_provider.planner.decide import decide, decide_now, load_facts, remember_shown
from airflow_lake_provider.planner.last_runs import last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, KeptBy, Verdict, only_observe
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.own_settings import OwnSettings
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.conflict.activity import ConflictTable
    from airflow_lake_provider.manager.db.operations import Quote
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.db.typed_rows import TableNames
    from airflow_lake_provider.manager.loop.event_emitter import CommitEvents
    from airflow_lake_provider.manager.loop.timeline_feed import TimelineGateway
    from airflow_lake_provider.manager.runs.airflow_runs import RunGateway
    from airflow_lake_provider.manager.supervision.vanished import VanishedExecutors
    from airflow_lake_provider.manager.supervision.writers_and_sinks import WriterChecks
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache
    from airflow_lake_provider.planner.write_history import BaseFiles
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

_WAITS = frozenset({StartVerdict.ALREADY_ACTIVE.value, StartVerdict.WAITING.value})

Admit: TypeAlias = "Callable[[TableView, TablePolicy, Decision, int], Decision]"
"""Returns the part of a decision that may be acted upon at a time in ms (`AdmissionController.admit`)."""


@dataclass(frozen=True, slots=True)
class ServiceEvaluation:
    """A decision, and the start of its run when it was due."""

    decision: Decision
    start: StartDecision | None = None
    since_ms: int | None = None
    """Since when each evaluation has found this verdict, or has given the service up."""
    situation_ms: int | None = None
    """Since when each evaluation has found this situation."""

    @property
    def standing(self) -> str:
        """What lasts from one evaluation to the next: the verdict, or that the service is given up."""
        is_given_up = self.start is not None and self.start.verdict is StartVerdict.ABANDONED
        return StartVerdict.ABANDONED.value if is_given_up else self.decision.verdict.value

    @property
    def situation(self) -> str:
        """What keeps the service from running, else the verdict, or what became of its run."""
        start = self.start
        if start is None or start.verdict is StartVerdict.WAITING:
            kept_by = self.decision.kept_by if start is None else start.kept_by
            return kept_by.value or self.decision.verdict.value
        is_started = start.verdict in {StartVerdict.START, StartVerdict.ALREADY_ACTIVE}
        return RUNNING if is_started else start.verdict.value

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that the registry stores and `GET tables/{id}` answers."""
        body: dict[str, Any] = {
            "service": self.decision.service.value,
            "verdict": self.decision.verdict.value,
            "reason": self.decision.reason,
            "evidence": dict(self.decision.evidence),
            "standing": self.standing,
            "since_ms": self.since_ms,
            "situation": self.situation,
            "situation_ms": self.situation_ms,
        }
        if self.start is not None:
            body |= {
                "run": self.start.verdict.value,
                "run_id": self.start.run_id,
                "run_reason": self.start.reason,
            }
            if self.start.never_starts:
                body["never_starts"] = True
            if self.start.price is not None:
                body["price"] = dict(self.start.price)
        return body


@dataclass(frozen=True, slots=True)
class Found:
    """What one evaluation found, before anything is started."""

    lease: TableLease
    view: TableView
    policy: TablePolicy
    last_runs: LastRuns
    now_ms: int
    checked: Checked
    base_files: BaseFiles
    would: Sequence[Decision] = ()
    """The decisions before admission, as if the table were not only observed."""
    admitted: Sequence[Decision] = ()
    waits: Sequence[ServiceEvaluation] | None = None
    """The outcomes of a table that only waits; nothing of it is started."""
    observed: str = ""
    """Why the manager starts nothing on the table; empty when it does."""
    left_out: tuple[str, ...] = ()
    """What the table sets of its own policy, and may not."""
    events_again_ms: int | None = None
    """When to try again to emit the events of commits that wait; None when none do."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an evaluation decides by."""

    lease: TableLease
    view: TableView
    own: OwnSettings
    facts: TableFacts
    now_ms: int
    why_observed: str
    """Why the manager starts nothing on the table; empty when it does."""


class TableEvaluation:
    """Evaluates leased tables, for any number of threads."""

    def __init__(  # noqa: PLR0913 - the parts of one process, each used as it is
        self,
        settings: LakeSettings,
        registry: Registry,
        timelines: TimelineGateway,
        views: TableViewCache,
        gateway: RunGateway,
        load_tables: Callable[[], TablesConfig],
        metrics: Metrics,
        *,
        admit: Admit | None,
        vanished: VanishedExecutors | None,
        writers: WriterChecks | None,
        events: CommitEvents | None,
        wake: Callable[[], None],
    ) -> None:
        self.admit = admit if admit is not None else lambda _view, _policy, decision, _now_ms: decision
        self.run_scheduler = RunScheduler(registry, gateway, load_tables, settings.engine)
        self._settings = settings
        self._registry = registry
        self._paths = RegisteredPaths(registry)
        self._timelines = timelines
        self._views = views
        self._gateway = gateway
        self._load_tables = load_tables
        self._metrics = metrics
        self._vanished = vanished
        self._writers = writers
        self._events = events
        self._wake = wake

    def decide(self, lease: TableLease) -> Found:
        """Refresh the view of a leased table, decide about each service, and admit what is due.

        Raises LakeError of a table that cannot be read, and LeaseLostError.
        """
        last_runs, only_waits = self._follow_up(lease)
        found = self._find_waiting(lease, last_runs) if lease.is_retry and only_waits else None
        return found if found is not None else self._find_admitted(lease, last_runs)

    def conclude(self, found: Found) -> Callable[[Session], EvaluationResult]:
        """Start runs of what was admitted; return what keeps the backlog and finds what to record, in the transaction
        that records it. Raises what `decide` raises.
        """
        if found.waits is not None:
            waits = found.waits
            return lambda session: self._record(session, found, waits, found.last_runs)
        outcomes, last_runs = self._act(found)
        observed = self._price_observed(found, outcomes)

        def record(session: Session) -> EvaluationResult:
            self._keep_backlog(session, found, outcomes, observed)
            return self._record(session, found, outcomes, last_runs)

        return record

    def _find_waiting(self, lease: TableLease, last_runs: LastRuns) -> Found | None:
        """Return the outcomes by the view in memory when no run would start; None when one would."""
        loaded = self._load(lease, lease.dirty_seq)
        lease = loaded.lease
        view = loaded.view
        facts = loaded.facts
        now_ms = loaded.now_ms
        why = loaded.why_observed
        policy = loaded.own.policy
        again_ms = self._emit_events(lease, view, policy)
        decided = decide(facts, policy, now_ms, remember_shown(facts, policy, last_runs, now_ms))
        checked = Checked(recorded_report(lease)[0])
        decided = only_observe(block_unconforming(decided, checked.report, policy), why)
        due = [decision for decision in decided if decision.verdict is Verdict.DUE]
        starts = self.run_scheduler.preview(lease.table_id, policy, due, last_runs)
        if any(start.verdict is StartVerdict.START for start in starts):
            return None
        of = dict(zip((decision.service for decision in due), starts, strict=True))
        waits = {service.value: start for service, start in of.items() if start.verdict is StartVerdict.WAITING}
        paused = [service for service, start in waits.items() if start.price is None]
        backlog = self.run_scheduler.backlog
        if not backlog.is_recorded(lease.table_id, waits.keys() - set(paused), paused):
            return None  # one has just become due, or is due no more: its age begins, or is kept aside
        if waits:
            backlog.touch(lease.table_id)
        outcomes = [ServiceEvaluation(decision, of.get(decision.service)) for decision in decided]
        parts = lease, view, policy, last_runs, now_ms, checked, facts.history.base_files
        return Found(*parts, waits=outcomes, observed=why, left_out=loaded.own.problems, events_again_ms=again_ms)

    def _find_admitted(self, lease: TableLease, last_runs: LastRuns) -> Found:
        loaded = self._load(lease, None if lease.is_retry else lease.dirty_seq)
        lease = loaded.lease
        view = loaded.view
        facts = loaded.facts
        now_ms = loaded.now_ms
        why = loaded.why_observed
        policy = loaded.own.policy
        again_ms = self._emit_events(lease, view, policy)
        last_runs = remember_shown(facts, policy, last_runs, now_ms)
        checked = self._check_writers(lease, view, policy, now_ms)
        decided = decide_now(self._views, facts, policy, now_ms, last_runs, self._paths.list_below)
        # Before admission, which reads writers: an observed table starts nothing.
        would = block_unconforming(decided, checked.report, policy)
        decided = only_observe(would, why)
        admitted = [self.admit(view, policy, due, now_ms) for due in decided]
        parts = lease, view, policy, last_runs, now_ms, checked, facts.history.base_files
        return Found(*parts, would, admitted, observed=why, left_out=loaded.own.problems, events_again_ms=again_ms)

    def _emit_events(self, lease: TableLease, view: TableView, policy: TablePolicy) -> int | None:
        return None if self._events is None else self._events.emit(lease, view, policy)

    def _check_writers(self, lease: TableLease, view: TableView, policy: TablePolicy, now_ms: int) -> Checked:
        if self._writers is None:
            return Checked(recorded_report(lease)[0])
        try:
            return self._writers.check_if_changed(lease, view, policy, now_ms)
        except LakeError as error:
            # The report is for people; what a service needs to be safe is read again by its job.
            log.warning("the writers of table %s were not checked: %s", lease.base_path, error)
            return Checked(recorded_report(lease)[0])

    def _load(self, lease: TableLease, covering: int | None) -> _Loaded:
        view = self._views.refresh(lease.base_path, covering)
        # First the name, then the policy that it selects: a notice's name must not select what is deleted.
        lease = self._registry.identify(lease, view.properties)
        own = apply_own(self._load_tables().policy_for(lease.base_path, lease.table_name), view.properties.raw)
        now_ms = self._registry.now_ms()
        is_local = not store_of(lease.base_path)
        real_id = table_id_of(os.path.realpath(lease.base_path)) if is_local else ""
        if is_local:
            self._registry.keep_real_id(lease, real_id)
        with self._registry.transaction() as session:
            hold = Sinks(self._registry).find_hold_within(session, lease.table_id)
            other = self._registry.find_other_path(session, lease, real_id) if is_local else None
        facts = load_facts(self._views, view, own.policy, now_ms, hold)
        return _Loaded(lease, view, own, facts, now_ms, self._find_why_observed(lease, own.policy, other))

    def _find_why_observed(self, lease: TableLease, policy: TablePolicy, other: TableNames | None) -> str:
        """Return why the manager starts nothing on a table; empty when it does.

        A table that is registered by two local paths, one with a link, is served by the path that came first, `other`.
        """
        if other is None:
            is_only_discovered = lease.is_only_discovered
            return self._load_tables().find_why_observed(lease.base_path, policy, is_only_discovered=is_only_discovered)
        # What made this evaluation due may be a change of that table.
        self._registry.mark_dirty(Notice(other.base_path, other.table_name, Source.HINT))
        self._wake()
        return f"the same table as {other.base_path}, by a link, and served there"

    def _record(
        self, session: Session, found: Found, outcomes: Sequence[ServiceEvaluation], last_runs: LastRuns
    ) -> EvaluationResult:
        lease = found.lease
        view = found.view
        policy = found.policy
        now_ms = found.now_ms
        _log_changes(lease, outcomes)
        outcomes = _with_times(outcomes, lease.decisions, now_ms)
        for outcome in outcomes:
            self._metrics.incr(decisions(outcome.decision.service, outcome.decision.verdict))
            if outcome.start is not None and outcome.start.verdict is StartVerdict.START:
                self._metrics.incr(runs_started(outcome.decision.service))
        next_evaluation_ms = self.silent_ms(lease.base_path, policy)
        changed_time = find_changed_time(view)
        zone = zone_of_jobs(view.properties.time_zone, policy.spark_conf)
        return EvaluationResult(
            next_evaluation_ms=next_evaluation_ms,
            retry_ms=_earliest(self._retry_ms(session, lease, outcomes, next_evaluation_ms), found.events_again_ms),
            completed_time=view.timeline.latest_completed_time(),
            changed_time=changed_time,
            last_commit_ms=instant_time_ms(changed_time, zone.zone) if changed_time else None,
            view_version=view.version,
            decisions_json=json.dumps([outcome.to_dict() for outcome in outcomes]),
            holes=len(view.timeline.holes()),
            base_files=found.base_files,
            problem=problems_text(view.problems)[:4000],
            last_runs_json=last_runs_to_text(last_runs),
            conformance=found.checked.text,
            observed=found.observed,
            paused=_find_paused(policy, now_ms),
            left_out=found.left_out,
        )

    def _follow_up(self, lease: TableLease) -> tuple[LastRuns, bool]:
        """Return the last runs as they are now, and whether the table only waits, for runs that still go on.

        While it only waits, no read of the storage is needed: this method finds a run that ends without a notice, and
        the timelines' heartbeat a commit.
        """
        before = parse_last_runs(lease.last_runs)
        if self._vanished is not None:
            self._vanished.end_done_runs(lease.table_id, lease.base_path, before)
        last_runs = self.run_scheduler.follow_up(before)
        decisions = _parse(lease.decisions)
        waits = [found.get("run_id", "") for found in decisions if found.get("run") in _WAITS]
        # Only storage shows when what blocks a service is gone.
        is_blocked = any(found["verdict"] == Verdict.BLOCKED for found in decisions)
        if is_blocked or lease.evaluation_failures or last_runs != before or not (waits or before.open_run_ids()):
            return last_runs, False
        with self._registry.transaction() as session:
            active = self._gateway.find_active_runs(session, lease.table_id)
        # A run that was cleared, or started by hand, is not followed up.
        known = {"", *before.open_run_ids()}
        return last_runs, known.issuperset(waits) and known.issuperset(run.run_id for run in active)

    def _retry_ms(
        self, session: Session, lease: TableLease, outcomes: Sequence[ServiceEvaluation], next_evaluation_ms: int
    ) -> int | None:
        """Return when to evaluate again without a notice; None when there is no reason."""
        retry_ms = _earliest_retry_ms(outcomes, next_evaluation_ms)
        starts = [outcome.start.verdict for outcome in outcomes if outcome.start is not None]
        if starts:
            waits_for_runs = any(verdict in _WAITS for verdict in starts)
        else:
            waits_for_runs = bool(self._gateway.find_active_runs(session, lease.table_id))
        if not waits_for_runs:
            return retry_ms
        # A run that dies may leave a plan behind without a notice.
        now_ms = self._registry.now_ms()
        check_ms = now_ms + active_run_check_ms(now_ms - lease.last_notice_ms if lease.source == Source.HINT else None)
        return _earliest(retry_ms, check_ms)

    def _act(self, found: Found) -> tuple[list[ServiceEvaluation], LastRuns]:
        outcomes = []
        last_runs = found.last_runs
        for decision in found.admitted:
            start = None
            if decision.verdict is Verdict.DUE:
                start = self.run_scheduler.start(found.lease, found.policy, decision, last_runs)
            if start is not None and start.verdict is StartVerdict.START:
                last_runs = last_runs.started(decision, start.run_id)
            outcomes.append(ServiceEvaluation(decision, start))
        return outcomes, last_runs

    def _price_observed(self, found: Found, outcomes: Sequence[ServiceEvaluation]) -> Mapping[str, Quote]:
        """Return the quotes of what would run if the table were not observed, by service."""
        given = {o.decision.service for o in outcomes if o.decision.verdict is not Verdict.NOT_DUE}
        unseen = [would for would in found.would if would.verdict is Verdict.DUE and would.service not in given]
        if not unseen:
            return {}
        return self.run_scheduler.backlog.price_observed(found.lease, found.policy, unseen)

    def _keep_backlog(
        self,
        session: Session,
        found: Found,
        outcomes: Sequence[ServiceEvaluation],
        observed: Mapping[str, Quote],
    ) -> None:
        """Record what waits, and what is only observed; it decides nothing about this evaluation."""
        waits = [o for o in outcomes if o.start is not None and o.start.verdict is StartVerdict.WAITING]
        paused = [o.decision.service.value for o in waits if o.start is not None and o.start.price is None]
        waiting = [o.decision.service.value for o in waits if o.decision.service.value not in paused]
        kept_by = {
            o.decision.service.value: f"{verdict}: {o.decision.reason if o.start is None else o.start.reason}"
            for o in outcomes
            if (verdict := o.decision.verdict if o.start is None else o.start.verdict) is not Verdict.NOT_DUE
            and o not in waits
        }
        self.run_scheduler.backlog.keep(session, found.lease.table_id, waiting, paused, observed, kept_by)

    def silent_ms(self, base_path: str, policy: TablePolicy, silence_s: float | None = None) -> int:
        """Return when a table without a notice counts as silent and is evaluated again, ms since the epoch.

        `silence_s` is what the process that watches the table expects; without it this process's timelines say it.
        """
        # The timelines' own heartbeat comes first and follows the table's commit interval; this is the fallback.
        expected_s = self._timelines.silence_s(base_path) if silence_s is None else silence_s
        heartbeat_s = policy.heartbeat_timeout_s or max(self._settings.heartbeat_timeout_s, expected_s)
        return self._registry.now_ms() + int(heartbeat_s * 1000)


def _find_paused(policy: TablePolicy, now_ms: int) -> dict[str, PausedService]:
    """Return what is paused: the services, or the table, under an empty name."""
    if policy.is_paused_at(now_ms):
        return {"": PausedService(policy.paused or "", policy.pause_ends_ms)}
    return {
        service.value: PausedService(why, policy.find_pause_end_ms(service, now_ms))
        for service in Service
        if (why := policy.find_pause(service, now_ms))
    }


def _earliest(*times_ms: int | None) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def _with_times(outcomes: Sequence[ServiceEvaluation], before_json: str, now_ms: int) -> list[ServiceEvaluation]:
    before = {found["service"]: found for found in _parse(before_json)}

    def since(outcome: ServiceEvaluation, what: str, value: str, since: str) -> int:
        found = before.get(outcome.decision.service.value, {})
        return (found.get(since) if found.get(what) == value else None) or now_ms

    return [
        replace(
            o,
            since_ms=since(o, "standing", o.standing, "since_ms"),
            situation_ms=since(o, "situation", o.situation, "situation_ms"),
        )
        for o in outcomes
    ]


def _parse(decisions_json: str) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = json.loads(decisions_json or "[]")
    return decisions


def _earliest_retry_ms(outcomes: Sequence[ServiceEvaluation], next_evaluation_ms: int) -> int | None:
    times = [
        o.start.evaluate_again_ms for o in outcomes if o.start is not None and o.start.evaluate_again_ms is not None
    ]
    times += [o.decision.evaluate_again_ms for o in outcomes if o.decision.evaluate_again_ms is not None]
    # A change of the configuration, which causes no notice, may unblock what is blocked.
    times += [next_evaluation_ms for o in outcomes if o.decision.verdict is Verdict.BLOCKED]
    return min(times, default=None)


def _log_changes(lease: TableLease, outcomes: Sequence[ServiceEvaluation]) -> None:
    """Log what was started, and what is otherwise than at the last evaluation: two lines at most, whatever came."""
    before = {found["service"]: (found["verdict"], found.get("run")) for found in _parse(lease.decisions)}
    started = []
    changed = []
    for outcome in outcomes:
        decision = outcome.decision
        start = outcome.start
        log.debug("table %s: %s", lease.base_path, outcome)
        if start is not None and start.verdict is StartVerdict.START:
            started.append(f"{decision.service} ({start.run_id}): {start.reason}")
            continue
        verdict = start.verdict if start is not None else decision.verdict
        was = before.get(decision.service.value)
        if was == (decision.verdict, None if start is None else start.verdict):
            continue
        # Of a table that is new, or whose run was started and is due no more, only what keeps a service is a change.
        if decision.verdict is not Verdict.NOT_DUE or (was is not None and was[0] == Verdict.BLOCKED):
            changed.append(f"{decision.service} {verdict}: {start.reason if start is not None else decision.reason}")
    for text, what in (("starts", started), ("now", changed)):
        if what:
            log.info("table %s: %s %s", lease.base_path, text, "; ".join(what))


# --- Admits due services only when no writer is in their way; before a run is created

_MAX_TABLES = 256


@dataclass(frozen=True, slots=True)
class _AdmittedTable:
    """What the controller caches of one table; the thread that checks it holds `lock`."""

    table: ConflictTable
    lock: threading.Lock = field(default_factory=threading.Lock)


class AdmissionController:
    """Checks due decisions with early conflict detection, for any number of threads: the loop's and a sweep's."""

    def __init__(self, open_table: Callable[[str], Storage]) -> None:
        self._open_table = open_table
        self._lock = threading.Lock()
        self._admitted: LRUCache[str, _AdmittedTable] = LRUCache(_MAX_TABLES)

    def admit(self, view: TableView, policy: TablePolicy, decision: Decision, now_ms: int) -> Decision:
        """Return the decision as admitted: unchanged, in fewer partitions, blocked, or turned into a withdrawal.

        It withdraws a plan that holds a writer up. Raises LakeError of a table that cannot be read.
        """
        if decision.verdict is not Verdict.DUE or not needs_admission(decision.service, decision.mode, policy.conflict):
            return decision
        admitted = self._admitted_table(view.base_path, policy)
        with admitted.lock:
            found = ask_admission(
                decision.service,
                admitted.table,
                view.commits,
                decision.plan_instants,
                policy.conflict,
                now_ms,
                decision.options,
            )
        reason = f"{decision.reason}; {found.reason}"
        if found.verdict is AdmissionVerdict.GO:
            return decision
        if found.verdict is AdmissionVerdict.SHRINK:
            options = MappingProxyType({**decision.options, **found.options})
            return replace(decision, reason=reason, options=options)
        if found.withdraw:
            return replace(decision, reason=reason, mode=Mode.WITHDRAW, plan_instants=found.withdraw)
        again_ms = found.evaluate_again_ms
        blocked = replace(decision, reason=reason, verdict=Verdict.BLOCKED, evaluate_again_ms=again_ms)
        return replace(blocked, kept_by=KeptBy.CONFLICT)

    def _admitted_table(self, base_path: str, policy: TablePolicy) -> _AdmittedTable:
        with self._lock:
            admitted = self._admitted.get(base_path)
            settings = policy.hudi_options, policy.spark_conf
            if admitted is None or (admitted.table.hudi_options, admitted.table.spark_conf) != settings:
                table = open_conflict_table(self._open_table(base_path), *settings)
                admitted = self._admitted[base_path] = _AdmittedTable(table)
            return admitted

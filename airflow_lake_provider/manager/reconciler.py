"""The loop that turns dirty marks into DAG runs: acquire, refresh the view, decide, start runs, release.

Any number of loops may run, in any number of processes: leases keep them apart, and another loop acquires the lease
of a dead one when it ends, without any later notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from cachetools import LRUCache

from airflow_lake_provider.backoff import backoff
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import AdmissionVerdict, ask_admission, needs_admission
from airflow_lake_provider.errors import LakeError, LeaseLostError, TableNotFoundError, TablesConfigError
from airflow_lake_provider.hudi.base_path import identity_of, store_of, table_id_of
from airflow_lake_provider.job_contract import Mode
from airflow_lake_provider.manager.db.registry import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.evaluators import Evaluators
from airflow_lake_provider.manager.instances import PEOPLE, Instance, InstanceState
from airflow_lake_provider.manager.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling import ACTIVE_RUN_CHECK_MS, StartDecision, StartVerdict
from airflow_lake_provider.manager.writers import Checked, recorded_report, row_of
from airflow_lake_provider.metrics import (
    DECISION_LATENCY,
    EVALUATIONS,
    FAILED_EVALUATIONS,
    HEARTBEAT_AGE,
    NOTICES,
    NoMetrics,
    decisions,
    runs_started,
)
from airflow_lake_provider.planner.conformance import block_unconforming
from airflow_lake_provider.planner.decide import decide, decide_now, load_facts, remember_cleaned
from airflow_lake_provider.planner.last_runs import last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, Verdict, only_observe
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_file import TablesConfig
    from airflow_lake_provider.conflict.activity import ConflictTable
    from airflow_lake_provider.manager.db.registry import Mark, Registry, TableLease
    from airflow_lake_provider.manager.evaluators import EvaluatorLimits
    from airflow_lake_provider.manager.instances import VanishedExecutors
    from airflow_lake_provider.manager.scheduling import Net, RunGateway
    from airflow_lake_provider.manager.timeline_feed import TimelineGateway
    from airflow_lake_provider.manager.writers import WriterChecks
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

MAX_EVALUATION_BACKOFF_S = 600.0
HEARTBEAT_LATE_S = 60.0
"""By how much a table's heartbeat may be late before the timeline in memory no longer counts."""
BLOCKED_FOR_MS = 3_600_000
"""How long a service is blocked before people are notified: a writer at work blocks services for minutes."""
FORGET_AFTER_MS = 7 * 86_400_000
"""How long a table may be missing before the registry forgets it: longer than an unmounted file system stays unseen."""

_WAITS = frozenset({StartVerdict.ALREADY_ACTIVE.value, StartVerdict.WAITING.value})

Admit: TypeAlias = "Callable[[TableView, TablePolicy, Decision, int], Decision]"
"""Returns the part of a decision that may be acted upon at a time in ms (`AdmissionController.admit`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision, and the start of its run when it was due."""

    decision: Decision
    start: StartDecision | None = None
    since_ms: int | None = None
    """Since when each evaluation has found this verdict, or has given the service up."""

    @property
    def standing(self) -> str:
        """What lasts from one evaluation to the next: the verdict, or that the service is given up."""
        is_given_up = self.start is not None and self.start.verdict is StartVerdict.ABANDONED
        return StartVerdict.ABANDONED.value if is_given_up else self.decision.verdict.value

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that the registry stores and `GET tables/{id}` answers."""
        body: dict[str, Any] = {
            "service": self.decision.service.value,
            "verdict": self.decision.verdict.value,
            "reason": self.decision.reason,
            "evidence": dict(self.decision.evidence),
            "standing": self.standing,
            "since_ms": self.since_ms,
        }
        if self.start is not None:
            body |= {
                "run": self.start.verdict.value,
                "run_id": self.start.run_id,
                "run_reason": self.start.reason,
            }
        return body


@dataclass(frozen=True, slots=True)
class _Found:
    """What one evaluation found."""

    lease: TableLease
    view: TableView
    policy: TablePolicy
    outcomes: list[Outcome]
    last_runs: LastRuns
    now_ms: int
    checked: Checked


class ManagerLoop:
    """Evaluates dirty tables: `run` in threads until stopped, `drain` once, in the caller's thread."""

    def __init__(  # noqa: PLR0913 - the parts of one process, each used as it is
        self,
        settings: LakeSettings,
        registry: Registry,
        timelines: TimelineGateway,
        views: TableViewCache,
        gateway: RunGateway,
        load_tables: Callable[[], TablesConfig],
        metrics: Metrics | None = None,
        admit: Admit | None = None,
        limits: EvaluatorLimits | None = None,
        on_stuck: Callable[[str, Instance], None] = lambda _base_path, _instance: None,
        vanished: VanishedExecutors | None = None,
        writers: WriterChecks | None = None,
    ) -> None:
        self._on_stuck = on_stuck
        self._vanished = vanished
        self._writers = writers
        self._settings = settings
        self.admit = admit if admit is not None else lambda _view, _policy, decision, _now_ms: decision
        self._registry = registry
        self._views = views
        self._gateway = gateway
        self._load_tables = load_tables
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._timelines = timelines
        self.run_scheduler = RunScheduler(registry, gateway, load_tables)
        self._evaluators = Evaluators(
            registry, self._evaluate_safely, self._give_up, settings.claim_lease_s, limits, self._metrics
        )
        self._passed_s: float | None = None
        self._wake: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def notify(self, notice: Notice, *, may_register: bool = True) -> Mark:
        """Make a notice durable, then notify this process's timelines and this loop.

        Raises TableUnknownError for a table that is not registered when `may_register` is false.
        """
        mark = self._registry.mark_dirty(notice, may_register=may_register)
        self._metrics.incr(NOTICES)
        self._timelines.announce(notice, mark)
        self.wake()
        return mark

    def wake(self) -> None:
        """Wake the loop from any thread."""
        event_loop, wake = self._event_loop, self._wake
        if event_loop is not None and wake is not None:
            event_loop.call_soon_threadsafe(wake.set)

    async def run(self) -> None:
        """Have waiting tables evaluated whenever woken, and at least each `loop_interval_s`; ends when cancelled."""
        self._event_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        while True:
            try:
                await asyncio.to_thread(self.start)
            except Exception:  # the outermost loop: one failed pass must not end all later ones
                log.exception("a pass over the dirty tables failed; next one in %s s", self._settings.loop_interval_s)
                await asyncio.sleep(self._settings.loop_interval_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=self._settings.loop_interval_s)
            self._wake.clear()

    def start(self) -> None:
        """Have the waiting tables evaluated by threads of this process; return without waiting for any store."""
        self._evaluators.start()
        self._passed_s = time.monotonic()

    def find_problems(self) -> tuple[str, ...]:
        """Return what keeps this process's loop, or its part for one store, from evaluating tables."""
        problems = self._evaluators.find_problems()
        if self._event_loop is None or self._passed_s is None:
            return problems
        silent_s = time.monotonic() - self._passed_s
        if silent_s <= 10 * self._settings.loop_interval_s + 30:
            return problems
        return (*problems, f"the manager's loop has made no pass for {silent_s:,.0f} s: see this API server's log")

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no table is being evaluated by `start`; false when that takes longer."""
        return self._evaluators.wait_until_idle(timeout_s)

    def find_net(self) -> Net:
        """Return the state of the DAGs that this manager depends on."""
        with self._registry.transaction() as session:
            return self._gateway.find_net(session)

    def register_configured_tables(self) -> None:
        """Add the tables that the configuration names by path to the registry."""
        tables = self._find_tables()
        named = {
            table_id_of(path): (path, name) for path, name in (tables.named_tables() if tables is not None else ())
        }
        for table_id in self._registry.list_unknown(tuple(named)):
            self._registry.register(Notice(*named[table_id], Source.CONFIG))

    def forget_missing_tables(self) -> int:
        """Forget the tables that have been missing for `FORGET_AFTER_MS`; return how many.

        A table that the tables file names by its path stays, with its problem: its owner expects it there.
        """
        tables = self._find_tables()
        if tables is None:
            return 0  # any of them may be named by its path
        named = {identity_of(base_path) for base_path, _ in tables.named_tables()}
        forgotten = 0
        for row in self._registry.list_missing(self._registry.now_ms() - FORGET_AFTER_MS):
            if identity_of(row["base_path"]) in named:
                continue
            try:
                self.forget(row["table_id"])
            except LakeError as error:
                log.warning("table %s is missing but not forgotten: %s", row["base_path"], error)
                continue
            days = FORGET_AFTER_MS // 86_400_000
            log.warning("the manager forgot table %s: none has been at its path for %d days", row["base_path"], days)
            forgotten += 1
        return forgotten

    def forget(self, table_id: str) -> None:
        """Remove a table from the registry and from this process's timelines. Raises what `Registry.forget` raises."""
        self._timelines.forget(self._registry.forget(table_id))

    def postpone(self, table_ids: list[str]) -> None:
        """Record that a sensor found no new commit on silent tables: their own timeout starts again.

        A table with a pending instant is marked instead: a writer announces no begin, so its death before the commit
        would cause no notice. So is one whose timeline is not in memory as it is now. This reads no storage.
        """
        tables = self._find_tables()
        for row in filter(None, map(self._registry.find, table_ids)):
            base_path, name = row["base_path"], row["table_name"]
            if self._may_have_pending(base_path, row["dirty_seq"]):
                self._registry.mark_dirty(Notice(base_path, name, Source.HINT))
            else:
                policy = tables.policy_for(base_path, name) if tables is not None else TablePolicy()
                self._registry.postpone(row["table_id"], self._silent_ms(base_path, policy))

    def _find_tables(self) -> TablesConfig | None:
        """Return the tables' settings, None while there are no valid ones: notices and deadlines need none."""
        try:
            return self._load_tables()
        except TablesConfigError:
            return None  # `/health` and each evaluation report it

    def _may_have_pending(self, base_path: str, dirty_seq: int) -> bool:
        pause_s = self._timelines.pause_s(base_path)
        if not pause_s:
            return True  # this process does not watch it, so only a refresh can show it
        # A request must not wait for a store, so only what this process's heartbeats have read counts here. One whose
        # heartbeat does not return is evaluated: that reads it, or is reported.
        snapshot = self._views.find_snapshot(base_path, dirty_seq, 2 * pause_s + HEARTBEAT_LATE_S)
        return snapshot is None or bool(snapshot.timeline.pending())

    def drain(self, most: int = 1000) -> int:
        """Evaluate dirty tables until none is left or `most` are evaluated; return how many."""
        evaluated = 0
        while evaluated < most:
            # One lease at a time: another process may take what this one has not begun.
            leases = self._registry.acquire(1, self._settings.claim_lease_s)
            if not leases:
                break
            self._evaluate_safely(leases[0])
            evaluated += 1
        return evaluated

    def _evaluate_safely(self, lease: TableLease) -> None:
        try:
            result = self._evaluate(lease)
        except LeaseLostError as error:
            log.warning("%s", error)
            return
        except LakeError as error:
            result = self._failed_evaluation(lease, error)
        except Exception as error:  # an unexpected error of one table (Airflow's, a library's) must not stop the others
            log.exception("the evaluation of table %s failed unexpectedly", lease.base_path)
            result = self._failed_evaluation(lease, error)
        clean = self._registry.release(lease, result)
        self._measure(lease, result)
        if not clean and not result.failed:
            log.info("table %s changed during its evaluation; the loop evaluates it again", lease.base_path)

    def _give_up(self, lease: TableLease, error: Exception) -> None:
        # Each try costs a thread of a process, so the table waits for the longest back-off from the first failure on.
        result = self._failed_evaluation(lease, error, MAX_EVALUATION_BACKOFF_S)
        self._registry.release(lease, result)
        self._measure(lease, result)

    def _measure(self, lease: TableLease, result: EvaluationResult) -> None:
        self._metrics.incr(FAILED_EVALUATIONS if result.failed else EVALUATIONS)
        if not lease.is_retry:
            self._metrics.timing(DECISION_LATENCY, self._registry.now_ms() - lease.dirty_since_ms)
        if lease.evaluated_ms is not None:
            self._metrics.timing(HEARTBEAT_AGE, self._registry.now_ms() - lease.evaluated_ms)

    def _evaluate(self, lease: TableLease) -> EvaluationResult:
        last_runs, only_waits = self._follow_up(lease)
        found = self._find_waiting(lease, last_runs) if lease.is_retry and only_waits else None
        if found is None:
            found = self._find_outcomes(lease, last_runs)
        return self._record(found)

    def _find_waiting(self, lease: TableLease, last_runs: LastRuns) -> _Found | None:
        """Return the outcomes by the view in memory when no run would start; None when one would."""
        lease, view, policy, facts, now_ms = self._load(lease, lease.dirty_seq)
        decided = decide(facts, policy, now_ms, remember_cleaned(facts, policy, last_runs, now_ms))
        checked = Checked(recorded_report(row_of(lease))[0])
        decided = self._observe(lease, policy, block_unconforming(decided, checked.report, policy))
        due = [decision for decision in decided if decision.verdict is Verdict.DUE]
        starts = self.run_scheduler.preview(lease.table_id, policy, due, last_runs)
        if any(start.verdict is StartVerdict.START for start in starts):
            return None
        of = dict(zip((decision.service for decision in due), starts, strict=True))
        outcomes = [Outcome(decision, of.get(decision.service)) for decision in decided]
        return _Found(lease, view, policy, outcomes, last_runs, now_ms, checked)

    def _find_outcomes(self, lease: TableLease, last_runs: LastRuns) -> _Found:
        lease, view, policy, facts, now_ms = self._load(lease, None if lease.is_retry else lease.dirty_seq)
        last_runs = remember_cleaned(facts, policy, last_runs, now_ms)
        checked = self._check_writers(lease, view, policy, now_ms)
        decided = decide_now(self._views, facts, policy, now_ms, last_runs)
        # Before admission, which reads writers: an observed table starts nothing.
        decided = self._observe(lease, policy, block_unconforming(decided, checked.report, policy))
        admitted = [self.admit(view, policy, due, now_ms) for due in decided]
        outcomes, last_runs = self._act(lease, policy, admitted, last_runs)
        return _Found(lease, view, policy, outcomes, last_runs, now_ms, checked)

    def _check_writers(self, lease: TableLease, view: TableView, policy: TablePolicy, now_ms: int) -> Checked:
        if self._writers is None:
            return Checked(recorded_report(row_of(lease))[0])
        try:
            return self._writers.check_if_changed(row_of(lease), view, policy, now_ms)
        except LakeError as error:
            # The report is for people; what a service needs to be safe is read again by its job.
            log.warning("the writers of table %s were not checked: %s", lease.base_path, error)
            return Checked(recorded_report(row_of(lease))[0])

    def _observe(self, lease: TableLease, policy: TablePolicy, decided: Sequence[Decision]) -> tuple[Decision, ...]:
        """Return the decisions about a table; those about one that is observed start nothing.

        A table that is registered by two local paths, one with a link, is served by the path that came first.
        """
        tables, is_only_discovered = self._load_tables(), lease.is_only_discovered
        why = tables.find_why_observed(lease.base_path, policy, is_only_discovered=is_only_discovered)
        other = None
        if not store_of(lease.base_path):
            other = self._registry.find_other_path(lease, table_id_of(os.path.realpath(lease.base_path)))
        if other is not None:
            why = f"the same table as {other['base_path']}, by a link, and served there"
            # What made this evaluation due may be news of that table.
            self._registry.mark_dirty(Notice(other["base_path"], other["table_name"], Source.HINT))
            self.wake()
        return only_observe(decided, why)

    def _load(
        self, lease: TableLease, covering: int | None
    ) -> tuple[TableLease, TableView, TablePolicy, TableFacts, int]:
        view = self._views.refresh(lease.base_path, covering)
        # First the name, then the policy that it selects: a notice's name must not select what is deleted.
        lease = self._registry.identify(lease, view.properties)
        policy = self._load_tables().policy_for(lease.base_path, lease.table_name)
        now_ms = self._registry.now_ms()
        hold = Sinks(self._registry).find_hold(lease.table_id)
        return lease, view, policy, load_facts(self._views, view, policy, now_ms, hold), now_ms

    def _record(self, found: _Found) -> EvaluationResult:
        lease, view, policy, now_ms = found.lease, found.view, found.policy, found.now_ms
        outcomes = _with_times(found.outcomes, lease.decisions, now_ms)
        if policy.doctor.notify:
            self._notify_stuck(lease, outcomes, now_ms)
            if found.checked.breach is not None:
                self._on_stuck(lease.base_path, found.checked.breach)
        for outcome in outcomes:
            _log_outcome(lease, outcome)
            self._metrics.incr(decisions(outcome.decision.service, outcome.decision.verdict))
            if outcome.start is not None and outcome.start.verdict is StartVerdict.START:
                self._metrics.incr(runs_started(outcome.decision.service))
        next_evaluation_ms = self._silent_ms(lease.base_path, policy)
        return EvaluationResult(
            next_evaluation_ms=next_evaluation_ms,
            retry_ms=self._retry_ms(lease, outcomes, next_evaluation_ms),
            completed_time=view.timeline.latest_completed_time(),
            view_version=view.version,
            decisions_json=json.dumps([outcome.to_dict() for outcome in outcomes]),
            holes=len(view.timeline.holes()),
            problem=problems_text(view.problems)[:4000],
            last_runs_json=last_runs_to_text(found.last_runs),
            conformance=found.checked.text,
        )

    def _follow_up(self, lease: TableLease) -> tuple[LastRuns, bool]:
        """Return the last runs as they are now, and whether the table only waits, for runs that still go on.

        Then storage need not be asked anew: a run that ends without a notice is noticed here, a commit by the
        timelines' heartbeat.
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
            active = self._gateway.find_active_runs(session, f"{lease.table_id}.")
        # A run that was cleared, or started by hand, is not followed up.
        known = {"", *before.open_run_ids()}
        return last_runs, known.issuperset(waits) and known.issuperset(run.run_id for run in active)

    def _notify_stuck(self, lease: TableLease, outcomes: list[Outcome], now_ms: int) -> None:
        """Notify people once of services that were given up, and once of those that have been blocked for long."""
        given_up = [o for o in outcomes if o.standing == StartVerdict.ABANDONED]
        blocked = [o for o in outcomes if o.decision.verdict is Verdict.BLOCKED]
        is_long = any(now_ms - (o.since_ms or now_ms) >= BLOCKED_FOR_MS for o in blocked)
        for stuck in (given_up, blocked if is_long else []):
            if stuck:
                reasons = {o.start.reason if o.start is not None else o.decision.reason: None for o in stuck}
                services = ", ".join(o.decision.service for o in stuck)
                since_ms = min(o.since_ms or now_ms for o in stuck)
                instance = Instance(services, InstanceState.ABANDONED, PEOPLE, "; ".join(reasons), since_ms=since_ms)
                self._on_stuck(lease.base_path, instance)

    def _retry_ms(self, lease: TableLease, outcomes: list[Outcome], next_evaluation_ms: int) -> int | None:
        """Return when to evaluate again without a notice; None when there is no reason."""
        retry_ms = _earliest_retry_ms(outcomes, next_evaluation_ms)
        if any(outcome.start is not None for outcome in outcomes):
            return retry_ms
        with self._registry.transaction() as session:
            is_active = bool(self._gateway.find_active_runs(session, f"{lease.table_id}."))
        if not is_active:
            return retry_ms
        # A run that dies may leave a plan behind without a notice.
        check_ms = self._registry.now_ms() + ACTIVE_RUN_CHECK_MS
        return check_ms if retry_ms is None else min(retry_ms, check_ms)

    def _act(
        self, lease: TableLease, policy: TablePolicy, decisions: Sequence[Decision], last_runs: LastRuns
    ) -> tuple[list[Outcome], LastRuns]:
        outcomes = []
        for decision in decisions:
            start = None
            if decision.verdict is Verdict.DUE:
                start = self.run_scheduler.start(lease, policy, decision, last_runs)
            if start is not None and start.verdict is StartVerdict.START:
                last_runs = last_runs.started(decision, start.run_id)
            outcomes.append(Outcome(decision, start))
        return outcomes, last_runs

    def _silent_ms(self, base_path: str, policy: TablePolicy) -> int:
        # The timelines' own heartbeat comes first and follows the table's commit interval; this is the fallback.
        heartbeat_s = policy.heartbeat_timeout_s or max(
            self._settings.heartbeat_timeout_s, 2 * self._timelines.pause_s(base_path)
        )
        return self._registry.now_ms() + int(heartbeat_s * 1000)

    def _failed_evaluation(self, lease: TableLease, error: Exception, least_backoff_s: float = 0.0) -> EvaluationResult:
        failures = lease.evaluation_failures + 1
        pause_s = max(backoff(self._settings.loop_interval_s, failures, MAX_EVALUATION_BACKOFF_S), least_backoff_s)
        log.warning("table %s cannot be evaluated, next try in %.0f s: %s", lease.base_path, pause_s, _describe(error))
        retry_ms = self._registry.now_ms() + int(pause_s * 1000)
        return EvaluationResult(
            next_evaluation_ms=retry_ms,
            retry_ms=retry_ms,
            problem=_describe(error),
            failed=True,
            is_missing=isinstance(error, TableNotFoundError),
        )


def _with_times(outcomes: list[Outcome], before_json: str, now_ms: int) -> list[Outcome]:
    before = {(found["service"], found.get("standing")): found.get("since_ms") for found in _parse(before_json)}
    return [replace(o, since_ms=before.get((o.decision.service.value, o.standing)) or now_ms) for o in outcomes]


def _parse(decisions_json: str) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = json.loads(decisions_json or "[]")
    return decisions


def _earliest_retry_ms(outcomes: list[Outcome], next_evaluation_ms: int) -> int | None:
    times = [
        o.start.evaluate_again_ms for o in outcomes if o.start is not None and o.start.evaluate_again_ms is not None
    ]
    times += [o.decision.evaluate_again_ms for o in outcomes if o.decision.evaluate_again_ms is not None]
    # A change of the configuration, which causes no notice, may unblock what is blocked.
    times += [next_evaluation_ms for o in outcomes if o.decision.verdict is Verdict.BLOCKED]
    return min(times, default=None)


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"
    return text[:4000]


def _log_outcome(lease: TableLease, outcome: Outcome) -> None:
    decision, start = outcome.decision, outcome.start
    if start is None:
        log.info("table %s: %s %s: %s", lease.base_path, decision.service, decision.verdict, decision.reason)
    else:
        log.info(
            "table %s: %s %s (%s): %s",
            lease.base_path,
            decision.service,
            start.verdict,
            start.run_id,
            start.reason,
        )


# --- Admits due services only when no writer is in their way; before a run is created

_MOST_TABLES = 256


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
        self._admitted: LRUCache[str, _AdmittedTable] = LRUCache(_MOST_TABLES)

    def admit(self, view: TableView, policy: TablePolicy, decision: Decision, now_ms: int) -> Decision:
        """Return the decision as admitted: unchanged, in fewer partitions, blocked, or turned into a withdrawal.

        It withdraws a plan that holds a writer up. Raises LakeError of a table that cannot be read.
        """
        if decision.verdict is not Verdict.DUE or not needs_admission(decision.service, decision.mode, policy.conflict):
            return decision
        admitted = self._admitted_table(view.base_path, policy)
        with admitted.lock:
            found = ask_admission(
                decision.service, admitted.table, view.commits, decision.plan_instants, policy.conflict, now_ms
            )
        reason = f"{decision.reason}; {found.reason}"
        if found.verdict is AdmissionVerdict.GO:
            return decision
        if found.verdict is AdmissionVerdict.SHRINK:
            options = MappingProxyType({**decision.options, **found.options})
            return replace(decision, reason=reason, options=options)
        if found.withdraw:
            return replace(decision, reason=reason, mode=Mode.WITHDRAW, plan_instants=found.withdraw)
        return replace(decision, reason=reason, verdict=Verdict.BLOCKED, evaluate_again_ms=found.evaluate_again_ms)

    def _admitted_table(self, base_path: str, policy: TablePolicy) -> _AdmittedTable:
        with self._lock:
            admitted = self._admitted.get(base_path)
            if admitted is None or admitted.table.hudi_options != policy.hudi_options:
                table = open_conflict_table(self._open_table(base_path), policy.hudi_options)
                admitted = self._admitted[base_path] = _AdmittedTable(table)
            return admitted

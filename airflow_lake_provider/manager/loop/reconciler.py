"""The loop that turns dirty marks into DAG runs: acquire, refresh the view, decide, start runs, release.

Any number of loops may run, in any number of processes: leases keep them apart, and another loop acquires the lease
of a dead one when it ends, without any later notice.

Waiting tables are evaluated in threads of their own (`manager.evaluators`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.errors import (
    LakeError,
    LeaseLostError,
    TableNotFoundError,
    TablesConfigError,
    backoff,
)
from airflow_lake_provider.hudi.base_path import identity_of, table_id_of
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.loop.courtesy import Courtesy
from airflow_lake_provider.manager.loop.evaluation import TableEvaluation
from airflow_lake_provider.manager.loop.evaluators import Evaluators
from airflow_lake_provider.manager.loop.loop_status import LoopStatus, describe_loop
from airflow_lake_provider.metrics import (
    DECISION_LATENCY,
    EVALUATIONS,
    FAILED_EVALUATIONS,
    HEARTBEAT_AGE,
    NOTICES,
    NoMetrics,
)
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import Mark, TableLease
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.loop.evaluation import Admit, Found
    from airflow_lake_provider.manager.loop.evaluators import EvaluatorLimits, Rest
    from airflow_lake_provider.manager.loop.event_emitter import CommitEvents
    from airflow_lake_provider.manager.loop.loop_process import LoopProcess
    from airflow_lake_provider.manager.loop.timeline_feed import TimelineGateway, WatchedTimeline
    from airflow_lake_provider.manager.runs.airflow_runs import LakeDags, RunGateway
    from airflow_lake_provider.manager.supervision.vanished import VanishedExecutors
    from airflow_lake_provider.manager.supervision.writers_and_sinks import WriterChecks
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableViewCache

log = logging.getLogger(__name__)

MAX_EVALUATION_BACKOFF_S = 600.0
HEARTBEAT_LATE_S = 60.0
"""By how much a table's heartbeat may be late before the timeline in memory no longer counts."""
FORGET_AFTER_MS = 7 * 86_400_000
"""How long a table may be missing before the registry forgets it: longer than an unmounted file system stays unseen."""


class ManagerLoop:
    """Evaluates dirty tables: `run` in threads until stopped, `drain` once, in the caller's thread.

    With a `process`, that one evaluates them, and this only wakes it. `shares_interpreter`: requests are answered by
    this process as well, and come first.
    """

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
        vanished: VanishedExecutors | None = None,
        writers: WriterChecks | None = None,
        events: CommitEvents | None = None,
        process: LoopProcess | None = None,
        *,
        shares_interpreter: bool = True,
    ) -> None:
        self._settings = settings
        self._process = process
        self._shares_interpreter = shares_interpreter
        self._registry = registry
        self._views = views
        self._gateway = gateway
        self._load_tables = load_tables
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._timelines = timelines
        self.evaluation = TableEvaluation(
            settings, registry, timelines, views, gateway, load_tables, self._metrics,
            admit=admit, vanished=vanished, writers=writers, events=events, wake=self.wake,
        )  # fmt: skip
        self._courtesy = Courtesy()
        self._evaluators = Evaluators(
            registry, self._decide_safely, self._give_up, settings.claim_lease_s, limits, self._metrics, self._courtesy
        )
        self._passed_s: float | None = None
        self._is_running = False

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
        """Have a running loop evaluate what was marked, from any thread."""
        if self._process is not None:
            self._process.wake()
            return
        if self._is_running:
            self._evaluators.wake()

    async def run(self) -> None:
        """Have waiting tables evaluated, from now on also upon `wake`, each `loop_interval_s`; ends when cancelled."""
        if self._process is not None:
            await self._process.run()
            return
        self._is_running = True
        if not self._shares_interpreter:
            await self._pass_for_ever()
            return
        measuring = asyncio.create_task(self._courtesy.measure(), name="lake-courtesy")
        try:
            await self._pass_for_ever()
        finally:
            measuring.cancel()

    async def _pass_for_ever(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.start)
            except Exception:  # the outermost loop: one failed pass must not end all later ones
                log.exception("a pass over the dirty tables failed; next one in %s s", self._settings.loop_interval_s)
            await asyncio.sleep(self._settings.loop_interval_s)

    def start(self) -> None:
        """Have the waiting tables evaluated; return without waiting for any store."""
        if self._process is not None:
            self._process.wake()
            return
        self._evaluators.start()
        self._passed_s = time.monotonic()

    def find_problems(self, sees: Callable[[str], bool] = lambda _path: True) -> tuple[str, ...]:
        """Return what keeps this process's loop, or its part for one store, from evaluating tables.

        `sees` says which base paths it may name.
        """
        if self._process is not None:
            return self._process.find_problems(sees)
        return describe_loop(self.status(), self._settings.loop_interval_s, sees)

    def status(self) -> LoopStatus:
        """Return how this process's loop is."""
        passed_s = self._passed_s if self._is_running else None
        silent_s = None if passed_s is None else time.monotonic() - passed_s
        return LoopStatus(silent_s, self._evaluators.find_stuck(), self._evaluators.per_store)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no table is being evaluated by `start`; false when that takes longer."""
        return self._evaluators.wait_until_idle(timeout_s)

    def find_lake_dags(self) -> LakeDags:
        """Return the state of the DAGs that this manager depends on."""
        with self._registry.transaction() as session:
            return self._gateway.find_lake_dags(session)

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
            if identity_of(row.base_path) in named:
                continue
            try:
                self.forget(row.table_id)
            except LakeError as error:
                log.warning("table %s is missing but not forgotten: %s", row.base_path, error)
                continue
            days = FORGET_AFTER_MS // 86_400_000
            log.warning("the manager forgot table %s: none has been at its path for %d days", row.base_path, days)
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
        if self._process is not None:
            self._process.postpone(table_ids)
            return
        tables = self._find_tables()
        rows = [row for row in map(self._registry.find, table_ids) if row is not None]
        unwatched = [row.base_path for row in rows if not self._timelines.pause_s(row.base_path)]
        watched = self._timelines.find_watched(unwatched)
        for row in rows:
            base_path = row.base_path
            name = row.table_name
            elsewhere = watched.get(base_path)
            if self._may_have_pending(row) if elsewhere is None else _shows_work(elsewhere, row.completed_time):
                self._registry.mark_dirty(Notice(base_path, name, Source.HINT))
            else:
                policy = tables.policy_for(base_path, name) if tables is not None else TablePolicy()
                silence_s = None if elsewhere is None else 2 * elsewhere.pause_s
                self._registry.postpone(row.table_id, self.evaluation.silent_ms(base_path, policy, silence_s))

    def _find_tables(self) -> TablesConfig | None:
        """Return the tables' settings, None while there are no valid ones: notices and deadlines need none."""
        try:
            return self._load_tables()
        except TablesConfigError:
            return None  # `/health` and each evaluation report it

    def _may_have_pending(self, row: TableRow) -> bool:
        base_path = row.base_path
        dirty_seq = row.dirty_seq
        pause_s = self._timelines.pause_s(base_path)
        if not pause_s:
            return True  # no process watches it, so only a refresh can show it
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
        rest = self._decide_safely(lease)
        if rest is not None:
            rest()

    def _decide_safely(self, lease: TableLease) -> Rest | None:
        """Evaluate a leased table and release it; return what is left to do when something is due."""
        try:
            found = self.evaluation.decide(lease)
        except Exception as error:  # noqa: BLE001 - recorded
            self._fail(lease, error)
            return None
        if any(decision.verdict is Verdict.DUE for decision in found.admitted):
            return partial(self._conclude_safely, lease, found)
        self._conclude_safely(lease, found)
        return None

    def _conclude_safely(self, lease: TableLease, found: Found) -> None:
        try:
            result, clean = self._registry.conclude(lease, self.evaluation.conclude(found))
        except Exception as error:  # noqa: BLE001 - recorded
            self._fail(lease, error)
            return
        self._follow(lease, result, clean=clean)

    def _fail(self, lease: TableLease, error: Exception) -> None:
        if isinstance(error, LeaseLostError):
            log.warning("%s", error)
            return
        if not isinstance(error, LakeError):  # Airflow's, a library's: it must not stop the other tables
            log.error("the evaluation of table %s failed unexpectedly", lease.base_path, exc_info=error)
        result = self._failed_evaluation(lease, error)
        self._follow(lease, result, clean=self._registry.release(lease, result))

    def _follow(self, lease: TableLease, result: EvaluationResult, *, clean: bool) -> None:
        self._measure(lease, result)
        if not clean and not result.failed:
            self._evaluators.expect_more()
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


def _shows_work(watched: WatchedTimeline, completed_time: str) -> bool:
    """Whether the table has to be evaluated: something is pending, or that server is late, or behind the evaluation."""
    is_late = watched.age_s > 2 * watched.pause_s + HEARTBEAT_LATE_S
    is_behind = watched.timeline.latest_completed_time() != completed_time
    return is_late or is_behind or bool(watched.timeline.pending())


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"
    return text[:4000]

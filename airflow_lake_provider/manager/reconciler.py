"""The loop that turns dirty marks into DAG runs: claim, refresh the view, decide, start runs, settle.

Any number of loops may run, in any number of processes: claims keep them apart, and a claim whose loop died runs out
and is taken again, without any later notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import AdmissionVerdict, ask_admission, needs_admission
from airflow_lake_provider.errors import LakeError, LeaseLostError
from airflow_lake_provider.job_contract import Mode
from airflow_lake_provider.manager.db.registry import LookResult, Notice, Source
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.scheduling import ACTIVE_RUN_CHECK_MS, StartDecision, Starts, StartVerdict
from airflow_lake_provider.metrics import (
    DECISION_LATENCY,
    FAILED_LOOKS,
    HEARTBEAT_AGE,
    LOOKS,
    NOTICES,
    NoMetrics,
    decisions,
    runs_started,
)
from airflow_lake_provider.planner.decide import decide_now, remember_cleaned
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.turns import parse_turns, turns_to_text
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_file import TablesConfig
    from airflow_lake_provider.conflict.activity import ConflictTable
    from airflow_lake_provider.manager.db.registry import Claim, Mark, Registry
    from airflow_lake_provider.manager.scheduling import Net, RunDoor
    from airflow_lake_provider.manager.timeline_feed import TimelinesDoor
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache
    from airflow_lake_provider.planner.turns import Turns
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

MAX_LOOK_BACKOFF_S = 600.0

Admit: TypeAlias = "Callable[[TableView, TablePolicy, Decision, int], Decision]"
"""Says at a time in ms what of a decision may be acted upon (`AdmissionDesk.admit`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision, and what became of it when it was due."""

    decision: Decision
    start: StartDecision | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that the registry keeps and `GET tables/{id}` answers."""
        body: dict[str, Any] = {
            "service": self.decision.service.value,
            "verdict": self.decision.verdict.value,
            "reason": self.decision.reason,
            "evidence": dict(self.decision.evidence),
        }
        if self.start is not None:
            body |= {
                "run": self.start.verdict.value,
                "run_id": self.start.run_id,
                "run_reason": self.start.reason,
            }
        return body


class ManagerLoop:
    """Looks at dirty tables. `drain` is one pass; `run` repeats it until stopped."""

    def __init__(  # noqa: PLR0913 - the parts of one process, each used as it is
        self,
        settings: LakeSettings,
        registry: Registry,
        timelines: TimelinesDoor,
        views: TableViewCache,
        door: RunDoor,
        load_tables: Callable[[], TablesConfig],
        metrics: Metrics | None = None,
        admit: Admit | None = None,
    ) -> None:
        self._settings = settings
        self._admit = admit if admit is not None else lambda _view, _policy, decision, _now_ms: decision
        self._registry = registry
        self._views = views
        self._door = door
        self._load_tables = load_tables
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._timelines = timelines
        self._starts = Starts(registry, door, load_tables)
        self._wake: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def mark_dirty(self, notice: Notice, *, may_register: bool = True) -> Mark:
        """Make a notice durable, then tell this process's timelines and this loop of it.

        Raises TableUnknownError for a table that is not registered when `may_register` is false.
        """
        mark = self._registry.mark_dirty(notice, may_register=may_register)
        self._metrics.incr(NOTICES)
        self._timelines.announce(notice, mark)
        self.wake()
        return mark

    def wake(self) -> None:
        """Say from any thread that there is something to look at."""
        event_loop, wake = self._event_loop, self._wake
        if event_loop is not None and wake is not None:
            event_loop.call_soon_threadsafe(wake.set)

    async def run(self) -> None:
        """Drain whenever woken, and at the latest each `loop_interval_s`; ends when cancelled."""
        self._event_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        while True:
            try:
                await asyncio.to_thread(self.drain)
            except Exception:  # the outermost loop: one bad pass must not end all later ones
                log.exception("a pass over the dirty tables failed; next one in %s s", self._settings.loop_interval_s)
                await asyncio.sleep(self._settings.loop_interval_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=self._settings.loop_interval_s)
            self._wake.clear()

    def find_net(self) -> Net:
        """Return the state of the DAGs that this manager lives by."""
        with self._registry.transaction() as session:
            return self._door.find_net(session)

    def register_configured_tables(self) -> None:
        """Put the tables that the configuration names by path into the registry."""
        for base_path, name in self._load_tables().named_tables():
            self._registry.register(Notice(base_path, name, Source.CONFIG))

    def postpone(self, table_ids: list[str]) -> None:
        """Say of silent tables that a sensor found no new commit: they are silent again after their own timeout.

        One on which something is pending is looked at instead: what a writer begins, it announces to nobody, and if it
        dies before it commits nobody ever would.
        """
        tables = self._load_tables()
        for row in filter(None, map(self._registry.find, table_ids)):
            base_path, name = row["base_path"], row["table_name"]
            if self._may_have_pending(base_path, row["dirty_seq"]):
                self._registry.mark_dirty(Notice(base_path, name, Source.HINT))
            else:
                policy = tables.policy_for(base_path, name)
                self._registry.postpone(row["table_id"], self._silent_ms(base_path, policy))

    def _may_have_pending(self, base_path: str, dirty_seq: int) -> bool:
        if not self._timelines.pause_s(base_path):
            return True  # nobody watches it in this process, so only a look can tell
        try:
            # As the heartbeats of this process's timelines know it: no look of its own for a silent table.
            return bool(self._views.refresh(base_path, dirty_seq).timeline.pending())
        except LakeError:
            return False  # its own heartbeat tells of it

    def drain(self, most: int = 1000) -> int:
        """Look at dirty tables until none is left or `most` were looked at; return how many."""
        looked = 0
        while looked < most:
            # One claim at a time: what this process has not begun, another one may take.
            claims = self._registry.claim(1, self._settings.claim_lease_s)
            if not claims:
                break
            self._look(claims[0])
            looked += 1
        return looked

    def _look(self, claim: Claim) -> None:
        try:
            result = self._look_at(claim)
        except LeaseLostError as error:
            log.warning("%s", error)
            return
        except LakeError as error:
            result = self._failed_look(claim, error)
        except Exception as error:  # one table's surprise (Airflow's, a library's) must not stop the others
            log.exception("looking at table %s failed unexpectedly", claim.base_path)
            result = self._failed_look(claim, error)
        clean = self._registry.settle(claim, result)
        self._measure(claim, result)
        if not clean and not result.failed:
            log.info("table %s changed while it was looked at; looking again", claim.base_path)

    def _measure(self, claim: Claim, result: LookResult) -> None:
        self._metrics.incr(FAILED_LOOKS if result.failed else LOOKS)
        if not claim.is_retry:
            self._metrics.timing(DECISION_LATENCY, self._registry.now_ms() - claim.dirty_since_ms)
        if claim.looked_ms is not None:
            self._metrics.timing(HEARTBEAT_AGE, self._registry.now_ms() - claim.looked_ms)

    def _look_at(self, claim: Claim) -> LookResult:
        view = self._views.refresh(claim.base_path, None if claim.is_retry else claim.dirty_seq)
        # First the name, then the policy that it selects: a notice's name must not choose what is deleted.
        claim = self._registry.identify(claim, view.properties)
        policy = self._load_tables().policy_for(claim.base_path, claim.table_name)
        now_ms = self._registry.now_ms()
        hold = Sinks(self._registry).find_hold(claim.table_id)
        turns = remember_cleaned(view, policy, hold, self._starts.follow_up(parse_turns(claim.turns)))
        decided = decide_now(self._views, view, policy, now_ms, hold, turns)
        found = [self._admit(view, policy, due, now_ms) for due in decided]
        outcomes, turns = self._act(claim, policy, found, turns)
        for outcome in outcomes:
            _log_outcome(claim, outcome)
            self._metrics.incr(decisions(outcome.decision.service, outcome.decision.verdict))
            if outcome.start is not None and outcome.start.verdict is StartVerdict.START:
                self._metrics.incr(runs_started(outcome.decision.service))
        next_look_ms = self._silent_ms(claim.base_path, policy)
        return LookResult(
            next_look_ms=next_look_ms,
            retry_ms=self._retry_ms(claim, outcomes, next_look_ms),
            completed_time=view.timeline.latest_completed_time(),
            view_version=view.version,
            decisions_json=json.dumps([outcome.to_dict() for outcome in outcomes]),
            holes=len(view.timeline.holes()),
            problem=problems_text(view.problems)[:4000],
            turns_json=turns_to_text(turns),
        )

    def _retry_ms(self, claim: Claim, outcomes: list[Outcome], next_look_ms: int) -> int | None:
        """Return when to look again although nothing is announced; None when there is no reason."""
        retry_ms = _earliest_retry_ms(outcomes, next_look_ms)
        if any(outcome.start is not None for outcome in outcomes):
            return retry_ms
        with self._registry.transaction() as session:
            is_active = bool(self._door.find_active_runs(session, f"{claim.table_id}."))
        if not is_active:
            return retry_ms
        # A run that dies may leave a plan behind and tell nobody.
        check_ms = self._registry.now_ms() + ACTIVE_RUN_CHECK_MS
        return check_ms if retry_ms is None else min(retry_ms, check_ms)

    def _act(
        self, claim: Claim, policy: TablePolicy, decisions: list[Decision], turns: Turns
    ) -> tuple[list[Outcome], Turns]:
        outcomes = []
        for decision in decisions:
            start = None
            if decision.verdict is Verdict.DUE:
                start = self._starts.start(claim, policy, decision, turns)
            if start is not None and start.verdict is StartVerdict.START:
                turns = turns.started(decision, start.run_id)
            outcomes.append(Outcome(decision, start))
        return outcomes, turns

    def _silent_ms(self, base_path: str, policy: TablePolicy) -> int:
        # The timelines' own heartbeat comes first and follows the table's rhythm; this is the net below it.
        heartbeat_s = policy.heartbeat_timeout_s or max(
            self._settings.heartbeat_timeout_s, 2 * self._timelines.pause_s(base_path)
        )
        return self._registry.now_ms() + int(heartbeat_s * 1000)

    def _failed_look(self, claim: Claim, error: Exception) -> LookResult:
        backoff_s = min(self._settings.loop_interval_s * 2**claim.look_failures, MAX_LOOK_BACKOFF_S)
        log.warning(
            "table %s cannot be looked at, next try in %.0f s: %s", claim.base_path, backoff_s, _describe(error)
        )
        retry_ms = self._registry.now_ms() + int(backoff_s * 1000)
        return LookResult(next_look_ms=retry_ms, retry_ms=retry_ms, problem=_describe(error), failed=True)


def _earliest_retry_ms(outcomes: list[Outcome], next_look_ms: int) -> int | None:
    times = [o.start.look_again_ms for o in outcomes if o.start is not None and o.start.look_again_ms is not None]
    times += [o.decision.look_again_ms for o in outcomes if o.decision.look_again_ms is not None]
    # What is blocked may be unblocked by a change of the configuration, which no writer announces.
    times += [next_look_ms for o in outcomes if o.decision.verdict is Verdict.BLOCKED]
    return min(times, default=None)


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"
    return text[:4000]


def _log_outcome(claim: Claim, outcome: Outcome) -> None:
    decision, start = outcome.decision, outcome.start
    if start is None:
        log.info("table %s: %s %s: %s", claim.base_path, decision.service, decision.verdict, decision.reason)
    else:
        log.info(
            "table %s: %s %s (%s): %s",
            claim.base_path,
            decision.service,
            start.verdict,
            start.run_id,
            start.reason,
        )


# --- Lets due services through only when no writer stands in their way; before a run is created

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

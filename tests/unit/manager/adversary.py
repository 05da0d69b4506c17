"""One table and its manager, as an adversary needs them: it chooses durations, outcomes, arrivals and other programs.

The manager's own functions decide and start (`decide`, `RunScheduler`), against a model of Hudi that knows none of
their rules. Each step checks what must always hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from types import MappingProxyType
from typing import Any

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import (
    ArchivePolicy,
    CleanPolicy,
    ClusteringPolicy,
    CompactionPolicy,
    RollbackPolicy,
    TtlPolicy,
)
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS, Service
from airflow_lake_provider.manager.runs.airflow_runs import LakeDags, RunState, ServiceRun
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import MAX_OVERTAKEN, last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, Hold, Verdict, only_observe
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import WRITE_ACTIONS, Action, State
from tests.unit.manager.conftest import is_of
from tests.unit.manager.hudi_model import NOON_MS, HudiModel, _stat

TABLE = "orders-0123456789abcdef"
OUTCOMES = ("done", "failed", "planned and failed", "died", "done and not reported", "lost", "killed workers")
DEAD_MS = HeartbeatRule().most_ms + 1

POLICY = TablePolicy(
    compaction=CompactionPolicy(delta_commits=2, log_to_base_ratio=None),
    clean=CleanPolicy(commits=2, retained_commits=2),
    archive=ArchivePolicy(min_commits=4, max_commits=6),
    rollback=RollbackPolicy(after_s=60),
    hudi_options=MappingProxyType({"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"}),
)
PLANNED = {Service.COMPACTION: Action.COMPACTION, Service.CLUSTERING: Action.CLUSTERING, Service.CLEAN: Action.CLEAN}


def make_policy(*, clusters: bool, expires: bool, most_active: int) -> TablePolicy:
    """Return a policy with short bounds, so that short histories reach all of them."""
    return POLICY.model_copy(
        update={
            "clustering": ClusteringPolicy(enabled=True if clusters else None, commits=4, small_files=None),
            "ttl": TtlPolicy(retained_days=1 if expires else None, check_every_s=3600),
            "max_active_runs": most_active,
        }
    )


@dataclass
class TableModel(HudiModel):
    """Hudi's side: also plans that stay, pending writes, savepoints, rollbacks, and other programs' plans."""

    version: int = 9
    pending: dict[str, tuple[Action, State]] = field(default_factory=dict)
    beats_ms: dict[str, int] = field(default_factory=dict)
    touched_ms: dict[str, int] = field(default_factory=dict)
    savepoint: Instant | None = None
    changes: int = 0
    """Of what anyone can see of the table."""
    expired: int = 0
    """Partitions that are old enough to go."""
    held_from: str = ""
    written_meanwhile: int = 0
    """Writes that complete while each run lasts, and that its plan does not have."""

    def view(self) -> TableView:
        made = super().view()
        layout = Layout.V1 if self.version < 8 else Layout.V2
        properties = replace(made.properties, version=self.version, layout=layout)
        waiting = [
            Instant(time, action, state, None, f"{time}.{action}.{state.value.lower()}")
            for time, (action, state) in self.pending.items()
        ]
        saved = [self.savepoint] if self.savepoint is not None else []
        instants = sorted((*made.timeline.instants, *waiting, *saved), key=lambda instant: instant.sort_key)
        return replace(
            made,
            properties=properties,
            timeline=replace(made.timeline, instants=tuple(instants)),
            heartbeats_ms=MappingProxyType(dict(self.beats_ms)),
            touched_ms=MappingProxyType(dict(self.touched_ms)),
        )

    def begin(self, action: Action, state: State, beat_ms: int | None) -> str:
        """Put an instant on the timeline that is not completed."""
        time = self.time()
        self.changes += 1
        self.pending[time] = (action, state)
        self.touched_ms[time] = NOON_MS + self.now_ms
        if beat_ms is not None:
            self.beats_ms[time] = beat_ms
        return time

    def remove(self, time: str) -> None:
        self.changes += 1
        del self.pending[time]
        self.beats_ms.pop(time, None)

    def _complete(self, *args: Any, **kwargs: Any) -> str:
        self.changes += 1
        return super()._complete(*args, **kwargs)

    @property
    def first_pending(self) -> str:
        return min((time for time, (action, _) in self.pending.items() if action in WRITE_ACTIONS), default="9")

    def execute(self, service: Service) -> bool:
        """Do what there is to do; return whether there was anything."""
        if service in PLANNED:
            plans = [time for time, (action, _) in self.pending.items() if action is PLANNED[service]]
            for plan in plans:
                self.remove(plan)
            return self._run_planned(service) or bool(plans)
        if service is Service.ROLLBACK:
            return self._roll_back()
        if service is Service.TTL:
            gone, self.expired = self.expired, 0
            if gone:
                self._complete(Action.REPLACECOMMIT, operation="DELETE_PARTITION", replaced=(("old", "x"),))
            return bool(gone)
        return self._archive()

    def _run_planned(self, service: Service) -> bool:
        if service is Service.COMPACTION:
            return self._compact()
        if service is Service.CLEAN:
            return self._clean()
        clustered = [i.requested_time for i in self._writes() if self.commits[i.requested_time].operation == "CLUSTER"]
        if not any(write.requested_time > max(clustered, default="") for write in self._writes()):
            return False
        replaced = (("p", self._newest),) if self._newest else (("p", "a"),)
        self._newest = f"c{self.completed}"
        stat = _stat(self._newest, f"{self._newest}_0-1-0_0.parquet", is_new=True)
        self._replaced_by.append(self._complete(Action.REPLACECOMMIT, stat, operation="CLUSTER", replaced=replaced))
        return True

    def _roll_back(self) -> bool:
        now_ms, rule = NOON_MS + self.now_ms, HeartbeatRule()
        services = {*PLANNED.values()}
        dead = [
            time
            for time, (action, _) in self.pending.items()
            if action not in services and rule.has_expired(self.beats_ms.get(time), now_ms)
        ]
        for time in dead:
            self.remove(time)
            self._complete(Action.ROLLBACK)
        return bool(dead)

    def _clean(self) -> bool:
        writes = sorted(i.requested_time for i in self._writes())
        kept = max(self.retained, self._held(writes))
        if self.plans_no_clean or len(writes) <= kept:
            return False
        limits = [writes[len(writes) - kept], self.first_pending]
        limits += [self.savepoint.requested_time] if self.savepoint is not None else []
        old = [time for time in self._replaced_by if time < min(limits)]
        self._replaced_by = [time for time in self._replaced_by if time not in old]
        if old:
            self._complete(Action.CLEAN)
        return bool(old)

    def _held(self, writes: Sequence[str]) -> int:
        return sum(time >= self.held_from for time in writes) + 2 if self.held_from else 0

    def _archive(self) -> bool:
        rules = POLICY.archive
        writes = sorted(i.requested_time for i in self._writes())
        least = max(rules.min_commits, self._held(writes))
        if len(writes) <= max(rules.max_commits, least):
            return False
        replacing = {i.requested_time for i in self._writes() if i.action is Action.REPLACECOMMIT}
        limits = [min((time for time in replacing if time in self._replaced_by), default="9"), self.first_pending]
        limits += [self.savepoint.requested_time] if self.savepoint is not None else []
        old = {time for time in writes[: len(writes) - least] if time < min(limits)}
        if not old:
            return False
        first = min((time for time in writes if time not in old), default="9")
        services = {Action.CLEAN, Action.ROLLBACK}
        old |= {i.requested_time for i in self.active if i.action in services and i.requested_time < first}
        self.active = [instant for instant in self.active if instant.requested_time not in old]
        self.changes += 1
        return True

    def _writes(self) -> list[Instant]:
        return [i for i in self.active if i.action not in {Action.CLEAN, Action.ROLLBACK}]

    @property
    def active_writes(self) -> int:
        return len(self._writes())


class NoSession:
    """A session of a database without executor leases."""

    def execute(self, query: object) -> NoSession:
        return self

    def mappings(self) -> tuple[()]:
        return ()


@dataclass
class Manager:
    """The manager of one table, with Airflow's runs; implements what `RunScheduler` needs of both."""

    hudi: TableModel
    policy: TablePolicy
    hold: Hold | None = None
    is_observed: bool = False
    runs: list[ServiceRun] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    started: Counter[Service] = field(default_factory=Counter)
    order: list[Service] = field(default_factory=list)
    empty_runs: Counter[Service] = field(default_factory=Counter)
    most_overtaken: int = 0
    decisions: tuple[Decision, ...] = ()
    again_ms: int | None = None
    _text: str = ""
    _overtaken: Counter[Service] = field(default_factory=Counter)
    _found_nothing_at: dict[Service, tuple[int, int]] = field(default_factory=dict)
    _begun_at: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables: Any = TablesConfig((), self.policy)
        registry: Any = self
        self._scheduler = RunScheduler(registry, self, lambda: tables)

    # --- what RunScheduler asks ----------------------------------------------------------------------------

    def now_ms(self) -> int:
        return NOON_MS + self.hudi.now_ms

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield NoSession()

    def find_lake_dags(self, session: Any) -> LakeDags:
        return LakeDags()

    def find_active_runs(self, session: Any, table_id: str = "") -> Sequence[ServiceRun]:
        return [run for run in self.runs if run.active and is_of(run.run_id, table_id)]

    def find_runs_by_id(self, session: Any, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        return [run for run in self.runs if run.run_id in run_ids]

    def create_run(self, session: Any, run_id: str, conf: dict[str, Any], note: str) -> None:
        raise NotImplementedError

    # --- evaluations ---------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """What `ManagerLoop` does for each mark, and at `again_ms`."""
        last_runs = self._scheduler.follow_up(parse_last_runs(self._text))
        facts, now_ms = TableFacts(self.hudi.view(), self.hold), self.now_ms()
        last_runs = remember_shown(facts, self.policy, last_runs, now_ms)
        why = "observed" if self.is_observed else ""
        self.decisions = only_observe(decide(facts, self.policy, now_ms, last_runs), why)
        due = [decision for decision in self.decisions if decision.verdict is Verdict.DUE]
        ready = self._find_ready(due, last_runs)
        for service in Service:
            self._overtaken[service] *= service in ready
        starts = self._scheduler.preview(TABLE, self.policy, due, last_runs)
        times = [start.evaluate_again_ms for start in starts] + [d.evaluate_again_ms for d in self.decisions]
        self.again_ms = min((time for time in times if time is not None), default=None)
        for decision, start in zip(due, starts, strict=True):
            if start.verdict is StartVerdict.START:
                last_runs = last_runs.started(decision, start.run_id)
                self._note_start(decision, start.run_id, ready)
        self._text = last_runs_to_text(last_runs)

    def _find_ready(self, due: Sequence[Decision], last_runs: Any) -> set[Service]:
        """Return the services that would start now if nothing else of the table ran."""
        runs, self.runs = self.runs, [run for run in self.runs if not run.active]
        busy = {service_of(run) for run in runs if run.active}
        alone = {
            decision.service
            for decision in due
            if self._scheduler.preview(TABLE, self.policy, [decision], last_runs)[0].verdict is StartVerdict.START
        }
        self.runs = runs
        return alone - busy

    def _note_start(self, decision: Decision, run_id: str, ready: set[Service]) -> None:
        service = decision.service
        active = [service_of(run) for run in self.runs if run.active]
        assert service not in active, f"two runs of {service}"
        assert len(active) < self.policy.max_active_runs, f"{service} is started next to {active}"
        assert not self.is_observed, f"{service} is started on a table that is only observed"
        assert run_id not in {run.run_id for run in self.runs}, f"run {run_id} is created twice"
        self._require_owner(decision)
        self._require_reason(service)
        self.runs.append(ServiceRun(run_id, RunState.RUNNING))
        self._begun_at[run_id] = self.hudi.changes
        self.started[service] += 1
        self.order.append(service)
        self._overtaken.update(ready - {service})
        self._overtaken[service] = 0
        self.most_overtaken = max(self.most_overtaken, *self._overtaken.values())
        if self.policy.max_active_runs == 1:
            assert self.most_overtaken <= MAX_OVERTAKEN, (self._overtaken, self.order[-20:])

    def _require_owner(self, decision: Decision) -> None:
        """No plan is executed that another program may be executing, and none next to a writer without lock."""
        now_ms = self.now_ms()
        for time in decision.plan_instants:
            action, state = self.hudi.pending[time]
            if action not in PLANNED.values() or time in self.hudi.beats_ms:
                continue
            age_s = (now_ms - self.hudi.touched_ms[time]) / 1000
            least_s = 0.0 if action is Action.COMPACTION else self.policy.doctor.stuck_after_s
            least_s = self.policy.doctor.unguarded_after_s if state is State.INFLIGHT else least_s
            assert age_s >= least_s, f"{decision.service} executes {time}, which others touched {age_s} s ago"
        for time, (action, _) in self.hudi.pending.items():
            made_ms = instant_time_ms(time, UTC) or 0
            is_old = now_ms - made_ms >= 600_000 or now_ms - made_ms >= self.policy.rollback.after_s * 1000
            is_alone = action not in PLANNED.values() and time not in self.hudi.beats_ms
            assert not (is_old and is_alone), f"{decision.service} is started next to the unguarded write {time}"

    def _require_reason(self, service: Service) -> None:
        """What found nothing is not run again while nothing has changed; the search for partitions has a clock."""
        before = self._found_nothing_at.get(service)
        if before is not None and service is not Service.TTL:
            changes, _ = before
            assert changes != self.hudi.changes, f"{service} found nothing, and is run again for the same table"

    # --- how runs end --------------------------------------------------------------------------------------

    @property
    def active(self) -> list[ServiceRun]:
        return [run for run in self.runs if run.active]

    def end(self, run: ServiceRun, outcome: str) -> None:
        """End a run as the adversary wants it, and evaluate as its notice makes the manager do."""
        service, hudi = service_of(run), self.hudi
        self.happened[outcome] += 1
        if outcome in {"done", "done and not reported"}:
            had_effect = hudi.execute(service)
            for _ in range(hudi.written_meanwhile):
                hudi.write()
            self.happened[f"{service}: {'done' if had_effect else 'nothing to do'}"] += 1
            if outcome == "done":
                self._note_end(run, had_effect=had_effect)
        elif outcome in {"planned and failed", "died"} and service in PLANNED:
            self._leave_plan(service, is_begun=outcome == "died")
        if outcome == "lost":
            self.runs.remove(run)
        else:
            state = RunState.SUCCESS if outcome == "done" else RunState.FAILED
            ended = replace(run, state=state, ended_ms=self.now_ms(), is_void=outcome == "killed workers")
            self.runs[self.runs.index(run)] = ended
        self.evaluate()

    def _note_end(self, run: ServiceRun, *, had_effect: bool) -> None:
        service = service_of(run)
        if had_effect:
            self._found_nothing_at.pop(service, None)
            return
        self.empty_runs[service] += 1
        # What changed while it ran, it may not have seen.
        self._found_nothing_at[service] = (self._begun_at[run.run_id], self.now_ms())

    def _leave_plan(self, service: Service, *, is_begun: bool) -> None:
        action, hudi = PLANNED[service], self.hudi
        plans = [time for time, (found, _) in hudi.pending.items() if found is action]
        state = State.INFLIGHT if is_begun else State.REQUESTED
        beat_ms = self.now_ms() - DEAD_MS if is_begun else PLANNED_BEAT_MS
        if not plans:
            hudi.begin(action, state, beat_ms)
        elif is_begun:
            hudi.pending[plans[0]] = (action, state)
            hudi.beats_ms[plans[0]] = beat_ms


def service_of(run: ServiceRun) -> Service:
    return Service(run.run_id.split(".")[1])

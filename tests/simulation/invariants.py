"""What must hold: at each step, by a deadline, and in the end."""

from __future__ import annotations

import json
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, TableLease
from airflow_lake_provider.manager.loop.reconciler import MAX_EVALUATION_BACKOFF_S
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.runs.run_ids import is_run_of
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict, decide_start
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.planner.verdict import PLANNED_AS
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.simulation.faults import MAX_JUMP_MS
from tests.simulation.storage import open_on

if TYPE_CHECKING:
    from tests.simulation.airflow import DagRun
    from tests.simulation.job import Driver
    from tests.simulation.server import Server
    from tests.simulation.task import Task
    from tests.simulation.world import World

_INJECTED = ("injected", "has not returned for", "no table is decided until its settings are valid")
_HARMLESS = (
    "ExecutorBusyError",
    "the heartbeat of",
    "WriterUnguardedError",
    "is neither pending nor completed",
    "belong to an executor without a heartbeat",
)
"""Why a try may fail although nothing goes wrong: a dead one's lease or heartbeat has not run out, a single writer
is at work, others removed the plan, or made one that is left to them for the doctor's time."""
_QUEUED_MS = 2 * 60_000
_RUN_MS = 40 * 60_000


class Invariants:
    """Notified of everything that matters; raises Violated through the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.abandoned = 0
        self.completions: Counter[tuple[str, str]] = Counter()
        self.promises = 0
        self._outside: set[tuple[str, str]] = set()
        self.last_outcomes: dict[tuple[str, Service], Outcome] = {}
        """Of each service's last job that ended."""
        self._executing: dict[tuple[str, str], list[Driver]] = {}
        self._promised: dict[str, set[str]] = {}
        self._seen: dict[str, set[str]] = {}
        self._completed_by: dict[Service, list[tuple[str, str]]] = {}
        self._plans_of_run: dict[str, list[str]] = {}
        self._since: dict[tuple[Any, ...], int] = {}

    # --- commits: what was answered is evaluated -----------------------------------------------------------

    def promised(self, notice: Notice) -> None:
        """A notice was answered: from now on the table is dirty until an evaluation has seen these instants."""
        self.promises += 1
        self._promised.setdefault(table_id_of(notice.base_path), set()).update(notice.instants)

    def saw(self, base_path: str, view: TableView) -> None:
        """An evaluation decides by this view."""
        seen = {instant.requested_time for instant in view.timeline.completed()}
        self._seen.setdefault(table_id_of(base_path), set()).update(seen)

    def after_release(self, server: Server, lease: TableLease, result: EvaluationResult) -> None:
        """A clean row has no promise open; an evaluation fails only of what was injected."""
        world = self.world
        if result.failed and not any(part in result.problem for part in _INJECTED):
            world.violate(f"an evaluation failed of something that was not injected: {result.problem}")
        _, dirty_since_ms = world.database.mark_state(lease.table_id)
        table = world.tables[lease.base_path]
        missing = self._promised.get(lease.table_id, set()) - self._seen.get(lease.table_id, set()) - table.archived
        if dirty_since_ms is None and missing:
            world.violate(f"{server.name} says {lease.table_id} is clean, and none has seen {sorted(missing)}")

    # --- plans: executed by one, completed once ------------------------------------------------------------

    def executors_of(self, base_path: str, plan: str) -> list[Driver]:
        return self._executing.get((base_path, plan), [])

    def begins(self, driver: Driver, base_path: str, plan: str) -> None:
        self.world.say(f"{driver.name} executes {plan}")
        if (base_path, plan) in self._outside:
            self.world.violate(f"{driver.name} executes {plan} while a foreign job executes it")
        for (path, other_plan), others in self._executing.items():
            for other in others:
                is_same = path == base_path and other.request.service is driver.request.service
                if is_same:
                    self.world.violate(f"{driver.name} executes {plan} while {other.name} executes {other_plan}")
        self._executing.setdefault((base_path, plan), []).append(driver)

    def completes(self, driver: Driver, base_path: str, plan: str) -> None:
        self.world.say(f"{driver.name} completes {plan}")
        self.completions[base_path, plan] += 1
        self._completed_by.setdefault(driver.request.service, []).append((base_path, plan))
        self._plans_of_run.setdefault(driver.run_id, []).append(plan)
        if self.completions[base_path, plan] > 1:
            self.world.violate(f"plan {plan} of {base_path} is completed twice")

    def completed_by(self, service: Service) -> list[tuple[str, str]]:
        """Return path and plan of what a service completed."""
        return self._completed_by.get(service, [])

    def begins_outside(self, base_path: str, plan: str) -> None:
        """Another program executes a plan from now on."""
        self._outside.add((base_path, plan))

    def is_executed_outside(self, base_path: str, plan: str) -> bool:
        """Whether another program executes a plan."""
        return (base_path, plan) in self._outside

    def ends_outside(self, base_path: str, plan: str) -> None:
        """It does so no longer."""
        self._outside.discard((base_path, plan))

    def completed_outside(self, base_path: str, plan: str) -> None:
        """Another program completed a plan, and only it."""
        self.completions[base_path, plan] += 1
        if self.completions[base_path, plan] > 1:
            self.world.violate(f"plan {plan} of {base_path} is completed twice")

    def stops(self, driver: Driver, base_path: str, plan: str) -> None:
        self._executing[base_path, plan].remove(driver)

    # --- tries and runs ------------------------------------------------------------------------------------

    def after_success(self, task: Task) -> None:
        """A run that succeeded has its plans completed."""
        driver = task.driver
        assert driver is not None
        if task.request.service is Service.ROLLBACK:
            table = self.world.tables[task.base_path]
            left = [time for time in task.request.instants if table.is_pending(time)]
            if left:
                self.world.violate(f"{task.name} succeeded, and {left} is still pending")
            return
        wanted = {*task.request.instants, *(driver.result.scheduled_instants if driver.result is not None else ())}
        missing = [plan for plan in wanted if not self.completions[task.base_path, plan]]
        if missing:
            self.world.violate(f"{task.name} succeeded, and {missing} is not completed")

    def after_failed_try(self, task: Task, problem: str) -> None:
        """While nothing goes wrong, a try fails only because a dead one's lease has not run out."""
        quiet_ms = self.world.quiet_since_ms
        is_well = quiet_ms is not None and task.started_ms > max(quiet_ms, self.world.stores.well_since_ms)
        if is_well and not any(part in problem for part in _HARMLESS):
            self.world.violate(f"{task.name} failed while nothing went wrong: {problem}")

    # --- deadlines -----------------------------------------------------------------------------------------

    def check_deadlines(self) -> None:
        """Nothing stays in one state for longer than it may; asked every two minutes of the quiet phase."""
        world = self.world
        now = self._find_states()
        self._since = {state: self._since.get(state, world.now_ms) for state in now}
        for server in world.servers:
            server.check_health(int(world.settings.claim_lease_s * 1000) + 120_000)
        for state, since_ms in self._since.items():
            if world.now_ms - since_ms > now[state]:
                world.violate(f"{state} for {(world.now_ms - since_ms) // 1000} s, allowed are {now[state] // 1000} s")

    def _find_states(self) -> dict[tuple[Any, ...], int]:
        """Return every state that must not last, and for how long it may in ms."""
        world = self.world
        claim_ms = int(world.settings.claim_lease_s * 1000) + MAX_JUMP_MS
        lease_ms = int(world.settings.executor_lease_s * 1000) + MAX_JUMP_MS
        evaluated_ms = claim_ms + int(MAX_EVALUATION_BACKOFF_S * 1000)
        states: dict[tuple[Any, ...], int] = {}
        stores = world.stores
        sick = {table_id_of(path) for path in world.tables if stores.is_sick(path) or stores.keeps_waiting(path)}
        for row in world.database.rows():
            if row["table_id"] in sick:
                continue
            if row["dirty_since_ms"] is not None or row["evaluation_failures"]:
                states["dirty", row["table_id"]] = evaluated_ms
            if row["claim_token"] is not None:
                states["claimed", row["table_id"], row["claim_token"]] = claim_ms
        # A run waits for a single writer, which may take an hour.
        writing = {table_id_of(writer.table.base_path) for writer in world.writers if writer.alone_with}
        for run in world.airflow.runs.values():
            if run.is_active and run.group.split(".")[0] not in sick | writing:
                states["run", run.run_id, run.state] = _QUEUED_MS if run.state == "queued" else _RUN_MS
        holders = {task.token for task in world.airflow.live_tasks() if task.is_alive}
        for table_id, service, token, until_ms in world.database.leases():
            if until_ms > world.now_ms and token not in holders:
                states["lease of the dead", table_id, service, token] = lease_ms
        plan_ms = evaluated_ms + int(world.policy.doctor.unguarded_after_s * 1000)  # others may have begun it
        states.update({("plan", path, plan): plan_ms for path, plan in self._plans_left_alone()})
        silent_ms = int((world.settings.heartbeat_timeout_s + 2 * world.settings.heartbeat_max_s) * 1000)
        failed_ms = evaluated_ms + silent_ms + int(world.policy.rollback.after_s * 1000) + HeartbeatRule().most_ms
        states.update({("failed", path, time): failed_ms for path, time in self._failures_left_alone()})
        return states

    def _plans_left_alone(self) -> list[tuple[str, str]]:
        """Return pending plans that no active run will execute and that were not given up."""
        left = []
        # A single writer blocks every service while it writes.
        alone = {writer.table.base_path for writer in self.world.writers if writer.alone_with}
        for path, view in self._views():
            if path in alone:
                continue
            for service, action in PLANNED_AS.items():
                of_all = self.world.airflow.runs.values()
                runs = [run for run in of_all if is_run_of(run.run_id, table_id_of(path), service)]
                if not any(run.is_active for run in runs):
                    plans = [instant.requested_time for instant in view.timeline.pending(action)]
                    left += [(path, plan) for plan in plans if not self._is_abandoned(plan, runs)]
        return left

    def _failures_left_alone(self) -> list[tuple[str, str]]:
        """Return what dead writers left, and rollbacks that no service continues."""
        world, left = self.world, []
        if not world.policy.rollback.enabled:
            return []
        for path, view in self._views():
            runs = [run for run in world.airflow.runs.values() if is_run_of(run.run_id, table_id_of(path))]
            if any(run.is_active for run in runs):
                continue  # the table's other services may have to end first
            beats = view.heartbeats_ms or {}
            single = {writer.alone_with for writer in world.writers if writer.table.base_path == path}
            writes = [i for i in view.timeline.pending_writes() if self._is_dead(beats.get(i.requested_time))]
            writes = [i for i in writes if i.requested_time not in single]
            times = sorted(i.requested_time for i in (*writes, *view.timeline.pending(Action.ROLLBACK)))
            # They share one decision, which is given up by the oldest.
            if times and not self._is_abandoned(times[0], runs):
                left += [(path, time) for time in times]
        return left

    def _is_dead(self, beat_ms: int | None) -> bool:
        return not HeartbeatRule().is_live(beat_ms, self.world.now_ms)

    def _is_abandoned(self, plan: str, runs: list[DagRun]) -> bool:
        tried = [run for run in runs if f".{plan}" in run.run_id]
        return sum(not self.world.airflow.is_void(run) for run in tried) >= self.world.policy.max_runs_per_instant

    # --- the end -------------------------------------------------------------------------------------------

    def find_unrest(self) -> str:
        """Return what is not settled; empty when every commit is reflected.

        What is due was given up with its reason, or there is nothing due, and nothing waits for anything.
        """
        world = self.world
        active = [run.run_id for run in world.airflow.runs.values() if run.is_active]
        if active:
            return f"runs {active} have not ended"
        sick = [path for path in world.tables if world.stores.is_sick(path)]
        if sick:
            return f"the stores of {sick} do not answer"
        at_work = [writer.alone_with for writer in world.writers if writer.alone_with]
        if at_work:
            return f"single writers write {at_work}"
        rows = {row["base_path"]: row for row in world.database.rows()}
        for path in world.tables:
            row = rows.get(path)
            if row is None:
                return f"table {path} is not in the registry"
            if row["dirty_since_ms"] is not None or row["claim_token"] is not None or row["evaluation_failures"]:
                return f"table {path} is dirty, claimed or unreadable"
        self.abandoned = 0
        for path, view in self._views(with_sick=True):
            problem = self._find_unrest_of(path, view, rows[path])
            if problem:
                return problem
        failures = self._failures_left_alone()
        return f"{failures} are failed writes, or rollbacks that were begun, and still there" if failures else ""

    def _find_unrest_of(self, path: str, view: TableView, row: dict[str, Any]) -> str:
        latest = view.timeline.latest_completed()
        if latest is not None and row["completed_time"] != latest.completed_time:
            return f"the registry knows {path} up to {row['completed_time']}, not {latest.completed_time}"
        for decision in decide(TableFacts(view), self.world.policy, self.world.now_ms):
            if decision.verdict is Verdict.DUE:
                recorded = json.loads(row["decisions"])
                if decision.service is Service.CLEAN and self._is_nothing_to_clean(view, recorded):
                    continue
                problem = self._find_why_due(path, view, decision, recorded)
                if problem:
                    return problem
        return ""

    def _has_commit_of_the_future(self, view: TableView, run_id: str) -> bool:
        """Whether a writer's clock was ahead, or the job's behind: a run's plan sorts before a commit it came after."""
        if not self._find_plans_behind().isdisjoint(self._plans_of_run.get(run_id, [])):
            return True
        ended = [run.ended_ms or 0 for run in self.world.airflow.find_runs(None, run_id) if run.run_id == run_id]
        times = [write.requested_time for write in view.timeline.completed_writes]
        zone = zone_of_jobs(view.properties.time_zone, {}).zone
        return any((instant_time_ms(time, zone) or 0) > max(ended, default=0) for time in times)

    def _find_why_due(self, path: str, view: TableView, decision: Decision, recorded: list[dict[str, Any]]) -> str:
        world = self.world
        table_id = table_id_of(path)
        start = decide_start(
            table_id,
            decision,
            world.airflow.find_runs(table_id, decision.service),
            now_ms=world.now_ms,
            max_attempts=world.policy.max_runs_per_instant,
            backoff_s=world.policy.retry_backoff_s,
        )
        if start.verdict is StartVerdict.ALREADY_RAN and decision.service is Service.ARCHIVE:
            return ""  # nothing may be archived beyond a dead writer's instant
        if start.verdict is StartVerdict.ALREADY_RAN and self._has_commit_of_the_future(view, start.run_id):
            return ""  # docs/limitations.md: the next commit makes it due again
        if self._waits_for_change(path, decision.service, recorded):
            return ""  # the service's last job found nothing to do
        is_given_up = start.verdict is StartVerdict.ABANDONED or self._has_failed_in_a_row(table_id, decision)
        if not is_given_up:
            return f"{decision.service} of {path} is due and no run does it: {decision.reason}; {start.reason}"
        if not any(entry.get("run") == "abandoned" and entry["run_reason"] for entry in recorded):
            return f"{decision.service} of {path} was given up and the registry does not say why"
        self.abandoned += 1
        return ""

    def _is_nothing_to_clean(self, view: TableView, recorded: list[dict[str, Any]]) -> bool:
        """Whether the manager says so, and only delta commits came since the last clean, but for what is retained."""
        kept = self.world.policy.clean.retained_commits
        cleans = [i.requested_time for i in view.timeline.completed() if i.action is Action.CLEAN]
        old = [i for i in view.timeline.completed_writes[:-kept] if i.ordering_time > max(cleans, default="")]
        says_so = any(e["service"] == Service.CLEAN and "nothing to clean" in e["reason"] for e in recorded)
        behind = self._find_plans_behind()
        return says_so and all(i.action is Action.DELTACOMMIT or i.requested_time in behind for i in old)

    def _find_plans_behind(self) -> set[str]:
        """Return the plans of jobs whose clock was behind: they sort before the commit that made their run due."""
        runs = self._plans_of_run.items()
        return {plan for run_id, plans in runs for plan in plans if plan < run_id.split(".")[2]}

    def _waits_for_change(self, path: str, service: Service, recorded: list[dict[str, Any]]) -> bool:
        """Whether the manager says that a run found nothing to do, and the service's last job did."""
        says_so = any(entry["service"] == service and "nothing to do" in entry["reason"] for entry in recorded)
        return says_so and self.last_outcomes.get((path, service)) is Outcome.NOTHING_TO_DO

    def _has_failed_in_a_row(self, table_id: str, decision: Decision) -> bool:
        """Whether the service's newest runs failed, as many as make the manager give up; a plan has its own count."""
        airflow = self.world.airflow
        existed = (*airflow.runs.values(), *airflow.deleted)  # the manager remembers a run that a person deleted
        of_service = (r for r in existed if is_run_of(r.run_id, table_id, decision.service))
        runs = sorted(of_service, key=lambda r: r.created_ms)
        ended = (run for run in runs if not run.is_active)  # one that was deleted before it ended says nothing
        failed = takewhile(lambda run: run.state is RunState.FAILED, reversed(list(ended)))
        counted = sum(not airflow.is_void(run) for run in failed)
        return not decision.plan_instants and counted >= self.world.policy.max_runs_per_instant

    def _views(self, *, with_sick: bool = False) -> list[tuple[str, TableView]]:
        world = self.world

        def never(what: str) -> None:
            return None

        paths = [path for path in world.tables if with_sick or not world.stores.is_sick(path)]

        views = TableViewCache(
            SharedTimelines(None, lambda path: open_on(world.disk, path, never), lambda: world.now_ms)
        )
        return [
            (path, views.supplement(views.refresh(path), heartbeats=True, metadata_timeline=False)) for path in paths
        ]

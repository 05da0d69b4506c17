"""The last run of each service of a table: it decides which service is next, and prevents runs without effect. Pure.

The timeline shows neither a run that found nothing to do nor a run of archiving, so the registry keeps one entry per
service. It does not grow with the table's history; if it is lost, services only run once more without effect.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import backoff
from airflow_lake_provider.job_contract import TRAITS, Mode, Service
from airflow_lake_provider.planner.catalog_sync import NOT_SYNCED, Synced, parse_synced
from airflow_lake_provider.planner.rules import Decision, DecisionBasis, Verdict, not_due
from airflow_lake_provider.planner.small_files import NO_SMALL_FILES, KnownSmallFiles, parse_small_files
from airflow_lake_provider.shared.partition_filter import SELECTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.planner.facts import TableFacts


class RunEnd(StrEnum):
    """The result of a run."""

    OPEN = "open"
    """It may still be active."""
    SUCCESS = "success"
    FAILED = "failed"
    """It failed, or is no longer known."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a service that the manager created for a table."""

    number: int
    """The table's n-th run, counted over all services."""
    run_id: str
    key_instant: str
    digest: str
    """`DecisionBasis.digest` of the decision that created it; empty for a run that executes a pending plan."""
    newest_write: str
    """Completed time of the newest write at the decision."""
    retained_from: str
    """`DecisionBasis.retained_from`."""
    is_certain: bool = True
    """`DecisionBasis.is_certain`."""
    empty_runs: int = 0
    """How many runs in a row before it had found nothing to do, on the same basis."""
    end: RunEnd = RunEnd.OPEN
    ended_ms: int = 0
    failures: int = 0
    """Runs in a row that failed, for whatever state of the table, up to this one; void runs do not count."""
    is_withdrawal: bool = False
    """It withdrew a plan: its success says nothing about the service, and ends no row of failures."""


@dataclass(frozen=True, slots=True)
class LastRuns:
    """The last runs of one table's services."""

    of: Mapping[Service, LastRun] = field(default_factory=lambda: MappingProxyType({}))
    cleaned_before: str = ""
    """Writes that completed before this moment replaced nothing that still can be cleaned; empty is not known."""
    merged_until: str = ""
    """Writes that completed until this moment left no log file that is not merged; empty is not known."""
    small_files: KnownSmallFiles = NO_SMALL_FILES
    """The small base files that the active timeline may not show any more."""
    synced: Synced = NOT_SYNCED
    """What the table's catalog knows."""

    @property
    def latest(self) -> int:
        """The number of the last run of any service; 0 when there was none."""
        return max((run.number for run in self.of.values()), default=0)

    def overtaken(self, service: Service) -> int:
        """Return how many runs of the table's other services were created since this service's last one."""
        return self.latest - self.number(service)

    def number(self, service: Service) -> int:
        """Return the number of a service's last run; 0 when there was none."""
        run = self.of.get(service)
        return 0 if run is None else run.number

    def open_run_ids(self) -> tuple[str, ...]:
        """Return the runs whose end is not known yet."""
        return tuple(run.run_id for run in self.of.values() if run.end is RunEnd.OPEN)

    def failed_run_ids(self) -> tuple[str, ...]:
        """Return the failed runs that count: a person may have cleared them since."""
        return tuple(run.run_id for run in self.of.values() if run.end is RunEnd.FAILED and run.failures)

    def started(self, decision: Decision, run_id: str) -> LastRuns:
        """Return the last runs after a run was created for a decision."""
        last = self.of.get(decision.service)
        basis = decision.basis
        # A run that executes a pending plan has an effect whatever it rests on: an archive may remove the plan's
        # instant before the next evaluation, and the table then rests on the same facts again.
        digest = "" if decision.plan_instants else basis.digest
        in_a_row = last is not None and last.digest == digest != ""
        run = LastRun(
            number=self.latest + 1,
            run_id=run_id,
            key_instant=decision.key_instant,
            digest=digest,
            newest_write=basis.newest_write,
            retained_from=basis.retained_from,
            is_certain=basis.is_certain,
            # A failed run in between says nothing about the table.
            empty_runs=last.empty_runs + _found_nothing(last, digest) if last is not None and in_a_row else 0,
            failures=last.failures if last is not None else 0,
            is_withdrawal=decision.mode is Mode.WITHDRAW,
        )
        return self._with(decision.service, run)

    def ended(self, run_id: str, end: RunEnd, ended_ms: int, *, is_void: bool = False) -> LastRuns:
        """Return the last runs after one of the open runs has ended; a void run says nothing about the table."""
        last_runs = self
        for service, run in self.of.items():
            if run.run_id == run_id and run.end is RunEnd.OPEN:
                failures = run.failures + (end is RunEnd.FAILED and not is_void)
                failures = 0 if end is RunEnd.SUCCESS and not run.is_withdrawal else failures
                last_runs = last_runs._with(service, replace(run, end=end, ended_ms=ended_ms, failures=failures))
                if service is Service.CLEAN and end is RunEnd.SUCCESS:
                    last_runs = last_runs.cleaned(run.retained_from)
                # The plan of another process may be older than the decision.
                if service is Service.COMPACTION and end is RunEnd.SUCCESS and run.digest:
                    last_runs = last_runs.merged(run.newest_write)
                if service is Service.SYNC and end is RunEnd.SUCCESS:
                    last_runs = replace(last_runs, synced=self.synced.done(run.key_instant, run.newest_write))
        return last_runs

    def cleared(self, run_id: str) -> LastRuns:
        """Return the last runs after a failed one was cleared: it is open again."""
        for service, run in self.of.items():
            if run.run_id == run_id and run.end is RunEnd.FAILED:
                return self._with(service, replace(run, end=RunEnd.OPEN, failures=max(0, run.failures - 1)))
        return self

    def cleaned(self, before: str) -> LastRuns:
        """Return the last runs with the fact that nothing is left that writes before a moment replaced."""
        return replace(self, cleaned_before=max(self.cleaned_before, before))

    def merged(self, until: str) -> LastRuns:
        """Return the last runs with the fact that writes left no log file until a moment that is not merged."""
        return replace(self, merged_until=max(self.merged_until, until))

    def restored(self) -> LastRuns:
        """Return the last runs without what a restore of the table may have made untrue."""
        return replace(self, merged_until="", small_files=NO_SMALL_FILES)

    def found_nothing_to_cluster(self, last_clustering: str) -> str:
        """Return the newest write at the decision of a run in all partitions that clustered nothing; empty without one.

        `last_clustering` is when the last clustering completed.
        """
        run = self.of.get(Service.CLUSTERING)
        if run is None or run.end is not RunEnd.SUCCESS or run.is_certain or not run.digest:
            return ""
        return run.newest_write if last_clustering <= run.newest_write else ""

    def _with(self, service: Service, run: LastRun) -> LastRuns:
        return replace(self, of=MappingProxyType({**self.of, service: run}))


NO_LAST_RUNS = LastRuns()
"""Of a table without a record."""


def last_runs_to_text(last_runs: LastRuns) -> str:
    """Return the last runs as text, for the registry."""
    of = {service.value: asdict(run) for service, run in last_runs.of.items()}
    known: dict[str, object] = {"cleaned_before": last_runs.cleaned_before, "merged_until": last_runs.merged_until}
    if last_runs.small_files.until:
        known["small_files"] = last_runs.small_files.to_dict()
    if last_runs.synced.until:
        known["synced"] = last_runs.synced.to_dict()
    return json.dumps({"of": of, **known}, separators=(",", ":"))


def parse_last_runs(text: str | None) -> LastRuns:
    """Return the last runs of such a text. A text of another release, or none, counts as no runs."""
    try:
        record = json.loads(text or "{}")
        of = {Service(service): _parse_run(run) for service, run in record.get("of", {}).items()}
        cleaned_before, merged_until = (str(record.get(name, "")) for name in ("cleaned_before", "merged_until"))
        small_files = parse_small_files(record.get("small_files"))
        synced = parse_synced(record.get("synced"))
        return LastRuns(MappingProxyType(of), cleaned_before, merged_until, small_files, synced)
    except (ValueError, TypeError, AttributeError, KeyError):
        return LastRuns()


def _parse_run(record: Mapping[str, object]) -> LastRun:
    run = LastRun(**record)  # type: ignore[arg-type]
    return replace(run, end=RunEnd(run.end))


# --- The order in which the due services of one table get a run, so that none waits indefinitely
#
# A fixed order would starve the services at its end: on a busy merge-on-read table compaction is due again when its
# run ends.

OVERTAKEN_FIRST = 2
"""A service that this many runs of others have overtaken comes before pending plans."""
MAX_OVERTAKEN = OVERTAKEN_FIRST + len(Service) - 1
"""How many runs of the table's other services a due one that can run waits for at most, one at a time."""


def in_fair_order(decisions: Sequence[Decision], last_runs: LastRuns) -> tuple[Decision, ...]:
    """Return the decisions, due ones first: pending plans, then the service whose last run is longest ago.

    Services without a run keep the given order. Pending plans hold up writers and readers, but a service that
    `OVERTAKEN_FIRST` runs have overtaken comes before them.
    """

    def urgency(decision: Decision) -> tuple[bool, bool, bool, int]:
        if decision.verdict is not Verdict.DUE:
            return True, False, False, 0
        may_wait = last_runs.overtaken(decision.service) < OVERTAKEN_FIRST
        is_new = not decision.plan_instants
        return False, may_wait, may_wait and is_new, last_runs.number(decision.service)

    # Python's sort is stable.
    return tuple(sorted(decisions, key=urgency))


def need_not_wait(then: Service, first: Service, last_runs: LastRuns) -> bool:
    """Whether `first` ran since `then` ran last, or failed, so that `then` need not wait for it (again)."""
    run = last_runs.of.get(first)
    return run is not None and (run.end is RunEnd.FAILED or run.number > last_runs.number(then))


# --- A run without effect is not repeated for an unchanged reason: the result of the last run enters the next decision
#
# Hudi leaves no trace on the timeline where it finds nothing to do, so the timeline alone would make a service due
# again and again.

FIRST_DISTANCE = 10
"""New writes before a run that found nothing is repeated for the first time; then twice as many each time."""
MAX_WRITES = 100
"""At most so many new writes are waited for, and never more than the active timeline holds."""
MAX_PAUSE_MS = 3_600_000
"""The longest pause between two runs that find nothing."""
_RESTS_ON: Mapping[Service, tuple[str, ...]] = MappingProxyType(
    {
        Service.COMPACTION: ("last_compaction",),
        Service.LOGCOMPACTION: ("last_merge",),
        Service.CLUSTERING: ("last_clustering",),
        Service.CLEAN: ("last_clean",),
        Service.ARCHIVE: ("first_write", "boundary", "last_clean"),
        Service.METACOMPACTION: ("last_metadata_compaction",),
        Service.INDEXING: ("missing", "complete", "verification"),
        Service.SYNC: ("registration", "newest_write"),
    }
)
"""The evidence that differs after a run that had an effect, or when an obstacle is gone."""


def basis_of(decision: Decision, facts: TableFacts, retained_from: str) -> DecisionBasis:
    """Return what the registry keeps of a decision when the manager creates a run for it."""
    evidence = [decision.evidence.get(name) for name in _RESTS_ON.get(decision.service, ())]
    # Which partitions a plan may take changes with each write.
    options = sorted((name, value) for name, value in decision.options.items() if name != SELECTED)
    text = json.dumps([evidence, options])
    newest = facts.writes[-1].ordering_time if facts.writes else ""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if decision.service is Service.COMPACTION:
        return DecisionBasis(digest, newest, is_certain=bool(decision.evidence.get("log_files")))
    if decision.service is Service.CLUSTERING:
        return DecisionBasis(digest, newest, is_certain=SELECTED in decision.options)
    if decision.service is not Service.CLEAN:
        return DecisionBasis(digest, newest)
    is_certain = decision.evidence.get("replaced_files") == "yes"
    return DecisionBasis(digest, newest, retained_from, is_certain=is_certain)


def wait_for_change(
    decision: Decision, last_runs: LastRuns, facts: TableFacts, policy: TablePolicy, now_ms: int
) -> Decision:
    """Return a due decision as not due while the last run's "nothing to do" still holds; all others as they are.

    Plans on the timeline are a reason of their own.
    """
    run = last_runs.of.get(decision.service)
    if run is None or decision.verdict is not Verdict.DUE or decision.plan_instants:
        return decision
    if run.end is RunEnd.SUCCESS and run.key_instant == decision.key_instant:
        reason = f"nothing to do: run {run.run_id} did what there was to do for this state of the table"
        return replace(
            not_due(decision.service, f"{reason} ({decision.reason})", decision.evidence, decision.evaluate_again_ms),
            basis=decision.basis,
        )
    if decision.basis.is_certain and not run.is_certain and not run.empty_runs:
        return decision  # now the timeline shows something that was only possible before
    if TRAITS[decision.service].has_period or not _found_nothing(run, decision.basis.digest):
        return decision
    return _wait(decision, run, facts, policy, now_ms)


def _found_nothing(run: LastRun, digest: str) -> bool:
    """Whether a run succeeded and what it rested on has not changed."""
    return run.end is RunEnd.SUCCESS and run.digest == digest


def _wait(decision: Decision, run: LastRun, facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    in_a_row = run.empty_runs + 1
    newer = len(facts.writes_after(run.newest_write))
    wanted = min(int(backoff(FIRST_DISTANCE, in_a_row, MAX_WRITES)), len(facts.writes))
    pause_ms = int(backoff(policy.retry_backoff_s * 1000, in_a_row, MAX_PAUSE_MS))
    ripe_ms = run.ended_ms + pause_ms
    if newer >= wanted and now_ms >= ripe_ms:
        return decision
    before = f", as did {run.empty_runs} before it" if run.empty_runs else ""
    rest = f"{newer} of {wanted} new writes" if newer < wanted else f"{(ripe_ms - now_ms + 999) // 1000} s are left"
    reason = (
        f"{decision.reason}, but run {run.run_id} found nothing to do{before}; "
        f"the manager retries when something changes or after a while ({rest})"
    )
    evidence = {**decision.evidence, "runs_that_found_nothing": in_a_row}
    evaluate_again_ms = ripe_ms if newer >= wanted else decision.evaluate_again_ms
    return replace(not_due(decision.service, reason, evidence, evaluate_again_ms), basis=decision.basis)

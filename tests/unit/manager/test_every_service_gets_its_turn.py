"""Whatever a table is written like, and whatever becomes of its runs: no service starves, none runs on for nothing.

The manager's own functions decide, against a model of Hudi; the adversary chooses durations and outcomes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.run_ids import is_run_of
from airflow_lake_provider.manager.scheduling.scheduling import (
    StartDecision,
    StartVerdict,
    decide_start,
    wait_for_clean,
    wait_for_others,
)
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import MAX_OVERTAKEN, RunEnd, last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, Hold, Verdict
from tests.unit.manager.hudi_model import NOON_MS, HudiModel, Kind

POLICY = TablePolicy(hudi_options=MappingProxyType({"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"}))
TABLE = "orders-0123456789abcdef"
COMMIT_GAPS = [(1, 0), (1, 6), (10, 45), (10, 60), (60, 360), (3600, 60)]
"""Seconds between commits, and seconds that a run takes at most."""


@dataclass
class Manager:
    """One table's manager: it evaluates after each commit and at the end of each run."""

    hudi: HudiModel
    rng: random.Random
    every_s: int = 60
    most_run_s: int = 360
    fails: frozenset[Service] = frozenset()
    """Services whose runs all fail."""
    luck: float = 1.0
    """How many of the other services' runs succeed."""
    is_slow: bool = False
    """Every run takes as long as it may."""
    hold: Hold | None = None
    runs: list[ServiceRun] = field(default_factory=list)
    started: Counter[Service] = field(default_factory=Counter)
    distances: list[tuple[Service, int]] = field(default_factory=list)
    """New writes between two runs of a service that found nothing one after the other."""
    most_overtaken: int = 0
    last: tuple[Decision, ...] = ()
    _text: str = ""
    _ends_ms: int = 0
    _begun_at: int = 0
    _overtaken: Counter[Service] = field(default_factory=Counter)
    """How many runs of others were started since a service could run."""
    _found_nothing: dict[Service, int] = field(default_factory=dict)

    def live(self, commits: int) -> None:
        """Let a writer commit so often."""
        for _ in range(commits):
            next_ms = self.hudi.now_ms + self.every_s * 1000
            while self._active and self._ends_ms <= next_ms:
                self.hudi.now_ms = max(self.hudi.now_ms, self._ends_ms)
                self._end()
                self.evaluate()
            self.hudi.now_ms = max(self.hudi.now_ms, next_ms)
            self.hudi.write()
            self.evaluate()

    @property
    def _active(self) -> list[ServiceRun]:
        return [run for run in self.runs if run.active]

    def find(self, service: Service) -> Decision:
        return next(decision for decision in self.last if decision.service is service)

    def evaluate(self) -> None:
        last_runs = parse_last_runs(self._text)
        for run in self.runs:
            if not run.active and run.run_id in last_runs.open_run_ids():
                end = RunEnd.SUCCESS if run.state is RunState.SUCCESS else RunEnd.FAILED
                last_runs = last_runs.ended(run.run_id, end, run.ended_ms or 0)
        facts, now_ms = TableFacts(self.hudi.view(), self.hold), NOON_MS + self.hudi.now_ms
        last_runs = remember_shown(facts, POLICY, last_runs, now_ms)
        self.last = decide(facts, POLICY, now_ms, last_runs)
        ready = {d.service for d in self.last if d.verdict is Verdict.DUE and self._is_ready(d, now_ms)}
        for service in Service:
            self._overtaken[service] *= service in ready
        for decision in self.last:
            if decision.verdict is Verdict.DUE:
                start = self._start(decision, now_ms)
                if start.verdict is StartVerdict.START:
                    last_runs = last_runs.started(decision, start.run_id)
                    self._note_start(decision.service, start.run_id, ready)
        self._text = last_runs_to_text(last_runs)

    def _is_ready(self, decision: Decision, now_ms: int) -> bool:
        return self._decide_start(decision, now_ms).verdict is StartVerdict.START

    def _decide_start(self, decision: Decision, now_ms: int) -> StartDecision:
        runs = [run for run in self.runs if is_run_of(run.run_id, TABLE, decision.service)]
        return decide_start(TABLE, decision, runs, now_ms=now_ms, max_attempts=3, backoff_s=60)

    def _start(self, decision: Decision, now_ms: int) -> StartDecision:
        waits = wait_for_others(decision, TABLE, self._active, POLICY.max_active_runs, now_ms)
        waits = waits or wait_for_clean(decision, TABLE, self._active, now_ms)
        return waits or self._decide_start(decision, now_ms)

    def _note_start(self, service: Service, run_id: str, ready: set[Service]) -> None:
        self.runs.append(ServiceRun(run_id, RunState.RUNNING))
        most_ms = self.most_run_s * 1000
        self._ends_ms = self.hudi.now_ms + 1000 + (most_ms if self.is_slow else self.rng.randrange(most_ms + 1))
        self._begun_at = self.hudi.completed
        self.started[service] += 1
        self._overtaken.update(ready - {service})
        self._overtaken[service] = 0
        self.most_overtaken = max(self.most_overtaken, *self._overtaken.values())

    def _end(self) -> None:
        (run,) = self._active
        service = Service(run.run_id.split(".")[1])
        is_lucky = service not in self.fails and self.rng.random() < self.luck
        if is_lucky and self.hudi.run(service):
            self._found_nothing.pop(service, None)
        elif is_lucky:
            before = self._found_nothing.get(service)
            if before is not None:
                self.distances.append((service, self._begun_at - before))
            self._found_nothing[service] = self._begun_at
        state = RunState.SUCCESS if is_lucky else RunState.FAILED
        self.runs[self.runs.index(run)] = replace(run, state=state, ended_ms=NOON_MS + self.hudi.now_ms)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(Kind),
    plans_no_clean=st.booleans(),
    fails=st.sets(st.sampled_from([Service.CLEAN, Service.COMPACTION]), max_size=2),
    luck=st.sampled_from([1.0, 0.7]),
    commit_gap=st.sampled_from(COMMIT_GAPS),
    is_slow=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_every_timeline_stays_bounded_and_every_service_gets_its_turn(
    kind: Kind,
    plans_no_clean: bool,
    fails: set[Service],
    luck: float,
    commit_gap: tuple[int, int],
    is_slow: bool,
    seed: int,
) -> None:
    every_s, most_run_s = commit_gap
    hudi = HudiModel(kind, plans_no_clean=plans_no_clean)
    manager = Manager(hudi, random.Random(seed), every_s, most_run_s, frozenset(fails), luck, is_slow)
    manager.live(120)
    if luck < 1:  # what failed is tried again after a pause, or for a later write
        manager.luck = 1.0
        manager.live(400 // every_s + 60)
        hudi.most_active = 0
        manager.live(40)
    assert manager.most_overtaken <= MAX_OVERTAKEN
    for service, runs in Counter(service for service, _ in manager.distances).items():
        assert runs <= 1 + hudi.completed // 10, (service, manager.distances)
    # Hudi archives no replacecommit before a clean has removed what it replaced.
    if kind is not Kind.OVERWRITE or not (fails & {Service.CLEAN} or plans_no_clean):
        commits_in_a_run = 2 + most_run_s // every_s
        assert hudi.most_active <= 31 + (MAX_OVERTAKEN + 1) * commits_in_a_run
        assert manager.started[Service.ARCHIVE] >= 2
    if kind is Kind.APPEND and not fails:
        assert manager.started[Service.CLEAN] <= 1 or luck < 1


@pytest.mark.parametrize("is_slow", [True, False])
@pytest.mark.parametrize("commit_gap", COMMIT_GAPS[1:], ids=str)
def test_table_whose_compaction_is_always_due_is_cleaned_and_archived(
    commit_gap: tuple[int, int], is_slow: bool
) -> None:
    every_s, most_run_s = commit_gap
    manager = Manager(HudiModel(Kind.DELTA), random.Random(1), every_s, most_run_s, is_slow=is_slow)
    manager.live(150)
    order = [run.run_id.split(".")[1] for run in manager.runs]
    waited = max(after - before for before, after in _neighbours(order, "clean"))
    assert waited <= 8, order
    assert manager.started[Service.CLEAN] >= 7
    assert manager.started[Service.ARCHIVE] >= 5
    assert manager.hudi.most_active <= 45
    assert manager.most_overtaken <= 2


def _neighbours(order: list[str], service: str) -> list[tuple[int, int]]:
    places = [place for place, name in enumerate(order) if name == service]
    return list(pairwise(places))


def test_table_that_is_only_appended_to_is_cleaned_once_and_archived_for_ever() -> None:
    manager = Manager(HudiModel(Kind.APPEND), random.Random(1))
    manager.live(400)
    assert manager.started == {Service.CLEAN: 1, Service.ARCHIVE: manager.started[Service.ARCHIVE]}
    assert manager.started[Service.ARCHIVE] >= 20
    assert manager.hudi.most_active <= 40
    clean = manager.find(Service.CLEAN)
    assert (clean.verdict, clean.reason) == (
        Verdict.NOT_DUE,
        "nothing to clean: no write before the last 10 replaced a file since all was cleaned",
    )


def test_table_that_was_only_appended_to_is_cleaned_when_its_rows_are_updated() -> None:
    manager = Manager(HudiModel(Kind.APPEND), random.Random(1))
    manager.live(100)
    manager.hudi.kind = Kind.UPSERT
    manager.live(11)
    assert manager.started[Service.CLEAN] >= 2
    assert not [service for service, _ in manager.distances]


def test_run_that_finds_nothing_is_repeated_at_growing_distances() -> None:
    manager = Manager(HudiModel(Kind.OVERWRITE, plans_no_clean=True), random.Random(1), 3600, 1)
    manager.live(350)
    cleans = [distance for service, distance in manager.distances if service is Service.CLEAN]
    assert all(later >= before for before, later in pairwise(cleans))
    assert cleans[-1] >= 100
    assert manager.started[Service.CLEAN] <= 8
    assert manager.started[Service.ARCHIVE] <= 8
    # It is reported next to what is due, and is not due itself.
    assert manager.find(Service.CLEAN).verdict is Verdict.NOT_DUE
    assert "found nothing to do" in manager.find(Service.CLEAN).reason


def test_table_held_by_a_sink_is_neither_cleaned_nor_starves_what_is_not_held() -> None:
    hudi = HudiModel(Kind.DELTA)
    manager = Manager(hudi, random.Random(1), hold=Hold("0", "mirror", NOON_MS + 10**12))
    manager.live(60)
    assert set(manager.started) == {Service.COMPACTION}
    manager.hold = None
    manager.live(60)
    assert manager.started[Service.CLEAN] >= 3
    assert manager.started[Service.ARCHIVE] >= 2

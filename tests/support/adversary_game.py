"""A history of a table that an adversary plays move by move."""

from __future__ import annotations

from collections import Counter

from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.last_runs import MAX_OVERTAKEN
from airflow_lake_provider.planner.rules import Hold, Verdict
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.manager.adversary import OUTCOMES, Manager, TableModel, make_policy
from tests.unit.manager.hudi_model import NOON_MS, Kind


class Game:
    """A history, move by move."""

    def __init__(self, kind: Kind, version: int, *, most_active: int, features: frozenset[str]) -> None:
        self.policy = make_policy(
            clusters="clusters" in features, expires="expires" in features, most_active=most_active
        )
        hudi = TableModel(kind, plans_no_clean="no clean" in features, retained=2, version=version)
        self.hudi = hudi
        self.manager = Manager(hudi, self.policy, is_observed="observed" in features)
        self.moves: Counter[str] = Counter()
        self.is_single = "single" in features
        self.writes: list[str] = []
        """Pending ones whose writers live."""

    def play(self, move: str, number: int) -> None:
        self.moves[move] += 1
        getattr(self, f"_{move}")(number)
        self._beat()

    # --- moves ---------------------------------------------------------------------------------------------

    def _commit(self, number: int) -> None:
        for _ in range(1 + number % 4):
            self._pass(1 + number)
            self.hudi.write()
            self.manager.evaluate()

    def _rush(self, number: int) -> None:
        """A writer commits during each run, so that compaction is due again whenever it ends."""
        self.hudi.written_meanwhile = 2
        for _ in range(14 + number % 12):
            self._pass(20)
            for run in self.manager.active:
                self.manager.end(run, "done")
        self.hudi.written_meanwhile = 0

    def _ruin(self, number: int) -> None:
        """Each run dies with its plan begun, until the manager gives the plan up."""
        for _ in range(8):
            self._pass(700)
            for run in self.manager.active:
                self.manager.end(run, "died")

    def _wait(self, number: int) -> None:
        self._pass((5, 70, 700, 4000, 90_000)[number % 5])

    def _end(self, number: int) -> None:
        active = self.manager.active
        if active:
            self.manager.end(active[number % len(active)], OUTCOMES[number % len(OUTCOMES)])

    def _begin_write(self, number: int) -> None:
        if self.is_single and self.writes:
            return
        beat_ms = None if self.is_single else NOON_MS + self.hudi.now_ms
        action = Action.DELTACOMMIT if self.hudi.kind is Kind.DELTA else Action.COMMIT
        self.writes.append(self.hudi.begin(action, State.INFLIGHT, beat_ms))
        self.manager.evaluate()

    def _end_write(self, number: int) -> None:
        if self.writes:
            time = self.writes.pop(number % len(self.writes))
            assert time in self.hudi.pending, f"the write {time} was rolled back while its writer lived"
            self.hudi.remove(time)
            self.hudi.write()
            self.manager.evaluate()

    def _kill_writer(self, number: int) -> None:
        if self.writes and not self.is_single:
            self.writes.pop(number % len(self.writes))

    def _savepoint(self, number: int) -> None:
        writes = self.hudi._writes()
        self.hudi.changes += 1
        if self.hudi.savepoint is not None or not writes:
            self.hudi.savepoint = None
        else:
            time = writes[number % len(writes)].requested_time
            self.hudi.savepoint = Instant(time, Action.SAVEPOINT, State.COMPLETED, time, f"{time}_{time}.savepoint")
        self.manager.evaluate()

    def _hold(self, number: int) -> None:
        writes = self.hudi._writes()
        self.hudi.changes += 1
        if self.manager.hold is not None or not writes:
            self.manager.hold, self.hudi.held_from = None, ""
        else:
            time = writes[number % len(writes)].requested_time
            self.manager.hold = Hold(time, "mirror", self.manager.now_ms() + 86_400_000)
            self.hudi.held_from = time
        self.manager.evaluate()

    def _observe(self, number: int) -> None:
        self.manager.is_observed = not self.manager.is_observed
        self.manager.evaluate()

    def _foreign_plan(self, number: int) -> None:
        """Another program leaves a plan, or begins to execute one; it has no heartbeat."""
        actions = [Action.CLUSTERING, Action.CLEAN] + [Action.COMPACTION] * (self.hudi.kind is Kind.DELTA)
        action = actions[number % len(actions)]
        if not any(found is action for found, _ in self.hudi.pending.values()):
            self.hudi.begin(action, (State.REQUESTED, State.INFLIGHT)[number % 2], None)
            self.manager.evaluate()

    def _foreign_end(self, number: int) -> None:
        """That program removes its plan again."""
        plans = [time for time in self.hudi.pending if time not in (*self.writes, *self.hudi.beats_ms)]
        if plans and not self.manager.active:
            self.hudi.remove(plans[number % len(plans)])
            self.manager.evaluate()

    def _expire(self, number: int) -> None:
        self.hudi.expired += 1

    # --- time ----------------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let time pass; the manager evaluates when it said it would, living writers beat."""
        end_ms = self.hudi.now_ms + int(seconds * 1000)
        for _ in range(200):
            again_ms = self.manager.again_ms
            # A table is evaluated at the latest when its heartbeat is due.
            next_ms = min(max((again_ms or 1 << 62) - NOON_MS, self.hudi.now_ms + 1000), self.hudi.now_ms + 3_600_000)
            if next_ms > end_ms:
                break
            self.hudi.now_ms = next_ms
            self._beat()
            self.manager.evaluate()
        self.hudi.now_ms = max(self.hudi.now_ms, end_ms)

    def _beat(self) -> None:
        for time in self.writes:
            if time in self.hudi.beats_ms:
                self.hudi.beats_ms[time] = NOON_MS + self.hudi.now_ms

    # --- the end -------------------------------------------------------------------------------------------

    def make_peace(self) -> None:
        """The adversary ends: writers end, holds and savepoints go, other programs are gone, runs succeed."""
        while self.writes:
            self._end_write(0)
        self.hudi.savepoint = self.manager.hold = None
        self.hudi.held_from = ""
        self.hudi.changes += 1
        self.manager.is_observed = False
        self.hudi.plans_no_clean = False
        for _ in range(9):  # what was given up, or belongs to others, gets its turn within hours
            self._finish()
            self._pass(3600)
        for _ in range(20):
            self._finish()
            self.hudi.write()
            self.manager.evaluate()

    def _finish(self) -> None:
        for _ in range(40):
            self.manager.evaluate()
            if not self.manager.active:
                return
            self._pass(30)
            for run in self.manager.active:
                self.manager.end(run, "done")
        raise AssertionError(f"the services never come to rest: {self.manager.order[-20:]}")

    def check_peace(self) -> None:
        """The bounds of docs/services.md."""
        hudi, manager = self.hudi, self.manager
        self._finish()
        left = {time: action for time, (action, _) in hudi.pending.items()}
        assert not left, f"{left} is still pending"
        assert hudi.active_writes <= self.policy.archive.max_commits + MAX_OVERTAKEN, manager.order[-20:]
        due = [found.service for found in manager.decisions if found.verdict is not Verdict.NOT_DUE]
        assert not due, due
        # Nothing is written any more: nothing runs any more, but for the search for old partitions.
        before = sum(manager.started.values()) - manager.started[Service.TTL]
        for _ in range(30):
            self._pass(3600)
            for run in manager.active:
                manager.end(run, "done")
        after = sum(manager.started.values()) - manager.started[Service.TTL]
        assert after - before <= len(Service), manager.order[-20:]
        has_ages = hudi.version >= 8 or hudi.kind is not Kind.DELTA  # older log files carry no time
        if self.policy.ttl.retained_days is not None and has_ages:
            assert manager.started[Service.TTL] >= 20, "the search for old partitions starves"

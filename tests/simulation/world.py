"""One schedule: a clock, a queue of events, and all that lives by them. The same seed gives the same schedule."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
from airflow_lake_provider.config.service_policies import (
    ArchivePolicy,
    CleanPolicy,
    ClusteringPolicy,
    CompactionPolicy,
    RollbackPolicy,
)
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TableEntry, TablesConfig
from airflow_lake_provider.errors import ManagerUnreachableError
from airflow_lake_provider.manager.db.rows import Notice
from tests.simulation.airflow import Airflow
from tests.simulation.database import Database
from tests.simulation.disturbances import plan_disturbances
from tests.simulation.faults import TICK_SAFE_JUMP_MS, Faults, InjectedStoreError, Violated, draw
from tests.simulation.invariants import Invariants
from tests.simulation.outsiders import draw_outside, plan_outside
from tests.simulation.server import Server
from tests.simulation.storage import Disk, SimTable
from tests.simulation.stores import Stores
from tests.simulation.sweep import Sweep
from tests.simulation.tables_file import TablesFile, simulated_time
from tests.simulation.threads import simulated_threads
from tests.simulation.writers import Writer

T = TypeVar("T")

BEGIN_MS = int(datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp() * 1000)
QUIET_MS = 90 * 60_000
CHECK_EVERY_MS = 120_000
THOROUGH = 0.05
"""Share of the schedules that go on to the end of the quiet phase although everything is settled."""
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


class World:
    """A lake, its writers, two API servers, Airflow. `run` plays the faulty phase, then the quiet one."""

    def __init__(
        self,
        seed: int,
        database: Database,
        change: Callable[[Faults], Faults] | None = None,
        *,
        is_idle: bool = False,
    ) -> None:
        database.wipe()
        random.seed(seed)  # the provider samples tables at random
        self.seed = seed
        self.rng = random.Random(seed)
        self.database = database
        self.now_ms = BEGIN_MS + self.rng.randrange(1000)
        self.nested = 0
        self.requests = 0
        self.marks = 0
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=60)
        self.quiet_since_ms: int | None = None
        self.stores = Stores(self)
        self.worker_rng = random.Random(f"workers {seed}")
        self.hosts = ("worker 1", "worker 2")
        self.cut_off_until_ms = dict.fromkeys(self.hosts, 0)
        self.delivered: list[tuple[int, str, str]] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.outside_rng = random.Random(f"outside {seed}")
        self.offset_of_host_ms = dict.fromkeys(self.hosts, 0)
        outside, is_guarded = draw_outside(self.outside_rng), self.outside_rng.random() < 0.5
        self.faults = replace(draw(self.rng), outside=outside, has_heartbeat_guard=is_guarded)
        if change is not None:
            self.faults = change(self.faults)
        self.drawn = self.faults
        self.faulty_ms = self.rng.randrange(4, 10) * 60_000
        self.faulty_until_ms = self.now_ms + self.faulty_ms
        self.settings = LakeSettings(
            allowed_roots=("/lake", "hdfs://two"),
            heartbeat_timeout_s=self.rng.choice((120.0, 600.0)),
            heartbeat_max_s=900.0,
            # The short one, as before, lets leases end within a schedule.
            executor_lease_s=self.worker_rng.choice((60.0, 60.0, 900.0)),
        )
        self.policy = self._draw_policy()
        may_be_coarse = self.faults.most_jump_ms <= TICK_SAFE_JUMP_MS
        tick_ms = 1000 if may_be_coarse and self.rng.random() < 0.7 else 1
        self.disk = Disk(lambda: self.now_ms, tick_ms, self.rng.random() < 0.6)
        self.invariants = Invariants(self)
        paths = ("/lake/a", "hdfs://two/lake/b")[: self.rng.choice((1, 1, 2))]
        self.tables = {path: SimTable(self.disk, path) for path in paths}
        entries = tuple(TableEntry(path, table.name, self.policy) for path, table in self.tables.items())
        self._config = TablesConfig(entries, self.policy)
        self.tables_file = TablesFile(self) if "the tables file is edited" in self.faults.outside else None
        self.airflow = Airflow(self)
        self.servers = [Server(self, name, self.settings) for name in ("server 1", "server 2")]
        self.writers = [] if is_idle else [Writer(self, table) for table in self.tables.values()]
        self.sweep = Sweep(self)
        if not is_idle:
            plan_disturbances(self)
            plan_outside(self)

    def _draw_policy(self) -> TablePolicy:
        rng = self.rng
        return TablePolicy(
            compaction=CompactionPolicy(delta_commits=3, log_to_base_ratio=None),
            clustering=ClusteringPolicy(enabled=True if rng.random() < 0.2 else None, commits=5, small_files=None),
            clean=CleanPolicy(enabled=rng.random() < 0.3, commits=4, retained_commits=2),
            archive=ArchivePolicy(enabled=rng.random() < 0.2, min_commits=4, max_commits=7),
            # Where it is off the next writer rolls the dead back.
            rollback=RollbackPolicy(enabled=rng.random() < 0.8, after_s=rng.choice((10.0, 30.0, 600.0))),
            # Short, so that what others left is taken up within a schedule.
            doctor=DoctorPolicy(stuck_after_s=300.0, unguarded_after_s=900.0),
            hudi_options=LOCK,
            retry_backoff_s=rng.choice((20.0, 60.0)),
            max_active_runs=rng.choice((1, 1, 2)),
        )

    def now(self) -> datetime:
        """The database's time: what leases, marks and evaluations are counted by, whatever the servers' clocks say."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def open_tables(self) -> Callable[[], TablesConfig]:
        """Return how a process that begins now loads the tables' settings."""
        return self.tables_file.open_source() if self.tables_file is not None else lambda: self._config

    # --- the clock -----------------------------------------------------------------------------------------

    def after(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do it in so many ms."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + max(delay_ms, 0), self._count, work))

    def pass_time(self, ms: int) -> None:
        """Let the world go on for so long; the caller stands still meanwhile."""
        if self.nested:
            self._pass_time(ms)
        else:
            with simulated_threads(lambda: self.now_ms), simulated_time(self):
                self._pass_time(ms)

    def _pass_time(self, ms: int) -> None:
        self.nested += 1
        end_ms = self.now_ms + ms
        while self._queue and self._queue[0][0] <= end_ms:
            at_ms, _, work = heapq.heappop(self._queue)
            self.now_ms = max(self.now_ms, at_ms)
            work()
            for server in self.servers:
                server.plan()
        self.now_ms = max(self.now_ms, end_ms)
        self.nested -= 1

    def run(self) -> None:
        """Play the schedule. Raises Violated."""
        try:
            self._run()
        finally:
            for server in self.servers:
                server.end_threads()
            if self.tables_file is not None:
                self.tables_file.close()

    def _run(self) -> None:
        self.pass_time(self.faulty_ms)
        self._begin_quiet()
        is_thorough = self.rng.random() < THOROUGH
        for _ in range(QUIET_MS // CHECK_EVERY_MS):
            self.pass_time(CHECK_EVERY_MS)
            self.invariants.check_deadlines()
            unrest = self.invariants.find_unrest()
            if not unrest and not is_thorough:
                return
        if unrest:
            self.violate(unrest)

    def _begin_quiet(self) -> None:
        self.say("--- nothing goes wrong from here on ---")
        self.quiet_since_ms = self.now_ms
        self.faults = self.faults.over()
        self.stores.recover()
        self.airflow.recover()
        self.offset_of_host_ms = dict.fromkeys(self.hosts, 0)
        for writer in self.writers:
            writer.offset_ms = 0
        for server in self.servers:
            server.jump_clock(0)
            server.start()

    def say(self, text: str) -> None:
        """Keep a line of the story."""
        self.events.append(f"{(self.now_ms - BEGIN_MS) / 1000:9.3f} {text}")

    def violate(self, promise: str) -> None:
        """End the schedule: the provider broke a promise."""
        raise Violated(promise)

    # --- storage and servers -------------------------------------------------------------------------------

    def before_storage_call(self, what: str, base_path: str) -> None:
        self.stores.require_answer(base_path, what)
        if self.faults.storage_error and self.rng.random() < self.faults.storage_error:
            self.counts["storage errors"] += 1
            raise InjectedStoreError(f"injected: {what} failed")

    def pick_server(self, *, is_free: bool = False) -> Server | None:
        """Return one that answers, as a load balancer would."""
        alive = [server for server in self.servers if (server.is_free if is_free else server.is_alive)]
        return self.rng.choice(alive) if alive else None

    def ask_manager(self, work: Callable[[Server], T]) -> T:
        """One HTTP call of a task. Raises what the hook raises."""
        server = self.pick_server()
        if server is None:
            raise ManagerUnreachableError("no server answers")
        self.requests += 1
        try:
            answer = server.answer(lambda: (work(server),))
        except SQLAlchemyError as error:
            raise ManagerUnreachableError("the manager answered 500") from error
        finally:
            self.requests -= 1
        if answer is None:
            raise ManagerUnreachableError("the server died before it answered")
        return answer[0]

    def deliver(self, notice: Notice) -> None:
        """A notice arrives at one server; what was answered is a promise."""
        server = self.pick_server()
        if server is None:
            self.say(f"notice of {notice.instants} finds no server")
            return
        try:
            mark = server.answer(lambda: server.process.loop.notify(notice))
        except SQLAlchemyError:
            mark = None
        if mark is None:
            self.counts["notices not answered"] += 1
            self.say(f"notice of {notice.instants} is not answered")
            return
        server.say(f"answers the notice of {notice.instants} with mark {mark.seq}")
        self.invariants.promised(notice)
        self.counts["notices answered"] += 1
        self.delivered.append((self.now_ms, notice.base_path, notice.instants[0]))

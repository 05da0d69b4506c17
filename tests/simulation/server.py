"""One API server: the provider's registry, leases, timelines and loop in one process's memory, driven by the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from greenlet import getcurrent
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import TablesConfigError
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, FirstLease, Mark, Notice, TableLease
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway, UnannouncedCommits
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import HeartbeatLimits, SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.simulation.faults import InjectedStoreError, ServerKilled, database_error
from tests.simulation.storage import open_on
from tests.simulation.threads import SimLocks, SimThread, simulated_threads, this_thread

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

_MAX_NESTED = 2


@dataclass
class Process:
    """What dies with the server."""

    registry: SimRegistry
    executors: Executors
    timelines: TimelineServer
    loop: ManagerLoop


class SimRegistry(Registry):
    """The provider's registry; it reports to the world what it made durable."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.world.database.transactions(server.boundary), ProcessClock(server.database_now))
        self._server = server

    def mark_dirty(self, notice: Notice, *, may_register: bool = True) -> Mark:
        self._server.world.marks += 1
        return super().mark_dirty(notice, may_register=may_register)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        thread = getcurrent()
        if not isinstance(thread, SimThread):
            with super().transaction() as session:
                yield session
            return
        thread.transactions += 1
        try:
            with super().transaction() as session:
                yield session
        finally:
            thread.transactions -= 1

    def acquire_first(
        self, lease_s: float, *, except_stores: Sequence[str] = (), except_tables: Sequence[str] = ()
    ) -> FirstLease:
        world = self._server.world
        ready_ms = world.database.next_claim_ms()
        if ready_ms is None or ready_ms > world.now_ms:
            return FirstLease(None, are_more=False)  # what the query would find, for less
        found = super().acquire_first(lease_s, except_stores=except_stores, except_tables=except_tables)
        if found.lease is not None:
            lease = found.lease
            self._server.say(f"acquires {lease.table_id[:2]}, mark {lease.dirty_seq}, retry {lease.is_retry}")
        return found

    def conclude(
        self, lease: TableLease, find_result: Callable[[Session], EvaluationResult]
    ) -> tuple[EvaluationResult, bool]:
        server = self._server
        server.pass_by("about to release")
        result, clean = super().conclude(lease, find_result)
        server.say(f"releases {lease.table_id[:2]}, clean {clean} {result.problem[:60]} {result.retry_ms or ''}")
        server.world.invariants.after_release(server, lease, result)
        return result, clean


class SimViews(TableViewCache):
    """The provider's views; remembers by which one an evaluation was decided."""

    def __init__(self, server: Server, timelines: SharedTimelines) -> None:
        super().__init__(timelines)
        self._server = server

    def refresh(self, base_path: str, covering: int | None = None) -> TableView:
        self._server.pass_by("claimed")
        view = super().refresh(base_path, covering)
        self._server.world.invariants.saw(base_path, view)
        return view


class Server:
    """The process slot: it is killed, comes back empty, and its clock may be wrong."""

    def __init__(self, world: World, name: str, settings: LakeSettings) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.offset_ms = 0
        self.generation = 0
        self.is_alive = False
        self._busy = 0
        self._parked: dict[SimThread, int] = {}
        self._planned: dict[str, int] = {}
        self._seen = (-1, -1)
        self.start()

    @property
    def is_free(self) -> bool:
        """Whether it is up, and neither its loop nor an evaluation stands in the middle of something."""
        return self.is_alive and not self._busy

    def say(self, text: str) -> None:
        self.world.say(f"{self.name}: {text}")

    def now_ms(self) -> int:
        return self.world.now_ms + self.offset_ms

    def now(self) -> datetime:
        """This server's own time."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def database_now(self) -> datetime:
        """What the provider counts leases by."""
        return self.world.now()

    # --- life and death ------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_alive:
            return
        world = self.world
        if world.tables_file is not None and world.tables_file.is_shrunken:
            world.after(5_000, self.start)
            return
        self.is_alive, self._busy = True, 0
        self._planned, self._seen = {}, (-1, -1)
        registry = SimRegistry(self)
        heartbeat = HeartbeatLimits(
            min(60.0, self.settings.heartbeat_timeout_s),
            self.settings.heartbeat_timeout_s,
            self.settings.heartbeat_max_s,
        )
        timelines = SharedTimelines(
            SharedLimits(heartbeat=heartbeat, cold_start_s=10.0),
            lambda path: open_on(world.disk, path, lambda what: self._before_storage_call(what, path)),
            self.now_ms,
        )
        timelines.memory.refreshing, timelines.memory.reading_commits = SimLocks("refreshes"), SimLocks("commits")
        load_tables = self.load_tables = world.open_tables()
        unannounced = UnannouncedCommits(registry)
        timelines.on_unannounced = lambda path, instants: self._mark_unannounced(unannounced, path, instants)
        options = ServerOptions(allowed_roots=self.settings.allowed_roots)
        server = TimelineServer(timelines, options, RegistryFeed(registry, load_tables, unannounced))
        views = SimViews(self, timelines)
        loop = ManagerLoop(self.settings, registry, TimelineServerGateway(server), views, world.airflow, load_tables)
        executors = Executors(registry, self.settings.executor_lease_s)
        self.process = Process(registry, executors, server, loop)
        self.say("starts")
        self._plan("verify", world.now_ms + 60_000)

    def die(self) -> None:
        if self.is_alive:
            self.say("KILLED")
            self.world.counts["servers killed"] += 1
            self.is_alive = False
            self.generation += 1
            self.end_threads()
            self.world.after(self.world.rng.randrange(500, 60_000), self.start)

    def run(self, work: Callable[[], object], *, is_request: bool = False) -> None:
        """Run work in a thread of this process; loop and evaluations wait meanwhile, unless it waits for a store."""
        SimThread(self, lambda: self._run_busy(work), is_request=is_request).switch()

    def _run_busy(self, work: Callable[[], object]) -> None:
        generation = self.generation
        self._busy += 1
        try:
            self.answer(work)
        finally:
            if self.generation == generation:
                self._busy -= 1

    def answer(self, work: Callable[[], T]) -> T | None:
        """Run work in this process, which reads no store; None when it died of it."""
        generation = self.generation
        try:
            return work()
        except ServerKilled:
            if self.generation == generation:
                self.die()
            return None

    # --- threads -------------------------------------------------------------------------------------------

    def begin_thread(self, target: Callable[[], None], after_ms: int = 0) -> None:
        """Run a function in a thread of its own, soon, or some time later."""
        generation = self.generation

        def begin() -> None:
            if generation == self.generation:
                if self._busy:
                    self.world.after(200, begin)
                else:
                    SimThread(self, lambda: self._run_busy(target), is_evaluator=True).switch()

        self.world.after(after_ms + self.world.rng.randrange(20), begin)

    def park(self, thread: SimThread) -> None:
        """Note that a thread stands aside."""
        self._parked[thread] = self.world.now_ms
        self._busy -= 1

    def is_parked(self, thread: SimThread) -> bool:
        """Whether a thread of this process stands aside."""
        return thread in self._parked

    def unpark(self, thread: SimThread) -> None:
        """Note that it goes on."""
        del self._parked[thread]
        self._busy += 1

    def wake(self, thread: SimThread) -> None:
        """Let a thread that stands aside go on as soon as the process does."""

        def go_on() -> None:
            if thread not in self._parked:
                return
            if self._busy:
                self.world.after(500, go_on)
                return
            try:
                thread.go_on()
            except SQLAlchemyError:  # as the provider's outermost loops
                self._seen = (-1, self._seen[1])

        self.world.after(self.world.rng.randrange(1, 2_000), go_on)

    def end_threads(self) -> None:
        """End those that stand aside, as the end of their process does."""
        while self._parked:  # one that ends may want a lock that another one holds
            parked, self._parked = self._parked, {}
            for thread in parked:
                thread.end()

    def check_health(self, most_ms: int) -> None:
        """Complain of an evaluation that has not returned for so long and that the provider does not report.

        A person reads the report, and restarts the process when its store answers others again.
        """
        world = self.world
        late = [thread for thread, since_ms in self._parked.items() if world.now_ms - since_ms > most_ms]
        if not any(thread.is_evaluator for thread in late):
            return
        with simulated_threads(lambda: world.now_ms):
            problems = self.process.loop.find_problems()
        if not problems:
            world.violate(f"{self.name} has evaluations that do not return, and does not report them")
        is_well = not any(world.stores.is_hung(path) for path in world.tables)
        if is_well or not world.stores.never_answered.keys().isdisjoint(late):
            self.say("a person restarts it")
            self.die()

    # --- where it may be hit -------------------------------------------------------------------------------

    def boundary(self, where: str) -> None:
        """Around a commit: die, lose the connection, or stand still (not within the transaction)."""
        world, faults, rng = self.world, self.world.faults, self.world.rng
        if faults.kill_server and rng.random() < faults.kill_server:
            self.say(f"dies {where}")
            raise ServerKilled
        if faults.database_error and rng.random() < faults.database_error:
            world.counts["database errors"] += 1
            self.say(f"database error {where}")
            raise database_error()
        if where == "after commit":
            self.pass_by(where)

    def pass_by(self, where: str) -> None:
        """A point outside of transactions: the process may be killed, or stand still while the world goes on."""
        world, rng = self.world, self.world.rng
        faults = world.faults
        if faults.kill_server and rng.random() < faults.kill_server:
            self.say(f"dies, {where}")
            raise ServerKilled
        if faults.pause_server and world.nested < _MAX_NESTED and rng.random() < faults.pause_server:
            generation = self.generation
            world.counts["servers stood still"] += 1
            pause_ms = rng.choice((50, 500, 5_000, 70_000))
            if world.requests:  # a caller waits for the answer, and not indefinitely
                pause_ms = min(pause_ms, faults.slow_answer_ms)
            self.say(f"stands still for {pause_ms} ms, {where}")
            self._busy += 1
            world.pass_time(pause_ms)
            if self.generation != generation:
                raise ServerKilled
            self._busy -= 1

    def _before_storage_call(self, what: str, base_path: str) -> None:
        if getattr(getcurrent(), "transactions", 0):
            self.world.violate(f"{self.name} reads a store ({what} of {base_path}) inside a transaction")
        self.pass_by(what)
        if self.world.stores.is_hung(base_path, what):
            self.world.counts["calls that hung"] += 1
            thread = this_thread()
            self.say(f"{what} of {base_path} hangs")
            self.world.stores.add_hung(base_path, thread)
            thread.stand_aside(f"{what} of {base_path}")
            raise InjectedStoreError(f"injected: {what} was answered too late")
        self.world.before_storage_call(what, base_path)

    # --- its own work --------------------------------------------------------------------------------------

    def plan(self) -> None:
        """See what this process would do next, and when."""
        if not self.is_free:
            return
        world = self.world
        seen = (world.database.changes, world.marks)
        if seen != self._seen:
            if seen[1] != self._seen[1]:
                self._plan("feed", world.now_ms + world.rng.randrange(1000))
            ready_ms = world.database.next_claim_ms()
            if ready_ms is not None:
                # While a thread stands aside its table stays claimable, for other servers.
                pause_ms = 15_000 if self._parked else world.rng.randrange(1000)
                self._plan("drain", max(ready_ms, world.now_ms) + pause_ms)
            self._seen = seen
        wait_ms = self.process.timelines.timelines.due.wait_ms(self.now_ms(), 1 << 40)
        if wait_ms < 1 << 40:
            self._plan("evaluate", world.now_ms + wait_ms)

    def _plan(self, what: str, at_ms: int) -> None:
        planned = self._planned.get(what)
        if planned is None or planned > at_ms:
            self._planned[what] = at_ms
            generation = self.generation
            self.world.after(at_ms - self.world.now_ms, lambda: self._work(what, at_ms, generation))

    def _work(self, what: str, at_ms: int, generation: int) -> None:
        if generation != self.generation or self._planned.get(what) != at_ms:
            return
        del self._planned[what]
        if self._busy:
            self._plan(what, self.world.now_ms + 500)
            return
        self._seen = (-1, self._seen[1])
        try:
            self.run(getattr(self, f"_{what}"))
        except (SQLAlchemyError, TablesConfigError):  # as the provider's outermost loops: logged, and again soon
            self._plan(what, self.world.now_ms + 1000)

    def _drain(self) -> None:
        self.process.loop.start()
        if self._parked:  # the provider passes every few seconds, and then sees what does not return
            self._plan("drain", self.world.now_ms + 60_000)

    def _feed(self) -> None:
        self.process.timelines._take_feed()

    def _evaluate(self) -> None:
        server = self.process.timelines
        for base_path, is_hinted in server.timelines.due.take(self.now_ms(), 8):
            generation = self.generation
            self.run(lambda path=base_path, hinted=is_hinted: server._refresh(path, hinted))
            if self.generation != generation:
                return

    def _verify(self) -> None:
        self._plan("verify", self.world.now_ms + 60_000)
        self.process.timelines._verify()

    def _mark_unannounced(self, unannounced: UnannouncedCommits, base_path: str, instants: tuple[Instant, ...]) -> None:
        self.say(f"finds {len(instants)} commits of {base_path} that were not announced")
        unannounced.mark(base_path, instants)
        if unannounced._waiting:
            self._plan("feed", self.world.now_ms + 1000)

    def jump_clock(self, offset_ms: int) -> None:
        """Set this server's clock wrong, or right again."""
        self.world.counts["clocks moved"] += bool(offset_ms)
        self.say(f"clock off by {offset_ms} ms")
        self.offset_ms = offset_ms
        self._seen = (-1, -1)
        for what in ("drain", "evaluate"):
            self._planned.pop(what, None)

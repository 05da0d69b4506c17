"""Writers that commit in bursts, sometimes die with a commit inflight, and announce over a lossy network.

Some take their time and send heartbeats; some of these stand still without, and are refused when they want to commit.
A single writer (Hudi's default mode) sends none, takes up to an hour for a commit, has one at a time, and rolls its own
failures back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.active_writes import HeartbeatRule, load_heartbeats
from airflow_lake_provider.job_contract import DEFAULT_HEARTBEAT_INTERVAL_MS
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.shared.actions import Action
from tests.simulation.storage import SimTable, open_on

if TYPE_CHECKING:
    from tests.simulation.world import World


class Writer:
    """One process per table; its commits may overlap."""

    def __init__(self, world: World, table: SimTable) -> None:
        self.world = world
        self.table = table
        self._failed: list[str] = []
        self.offset_ms = 0
        self.is_single = "single writers" in world.faults.outside
        self.alone_with = ""
        """What a single writer writes now."""
        self.announces = world.rng.random() < 0.9
        at_ms = 0
        for _ in range(world.rng.randrange(1, 4)):
            at_ms += world.rng.choice((2_000, 20_000, 90_000))
            for _ in range(world.rng.randrange(1, 6)):
                at_ms += world.rng.choice((100, 200, 500))
                if at_ms < world.faulty_ms - 10_000:
                    world.after(at_ms, self._begin)

    def _begin(self) -> None:
        if self.is_single:
            self._begin_alone()
            return
        time = self.table.request(Action.DELTACOMMIT, self.offset_ms)
        self.table.begin(time, Action.DELTACOMMIT)
        if self.world.faults.kill_writer and self.world.rng.random() < self.world.faults.kill_writer:
            self.world.say(f"writer of {self.table.name} dies with {time} inflight")
            self._failed.append(time)
            return
        if self.world.faults.slow_writer and self.world.rng.random() < self.world.faults.slow_writer:
            self._write_slowly(time)
        else:
            self.world.after(self.world.rng.choice((100, 200, 300, 1_000, 8_000)), lambda: self._complete(time))

    def _begin_alone(self, *, is_again: bool = False) -> None:
        world, rng = self.world, self.world.outside_rng
        if self.alone_with:
            return
        for failed in self._failed:
            self.table.remove_instant(failed)
        self._failed.clear()
        time = self.alone_with = self.table.request(Action.DELTACOMMIT, self.offset_ms, beats=False)
        self.table.begin(time, Action.DELTACOMMIT)
        takes_ms = 5_000 if is_again else rng.choice((1_000, 20_000, 300_000, 3_600_000))
        if not is_again and rng.random() < world.faults.kill_writer:
            # It comes back after a while: nothing else can know that it is dead.
            world.say(f"single writer of {self.table.name} dies with {time} inflight")
            world.after(takes_ms, lambda: self._come_back(time))
            return
        world.counts["commits of single writers"] += 1
        world.say(f"single writer of {self.table.name} takes {takes_ms} ms for {time}")
        world.after(takes_ms, lambda: self._complete_alone(time))

    def _come_back(self, time: str) -> None:
        self._failed.append(time)
        self.alone_with = ""
        self._begin_alone(is_again=True)

    def _complete_alone(self, time: str) -> None:
        if not self.table.is_pending(time):
            self.world.violate(f"the write {time} of {self.table.base_path} was rolled back while its writer lived")
        self.alone_with = ""
        self._complete(time)

    def _write_slowly(self, time: str) -> None:
        world = self.world
        takes_ms = world.rng.choice((200_000, 900_000, 1_500_000))
        beats = 1 if world.rng.random() < 0.3 else takes_ms // DEFAULT_HEARTBEAT_INTERVAL_MS
        world.say(f"writer of {self.table.name} takes {takes_ms} ms for {time} and beats {beats} times")
        for beat in range(1, beats + 1):
            world.after(beat * DEFAULT_HEARTBEAT_INTERVAL_MS, lambda: self._beat(time))
        world.after(takes_ms, lambda: self._complete_slowly(time))

    def _beat(self, time: str) -> None:
        if not self.table.is_pending(time):
            self.world.violate(f"the write {time} of {self.table.base_path} was rolled back while its writer lived")
        self.table.beat(time)

    def _complete_slowly(self, time: str) -> None:
        """Hudi: a writer whose own heartbeat has expired gives its commit up."""
        world = self.world
        beat_ms = load_heartbeats(open_on(world.disk, self.table.base_path, lambda what: None)).get(time)
        if HeartbeatRule().is_live(beat_ms, world.now_ms):
            if not self.table.is_pending(time):
                world.violate(f"the write {time} of {self.table.base_path} was rolled back while its writer lived")
            self._complete(time)
            return
        world.counts["commits refused for their heartbeat"] += 1
        world.say(f"writer of {self.table.name} gives {time} up: its heartbeat has expired")
        self._failed.append(time)

    def _complete(self, time: str) -> None:
        world = self.world
        # Hudi, without a service that does it: a later writer rolls back, before its own commit.
        if self._failed and not world.policy.rollback.enabled and world.rng.random() < 0.7:
            self.table.remove_instant(self._failed.pop(0))
        self.table.complete(time, Action.DELTACOMMIT, self.offset_ms)
        world.counts["commits"] += 1
        world.say(f"commit {time} of {self.table.name} is completed")
        if not self.announces:
            return
        notice = Notice(self.table.base_path, self.table.name, Source.COMMIT_CALLBACK, (time,))
        copies = 2 if world.rng.random() < world.faults.double_notice else 1
        for _ in range(copies):
            if world.rng.random() < world.faults.drop_notice:
                world.counts["notices lost"] += 1
                world.say(f"the notice of {time} is lost on its way")
                continue
            is_late = world.rng.random() < world.faults.late_notice
            delay_ms = world.rng.randrange(1, 60_000) if is_late else world.rng.randrange(1, 50)
            world.after(delay_ms, lambda: world.deliver(notice))

"""Writers that commit in bursts, sometimes die with a commit inflight, and announce over a lossy network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.timeline.instant import Action
from tests.simulation.storage import SimTable

if TYPE_CHECKING:
    from tests.simulation.world import World


class Writer:
    """One process per table; its commits may overlap."""

    def __init__(self, world: World, table: SimTable) -> None:
        self.world = world
        self.table = table
        self._failed: list[str] = []
        self.announces = world.rng.random() < 0.9
        at_ms = 0
        for _ in range(world.rng.randrange(1, 4)):
            at_ms += world.rng.choice((2_000, 20_000, 90_000))
            for _ in range(world.rng.randrange(1, 6)):
                at_ms += world.rng.choice((100, 200, 500))
                if at_ms < world.faulty_ms - 10_000:
                    world.after(at_ms, self._begin)

    def _begin(self) -> None:
        time = self.table.request(Action.DELTACOMMIT)
        self.table.begin(time, Action.DELTACOMMIT)
        if self.world.faults.kill_writer and self.world.rng.random() < self.world.faults.kill_writer:
            self.world.say(f"writer of {self.table.name} dies with {time} inflight")
            self._failed.append(time)
            return
        self.world.after(self.world.rng.choice((100, 200, 300, 1_000, 8_000)), lambda: self._complete(time))

    def _complete(self, time: str) -> None:
        world = self.world
        if self._failed and world.rng.random() < 0.7:  # Hudi: a later writer rolls back, before its own commit
            self.table.remove_instant(self._failed.pop(0))
        self.table.complete(time, Action.DELTACOMMIT)
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

"""The net: `dags/lake_watch.py` once a minute, with the sensors' own rule, while the scheduler is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.db.registry import Notice, Source
from airflow_lake_provider.timeline_server.snapshot import Freshness
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, examine

if TYPE_CHECKING:
    from tests.simulation.server import Server
    from tests.simulation.world import World

_ONCE = Freshness(max_age_s=90)


class Sweep:
    """A pass that would find nothing is left out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self._registered = False
        world.after(world.rng.randrange(60_000), self._tick)

    def _tick(self) -> None:
        world = self.world
        world.after(60_000, self._tick)
        server = world.pick_server(is_free=True)
        if server is None or world.now_ms < world.airflow.down_until_ms or not self.is_on:
            return
        if self._registered and not world.database.has_work_for_a_sweep(world.now_ms):
            return
        try:
            server.run(lambda: self._watch(server))
        except (SQLAlchemyError, LakeError) as error:
            server.say(f"the sweep failed: {type(error).__name__}")

    def _watch(self, server: Server) -> None:
        process = server.process
        quiet, changed = [], []
        for row in process.registry.list_silent():
            watch = Watch(WatchKind.COMMIT, ((row["base_path"], row["completed_time"]),))
            try:
                snapshot = process.timelines.timelines.snapshot(row["base_path"], _ONCE)
            except LakeError:
                quiet.append(row["table_id"])  # a soft failure, as nothing found
                continue
            found = examine(watch, row["base_path"], row["completed_time"], snapshot)
            if found.instants:
                changed.append(Notice(row["base_path"], row["table_name"], Source.HINT, _times(found.instants)))
            else:
                quiet.append(row["table_id"])
        for notice in changed:
            server.say(f"the sweep found {notice.instants} of {notice.table_name}")
            process.loop.mark_dirty(notice)
        process.loop.postpone(quiet)
        process.loop.register_configured_tables()
        self._registered = True
        process.loop.drain()


def _times(instants: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(sorted(str(getattr(instant, "requested_time", "")) for instant in instants))

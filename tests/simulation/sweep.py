"""The sweep: `dags/lake_watch.py` once a minute, with the sensors' own rule, while the scheduler is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.timeline_server.snapshot import Freshness
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, examine

if TYPE_CHECKING:
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from tests.simulation.server import Server
    from tests.simulation.world import World

_ONCE = Freshness(max_age_s=90)


class Sweep:
    """A pass that would find nothing is left out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self._registered = False
        self._quiet: list[str] = []
        self._changed: list[Notice] = []
        self._waiting: set[tuple[tuple[str, int], str]] = set()
        world.after(world.rng.randrange(60_000), self._tick)

    def _tick(self) -> None:
        world = self.world
        world.after(60_000, self._tick)
        server = world.pick_server(is_free=True)
        if server is None or not world.airflow.sweeps or not self.is_on:
            return
        if self._registered and not world.database.has_work_for_a_sweep(world.now_ms):
            return
        try:
            self._watch(server)
        except (SQLAlchemyError, LakeError) as error:
            server.say(f"the sweep failed: {type(error).__name__}")

    def _watch(self, server: Server) -> None:
        process, generation = server.process, (server.name, server.generation)
        self._quiet, self._changed = [], []
        silent = []
        server.run(lambda: silent.extend(process.registry.list_silent()))
        for row in silent:
            if (server.name, server.generation) != generation:
                break
            if (generation, row.table_id) in self._waiting:
                self._quiet.append(row.table_id)  # its sensor waits for nothing, and ends with its time-out
                continue
            self._waiting.add((generation, row.table_id))
            server.run(lambda row=row: self._examine(server, generation, row))
        if (server.name, server.generation) == generation:
            server.run(lambda: self._hint(server), is_request=True)

    def _examine(self, server: Server, generation: tuple[str, int], row: TableRow) -> None:
        """A sensor of one table; it may wait for the store, and the others do not wait for it."""
        watch = Watch(WatchKind.COMMIT, ((row.base_path, row.completed_time),))
        try:
            snapshot = server.process.timelines.timelines.snapshot(row.base_path, _ONCE)
        except LakeError:
            self._quiet.append(row.table_id)  # a soft failure, as nothing found
        else:
            found = examine(watch, row.base_path, row.completed_time, snapshot)
            if found.instants:
                times = _times(found.instants)
                self._changed.append(Notice(row.base_path, row.table_name, Source.HINT, times))
            else:
                self._quiet.append(row.table_id)
        self._waiting.discard((generation, row.table_id))

    def _hint(self, server: Server) -> None:
        """`POST /hints` and `POST /sweep`."""
        process = server.process
        for notice in self._changed:
            server.say(f"the sweep found {notice.instants} of {notice.table_name}")
            process.loop.notify(notice)
        process.loop.postpone(self._quiet)
        process.loop.register_configured_tables()
        self._registered = len(self.world.database.rows()) == len(self.world.tables)
        process.loop.start()


def _times(instants: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(sorted(str(getattr(instant, "requested_time", "")) for instant in instants))

"""The tables file as an editor, or a program that copies it, leaves it for a while: cut off, shrunken, or wrong.

Each version names itself in the last setting of each entry, so a run by a part of one shows it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from airflow_lake_provider.config import tables_source
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import Settle, TablesSource

if TYPE_CHECKING:
    from tests.simulation.world import World

_VERSION = "spark.lake.version"
_OTHERS = 7
"""Entries besides those of the lake's tables, so that a shrunken file has fewer than half."""
_SETTLE = _SETTLE_OF_SERVERS = Settle()


class TablesFile:
    """The file on disk, with times of the virtual clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._version = 0
        self._is_bad = False
        self.is_shrunken = False
        """A process that begins has nothing to compare such a file with, so none begins meanwhile."""
        self._folder = tempfile.TemporaryDirectory(prefix="tables")
        self.path = os.path.join(self._folder.name, "tables.yaml")
        self._write(self._whole())

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    def open_source(self) -> Callable[[], TablesConfig]:
        """Return how a process that begins now loads its tables."""
        world = self._world
        source = TablesSource(self.path, monotonic_s=lambda: world.now_ms / 1000, settle=_SETTLE_OF_SERVERS)
        is_loading = False
        last: TablesConfig | None = None

        def load() -> TablesConfig:
            nonlocal is_loading, last
            if is_loading:  # a real thread would wait for the one that reads the file at this moment
                return last if last is not None else TablesConfig((), world.policy)
            is_loading = True
            try:
                tables = last = source.load()
            finally:
                is_loading = False
            for path, table in world.tables.items():
                version = tables.policy_for(path, table.name).spark_conf.get(_VERSION, "")
                if not version.isdigit() or int(version) > self._version:
                    world.violate(f"a part of the tables file is in force for {path}")
            return tables

        return load

    def edit(self) -> None:
        """Write the next version, with a bad one before it."""
        rng, before = self._world.outside_rng, self._whole()
        if self._is_bad:
            return
        self._poll()
        self._is_bad = True
        self._version += 1
        whole = self._whole()
        kind, bad, most_ms = rng.choice(
            (
                ("cut off", whole[: rng.randrange(len(whole))], int(_SETTLE.settled_after_s * 1000)),
                ("cut off by half", whole[: rng.randrange(len(whole) // 3)], int(_SETTLE.shrunk_after_s * 1000)),
                ("wrong", f"{before}\n  - compaction: {{delta_comits: 0}}\n", 600_000),
                ("empty", "", 600_000),
            )
        )
        self._world.counts["tables files edited"] += 1
        self._world.say(f"the tables file is {kind} for a while")
        self.is_shrunken = kind == "cut off by half"
        self._write(bad)
        self._world.after(rng.randrange(most_ms), lambda: self._restore(whole))

    def _restore(self, whole: str) -> None:
        self.is_shrunken = False
        self._write(whole)
        self._world.after(5_000, self._poll)

    def _poll(self) -> None:
        """Each server's feed reads the tables every second (`timeline_feed.RegistryFeed.poll`)."""
        self._is_bad = False
        for server in self._world.servers:
            if server.is_alive:
                server.load_tables()

    def _whole(self) -> str:
        policy = self._world.policy.model_dump(exclude_defaults=True)
        policy["hudi_options"] = dict(policy["hudi_options"])
        policy["spark_conf"] = {_VERSION: str(self._version)}
        entries = [{"base_path": path, **policy} for path in self._world.tables]
        others = [{"base_path": f"/lake/other{n}/*", **policy} for n in range(_OTHERS)]
        return str(yaml.safe_dump({"tables": entries + others}, sort_keys=False))

    def _write(self, text: str) -> None:
        with open(self.path, "w") as stream:
            stream.write(text)
        ns = self._world.now_ms * 1_000_000
        os.utime(self.path, ns=(ns, ns))


class _Time:
    """What `config/tables_source.py` uses of `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time(self) -> float:
        return self._world.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._world.pass_time(int(seconds * 1000) + 1)


@contextmanager
def simulated_time(world: World) -> Iterator[None]:
    """Have the provider's source of tables use the world's time."""
    module: Any = tables_source
    before, module.time = module.time, _Time(world)
    try:
        yield
    finally:
        module.time = before

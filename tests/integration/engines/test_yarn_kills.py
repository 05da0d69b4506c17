"""Kills on a real YARN: whatever dies, the compaction is done once, its rows are as before, and nothing runs on.

`LAKE_YARN_KILLS` is the number of rounds, `LAKE_YARN_SEED` what the moments are drawn from: in every other round before
the driver has the table's lock, else after its plan was made.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from local_stack.processes import ServerProcess
from local_stack.writer_process import StandingWriter
from tests.integration.engines.yarn_stage import LEASE_S, YarnStage

pytestmark = [pytest.mark.integration, pytest.mark.soak]

ROUNDS = int(os.environ.get("LAKE_YARN_KILLS", "2"))
SEED = int(os.environ.get("LAKE_YARN_SEED", "1"))
MOST_DELAY_S = 6.0


@pytest.fixture(scope="module")
def reader(stage: YarnStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    reader = StandingWriter(tmp_path_factory.mktemp("reader"))
    try:
        reader.wait_until_ready()
        yield reader
    finally:
        reader.stop()


@dataclass
class Blow:
    """One kill: the run's first task, and its application."""

    stage: YarnStage
    name: str
    first: ServerProcess
    app: dict[str, Any]
    is_early: bool
    """Before the driver had the table's lock."""

    @property
    def node(self) -> int:
        """Which NodeManager has the driver."""
        return self.stage.stack.yarn.number_of(self.app["amHostHttpAddress"])

    def next_try(self, run_id: str = "", try_number: int = 2) -> ServerProcess:
        path = f"{self.stage.root}/lake/{self.name}"
        return self.stage.start_task(run_id or self.name, try_number, base_path=path, table_name=self.name)

    def has_failed(self, why: str) -> bool:
        """Wait for the first task's end; whether it failed. It must say why, unless the kill came too late for it."""
        self.first.process.wait(timeout=240)
        log = self.stage.log_of(self.first)
        if self.is_early or "RETURNED {" not in log:
            assert "RETURNED {" not in log, log[-3000:]
            assert why in log, log[-3000:]
            return True
        return False


def kill_worker(blow: Blow) -> ServerProcess:
    os.kill(blow.first.process.pid, signal.SIGKILL)
    blow.first.process.wait()
    # Until then the manager gives it to no other try.
    time.sleep(LEASE_S)
    again = blow.next_try()
    blow.stage.wait_until(lambda: "this try follows" in blow.stage.log_of(again) or not again.alive(), "the next try")
    return again


def kill_driver(blow: Blow) -> ServerProcess:
    for process in blow.stage.driver_processes(blow.app):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return blow.next_try() if blow.has_failed(f"YARN application {blow.app['id']} ended as FAILED") else blow.first


def kill_node_manager(blow: Blow) -> ServerProcess:
    yarn = blow.stage.stack.yarn
    number = blow.node
    yarn.daemons.kill(f"nodemanager{number}")
    failed = blow.has_failed(f"YARN application {blow.app['id']} ended as FAILED")
    yarn.start_node_manager(number)
    yarn.wait_for_nodes(yarn.nodes)
    return blow.next_try() if failed else blow.first


def kill_resource_manager(blow: Blow) -> ServerProcess:
    yarn = blow.stage.stack.yarn
    yarn.daemons.kill("resourcemanager")
    time.sleep(3)
    assert blow.first.alive(), blow.first.log_tail(60)
    yarn.start_resource_manager()
    yarn.wait_for_nodes(yarn.nodes)
    return blow.first


def lose_lease(blow: Blow) -> ServerProcess:
    leases = blow.stage.leases
    with leases.guard:
        leases.held[blow.stage.lease_of(blow.name)] = ("of another executor", time.monotonic() + LEASE_S)
    if not blow.has_failed("lease"):
        return blow.first
    require_quiet(blow.stage, blow.app)
    time.sleep(LEASE_S)
    return blow.next_try(f"{blow.name}-other", 1)


def clear_run(blow: Blow) -> ServerProcess:
    """Airflow sends the running task a SIGTERM, and starts the next try."""
    os.kill(blow.first.process.pid, signal.SIGTERM)
    if not blow.has_failed(""):
        return blow.first
    require_quiet(blow.stage, blow.app)
    return blow.next_try()


KILLS: dict[str, Callable[[Blow], ServerProcess]] = {
    "worker": kill_worker,
    "driver": kill_driver,
    "node-manager": kill_node_manager,
    "resource-manager": kill_resource_manager,
    "lost-lease": lose_lease,
    "cleared-run": clear_run,
}


def require_quiet(stage: YarnStage, app: dict[str, Any]) -> None:
    """Require that an application has ended, and its processes with it."""
    assert app["id"] not in [active["id"] for active in stage.stack.yarn.applications()]
    assert not stage.containers(app["id"])


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("number", range(max(ROUNDS, 1)))
def test_compaction_is_done_once_whatever_is_killed(
    stage: YarnStage, reader: StandingWriter, kill: str, number: int
) -> None:
    draw = random.Random(f"{SEED}/{kill}/{number}")
    name = f"orders-{kill}-{number}"
    path = stage.copy_table(name)
    before = reader.read(path)

    with stage.held_lock(name):
        first = stage.start_task(name, base_path=path, table_name=name)
        app = stage.wait_for_driver(first)
        in_the_middle = number % 2 == 1
        if not in_the_middle:
            last = KILLS[kill](Blow(stage, name, first, app, is_early=True))
    if in_the_middle:
        stage.wait_until(lambda: any(".compaction.requested" in entry for entry in stage.instants(name)), "the plan")
        time.sleep(draw.uniform(0, MOST_DELAY_S))
        last = KILLS[kill](Blow(stage, name, first, app, is_early=False))

    stage.require_completed(name, last)
    stage.wait_until(lambda: not stage.stack.yarn.applications(), "YARN has nothing left to run", 60)
    for ended in stage.stack.yarn.applications(active=False):
        stage.wait_until(lambda app=ended: not stage.containers(app["id"]), f"the processes of {ended['id']}", 60)
    stage.require_executed_once(name)
    assert {**reader.read(path), "seconds": 0} == {**before, "seconds": 0}

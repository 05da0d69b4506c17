"""Kills of what takes part in a job on YARN, and what must hold after each."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from local_stack.processes import PATIENCE, ServerProcess
from local_stack.writer_process import StandingWriter
from tests.integration.engines.yarn_stage import LEASE_S, YarnStage

SEED = int(os.environ.get("LAKE_YARN_SEED", "1"))
MAX_DELAY_S = 6.0


@dataclass
class Blow:
    """One kill: the run's first task, and its application."""

    stage: YarnStage
    name: str
    first: ServerProcess
    app: dict[str, Any]
    is_early: bool
    """Before the driver had the table's lock."""
    came_too_late: bool = False
    """The compaction was completed before the next try began, which then may find nothing to do."""

    @property
    def is_inside(self) -> bool:
        """Whether the driver is in a container, and not next to its task."""
        return self.stage.deploy_mode == "cluster"

    @property
    def node(self) -> int:
        """Which NodeManager has the application's master."""
        return self.stage.yarn.number_of(self.app["amHostHttpAddress"])

    def driver_processes(self) -> list[psutil.Process]:
        if self.is_inside:
            return self.stage.master_processes(self.app)
        return [psutil.Process(pid) for pid in self.stage.drivers(self.name) if psutil.pid_exists(pid)]

    def next_try(self, run_id: str = "", try_number: int = 2) -> ServerProcess:
        self.came_too_late = bool(self.stage.commits(self.name))
        path = self.stage.path_of(self.name)
        return self.stage.start_task(run_id or self.name, try_number, base_path=path, table_name=self.name)

    def has_failed(self, why: str) -> bool:
        """Wait for the first task's end; whether it failed. It must say why, unless the kill came too late for it."""
        self.first.process.wait(timeout=240 * PATIENCE)
        log = self.stage.log_of(self.first)
        if self.is_early or "RETURNED {" not in log:
            assert "RETURNED {" not in log, log[-3000:]
            assert why in log, log[-3000:]
            return True
        return False

    def require_quiet(self) -> None:
        """Require that nothing of the first try runs. In client mode YARN's part of it ends after its driver."""
        assert not self.stage.drivers(self.name)
        if not self.is_inside:
            self.stage.wait_until(lambda: not self._is_active() and not self._containers(), "the application's end", 60)
        assert not self._is_active()
        assert not self._containers()

    def _is_active(self) -> bool:
        return self.app["id"] in [active["id"] for active in self.stage.yarn.applications()]

    def _containers(self) -> list[psutil.Process]:
        return self.stage.containers(self.app["id"])


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_worker(blow: Blow) -> ServerProcess:
    os.kill(blow.first.process.pid, signal.SIGKILL)
    blow.first.process.wait()
    if not blow.is_inside:
        blow.stage.wait_until(lambda: not blow.stage.drivers(blow.name), "the driver ends with its worker", 30)
        blow.require_quiet()
    # Until then the manager gives it to no other try.
    time.sleep(LEASE_S)
    again = blow.next_try()
    if blow.is_inside:
        blow.stage.wait_until(
            lambda: "this try follows" in blow.stage.log_of(again) or not again.alive(), "the next try"
        )
    return again


def kill_driver(blow: Blow) -> ServerProcess:
    why = f"YARN application {blow.app['id']} ended as FAILED" if blow.is_inside else "the job died without a result"
    kill_all(blow.driver_processes())
    return blow.next_try() if blow.has_failed(why) else blow.first


def kill_application_master(blow: Blow) -> ServerProcess:
    """In client mode the driver lives on, and YARN gives it another master."""
    kill_all(blow.stage.master_processes(blow.app))
    return blow.first


def kill_node_manager(blow: Blow) -> ServerProcess:
    yarn = blow.stage.yarn
    number = blow.node
    yarn.daemons.kill(f"nodemanager{number}")
    if not blow.is_inside:
        # YARN places another master once it counts this one's machine as lost.
        yarn.wait_for_nodes(yarn.nodes - 1)
        failed = False
    else:
        failed = blow.has_failed(f"YARN application {blow.app['id']} ended as FAILED")
    yarn.start_node_manager(number)
    yarn.wait_for_nodes(yarn.nodes)
    if not blow.is_inside and not blow.is_early:
        # As it starts it removes the folders of its containers, also of an executor that has outlived it.
        failed = blow.has_failed("is not completed on the timeline")
    return blow.next_try() if failed else blow.first


def kill_resource_manager(blow: Blow) -> ServerProcess:
    yarn = blow.stage.yarn
    yarn.daemons.kill("resourcemanager")
    time.sleep(3)
    assert blow.first.alive() or not blow.is_early, blow.first.log_tail(60)
    yarn.start_resource_manager()
    yarn.wait_for_nodes(yarn.nodes)
    return blow.first


def lose_lease(blow: Blow) -> ServerProcess:
    leases = blow.stage.leases
    with leases.guard:
        leases.held[blow.stage.lease_of(blow.name)] = ("of another executor", time.monotonic() + LEASE_S)
    if not blow.has_failed("lease"):
        return blow.first
    blow.require_quiet()
    time.sleep(LEASE_S)
    return blow.next_try(f"{blow.name}-other", 1)


def clear_run(blow: Blow) -> ServerProcess:
    """Airflow sends the running task a SIGTERM, and starts the next try. No other application ends by it.

    Cleared through Airflow's own API: tests/system/test_warm_on_yarn.py.
    """
    yarn = blow.stage.yarn
    strangers = yarn.submit_sleep()
    os.kill(blow.first.process.pid, signal.SIGTERM)
    failed = blow.has_failed("")
    if failed:
        blow.require_quiet()
    assert strangers in [app["id"] for app in yarn.applications()]
    yarn.kill_application(strangers)
    return blow.next_try() if failed else blow.first


Kill = Callable[[Blow], ServerProcess]
BOTH: dict[str, Kill] = {
    "worker": kill_worker,
    "driver": kill_driver,
    "node-manager": kill_node_manager,
    "resource-manager": kill_resource_manager,
    "lost-lease": lose_lease,
    "cleared-run": clear_run,
}
CLIENT = BOTH | {"application-master": kill_application_master}


def strike_and_require(stage: YarnStage, reader: StandingWriter, name: str, kill: Kill, number: int) -> None:
    """Kill once in a table's compaction, and require that it is done once, with nothing lost and nothing left."""
    draw = random.Random(f"{SEED}/{name}")
    path = stage.copy_table(name)
    before = reader.read(path)

    with stage.held_lock(name):
        first = stage.start_task(name, base_path=path, table_name=name)
        app = stage.wait_for_driver(first)
        in_the_middle = number % 2 == 1
        blow = Blow(stage, name, first, app, is_early=not in_the_middle)
        if blow.is_early:
            last = kill(blow)
    if not blow.is_early:
        stage.wait_until(lambda: any(".compaction.requested" in entry for entry in stage.instants(name)), "the plan")
        time.sleep(draw.uniform(0, MAX_DELAY_S))
        last = kill(blow)

    if blow.came_too_late:
        assert stage.wait_for_task(last)["outcome"] in {"completed", "nothing_to_do"}
    else:
        stage.require_completed(name, last)
    stage.wait_until(lambda: not stage.yarn.applications(), "YARN has nothing left to run", 60)
    for ended in stage.yarn.applications(active=False):
        stage.wait_until(lambda app=ended: not stage.containers(app["id"]), f"the processes of {ended['id']}", 60)
    stage.require_executed_once(name)
    assert {**reader.read(path), "seconds": 0} == {**before, "seconds": 0}

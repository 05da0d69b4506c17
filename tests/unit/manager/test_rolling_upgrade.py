"""Server, worker and the worker of the standing application are upgraded in each order while items run and wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, permutations
from typing import Any

import pytest
from sqlalchemy.orm import Session

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines import warm
from airflow_lake_provider.job_contract import Standing
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.work import WorkQueue
from airflow_lake_provider.manager.db.work_item import Question, WorkItem, WorkState
from tests.unit.manager.conftest import FakeClock

PARTS = ("server", "worker", "application")
PATIENCE_S = 600.0
CHANGES = {"version": ("__version__", "9.9.9"), "contract": ("CONTRACT_VERSION", 99)}
CONF: dict[str, Any] = {"queue": "big", "spark_conn_id": "yarn", "spark_conf": {"spark.x": "1"}}


@dataclass
class Airflow:
    """The runs of `lake_warm`: those that no worker has taken, and the leases of those that run, each by its key."""

    queued: list[str] = field(default_factory=list)
    held: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """With whether the application is of the new release."""

    def has_application_run(self, session: Session, app_key: str) -> bool:
        return app_key in self.queued or app_key in self.held

    def create_application_run(self, session: Session, run_id: str, conf: dict[str, Any]) -> None:
        self.queued.append(conf["key"])


class Deployment:
    """One database, and parts of the old and of the new release."""

    def __init__(self, registry: Registry, clock: FakeClock, patch: pytest.MonkeyPatch, changed: str) -> None:
        self.registry, self.clock, self.patch, self.changed = registry, clock, patch, changed
        self.is_new = dict.fromkeys(PARTS, False)
        self.airflow, self.executors = Airflow(), Executors(registry, 60.0)
        self.queue = WorkQueue(registry, PATIENCE_S, self.airflow)
        self.numbers = count()
        self.release_of: dict[str, bool] = {}
        """Whether the new release submitted an item."""
        self.key_of: dict[str, str] = {}
        self.refused = 0

    def be(self, part: str) -> None:
        """Run what follows as the release of a part."""
        self.patch.undo()
        if self.is_new[part]:
            self.patch.setattr(warm, *CHANGES[self.changed])

    def submit(self) -> str:
        self.be("worker")
        name = f"item-{next(self.numbers)}"
        key = warm.application_key(CONF["queue"], CONF["spark_conn_id"], CONF["spark_conf"])
        item = WorkItem(name, key, CONF, f"t-{name}", "compaction", f"run-{name}", 1, "request")
        assert self.queue.submit(item) is WorkState.WAITING
        self.release_of[name], self.key_of[name] = self.is_new["worker"], key
        return name

    def pass_by(self, times: int) -> None:
        """Let tasks ask, applications keep their leases and pull, and queued runs begin, every 20 seconds."""
        for _ in range(times):
            self.clock.advance(20)
            for key, (token, _new) in self.airflow.held.items():
                self.executors.renew(key, Standing.APPLICATION, token)
            self.states()
            self.start_applications()
            self.pull()

    def start_applications(self) -> None:
        """Let the worker of applications take every queued run, as the task of `lake_warm` does."""
        self.be("application")
        queued, self.airflow.queued = self.airflow.queued, []
        for key in queued:
            try:
                warm.require_own_release(key, self.queue.conf_of(key))
            except ConfigError:
                self.refused += 1
                continue
            token = self.executors.acquire(key, Standing.APPLICATION, f"{key}.{next(self.numbers)}", 1).token
            self.airflow.held[key] = token, self.is_new["application"]

    def pull(self) -> list[str]:
        """Let each application take what waits; an item of another release among it fails the test."""
        taken = []
        for key, (token, is_new) in list(self.airflow.held.items()):
            pulled = self.queue.pull(key, token, 4, {}, self.running(key))
            for name in pulled.requests:
                assert self.release_of[name] is is_new, f"{name} ran in an application of another release"
                taken.append(name)
        return taken

    def running(self, key: str) -> list[str]:
        return [
            name for name, state in self.states().items() if state is WorkState.RUNNING and self.key_of[name] == key
        ]

    def finish_all(self) -> None:
        for key, (token, _) in self.airflow.held.items():
            for name in self.running(key):
                self.queue.finish(key, token, name, "{}", [], takes_next=False)

    def states(self) -> dict[str, WorkState]:
        """Let the tasks of all items ask for them."""
        return {answer.item_id: answer.state for answer in self.queue.ask([Question(name) for name in self.key_of])}

    def upgrade(self, part: str) -> None:
        self.is_new[part] = True
        if part == "server":
            # Another process on the same database.
            self.queue = WorkQueue(self.registry, PATIENCE_S, self.airflow)
        if part == "application":
            # Its worker is stopped, and the applications on it with it; their leases are released.
            for key, (token, _) in self.airflow.held.items():
                self.executors.release(key, Standing.APPLICATION, token)
            self.airflow.held = {}


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("order", list(permutations(PARTS)), ids="-".join)
def test_items_end_once_and_in_an_application_of_their_release(
    registry: Registry, clock: FakeClock, order: tuple[str, ...], changed: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        deployment = Deployment(registry, clock, patch, changed)
        names = [deployment.submit()]
        deployment.start_applications()
        assert deployment.pull() == names, "one runs while the first part is upgraded"
        for part in order:
            names.append(deployment.submit())
            deployment.upgrade(part)
            names.append(deployment.submit())
            deployment.pass_by(3)
            deployment.finish_all()
        for _ in range(4):
            deployment.pass_by(8)
            deployment.finish_all()
        states = deployment.states()
        # What no application of its release was left for runs by a spark-submit of its own.
        assert set(states.values()) <= {WorkState.ENDED, WorkState.ALONE}, states
        new = [state for name, state in states.items() if deployment.release_of[name]]
        assert new, "the worker of the new release submits"
        assert new[-1] is WorkState.ENDED, "its last item finds an application of its release"
        if order.index("worker") != order.index("application"):
            assert deployment.refused, "a worker of the other release was asked to start an application"

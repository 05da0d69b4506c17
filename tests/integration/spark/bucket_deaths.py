"""Deaths of what sends a large commit in buckets. As an application of spark-submit it is `replicate.py` with one.

The variable LAKE_TEST_DEATH has the death. What tasks run of this file travels by value, since it is the application;
Spark's copy of a class leaves out its slots, so these have none.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from airflow_lake_provider.replication.job import ReplicationRequest  # noqa: E402
from lake_jobs.driver.application import run_application  # noqa: E402

DEATH = "LAKE_TEST_DEATH"


@dataclass(frozen=True)
class Death:
    """What happens once in tasks of some buckets. Each leaves a file in the folder when it comes to its moment."""

    folder: str
    task_of: int = -1
    """The Python of this bucket's task dies before its commit."""
    pause_of: int = -1
    """This bucket's task waits before its commit until there is a file `go`, whether or not its driver lives."""
    driver_after: int = -1
    """The driver is killed with its JVM when this bucket is durable, and the moments of the others have come."""


@dataclass(frozen=True)
class DyingTasks:
    """Sends buckets as `bucket_task.send` does, with a death in it."""

    death: Death
    driver_group: int
    """The driver's group of processes, its JVM included; tasks are of another one."""

    def send(self, work: Any, bucket: int, batches: Iterator[Any]) -> Iterator[Any]:
        bucket_task = importlib.import_module("lake_jobs.replication.bucket_task")
        make = bucket_task.create_sink

        def create_sink(kind: str, settings: Any) -> Any:
            sink = make(kind, settings)
            sink.commit = partial(self.commit, bucket, sink.commit)
            return sink

        bucket_task.create_sink = create_sink
        try:
            yield from bucket_task.send(work, bucket, batches)
        finally:
            # The same process runs other tasks.
            bucket_task.create_sink = make

    def commit(self, bucket: int, commit: Any, checkpoint: Any) -> None:
        death = self.death
        if bucket == death.task_of and self.is_first("task"):
            os._exit(1)
        if bucket == death.pause_of and self.is_first("paused"):
            # So a dead driver's daemon ends its tasks; one on another machine lives on for a while.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self.await_files("go")
        try:
            commit(checkpoint)
        except Exception as error:
            (Path(death.folder) / "refused").write_text(type(error).__name__)
            raise
        (Path(death.folder) / f"durable-{bucket}").touch()
        if bucket == death.driver_after and self.is_first("driver"):
            self.await_files("paused", f"durable-{death.task_of}")
            os.killpg(self.driver_group, signal.SIGKILL)

    def is_first(self, name: str) -> bool:
        try:
            (Path(self.death.folder) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def await_files(self, *names: str) -> None:
        while not all((Path(self.death.folder) / name).exists() for name in names):
            time.sleep(0.05)


def main() -> int:
    tasks = DyingTasks(Death(**json.loads(os.environ[DEATH])), os.getpgrp())
    spreader: Any = importlib.import_module("lake_jobs.replication.commit_spreader")
    spreader.send = tasks.send
    application = importlib.import_module("replicate")
    return run_application(sys.argv[1:], ReplicationRequest, application.run)


if __name__ == "__main__":
    sys.exit(main())

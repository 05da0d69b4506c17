"""Kills in the middle of a replication: what dies, and at which moment; drawn from a seed.

As an application of spark-submit it is `replicate.py` with such a moment, which the variable LAKE_TEST_MOMENT has.
A driver dies with kill -9 of its JVM and its Python; with the master `local[n]` that is its executor as well. With
`local-cluster` the executor has a JVM of its own, and it alone dies, while it runs a task.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from pyspark import SparkContext  # noqa: E402

from airflow_lake_provider.job_contract import EXIT_DONE, FailureKind, from_json  # noqa: E402
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult  # noqa: E402
from airflow_lake_provider.sink_options.run import MAX_TRANSACTION_ROWS  # noqa: E402
from lake_jobs.driver.application import run_application  # noqa: E402
from local_stack import hudi_bundle  # noqa: E402

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.sink import Sink

MOMENT = "LAKE_TEST_MOMENT"
TASK = "task"
"""The moment of an executor: one of its tasks."""
STRUCK = "struck"
"""The file that says that an executor was killed."""
TIMEOUT_S = 600


class Victim(StrEnum):
    """What is killed with -9."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    """Its JVM alone, while it runs a task."""
    BROKER = "broker"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of a run: a call of its sink by its number, or, without one, so long after the sink was built."""

    call: str = ""
    number: int = 1
    when: str = "before"
    """Or `after`, or `during`: `delay_s` after the call began."""
    delay_s: float = 0.0

    def __str__(self) -> str:
        place = f"{self.when} {self.call} {self.number}" if self.call else f"after {self.delay_s:.2f} s"
        return f"{place} (+{self.delay_s:.3f} s)" if self.when == "during" else place

    @classmethod
    def draw(cls, draw: random.Random) -> Moment:
        if draw.random() < 0.2:
            return cls(delay_s=draw.uniform(0, 2))
        call, when = draw.choice(["open", "write", "write", "commit", "commit"]), draw.choice(WHENS)
        return cls(call, 1 if call == "open" else draw.randint(1, 3), when, draw.uniform(0, 0.03))


WHENS = ("before", "during", "after")


class Striker:
    """Strikes once, at its moment of any sink that it builds."""

    def __init__(self, moment: Moment, strike: Callable[[], None]) -> None:
        self._moment = moment
        self._strike = strike
        self._make: Callable[..., Sink] = importlib.import_module("replicate").create_sink
        self._calls = 0
        self.thread: threading.Timer | None = None
        """The one in which it strikes, where the run goes on meanwhile."""

    def create_sink(self, *given: Any) -> Sink:
        sink = self._make(*given)
        if not self._moment.call:
            self._strike_later()
        else:
            # The object stays of its class, by which a run knows one that follows a table.
            setattr(sink, self._moment.call, self._striking(getattr(sink, self._moment.call)))
        return sink

    def _striking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            self._calls += 1
            when = self._moment.when if self._calls == self._moment.number else ""
            if when == "before":
                self._strike()
            elif when == "during":
                self._strike_later()
            result = call(*given)
            if when == "after":
                self._strike()
            return result

        return called

    def _strike_later(self) -> None:
        self.thread = threading.Timer(self._moment.delay_s, self._strike)
        self.thread.daemon = True
        self.thread.start()


# --- In the process of the test


@dataclass
class Kills:
    """Kills each of `victims`, in a drawn order, each in a run of a stream that needs it; the run is then repeated."""

    spark: SparkSession
    folder: Path
    seed: int
    victims: list[Victim]
    """Those that are still to die. A run that ended before the moment came is no kill, and another run has its."""
    servers: Mapping[Victim, Any]
    """What has `kill` and `start`."""
    submit: Callable[..., subprocess.Popen[bytes]]
    done: list[str] = field(default_factory=list)
    misses: int = 0
    failures: int = 0
    """How many of the runs whose server died ended with an error."""

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.draw.shuffle(self.victims)

    def strike(self, request: ReplicationRequest) -> None:
        """Begin a run of this request in which something dies; without a victim that it has, nothing."""
        found = next((at for at, victim in enumerate(self.victims) if victim in self._victims_of(request)), None)
        if found is None:
            return
        victim, moment = self.victims.pop(found), Moment.draw(self.draw)
        if self.draw.random() < 0.5:
            # Larger commits are several transactions each, and the next run begins between two of them.
            request = replace(request, options={**request.options, MAX_TRANSACTION_ROWS: "3"})
        folder = self.folder / f"{len(self.done) + self.misses}-{request.order.stream}"
        folder.mkdir(parents=True)
        if victim is Victim.DRIVER:
            has_died = self._kill_driver(folder, request, moment)
        elif victim is Victim.EXECUTOR:
            moment = Moment(TASK, self.draw.randint(1, 3))
            has_died = self._kill_executor(folder, request, moment)
        else:
            has_died = self._kill_server(request, victim, moment)
        if has_died:
            self.done.append(f"{victim} {moment} of {request.order.stream}")
            print(f"killed: {self.done[-1]}", flush=True)
        else:
            self.misses += 1
            self.victims.insert(self.draw.randint(0, len(self.victims)), victim)

    def _victims_of(self, request: ReplicationRequest) -> set[Victim]:
        found = {Victim.DRIVER, Victim.EXECUTOR}
        if request.kind == "kafka":
            found.add(Victim.BROKER)
        if request.options.get("url", "").startswith("postgresql"):
            found.add(Victim.DATABASE)
        return found

    def _kill_driver(self, folder: Path, request: ReplicationRequest, moment: Moment) -> bool:
        code = self._wait(folder, request, moment)
        # Where the moment did not come, the run ended by itself, and is right.
        assert code in {-signal.SIGKILL, EXIT_DONE}, log_of(folder)
        return code == -signal.SIGKILL

    def _kill_executor(self, folder: Path, request: ReplicationRequest, moment: Moment) -> bool:
        """Spark starts another one, and the run goes on."""
        home = folder / "spark"
        home.mkdir()
        for path in hudi_bundle.find_spark_home(Path(sys.executable)).iterdir():
            # The worker of such a cluster leaves its files in Spark's own folder.
            (home / path.name).symlink_to(path)
        code = self._wait(folder, request, moment, master="local-cluster[1,1,1024]", SPARK_HOME=str(home))
        assert code == EXIT_DONE, log_of(folder)
        result = from_json(ReplicationResult, Path(request.result_path).read_text(encoding="utf-8"))
        assert (result.ended, result.message) == (True, "")
        return (folder / STRUCK).exists()

    def _wait(self, folder: Path, request: ReplicationRequest, moment: Moment, **more: str) -> int:
        process = self.submit(folder, request, Path(__file__), **more, **{MOMENT: json.dumps(asdict(moment))})
        try:
            return int(process.wait(TIMEOUT_S))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _kill_server(self, request: ReplicationRequest, victim: Victim, moment: Moment) -> bool:
        """The run goes on in this process; the server comes back a while later, which the run may outlast."""
        struck, back, down_s = threading.Event(), threading.Event(), self.draw.uniform(0, 3)

        def strike() -> None:
            struck.set()
            self.servers[victim].kill()
            threading.Timer(down_s, start).start()

        def start() -> None:
            try:
                self.servers[victim].start()
            finally:
                back.set()

        if victim is Victim.BROKER and self.draw.random() < 0.5:
            # So short that the run gives up.
            request = replace(request, options={**request.options, "timeout_s": "3"})
        striker, application = Striker(moment, strike), importlib.import_module("replicate")
        make, application.create_sink = application.create_sink, striker.create_sink
        try:
            result = application.replicate(self.spark, request)
        finally:
            application.create_sink = make
            if striker.thread is not None:
                striker.thread.cancel()
                striker.thread.join()
            if struck.is_set():
                assert back.wait(TIMEOUT_S)
        # What another run can do is never refused.
        assert result.failure_kind is not FailureKind.REFUSED, result.message
        assert struck.is_set() or not result.message, result.message
        self.failures += bool(result.message)
        return struck.is_set()


def log_of(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-3000:]


# --- In a process of its own


def kill_driver() -> None:
    """Kill the JVM, and this Python together with it: they are one group of processes."""
    os.killpg(0, signal.SIGKILL)


def kill_executor(struck: Path) -> None:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.getpgid(int(path.name)) == os.getpgrp()
            if is_ours and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
                struck.touch()
        except (FileNotFoundError, ProcessLookupError):
            continue


def await_task(number: int) -> None:
    """Return when the stage of this number runs a task, counted from the next one on."""
    tracker, seen = SparkContext._active_spark_context.statusTracker(), set[int]()
    while True:
        for stage in tracker.getActiveStageIds():
            found = tracker.getStageInfo(stage)
            if found is not None and found.numActiveTasks:
                seen.add(stage)
        if len(seen) >= number:
            return
        time.sleep(0.005)


def main() -> int:
    moment, struck = Moment(**json.loads(os.environ[MOMENT])), Path(STRUCK).resolve()
    if moment.call == TASK:

        def strike() -> None:
            await_task(moment.number)
            kill_executor(struck)

        moment = Moment()
    else:
        strike = kill_driver
    application = importlib.import_module("replicate")
    application.create_sink = Striker(moment, strike).create_sink
    return run_application(sys.argv[1:], ReplicationRequest, application.run)


if __name__ == "__main__":
    sys.exit(main())

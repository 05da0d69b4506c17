"""Real standing applications without Airflow: the manager's queue of work behind a small server, and spark-submit.

The test plays the tasks: it submits items, gives the application its lease, and takes it away when it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.engines.packaging import find_package, standing_conf
from airflow_lake_provider.job_contract import (
    WORK_AT_ONCE,
    WORK_IDLE_S,
    WORK_KEY,
    WORK_LEASE,
    WORK_MAX_AGE_S,
    WORK_TOKEN,
    WORK_URL,
    JobRequest,
    JobResult,
    Standing,
    from_json,
    to_json,
)
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.db.work import WorkQueue
from airflow_lake_provider.manager.db.work_item import ItemState, Question, WorkItem, WorkState
from local_stack import hudi_bundle

ROOT = Path(__file__).resolve().parents[2]
KEY = "warm-0123456789abcdef"
LIVE = {WorkState.WAITING, WorkState.RUNNING}


@dataclass
class Manager:
    """The queue, and where applications reach it."""

    queue: WorkQueue
    executors: Executors
    url: str = ""

    def submit(self, request: JobRequest, try_number: int = 1, name: str = "") -> str:
        """Add an item for a request of one service, by a name or its table's; return its id."""
        item_id = f"lake-{name or request.table_name}-{try_number}"
        item = WorkItem(
            item_id, KEY, {}, request.table_name, request.services[0].service.value, request.job_id, try_number,
            to_json(request),
        )  # fmt: skip
        state = self.queue.submit(item)
        assert state is WorkState.WAITING, f"{item_id} is {state}"
        return item_id

    def ask(self, *item_ids: str) -> dict[str, ItemState]:
        return {answer.item_id: answer for answer in self.queue.ask([Question(item_id) for item_id in item_ids])}

    def wait(self, *item_ids: str, timeout_s: float = 240.0) -> dict[str, ItemState]:
        """Wait until the items have ended; return them."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.ask(*item_ids)
            if not any(item.state in LIVE for item in found.values()):
                return found
            assert time.monotonic() < deadline, {name: item.state.value for name, item in found.items()}
            time.sleep(0.1)


@contextlib.contextmanager
def serve_work(folder: Path) -> Iterator[Manager]:
    """Serve the queue on a free port."""
    engine = create_engine(f"sqlite:///{folder}/work.db", connect_args={"check_same_thread": False, "timeout": 30})
    metadata.create_all(engine)
    from datetime import UTC, datetime

    registry = Registry(sessionmaker(engine), ProcessClock(lambda: datetime.now(UTC)))
    manager = Manager(WorkQueue(registry), Executors(registry, 3600))
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["Authorization"] == "Bearer service-secret"
            status, answer = 200, {}
            try:
                with one_at_a_time:
                    if self.path == "/work/pull":
                        pulled = manager.queue.pull(
                            body["key"], body["lease"], body["free"], body["lines"], body["known"]
                        )
                        answer = {"requests": dict(pulled.requests), "cancel": dict(pulled.cancel)}
                    else:
                        following = manager.queue.finish(
                            body["key"], body["lease"], body["item_id"], body["result"], body["lines"],
                            takes_next=body["takes_next"],
                        )  # fmt: skip
                        answer = {"requests": dict(following)}
            except LakeError as error:
                status, answer = error.http_status, {"detail": str(error)}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    manager.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield manager
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        engine.dispose()


@dataclass
class Application:
    """A standing application, started by spark-submit, with the lease that its task would hold."""

    manager: Manager
    folder: Path
    number: int = 1
    at_once: int = 4
    idle_s: float = 600.0
    conf: dict[str, str] = field(default_factory=dict)
    classes: Path = hudi_bundle.CLASSES

    def __post_init__(self) -> None:
        self.token = self.manager.executors.acquire(KEY, Standing.APPLICATION, "app", self.number).token
        options = {
            WORK_URL: self.manager.url, WORK_TOKEN: "service-secret", WORK_KEY: KEY, WORK_LEASE: self.token,
            WORK_AT_ONCE: str(self.at_once), WORK_IDLE_S: str(self.idle_s), WORK_MAX_AGE_S: "36000",
        }  # fmt: skip
        self.result_path = self.folder / f"application-{self.number}.json"
        request = JobRequest(f"app/{self.number}", "", KEY, (), str(self.result_path), options)
        path = self.folder / f"application-{self.number}-request.json"
        path.write_text(to_json(request), encoding="utf-8")
        self.log_path = self.folder / f"application-{self.number}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                spark_submit(path, standing_conf({**hudi_bundle.bundle_first(), **self.conf}, str(hudi_bundle.JAR))),
                env=submit_env(self.classes), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def family(self) -> list[psutil.Process]:
        """Return the processes of the application: launcher, JVM and Python."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> None:
        """Kill -9 all of it at the same moment, and release its lease, as its task does when it sees it ended."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
        self.process.wait()
        self.manager.executors.release(KEY, Standing.APPLICATION, self.token)

    def wait(self, timeout_s: float = 120.0) -> JobResult:
        """Wait until it ends by itself; return its result."""
        code = self.process.wait(timeout_s)
        assert code == 0, self.log()
        self.manager.executors.release(KEY, Standing.APPLICATION, self.token)
        return from_json(JobResult, self.result_path.read_text(encoding="utf-8"))

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")[-6000:]


def spark_submit(request_path: Path, conf: dict[str, str]) -> list[str]:
    """Return the command of a job of table services."""
    home = hudi_bundle.find_spark_home()
    conf = {"spark.driver.memory": "1g"} | conf
    command = [f"{home}/bin/spark-submit", "--master", "local[2]", "--name", "lake-test"]
    command += ["--jars", str(hudi_bundle.JAR), "--py-files", str(find_package())]
    for key, value in {"spark.ui.enabled": "false", **conf}.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, str(ROOT / "spark_jobs" / "run_services.py"), str(request_path)]


def submit_env(classes: Path = hudi_bundle.CLASSES) -> dict[str, str]:
    env = hudi_bundle.spark_env(classes=classes)
    # Only the delivered files may be found, not this checkout.
    env.pop("PYTHONPATH", None)
    return env

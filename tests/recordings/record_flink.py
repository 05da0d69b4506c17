"""Writes down what a real Flink says, for the fake of tests/integration/engines.

`python -m tests.recordings.record_flink` starts a session cluster of this machine, and submits a job that stands in for
Hudi's compactor: one that ends well, one that fails, one that finds nothing to run, one that loses its TaskManager.
`run_*.txt` is what `flink run` prints, `rest_*.json` what the REST API answers, with its status. Times, ports and
folders are replaced, and stack traces left out, so that a second recording differs where Flink does.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from local_stack.flink import LocalFlink, ask, list_jobs, make_job
from local_stack.processes import wait_until
from tests.integration.engines.fake_api import Answer, serve

FOLDER = Path(__file__).parent / "flink"
JOB_ID = "0123456789abcdef0123456789abcdef"
"""In the place of each job's own."""
TIMEOUT_S = 300
LONG_S = "600"
UNAVAILABLE = "Service temporarily unavailable due to an ongoing leader election. Please refresh."
ENDED = {"FINISHED", "FAILED", "CANCELED"}


class Recorder:
    """One cluster, and the ids of the jobs so far."""

    def __init__(self, cluster: LocalFlink, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._jar = make_job(folder / "stand-in.jar")
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._count:032x}"

    def run(
        self,
        name: str,
        job_id: str,
        stand_in: Mapping[str, str],
        options: Sequence[str] = (),
        jar: str = "",
        port: int | None = None,
    ) -> str:
        """Submit, and record what is printed when there is a name for it; return the job's id."""
        command = [str(self._cluster.program), "run", "--detached"]
        command += ["--jobmanager", f"127.0.0.1:{port or self._cluster.port}", f"-D$internal.pipeline.job-id={job_id}"]
        command += [*options, "--class", "org.apache.hudi.sink.compact.HoodieFlinkCompactor", jar or str(self._jar)]
        command += ["--path", str(self._folder / "table")]
        command += [part for key, value in stand_in.items() for part in ("--hoodie-conf", f"stand.in.{key}={value}")]
        done = subprocess.run(
            command,
            env=self._cluster.client_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if name:
            said = self._clean(done.stdout, job_id, port)
            (FOLDER / f"run_{name}.txt").write_text(said, encoding="utf-8")
        return job_id

    def ask(self, name: str, job_id: str, path: str, method: str = "GET") -> None:
        """Record an answer of the REST API."""
        request = urllib.request.Request(f"http://{self._cluster.address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            status, body = refused.code, refused.read()
        text = self._clean(json.dumps({"status": status, "body": json.loads(body)}, indent=1), job_id, None)
        (FOLDER / f"rest_{name}.json").write_text(f"{text}\n", encoding="utf-8")

    def wait_for(self, job_id: str, states: set[str]) -> None:
        wait_until(lambda: list_jobs(self._cluster.address).get(job_id) in states, TIMEOUT_S, f"job {job_id}")

    def cancel(self, job_id: str, name: str) -> None:
        self.ask(name, job_id, f"/jobs/{job_id}?mode=cancel", "PATCH")

    def _clean(self, said: str, job_id: str, port: int | None) -> str:
        for pattern, text in (
            (job_id, JOB_ID),
            (str(self._folder), "/tmp/flink"),
            (rf"\b{port or self._cluster.port}\b", "8081"),
            (r"127\.0\.0\.1:\d{5}(-[0-9a-f]{6})?", "127.0.0.1:40000"),
            (r"localhost:\d{5}", "localhost:40000"),
            (r"\b17\d{11}\b|\b18\d{11}\b", "1700000000000"),
            (r'("(?:duration|timeSinceLastHeartbeat)": )\d+', r"\g<1>1000"),
            (r'("(?:\w+-bytes|\w+-records|accumulated-[\w-]+|freeMemory|\w+Port|dataPort)": )-?\d+', r"\g<1>0"),
            (r"(?:\\n)?\\tat [^\\\n\"]*", ""),
            (r"@[0-9a-f]{6,8}\b", "@0"),
            (r'("slotSharingGroupId": )"[0-9a-f]+"', r'\g<1>"0"'),
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "0"),
        ):
            said = re.sub(pattern, text, said)
        return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("\tat "))


def unavailable(method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
    """Answer as a JobManager does while no leader is elected."""
    return 503, {"errors": [UNAVAILABLE]}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalFlink(Path(folder) / "cluster")
        try:
            cluster.start()
            record(Recorder(cluster, Path(folder)), cluster)
        finally:
            cluster.stop()
    return 0


def record(recorder: Recorder, cluster: LocalFlink) -> None:
    """Record everything."""
    new_id: Callable[[], str] = recorder.new_id
    recorder.ask("config", new_id(), "/jobmanager/config")

    finished = recorder.run("submitted", new_id(), {"seconds": "1"})
    recorder.wait_for(finished, ENDED)
    recorder.ask("job_finished", finished, f"/jobs/{finished}")
    recorder.cancel(finished, "cancel_ended")
    recorder.run("duplicate", finished, {})
    recorder.run("nothing", new_id(), {"plans": "0"})
    recorder.run("program_fails", new_id(), {"seconds": "soon"})
    recorder.run("no_jar", new_id(), {}, jar="missing.jar")

    failed = recorder.run("", new_id(), {"fails": "the disk is full"})
    recorder.wait_for(failed, ENDED)
    recorder.ask("job_failed", failed, f"/jobs/{failed}")
    recorder.ask("exceptions_failed", failed, f"/jobs/{failed}/exceptions")

    running = recorder.run("", new_id(), {"seconds": LONG_S, "lingers": "5"})
    recorder.wait_for(running, {"RUNNING"})
    recorder.ask("job_running", running, f"/jobs/{running}")
    recorder.ask("jobs", running, "/jobs/overview")
    (worker,) = (found["id"] for found in ask(cluster.address, "/taskmanagers")["taskmanagers"])
    recorder.ask("workers", running, "/taskmanagers")
    recorder.ask("worker_at_work", running, f"/taskmanagers/{worker}")
    recorder.cancel(running, "cancel_accepted")
    recorder.ask("job_cancelling", running, f"/jobs/{running}")
    recorder.wait_for(running, ENDED)
    recorder.ask("job_canceled", running, f"/jobs/{running}")
    time.sleep(2)
    recorder.ask("worker_at_rest", running, f"/taskmanagers/{worker}")

    lost = recorder.run("", new_id(), {"seconds": LONG_S})
    recorder.wait_for(lost, {"RUNNING"})
    cluster.kill_workers()
    recorder.wait_for(lost, ENDED)
    recorder.ask("exceptions_lost_worker", lost, f"/jobs/{lost}/exceptions")
    waiting = recorder.run("", new_id(), {})
    recorder.wait_for(waiting, ENDED)
    recorder.ask("exceptions_no_slot", waiting, f"/jobs/{waiting}/exceptions")

    unknown = new_id()
    recorder.ask("job_unknown", unknown, f"/jobs/{unknown}")
    recorder.cancel(unknown, "cancel_unknown")
    recorder.ask("exceptions_unknown", unknown, f"/jobs/{unknown}/exceptions")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        recorder.run("timeout", new_id(), {}, ["-Drest.idleness-timeout=4000"], port=port)
    recorder.run("refused_connection", new_id(), {}, port=port)
    with serve(unavailable) as port:
        recorder.run("unavailable", new_id(), {}, port=port)


if __name__ == "__main__":
    sys.exit(main())

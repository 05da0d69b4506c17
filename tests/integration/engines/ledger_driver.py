"""Stands in for spark-submit where many pauses are wanted and no JVM: one plan of a hand-made table, and a ledger.

It is a driver of one request, or a real `StandingApplication` that pulls items. The ledger is outside the table: which
job began, next to which living drivers of the same table, and which completed. A driver reads the timeline when it
begins and not before it completes, so that only leases and records keep two apart.
"""

from __future__ import annotations

import json
import os
import random
import stat
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "spark_jobs")]

from airflow_lake_provider.errors import LeaseLostError  # noqa: E402
from airflow_lake_provider.job_contract import (  # noqa: E402
    WORK_URL,
    JobRequest,
    JobResult,
    Outcome,
    ServiceResult,
    from_json,
    to_json,
)
from lake_jobs.driver.shutdown import exit_driver_when_orphaned  # noqa: E402
from lake_jobs.driver.standing import (  # noqa: E402
    ItemKind,
    StandingApplication,
    StandingSettings,
    WorkSource,
    failed_result,
)

PLAN = "20261121120100000"
WORK_S = tuple(float(seconds) for seconds in os.environ.get("LEDGER_WORK_S", "1 9").split())
"""How long a plan may take, in seconds: less than a lease of the test, and more."""


def install(folder: Path, ledger: Path) -> None:
    """Put a program named spark-submit into a folder; it writes to this ledger."""
    folder.mkdir(parents=True)
    program = folder / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{ledger}" "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def read(ledger: Path) -> list[dict[str, Any]]:
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return [json.loads(line) for line in lines]


def start_ticks_of(pid: int) -> str:
    """Return when a process began; empty when it has ended. A paused one lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def find_others(ledger: Path, table: str) -> list[str]:
    """Return the jobs of other drivers that work on the table just now."""
    working = {}
    for line in read(ledger):
        if line["table"] == table:
            working[line["pid"], line["ticks"], line["job"]] = line["what"] != "end"
    return [
        job for (pid, ticks, job), works in working.items() if works and start_ticks_of(pid) == ticks != ""
        and pid != os.getpid()
    ]  # fmt: skip


def note(ledger: Path, what: str, request: JobRequest, **more: Any) -> None:
    me = os.getpid()
    line = {"what": what, "table": request.table_name, "job": request.job_id, "pid": me, "ticks": start_ticks_of(me)}
    with ledger.open("a", encoding="utf-8") as stream:
        # One write of a short line to a file opened for appending is not mixed with another's.
        stream.write(json.dumps(line | more | {"at_s": time.monotonic()}) + "\n")


def carry_out(ledger: Path, request: JobRequest, _find_cancelled: Callable[[], str] = str) -> JobResult:
    """Complete the plan of the request's table."""
    timeline = Path(request.base_path) / ".hoodie" / "timeline"
    note(ledger, "begin", request, next_to=find_others(ledger, request.table_name))
    (asked,) = request.services
    done = ServiceResult(asked.service, Outcome.NOTHING_TO_DO)
    if not list(timeline.glob(f"{PLAN}_*.commit")):
        (timeline / f"{PLAN}.compaction.inflight").touch()
        time.sleep(random.choice(WORK_S))
        body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
        part = timeline.parent / f"{os.getpid()}-{threading.get_ident()}.part"
        part.write_text(json.dumps(body), encoding="utf-8")
        note(ledger, "completed", request)
        name = f"{PLAN}_{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:-3]
        part.replace(timeline / f"{name}.commit")
        done = ServiceResult(asked.service, Outcome.COMPLETED, (), (PLAN,))
    note(ledger, "end", request)
    return JobResult(request.job_id, (done,), f"ledger-{os.getpid()}")


class NoSpark:
    """Spark's context without Spark."""

    def setLocalProperty(self, key: str, value: str) -> None:
        """Nothing schedules."""

    def addJobTag(self, tag: str) -> None:
        """Nothing has tags."""

    def removeJobTag(self, tag: str) -> None:
        """Nothing has tags."""

    def cancelJobsWithTag(self, tag: str) -> None:
        """An item is not interrupted."""


def run_standing(ledger: Path, request: JobRequest) -> JobResult:
    options = request.hudi_options
    kind = ItemKind(
        lambda text: from_json(JobRequest, text), lambda item, find: carry_out(ledger, item, find), failed_result
    )
    try:
        StandingApplication(WorkSource(options), StandingSettings.of(options), NoSpark(), kind).run()
    except LeaseLostError as error:
        print(error, flush=True)
        os._exit(75)
    return JobResult(request.job_id, (), f"ledger-{os.getpid()}")


def main(ledger: Path, request_path: Path) -> None:
    request = from_json(JobRequest, request_path.read_text(encoding="utf-8"))
    assert request.submitter is not None
    exit_driver_when_orphaned(request.submitter, lambda _reason: os._exit(75))
    run = run_standing if WORK_URL in request.hudi_options else carry_out
    Path(request.result_path).write_text(to_json(run(ledger, request)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[-1]))

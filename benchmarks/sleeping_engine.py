"""Stands in for spark-submit where only what surrounds it is measured: it sleeps, and completes a compaction.

It is a standing application as well: the provider's own, with an engine that sleeps.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from airflow_lake_provider.job_contract import (
    WORK_URL,
    JobRequest,
    JobResult,
    Outcome,
    Service,
    ServiceResult,
    from_json,
    to_json,
)
from benchmarks.bench_store import local_path
from benchmarks.detection import instant_time

WORK_VARIABLE = "LAKE_BENCH_WORK_S"


def install(folder: Path) -> None:
    """Put a program named spark-submit into a folder."""
    folder.mkdir(parents=True)
    program = folder / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m benchmarks.sleeping_engine "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def run_item(request: JobRequest, _find_cancelled: Callable[[], str] = str) -> JobResult:
    """Carry out a request of one service: plan, sleep, complete."""
    service, plan = request.services[0].service, instant_time(time.time())
    timeline = Path(local_path(request.base_path)) / ".hoodie" / "timeline"
    if service is not Service.COMPACTION:
        return JobResult(request.job_id, (ServiceResult(service, Outcome.NOTHING_TO_DO),))
    (timeline / f"{plan}.compaction.requested").write_bytes(b"{}")
    (timeline / f"{plan}.compaction.inflight").touch()
    time.sleep(float(os.environ.get(WORK_VARIABLE, "1")))
    body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
    done = timeline / f"{plan}_{instant_time(time.time())}.commit"
    done.write_text(json.dumps(body), encoding="utf-8")
    return JobResult(request.job_id, (ServiceResult(service, Outcome.COMPLETED, (plan,), (plan,)),))


def main(request_path: Path) -> None:
    """Carry out the request of a file."""
    request = from_json(JobRequest, request_path.read_text(encoding="utf-8"))
    result = run_standing(request) if WORK_URL in request.hudi_options else run_item(request)
    Path(request.result_path).write_text(to_json(result), encoding="utf-8")


def run_standing(request: JobRequest) -> JobResult:
    """Pull items until none comes any more."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spark_jobs"))
    from lake_jobs.driver.standing import ItemKind, StandingApplication, StandingSettings, WorkSource, failed_result

    class NoSpark:
        def __getattr__(self, _: str) -> Callable[..., Any]:
            return lambda *_: None

    options = request.hudi_options
    kind = ItemKind(partial(from_json, JobRequest), run_item, failed_result)
    StandingApplication(WorkSource(options), StandingSettings.of(options), NoSpark(), kind).run()
    return JobResult(request.job_id, ())


if __name__ == "__main__":
    main(Path(sys.argv[-1]))

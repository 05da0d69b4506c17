"""Stands in for spark-submit where many runs are wanted and no JVM: carries a request out on a hand-made table.

It takes up the pending compaction, else plans one, works for a moment, and completes it. Each begin and end is a line
of the journal (JSON, appended at once), whatever kills it. It ends with its submitter, as a real driver does.
"""

from __future__ import annotations

import json
import os
import random
import stat
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLAN = "20261121120100000"
MAX_WORK_S = 3.0
WORK_S = float(os.environ.get("PRETEND_WORK_S", "0"))
"""So long exactly, when it is set."""
LINGER_S = float(os.environ.get("PRETEND_LINGER_S", "0"))
"""So long it stays after it has completed the plan, as a driver does that stops Spark."""


def install(folder: Path, journal: Path) -> None:
    """Put a program named spark-submit into a folder; it writes to this journal."""
    folder.mkdir(parents=True)
    program = folder / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{journal}" "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def main(journal: Path, request_path: Path) -> None:
    request = json.loads(request_path.read_text(encoding="utf-8"))
    end_with_submitter(request["submitter"])
    timeline = Path(request["base_path"]) / ".hoodie" / "timeline"
    report(journal, "begin", request)
    completed = list(timeline.glob(f"{PLAN}_*.commit"))
    if not completed:
        (timeline / f"{PLAN}.compaction.requested").write_bytes(b"{}")
        time.sleep(random.uniform(0, MAX_WORK_S / 3))
        (timeline / f"{PLAN}.compaction.inflight").touch()
        time.sleep(WORK_S or random.uniform(0, MAX_WORK_S))
        body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
        done = timeline / f"{PLAN}_{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:-3]
        done.with_name(f"{done.name}.commit").write_text(json.dumps(body), encoding="utf-8")
        report(journal, "completed", request)
        time.sleep(LINGER_S)
    result = {
        "contract_version": request["contract_version"],
        "job_id": request["job_id"],
        "spark_application_id": "",
        "memory": {},
        "services": [
            {
                "service": request["services"][0]["service"],
                "outcome": "completed",
                "scheduled_instants": [PLAN],
                "completed_instants": [PLAN],
                "failure_kind": None,
                "message": "",
                "started_at": "",
                "ended_at": "",
            }
        ],
    }
    Path(request["result_path"]).write_text(json.dumps(result), encoding="utf-8")
    report(journal, "end", request)


def report(journal: Path, what: str, request: dict[str, Any]) -> None:
    line = {"what": what, "table": request["table_name"], "job": request["job_id"], "pid": os.getpid()}
    with journal.open("a", encoding="utf-8") as stream:
        # One write of a short line to a file opened for appending is not mixed with another's.
        stream.write(json.dumps(line | {"at_s": time.monotonic()}) + "\n")


def end_with_submitter(submitter: dict[str, Any]) -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "spark_jobs")]
    from airflow_lake_provider.job_contract import Submitter
    from lake_jobs.driver.shutdown import exit_driver_when_orphaned

    exit_driver_when_orphaned(Submitter(**submitter), lambda _reason: os._exit(75))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[-1]))

"""Many tiny tables, one way after the other: `make bench NAME=batch`.

N real tables need compaction and clean. **each**: a spark-submit for each table, one after another, as engine
`spark-submit` does, and with both services in one, which is kinder than a run for each service. **sequence**: one
spark-submit that serves all tables in turn, as Hudi's HoodieMultiTableServicesMain does with its own clients.
**ours**: the standing application of engine `warm`, its start included, with the manager's real queue and four tables
at once; one of its tables is poisoned (its data files are missing). CPU seconds are those of all processes, memory is
the largest sum of the resident sets of a way's processes (`each_peak_mib`, `sequence_peak_mib`, `ours_peak_mib`).
Each way's JVM compiles little, and maps an archive of the classes that are on its class path from the beginning:
Spark's, and for the standing application, which has the bundle there (`standing_conf`), Hudi's as well.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_lake_provider.job_contract import (
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    from_json,
    to_json,
)
from local_stack import hudi_bundle
from tests.support.standing import Application, serve_work, spark_submit, submit_env

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
    "hoodie.write.lock.client.num_retries": "600",
}
SERVICES = tuple(ServiceRequest(name, Mode.SCHEDULE_AND_EXECUTE) for name in (Service.COMPACTION, Service.CLEAN))


@dataclass
class Usage:
    """What a way took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


def main() -> None:
    """Run all three ways, print progress, and one line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", choices=("each", "sequence", "ours"), help="measure one of the ways alone")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="lake-batch-"))
    try:
        print(json.dumps(run(folder, options.tables, options.at_once, options.only)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path, tables: int, at_once: int, only: str | None = None) -> dict[str, Any]:
    """Return the figures."""
    template = write_template(folder)
    figures: dict[str, Any] = {"tables": tables}
    if only in {None, "each"}:
        figures |= describe("each", run_each(folder, template, tables))
    if only in {None, "sequence"}:
        figures |= describe("sequence", run_sequence(folder, template, tables))
    if only in {None, "ours"}:
        ours, is_ok = run_ours(folder, template, tables, at_once)
        figures |= describe("ours", ours) | {"poisoned_others_ok": is_ok}
    return figures


def describe(way: str, usage: Usage) -> dict[str, Any]:
    """Return the figures of a way."""
    print(f"{way}: {usage}", file=sys.stderr, flush=True)
    return {
        f"{way}_s": round(usage.wall_s, 1),
        f"{way}_cpu_s": round(usage.cpu_s, 1),
        f"{way}_peak_mib": usage.peak_bytes >> 20,
    }


def run_each(folder: Path, template: Path, tables: int) -> Usage:
    """Run a spark-submit for each table."""
    each, requests = Usage(), make_requests(folder / "each", template, tables)
    with measure(each):
        for request in requests:
            submit(folder, request)
            print(f"each: {request.table_name}", file=sys.stderr, flush=True)
    require_done(requests)
    return each


def run_sequence(folder: Path, template: Path, tables: int) -> Usage:
    """Run one spark-submit that serves all tables in turn."""
    sequence, requests = Usage(), make_requests(folder / "sequence", template, tables)
    with measure(sequence):
        paths = [write_request(request) for request in requests]
        command = spark_submit(Path(paths[0]), {})
        command[command.index(paths[0]) - 1] = str(ROOT / "benchmarks" / "batch_driver.py")
        subprocess.run([*command, *paths[1:]], env=submit_env(), cwd=folder, check=True, capture_output=True)
    require_done(requests)
    return sequence


def run_ours(folder: Path, template: Path, tables: int, at_once: int) -> tuple[Usage, bool]:
    """Run a standing application; one table is poisoned, and whether the others are served is returned, too."""
    ours, requests = Usage(), make_requests(folder / "ours", template, tables)
    poisoned = requests[len(requests) // 2]
    for file in Path(poisoned.base_path).rglob("*.parquet"):
        if ".hoodie" not in file.parts:
            file.unlink()
    with serve_work(folder) as manager, measure(ours):
        items = [manager.submit(request) for request in requests]
        application = Application(manager, folder, at_once=at_once, idle_s=0.5, classes=hudi_bundle.HUDI_CLASSES)
        ended = manager.wait(*items, timeout_s=3600)
        application.wait()
    results = {name: from_json(JobResult, item.result) for name, item in ended.items()}
    bad = results.pop(f"lake-{poisoned.table_name}-1")
    print(f"the poisoned table: {bad.services[0].message}", file=sys.stderr, flush=True)
    return ours, bad.has_failed and all(is_compacted(result) for result in results.values())


def write_template(folder: Path) -> Path:
    """Write a table with log files by a stock writer; return its path."""
    table = folder / "template"
    settings = {
        "tables": [
            {
                "name": "t",
                "base_path": str(table),
                "commits": 3,
                "keys": 200,
                "rows": 60,
                "pause_s": 0,
                "hudi_options": LOCK,
            }
        ],
        "spark_conf": {"spark.jars": str(hudi_bundle.JAR)},
    }
    path = folder / "writer.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(hudi_bundle.SPARK_PYTHON), str(ROOT / "local_stack" / "lake_writer.py"), str(path)]
    subprocess.run(command, env=hudi_bundle.spark_env(), check=True, capture_output=True)
    return table


def make_requests(folder: Path, template: Path, tables: int) -> list[JobRequest]:
    """Copy the template; return a request of both services for each copy."""
    requests = []
    for number in range(tables):
        name = f"t{number}"
        shutil.copytree(template, folder / name)
        requests.append(
            JobRequest(f"{name}/1", str(folder / name), name, SERVICES, str(folder / f"{name}.result.json"), LOCK)
        )
    return requests


def write_request(request: JobRequest) -> str:
    """Write a request next to its table; return the file."""
    path = f"{request.base_path}.request.json"
    Path(path).write_text(to_json(request), encoding="utf-8")
    return path


def submit(folder: Path, request: JobRequest) -> None:
    """Run one job by a spark-submit of its own."""
    command = spark_submit(Path(write_request(request)), {})
    subprocess.run(command, env=submit_env(), cwd=folder, check=True, capture_output=True)


def require_done(requests: list[JobRequest]) -> None:
    """Raise unless each table was compacted."""
    for request in requests:
        result = from_json(JobResult, Path(request.result_path).read_text(encoding="utf-8"))
        assert is_compacted(result), result


def is_compacted(result: JobResult) -> bool:
    """Whether the compaction completed, and the clean did not fail."""
    compaction, clean = result.services
    return compaction.outcome is Outcome.COMPLETED and clean.outcome is not Outcome.FAILED


@contextlib.contextmanager
def measure(usage: Usage) -> Iterator[None]:
    """Measure wall time, CPU of the processes that a block starts and ends, and their memory."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            sizes = 0
            for process in psutil.Process(os.getpid()).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    sizes += process.memory_info().rss
            usage.peak_bytes = max(usage.peak_bytes, sizes)

    thread = threading.Thread(target=watch, daemon=True)
    cpu_s, began_s = children_cpu_s(), time.monotonic()
    thread.start()
    try:
        yield
    finally:
        usage.wall_s = time.monotonic() - began_s
        over.set()
        thread.join()
        usage.cpu_s = children_cpu_s() - cpu_s


def children_cpu_s() -> float:
    """Return what all processes have used that are gone by now; those of a dead parent become its children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

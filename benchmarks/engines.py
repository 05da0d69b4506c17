"""Start-up of the two engines whose driver lives next to the task: `make bench NAME=engines`.

Each starts, in turn, a job whose table does not exist: Spark starts, reads the request, and ends. The median of
the wall times and of the processor times (all processes of the job) is printed as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from local_stack import hudi_bundle

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each engine; the median counts")
    rounds = parser.parse_args().rounds
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="lake-engines-", ignore_cleanup_errors=True) as name:
        print(json.dumps(measure(Path(name), rounds)))


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return the median of each engine's wall and processor time."""
    spark = hudi_bundle.spark_env()
    os.environ.update({key: spark[key] for key in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")})
    os.environ["PATH"] = f"{hudi_bundle.SPARK_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"AIRFLOW_HOME": str(folder / "airflow"), "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[1]"})
    seconds: dict[str, list[tuple[float, float]]] = {"spark-submit": [], "in-process": []}
    for number in range(rounds):
        for engine, measured in seconds.items():
            measured.append(run_once(engine, folder, number))
            print(f"{engine}: {measured[-1][0]:.2f} s, {measured[-1][1]:.2f} s of processor", file=sys.stderr)
    answer: dict[str, float] = {}
    for engine, measured in seconds.items():
        name = engine.replace("-", "_")
        answer[f"{name}_s"] = round(statistics.median(wall for wall, _ in measured), 2)
        answer[f"{name}_cpu_s"] = round(statistics.median(cpu for _, cpu in measured), 2)
    return answer


def run_once(name: str, folder: Path, number: int) -> tuple[float, float]:
    """Run one job; return its wall time and its processor time."""
    # Airflow is imported with the engine, after its home is set.
    from airflow_lake_provider.execution.engines.engine import EngineJob, create_engine
    from airflow_lake_provider.execution.engines.job_files import JobFolder, read_result, write_text
    from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest, to_json

    files = JobFolder(str(folder), name, number)
    lock = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    request = JobRequest(
        job_id=f"{name}/{number}",
        base_path=str(folder / "no-table"),
        table_name="none",
        services=(ServiceRequest(Service.COMPACTION, Mode.EXECUTE),),
        result_path=files.result_path,
        hudi_options={"hoodie.write.lock.provider": lock},
    )
    job = EngineJob(name, "bench", request, files.request_path, "here", "spark_default", jars=str(hudi_bundle.JAR))
    write_text(job.request_path, to_json(request))
    engine = create_engine(name)
    cpu, began = children_cpu_s(), time.monotonic()
    engine.wait(engine.start(job))
    wall = time.monotonic() - began
    result = read_result(files.result_path)
    assert result is not None, "the job wrote no result"
    assert "no Hudi table" in result.services[0].message, result
    return wall, children_cpu_s() - cpu


def children_cpu_s() -> float:
    """Return what all processes have used that are gone by now; a dead parent's become children of this one."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

"""The `flink run` command of Hudi's Flink jobs. Pure.

Options as of Hudi's `FlinkCompactionConfig` and `FlinkClusteringConfig`, and Flink's command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import Mode, Service

if TYPE_CHECKING:
    from airflow_lake_provider.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import ServiceRequest

COMPACTOR = "org.apache.hudi.sink.compact.HoodieFlinkCompactor"
CLUSTERING_JOB = "org.apache.hudi.sink.clustering.HoodieFlinkClusteringJob"


@dataclass(frozen=True, slots=True)
class FlinkPlace:
    """A session cluster: the JobManager's REST address (`host:port`), the Hudi bundle, the client's program."""

    address: str
    bundle: str
    program: str = "flink"


def build_command(job: EngineJob, place: FlinkPlace, job_id: str) -> list[str]:
    """Return the command. Raises ServiceRefusedError for what Hudi's Flink jobs cannot do."""
    if len(job.request.services) != 1:
        raise ServiceRefusedError(f"table {job.request.base_path}: engine flink runs one service per job")
    (request,) = job.request.services
    class_name, arguments = _hudi_job(request, job.request.base_path)
    command = [place.program, "run", "--detached", "--jobmanager", place.address]
    command += [f"-D{key}={value}" for key, value in job.conf.items()]
    # Flink's own option for high availability; nothing else finds a job whose submitter died before it said its id.
    command += [f"-D$internal.pipeline.job-id={job_id}", "--class", class_name, place.bundle]
    command += ["--path", job.request.base_path, *arguments]
    for key, value in {**job.request.hudi_options, **request.options}.items():
        command += ["--hoodie-conf", f"{key}={value}"]
    return command


def _hudi_job(request: ServiceRequest, base_path: str) -> tuple[str, list[str]]:
    if request.mode is Mode.SCHEDULE:
        raise ServiceRefusedError(
            f"table {base_path}: Hudi's Flink jobs execute what they schedule; use mode {Mode.SCHEDULE_AND_EXECUTE}, "
            "or schedule with another engine"
        )
    may_schedule = request.mode is Mode.SCHEDULE_AND_EXECUTE and not request.instants
    schedule = ["--schedule"] if may_schedule else []
    if request.service is Service.COMPACTION:
        if request.instants:
            return COMPACTOR, ["--plan-select-strategy", "instants", "--target-instants", ",".join(request.instants)]
        return COMPACTOR, [*schedule, "--plan-select-strategy", "all"]
    if request.service is Service.CLUSTERING:
        if len(request.instants) > 1:
            raise ServiceRefusedError(
                f"table {base_path}: Hudi's Flink job executes one clustering plan, not {', '.join(request.instants)}"
            )
        return CLUSTERING_JOB, ["--instant-time", *request.instants] if request.instants else schedule
    raise ServiceRefusedError(
        f"table {base_path}: Hudi has no Flink job for {request.service}: use engine spark-submit"
    )

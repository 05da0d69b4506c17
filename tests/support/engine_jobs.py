"""Jobs and an engine for tests."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.engines.engine import Death, EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import JobFolder, write_text
from airflow_lake_provider.execution.job import replication_job as build
from airflow_lake_provider.job_contract import (
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    Submitter,
    to_json,
)
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order


def engine_job(
    folder: Path,
    *,
    engine: str = "fake",
    run_id: str = "run",
    try_number: int = 1,
    wanted: ServiceRequest | None = None,
    **fields: object,
) -> EngineJob:
    files = JobFolder(str(folder), run_id, try_number)
    request = JobRequest(
        job_id=f"{run_id}/{try_number}",
        base_path="/lake/orders",
        table_name="orders",
        services=(wanted or ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE),),
        result_path=files.result_path,
        hudi_options={"hoodie.write.lock.provider": "L"},
    )
    settings = {"host": socket.gethostname()} | fields
    return EngineJob(engine, "lake-compaction-t", request, files.request_path, **settings)  # type: ignore[arg-type]


def replication_job(
    folder: Path, *, run_id: str = "run", try_number: int = 1, conf: Mapping[str, str] | None = None
) -> EngineJob:
    """Return the job of a run that brings a sink up to date; its options hold a secret."""
    files = JobFolder(str(folder), run_id, try_number)
    wanted = ReplicationRequest(
        *("/lake/orders", "orders", "database", Order("orders-1.mirror"), files.result_path),
        options={"url": "postgresql://lake:hunter2@db/x"},
        submitter=Submitter(socket.gethostname(), 1, 1),
    )
    return build(wanted, files, f"{run_id}/{try_number}", "spark_default", conf or {})


@dataclass
class FakeEngine:
    """Plays a cluster: what runs there is in `running`, by tag. `raises` maps a method's name to what it raises."""

    external_id: str = ""
    writes_result: bool = True
    death: Death | None = None
    raises: dict[str, BaseException] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)
    most_at_once: int = 0

    def start(self, job: EngineJob) -> Handle:
        self._call("start", job)
        self.running.add(job.tag)
        self.most_at_once = max(self.most_at_once, len(self.running))
        return Handle(job, self.external_id)

    def wait(self, handle: Handle) -> Death | None:
        self._call("wait", handle.job)
        if handle.job.tag in self.running and self.writes_result and not handle.job.request.services:
            write_text(handle.job.request.result_path, to_json(ReplicationResult("orders-1.mirror", ended=True)))
        elif handle.job.tag in self.running and self.writes_result:
            done = ServiceResult(handle.job.request.services[0].service, Outcome.COMPLETED)
            write_text(handle.job.request.result_path, to_json(JobResult(handle.job.request.job_id, (done,))))
        self.running.discard(handle.job.tag)
        return self.death

    def stop(self, handle: Handle) -> None:
        self._call("stop", handle.job)
        self.running.discard(handle.job.tag)

    def _call(self, what: str, job: EngineJob) -> None:
        self.calls.append((what, job.request.job_id))
        if what in self.raises:
            raise self.raises[what]


def never_lost() -> None:
    """The lease is held."""


def lost() -> None:
    raise LakeError("the lease is lost")

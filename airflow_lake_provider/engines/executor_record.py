"""What is remembered of the job that executes a service of a table, until it is known to have ended.

Written before a job starts, so that whoever takes the lease next knows what may still be running. Two files, each
written once: a half-written first one means that its writer died before it started anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.engines.engine import EngineJob, Handle
from airflow_lake_provider.engines.job_files import find_text, remove, write_text
from airflow_lake_provider.job_contract import ContractError, request_from_json, request_to_json

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import Service

_PLAIN_FIELDS = ("engine", "name", "request_path", "host", "conn_id")
# The rest of the settings is not needed to end a job, and may hold secrets.
_KEPT_CONF = ("spark.kubernetes.namespace",)


@dataclass(frozen=True, slots=True)
class ExecutorRecord:
    """The record of one service of one table, in `<work_dir>/executors/<table id>/<service>`."""

    work_dir: str
    table_id: str
    service: Service

    def find(self) -> Handle | None:
        """Return what the last executor left; None when its job is known to have ended."""
        text = find_text(self._path("job.json"))
        try:
            job = None if text is None else _parse(text)
        except (ValueError, KeyError, TypeError, ContractError):
            return None
        if job is None:
            return None
        tag, _, external_id = (find_text(self._path("external_id")) or "").partition("\n")
        return Handle(job, external_id.strip() if tag == job.tag else "")

    def begin(self, job: EngineJob) -> None:
        """Remember a job that is about to start."""
        body = {name: getattr(job, name) for name in _PLAIN_FIELDS}
        body |= {"conf": {key: job.conf[key] for key in _KEPT_CONF if key in job.conf}}
        write_text(self._path("job.json"), json.dumps(body | {"request": json.loads(request_to_json(job.request))}))

    def started(self, handle: Handle) -> None:
        """Remember how to find the job that has started."""
        if handle.external_id:
            write_text(self._path("external_id"), f"{handle.job.tag}\n{handle.external_id}\n")

    def forget(self) -> None:
        """The job has ended."""
        remove(self._path("job.json"))

    def _path(self, file_name: str) -> str:
        return f"{self.work_dir.rstrip('/')}/executors/{self.table_id}/{self.service.value}/{file_name}"


def _parse(text: str) -> EngineJob:
    body = json.loads(text)
    return EngineJob(
        **{name: str(body[name]) for name in _PLAIN_FIELDS},
        conf=dict(body["conf"]),
        request=request_from_json(json.dumps(body["request"])),
    )

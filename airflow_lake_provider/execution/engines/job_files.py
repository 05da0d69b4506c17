"""A job's files, on any store that both the worker and the driver reach: its request and its result."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec

from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
from airflow_lake_provider.job_contract import (
    ContractError,
    JobResult,
    request_from_json,
    request_to_json,
    result_from_json,
)

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import Service


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Where the files of one try lie: `<work_dir>/jobs/<run id, made safe>/<try>`."""

    work_dir: str
    run_id: str
    try_number: int

    @property
    def request_path(self) -> str:
        """The path of the request."""
        return self._path("request.json")

    @property
    def result_path(self) -> str:
        """The path of the result."""
        return self._path("result.json")

    @property
    def holder_path(self) -> str:
        """The path of the file that says which process works on the try."""
        return self._path("holder.json")

    def of(self, run_id: str, try_number: int) -> JobFolder:
        """Return the folder of another try."""
        return JobFolder(self.work_dir, run_id, try_number)

    def _path(self, file_name: str) -> str:
        safe_run_id = re.sub(r"[^A-Za-z0-9_.-]", "_", self.run_id)
        return f"{self.work_dir.rstrip('/')}/jobs/{safe_run_id}/{self.try_number}/{file_name}"


def _open_store(path: str) -> tuple[Any, str]:
    # Not a shared one: fsspec drops those in a forked child, where hdfs-native's never comes to an end.
    fs, plain = fsspec.core.url_to_fs(path, skip_instance_cache=True)
    return fs, plain


def write_text(path: str, text: str) -> None:
    """Write a file, making its folder."""
    fs, plain = _open_store(path)
    fs.makedirs(fs._parent(plain), exist_ok=True)
    with fs.open(plain, "w", encoding="utf-8") as stream:
        stream.write(text)


def find_text(path: str) -> str | None:
    """Return a file's text; None when there is no such file."""
    fs, plain = _open_store(path)
    try:
        with fs.open(plain, "r", encoding="utf-8") as stream:
            return str(stream.read())
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    """Remove a file; it may be gone already."""
    fs, plain = _open_store(path)
    try:
        fs.rm_file(plain)
    except FileNotFoundError:
        return


def read_result(path: str) -> JobResult | None:
    """Return the job's result; None when there is none or it is not whole (the job died)."""
    text = find_text(path)
    try:
        return None if text is None else result_from_json(text)
    except ContractError:
        return None


# --- What is remembered of the job that executes a service of a table, until it is known to have ended
#
# Written before a job starts, so that whoever takes the lease next knows what may still be running. Two files, each
# written once: a half-written first one means that its writer died before it started anything.

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

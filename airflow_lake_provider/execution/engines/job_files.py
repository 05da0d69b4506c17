"""A job's files, on any store that both the worker and the driver reach: its request and its result."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError
from airflow.sdk.log import mask_secret
from fsspec.implementations.local import LocalFileSystem

from airflow_lake_provider.config.owned_options import REFERENCE
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import (
    ContractError,
    JobRequest,
    JobResult,
    from_json,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_R = TypeVar("_R")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one try's files: `<work_dir>/jobs/<run id>/<part>/<try>`, each name made safe.

    Run ids that differ have different folders: where a character is replaced, a digest of the run id follows.
    """

    work_dir: str
    run_id: str
    try_number: int
    part: str = ""
    """What the task works on."""

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
        """The path of the file that names the process of the try."""
        return self._path("holder.json")

    @property
    def item_path(self) -> str:
        """The path of the file that names the item of work for which the try waits in the triggerer."""
        return self._path("item")

    def of(self, run_id: str, try_number: int) -> JobFolder:
        """Return the folder of another try."""
        return replace(self, run_id=run_id, try_number=try_number)

    def _path(self, file_name: str) -> str:
        names = "/".join(map(_safe_name, filter(None, (self.run_id, self.part))))
        return f"{self.work_dir.rstrip('/')}/jobs/{names}/{self.try_number}/{file_name}"


_MAX_NAME = 150
"""Characters of a folder's name before the digest: file systems allow 255 bytes."""


def _safe_name(run_id: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)
    if safe == run_id and len(safe) <= _MAX_NAME and safe.strip("."):
        return safe
    return f"{safe[:_MAX_NAME]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def _open_store(path: str) -> tuple[Any, str]:
    # Not a shared one: fsspec drops those in a forked child, where dropping hdfs-native's hangs.
    fs, plain = fsspec.core.url_to_fs(path, skip_instance_cache=True)
    return fs, plain


def write_text(path: str, text: str) -> None:
    """Write a file and create its folder; on a local disk only this process's user can read it.

    Below a folder with the setgid bit its group can as well, and can write into the folders made: so an administrator,
    or Kubernetes' `fsGroup`, shares `work_dir` with drivers of another user.
    """
    fs, plain = _open_store(path)
    if isinstance(fs, LocalFileSystem):
        folder = Path(plain).parent
        write_private(plain, text, 0o640 if _make_folders(folder) else 0o600)
        return
    fs.makedirs(fs._parent(plain), exist_ok=True)
    with fs.open(plain, "w", encoding="utf-8") as stream:
        stream.write(text)


def _make_folders(folder: Path) -> bool:
    """Make a folder where it is missing; return whether it is its group's as well."""
    if not folder.is_dir():
        is_shared = _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        if is_shared:
            # Whatever the umask; Linux gives it the group of the folder that it is in.
            folder.chmod(0o2770)
        return is_shared
    return bool(folder.stat().st_mode & stat.S_ISGID)


def write_private(path: str, text: str, mode: int = 0o600) -> None:
    """Write a local file that only this process's user can read unless `mode` says more, also if it was there.

    Under a new name first, then in the place of what is there: in a folder of a group another user may have left a
    file, as tasks with `run_as_user` do, or a link to a file that only this process's user may write.
    """
    part = f"{path}.{uuid.uuid4().hex}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(descriptor, mode)
            stream.write(text)
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def write_request(job: EngineJob, *, outlives_task: bool = False) -> None:
    """Write the request for the driver, with the secrets to which its options refer. Raises ConfigError.

    A driver that outlives its task must not watch it, in case both run on one machine.
    """
    request = job.replication or replace(job.request, hudi_options=resolve_secrets(job.request.hudi_options))
    write_text(job.request_path, to_json(replace(request, submitter=None) if outlives_task else request))


def hide_request(path: str, request: JobRequest) -> None:
    """Replace the file of a job that has ended by one without secrets."""
    if any(value.startswith(REFERENCE) for value in request.hudi_options.values()):
        write_text(path, to_json(request))


def find_text(path: str) -> str | None:
    """Return a file's text; None when there is no such file."""
    fs, plain = _open_store(path)
    try:
        with fs.open(plain, "r", encoding="utf-8") as stream:
            return str(stream.read())
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    """Remove a file that may be missing."""
    fs, plain = _open_store(path)
    try:
        fs.rm_file(plain)
    except FileNotFoundError:
        return


def require_writable(path: str) -> None:
    """Raise OSError when no file of a few kilobytes can be written next to a file."""
    probe = f"{path}.probe"
    try:
        write_text(probe, " " * 8192)
    finally:
        remove(probe)


def read_result(path: str) -> JobResult | None:
    """Return the result of a job of table services; None as with `find_result`."""
    return find_result(path, JobResult)


def find_result(path: str, kind: type[_R]) -> _R | None:
    """Return a job's result; None when there is none or it is incomplete (the job died)."""
    text = find_text(path)
    try:
        return None if text is None else from_json(kind, text)
    except ContractError:
        return None


# --- The record of the job that executes a service of a table, until that job is known to have ended
#
# Written before a job starts, so that the next holder of the lease knows what may still be running. Two files, each
# written once: a half-written first one means that its writer died before it started anything.

_PLAIN_FIELDS = ("engine", "name", "request_path", "host", "conn_id", "lake_conn_id")
# Ending a job needs no other setting, and the others may hold secrets.
_KEPT_CONF = ("spark.kubernetes.namespace",)


@dataclass(frozen=True, slots=True)
class ExecutorRecord:
    """The record of one service or sink of one table, in `<work_dir>/executors/<table id>/<service>`."""

    work_dir: str
    table_id: str
    service: str
    """The service's name; of a sink that of `for_sink`."""

    @classmethod
    def for_sink(cls, work_dir: str, table_id: str, name: str) -> ExecutorRecord:
        """Return the record of a sink's runs."""
        return cls(work_dir, table_id, f"replication.{name}")

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
        """Record a job that is about to start."""
        body = {name: getattr(job, name) for name in _PLAIN_FIELDS}
        body |= {"conf": {key: job.conf[key] for key in _KEPT_CONF if key in job.conf}}
        write_text(self._path("job.json"), json.dumps(body | {"request": json.loads(to_json(job.request))}))

    def started(self, handle: Handle) -> None:
        """Record how to find the job that has started."""
        if handle.external_id:
            write_text(self._path("external_id"), f"{handle.job.tag}\n{handle.external_id}\n")

    def forget(self) -> None:
        """Remove the record: the job has ended."""
        remove(self._path("job.json"))

    def forget_job(self, job: EngineJob) -> None:
        """Remove the record of a job that has ended, unless another run has ended it, and has one of its own."""
        found = self.find()
        if found is not None and found.job.tag == job.tag:
            self.forget()

    def _path(self, file_name: str) -> str:
        return f"{self.work_dir.rstrip('/')}/executors/{self.table_id}/{_safe_name(self.service)}/{file_name}"


def _parse(text: str) -> EngineJob:
    body = json.loads(text)
    engine, name, request_path, host, conn_id, lake_conn_id = (str(body[field]) for field in _PLAIN_FIELDS)
    return EngineJob(
        engine=engine,
        name=name,
        request_path=request_path,
        host=host,
        conn_id=conn_id,
        lake_conn_id=lake_conn_id,
        conf=dict(body["conf"]),
        request=from_json(JobRequest, json.dumps(body["request"])),
    )


# --- Secrets, as late as possible: `secret://connection/<id>/password` and the like. `secret://manager/<id>` is the
# service token of a connection to the manager, or that of `[lake]`; only the provider's own requests name it


def resolve_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with every reference replaced by its secret. Raises ConfigError that names the option."""
    return {key: _resolve(key, value) if value.startswith(REFERENCE) else value for key, value in options.items()}


def _resolve(key: str, reference: str) -> str:
    kind, _, rest = reference.removeprefix(REFERENCE).partition("/")
    if kind == "variable" and rest:
        found = _find_variable(rest)
    elif kind == "manager" and rest:
        _, found = LakeHook(rest).find_address()
    elif kind == "connection" and "/" in rest:
        found = _find_in_connection(*rest.split("/", 1))
    else:
        raise ConfigError(
            f"{key} is {reference!r}, allowed: {REFERENCE}variable/<name>, and {REFERENCE}connection/<id>/ with "
            "password, login, host or extra/<key>"
        )
    if not found:
        raise ConfigError(f"{key} is {reference!r}, and there is no such secret")
    mask_secret(found)
    return found


def _find_variable(name: str) -> str:
    try:
        return str(Variable.get(name, default="") or "")
    except AirflowRuntimeError:
        return ""


def _find_in_connection(conn_id: str, part: str) -> str:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return ""
    if part.startswith("extra/"):
        return str(connection.extra_dejson.get(part.removeprefix("extra/")) or "")
    return str(getattr(connection, part) or "") if part in {"password", "login", "host"} else ""


# --- Files of jobs that ended long ago

KEPT_S = 7 * 86_400.0
"""How long requests and results are kept: tries of one run read each other's, and people read them after a failure."""
PRUNE_INTERVAL_S = 3600.0


def prune_jobs(work_dir: str, now_s: float | None = None) -> int:
    """Remove the folders of runs that changed nothing for `KEPT_S`, once an hour; return how many.

    A job on record may still run, whatever its files' age. An error changes nothing for the caller.
    """
    now_s = time.time() if now_s is None else now_s
    try:
        return _prune(work_dir.rstrip("/"), now_s)
    except Exception as error:  # noqa: BLE001 - of any store's library; old files do no harm for another hour
        log.warning("old files in %s/jobs were not removed: %s", work_dir, error)
        return 0


def _prune(work_dir: str, now_s: float) -> int:
    mark = f"{work_dir}/jobs/.pruned"
    last = find_text(mark)
    if last is not None and now_s - float(last or 0) < PRUNE_INTERVAL_S:
        return 0
    write_text(mark, f"{now_s:.0f}")
    fs, jobs = _open_store(f"{work_dir}/jobs")
    newest: dict[str, float] = {}
    for path, facts in fs.find(jobs, detail=True).items():
        run = path.removeprefix(jobs).strip("/").partition("/")[0]
        newest[run] = max(newest.get(run, 0.0), _changed_s(facts, now_s))
    newest.pop(".pruned", None)
    old = {run for run, changed_s in newest.items() if now_s - changed_s > KEPT_S}
    if old:
        old -= set(_runs_on_record(work_dir))
    for run in old:
        fs.rm(f"{jobs}/{run}", recursive=True)
    return len(old)


def _changed_s(facts: Mapping[str, Any], now_s: float) -> float:
    for key in ("mtime", "LastModified", "last_modified", "modified"):
        value = facts.get(key)
        if value is not None:
            seconds = float(value.timestamp() if hasattr(value, "timestamp") else value)
            return seconds / 1000 if seconds > 1e11 else seconds
    return now_s  # a store without times: nothing is old


def _runs_on_record(work_dir: str) -> Iterator[str]:
    fs, executors = _open_store(f"{work_dir}/executors")
    for path in fs.find(executors):
        if path.endswith("/job.json"):
            with fs.open(path, "r", encoding="utf-8") as stream:
                found = re.search(r"/jobs/([^/\"]+)/", stream.read())
            if found:
                yield found[1]

"""A job's files, on any store that both the worker and the driver reach: its request and its result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import fsspec

from airflow_lake_provider.job_contract import ContractError, JobResult, result_from_json


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

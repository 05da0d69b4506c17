"""What Spark runs a job with, whatever starts it: the application, the zip that travels with it, and Hudi's settings.

The zip holds the jobs' own package, and of this package what the jobs import. All engines send the same zip. A machine
makes it once for each content: its name is a digest of the content, so processes that race to make it make one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import uuid
import zipfile
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.config.owned_options import REFERENCE
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import HUDI_SPARK_CONF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_lake_provider.execution.engines.engine import EngineJob

SERVICES = "run_services.py"
REPLICATION = "replicate.py"
JOBS_PACKAGE = "lake_jobs"
_ZIP = f"{JOBS_PACKAGE}.zip"
SHARED = (
    "__init__.py",
    "errors.py",
    "instant_clock.py",
    "job_contract.py",
    "obstacles.py",
    "table_layout.py",
    "timeline_head.py",
    "replication/**/*.py",
    "shared/**/*.py",
    "sink_options/**/*.py",
)
"""What of this package travels: contract, timelines, layout, sinks, facts of Hudi; all of it imports no more."""

SPARK_CONF: Mapping[str, str] = {**HUDI_SPARK_CONF, "spark.ui.enabled": "false"}
"""The connection and the user set everything else."""

_PACKAGE = Path(__file__).parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip can store; a real one would give each machine another file."""


JOBS_FOLDER = "spark.lake.jobs"
"""A setting in `spark_conf`: a folder in the image of a cluster's drivers, as `local:///opt/lake`, which
`python -m airflow_lake_provider.execution.engines.packaging` filled. Then spark-submit uploads no job."""

FAIR: Mapping[str, str] = MappingProxyType({"spark.scheduler.mode": "FAIR"})
DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
MUCH_GARBAGE = "-XX:NewRatio=1"
"""Small services leave hundreds of megabytes of buffers each, which are garbage at once: half of the heap for them."""


def standing_conf(conf: Mapping[str, str], jars: str) -> dict[str, str]:
    """Return the settings of a standing application: its tables', over what serves many small services best.

    Jars on the driver's own disk are first on its class path: among those that Spark copies, each of their classes is
    searched for in all of Spark's 250 jars before. A setting of a user leaves the default out. Pure.
    """
    chosen = dict(FAIR)
    if not conf.keys() & {DEFAULT_JAVA_OPTIONS, JAVA_OPTIONS}:
        chosen[DEFAULT_JAVA_OPTIONS] = MUCH_GARBAGE
    paths = [jar.strip().removeprefix("file://") for jar in jars.split(",") if jar.strip()]
    if paths and all(path.startswith("/") for path in paths):
        chosen[CLASS_PATH] = ":".join(paths)
    return {**chosen, **conf}


def submit_arguments(job: EngineJob) -> dict[str, Any]:
    """Return the arguments of Spark's hook and operator. The request file has paths, tables and secrets instead."""
    arguments: dict[str, Any] = {
        "conn_id": job.conn_id,
        "name": job.name,
        "conf": dict(SPARK_CONF) | without_secrets(job.conf),
        "py_files": str(find_package()),
        "application_args": [job.request_path],
    }
    if job.jars:
        arguments["jars"] = job.jars
    elif job.packages:
        arguments["packages"] = job.packages
    return arguments


def application() -> str:
    """Return the path of the application that runs table services."""
    return str(find_spark_jobs() / SERVICES)


def application_of(job: EngineJob) -> str:
    """Return the path of the application that a job runs."""
    return str(find_spark_jobs() / _script_of(job))


def _script_of(job: EngineJob) -> str:
    return SERVICES if job.replication is None else REPLICATION


def find_in_image(job: EngineJob) -> tuple[str, str] | None:
    """Return the application and the zip in the drivers' own image; None where the settings name no folder there.

    Raises ConfigError for a folder that is not in the image.
    """
    folder = job.conf.get(JOBS_FOLDER, "").rstrip("/")
    if not folder:
        return None
    if not folder.startswith("local:///"):
        raise ConfigError(f"{JOBS_FOLDER} is {folder!r}: a folder in the drivers' image, such as local:///opt/lake")
    return f"{folder}/{jobs_name()}/{_script_of(job)}", f"{folder}/{jobs_name()}/{_ZIP}"


def jobs_name() -> str:
    """Return the name of this release's jobs in an image: a driver of another release's image does not find it."""
    scripts = tuple((name, (find_spark_jobs() / name).read_bytes()) for name in (SERVICES, REPLICATION))
    return f"lake-jobs-{_digest_of((*_content(), *scripts))}"


def install_jobs(folder: Path) -> Path:
    """Write the jobs into a folder of an image; return their own folder in it."""
    jobs = folder / jobs_name()
    jobs.mkdir(parents=True, exist_ok=True)
    for name in (SERVICES, REPLICATION):
        shutil.copyfile(find_spark_jobs() / name, jobs / name)
    _write(jobs / _ZIP, _content())
    return jobs


def find_spark_jobs() -> Path:
    """Return the folder of the shipped Spark jobs: inside the wheel, else next to the package in a checkout."""
    for folder in (_PACKAGE / "_shipped" / "spark_jobs", _PACKAGE.parent / "spark_jobs"):
        if (folder / SERVICES).is_file():
            return folder
    raise ConfigError(f"the Spark job {SERVICES} is not where the package should have it; reinstall the package")


def find_package() -> Path:
    """Return the zip that a job needs in its `--py-files`, and make it when this machine does not have it yet.

    It lies in a folder below the temporary one that only this process's user can write.
    Raises ConfigError when another user could, OSError when it cannot be written.
    """
    content = _content()
    path = _own_folder() / f"{JOBS_PACKAGE}-{_digest_of(content)}.zip"
    if path.exists():
        # A program that removes old temporary files then keeps those in use.
        path.touch()
    else:
        _write(path, content)
    return path


def write_secret_conf(conf: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return a file with the settings that refer to secrets, for `--properties-file`; "" when none does.

    Spark then reads no spark-defaults.conf, so its lines come first. The file is in a folder that only this user can
    read; Spark reads it at its start, and those that are an hour old are removed. Raises ConfigError, OSError.
    """
    secrets = {key: value for key, value in conf.items() if value.startswith(REFERENCE)}
    if not secrets:
        return ""
    folder = _own_folder()
    for old in folder.glob("*.properties"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > 3600:
                old.unlink()
    # Here, because the zip alone is also made where there is no Airflow.
    from airflow_lake_provider.execution.engines.job_files import resolve_secrets, write_private

    resolved = resolve_secrets(secrets)
    lines = [read_defaults(environ), *(f"{key}={_escaped(value)}" for key, value in resolved.items())]
    path = folder / f"{uuid.uuid4().hex}.properties"
    write_private(str(path), "\n".join(lines) + "\n")
    return str(path)


def without_secrets(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that may stand in a command."""
    return {key: value for key, value in conf.items() if not value.startswith(REFERENCE)}


def read_defaults(environ: Mapping[str, str]) -> str:
    """Return the text of spark-submit's spark-defaults.conf; empty where there is none."""
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(environ.get("SPARK_HOME", ""), "conf")
    path = Path(folder) / "spark-defaults.conf"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _escaped(value: str) -> str:
    # Java's properties take a backslash for the begin of another character, and a line's end for the end of the value.
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def close_output(hook: SparkSubmitHook | None) -> None:
    """Close the pipe of spark-submit's output, which the Spark provider leaves open."""
    submitted = hook._submit_sp if hook is not None else None
    if submitted is not None and submitted.stdout is not None:
        submitted.stdout.close()


@cache
def _content() -> tuple[tuple[str, bytes], ...]:
    """Return names and bodies of the zip's files, in the order of their names."""
    jobs = find_spark_jobs()
    sources = {str(path.relative_to(jobs)): path for path in (jobs / JOBS_PACKAGE).rglob("*.py")}
    for pattern in SHARED:
        sources |= {f"{_PACKAGE.name}/{path.relative_to(_PACKAGE)}": path for path in _PACKAGE.glob(pattern)}
    return tuple((name, sources[name].read_bytes()) for name in sorted(sources))


def _digest_of(content: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, body in content:
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()[:16]


def _own_folder() -> Path:
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"lake-spark-jobs-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # The driver runs what lies here.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise ConfigError(f"{folder} is not a folder that only user {user} can write; remove it, or set TMPDIR")
    return folder


def _write(path: Path, content: tuple[tuple[str, bytes], ...]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with zipfile.ZipFile(part, "w") as archive:
        for name, body in content:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED)
    part.replace(path)


if __name__ == "__main__":
    sys.stdout.write(f"{install_jobs(Path(sys.argv[1]))}\n")

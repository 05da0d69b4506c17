"""Spark's drivers: next to the task through spark-submit or as its direct child; how one inside a cluster is submitted.

The Spark provider submits (`SparkSubmitOperator` as a `ResumableJobMixin`); `yarn.py` and `kubernetes.py` follow. Its
modules are imported on use: they cost a second of each task that needs none.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Handle, error_of, find_failed_login, login_of
from airflow_lake_provider.execution.engines.job_files import write_request
from airflow_lake_provider.execution.engines.local_process import LocalJob, is_of_this_host, kill_marked
from airflow_lake_provider.execution.engines.packaging import (
    SPARK_CONF,
    application,
    application_of,
    close_output,
    find_in_image,
    find_package,
    submit_arguments,
    without_secrets,
    write_secret_conf,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from airflow_lake_provider.execution.engines.engine import Death, Engine, EngineJob

log = logging.getLogger(__name__)

CLUSTERS = {
    "k8s": EntryPoint("kubernetes", f"{__package__}.kubernetes:KubernetesDriver", ""),
    "yarn": EntryPoint("yarn", f"{__package__}.yarn:YarnDriver", ""),
}
"""What follows drivers inside a cluster, by how the address of Spark's master begins."""


class SparkSubmitEngine:
    """The default engine.

    In client mode the driver runs next to the task, with its output in the task's log, and ends with it. In cluster
    mode it outlives the task, so the next try follows the running driver.
    """

    def __init__(self) -> None:
        self._client = _ClientMode()

    def start(self, job: EngineJob) -> Handle:
        """Submit the job. Raises EngineError, or ConfigError for a place where no Python driver can run."""
        return self._mode(job).start(job)

    def wait(self, handle: Handle) -> Death | None:
        """Wait for the driver's end. Raises EngineError when it cannot be followed."""
        return self._mode(handle.job).wait(handle)

    def stop(self, handle: Handle) -> None:
        """End the driver. Raises EngineError when it may still run."""
        self._mode(handle.job).stop(handle)

    def _mode(self, job: EngineJob) -> Engine:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        try:
            connection = SparkSubmitHook(conn_id=job.conn_id)._connection
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"connection {job.conn_id!r} cannot be used: {error}") from error
        master = str(connection["master"])
        mode = connection["deploy_mode"]
        if mode != "cluster":
            return self._client
        for beginning, cluster in CLUSTERS.items():
            if master.startswith(beginning):
                driver: Engine = cluster.load()()
                return driver
        raise ConfigError(
            f"connection {job.conn_id!r} sets deploy-mode cluster on {master}, where Spark runs no Python driver: "
            "use deploy-mode client there, or YARN or Kubernetes"
        )


class NearTaskEngine(SparkSubmitEngine):
    """Of drivers that speak with their task through a socket of its machine."""

    def _mode(self, job: EngineJob) -> Engine:
        mode = super()._mode(job)
        if mode is not self._client:
            raise ConfigError(
                f"{job.name} cannot run: connection {job.conn_id!r} sets deploy-mode cluster, and this driver asks its "
                "task for work, so it runs next to it: name a connection of client mode, of the same cluster perhaps, "
                "in [lake] replication_spark_conn_id"
            )
        return mode


class _ClientMode:
    def __init__(self) -> None:
        self._local = LocalJob()

    def start(self, job: EngineJob) -> Handle:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        hook = SparkSubmitHook(**submit_arguments(job), properties_file=write_secret_conf(job.conf, os.environ) or None)
        # It logs the command, with secrets masked. Its own `submit` would not return before the job's end.
        login = login_of(job.conf, hook._connection, job.conn_id)
        return self._local.start(job, hook._build_spark_submit_command(application_of(job)), login=login)

    def wait(self, handle: Handle) -> Death | None:
        return self._local.wait(handle)

    def stop(self, handle: Handle) -> None:
        self._local.stop(handle)


# --- The engine `in-process`: Spark in a child of the worker's process, without spark-submit
#
# For tiny tables, where start-up is most of the work.
# PySpark cannot be imported into Airflow's own environment (`pyspark-client` occupies its name there), so this is the
# nearest to "in the worker's process": the application run directly by Spark's Python, with `local[1]`, a JVM that
# compiles little, and the Hudi bundle on its class path instead of being copied and served.

PYTHON_KEYS = ("spark.pyspark.driver.python", "spark.pyspark.python")
PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
TINY_CONF: Mapping[str, str] = {
    "spark.master": "local[1]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
}


class InProcessEngine:
    """Runs the job in a direct child of the task's process; the connection is not used."""

    def __init__(self) -> None:
        self._local = LocalJob()

    def start(self, job: EngineJob) -> Handle:
        """Start Spark's Python. Raises EngineError when there is none, ConfigError when `spark.master` is not local."""
        command, variables = build_command(job, os.environ)
        return self._local.start(job, command, {**os.environ, **variables}, login_of(job.conf, {}, ""))

    def wait(self, handle: Handle) -> Death | None:
        """Wait for the child's end."""
        return self._local.wait(handle)

    def stop(self, handle: Handle) -> None:
        """Kill the child and its JVM. Raises EngineError when one still runs."""
        self._local.stop(handle)


def build_command(job: EngineJob, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of the child. Pure but for the shipped jobs and their zip."""
    conf = {**SPARK_CONF, **TINY_CONF, **without_secrets(job.conf)}
    if not conf["spark.master"].startswith("local"):
        raise ConfigError(f"engine in-process runs on local[n] only, not on {conf['spark.master']!r}: use spark-submit")
    named = (*(conf.get(key) for key in PYTHON_KEYS), *(environ.get(name) for name in PYTHON_VARIABLES))
    python = next((path for path in named if path), "python3")
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    options += ["--name", job.name]
    secrets = write_secret_conf(job.conf, environ)
    if secrets:
        options += ["--properties-file", secrets]
    if job.jars:
        options += ["--driver-class-path", ":".join(jar.strip() for jar in job.jars.split(","))]
    elif job.packages:
        options += ["--packages", job.packages]
    return [python, application(), job.request_path], {
        # The gateway ignores its argument; it marks the JVM, in case that does not end with Python.
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell", job.request_path]),
        "PYTHONPATH": os.pathsep.join(_module_folders(environ)),
    }


def _module_folders(environ: Mapping[str, str]) -> list[str]:
    spark_home = environ.get("SPARK_HOME", "")
    libraries = os.path.join(spark_home, "python", "lib")
    zips = sorted(name for name in os.listdir(libraries) if name.endswith(".zip")) if os.path.isdir(libraries) else []
    return [str(find_package()), *(os.path.join(libraries, name) for name in zips)]


# --- Drivers that run inside a cluster and outlive the task. One is ended without a recorded id: each job carries its
# tag, as an application tag on YARN and as the driver pod's name on Kubernetes

END_PATIENCE_S = 60.0
PAUSE_S = 1.0
HTTP_TIMEOUT_S = 30.0
_ANSWERS_LATER = frozenset({408, 425, 429})


def create_operator(
    job: EngineJob, conf: dict[str, str], *, with_secrets: bool = False, **tracking: Any
) -> SparkSubmitOperator:
    """Return the Spark provider's operator of a job, with the settings that refer to secrets in a file if asked for."""
    # Imported on use: it costs a second of each task that submits nothing.
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    arguments = submit_arguments(job)
    arguments["conf"] |= conf
    if with_secrets:
        arguments["properties_file"] = write_secret_conf(job.conf, os.environ) or None
    main, arguments["py_files"] = find_in_image(job) or (application_of(job), arguments["py_files"])
    return SparkSubmitOperator(task_id="lake_driver", application=main, **arguments, **tracking)


def submit(operator: SparkSubmitOperator, job: EngineJob, stop: Any) -> Handle:
    """Submit a driver that outlives this process.

    Raises EngineError, and ServiceRefusedError for a keytab that is wrong; then `stop` has ended what was submitted.
    """
    write_request(job, outlives_task=True)
    try:
        return Handle(job, str(operator.submit_job(_context())))
    except (AirflowException, RuntimeError, OSError) as error:
        kept = _stop_submitted(stop, job)
        login = login_of(job.conf, operator._get_hook()._connection, job.conn_id)
        if (death := find_failed_login(str(error).splitlines(), login)) is not None:
            raise error_of(death, job.name) from error
        raise EngineError(f"{job.name} could not be submitted: {_reason_of(error)}{kept}") from error
    except ValueError as error:
        raise ConfigError(f"connection {job.conn_id!r}: {error}") from error
    finally:
        close_output(operator._hook)


def _stop_submitted(stop: Any, job: EngineJob) -> str:
    """End what was submitted; return what refuses that, which is seldom why the submission failed."""
    try:
        stop(Handle(job))
    except EngineAwayError:
        raise
    except EngineError as error:
        return f"; what there is of it could not be ended: {error}"
    return ""


def _reason_of(error: Exception) -> str:
    """Return the error that spark-submit printed; the provider's message is the whole command and its last lines."""
    printed = (_PRINTED.search(line) for line in str(error).splitlines())
    return next((found[0] for found in printed if found is not None), str(error))


_PRINTED = re.compile(r"(?<![\w.$])[\w.$]+(?:Exception|Error): .+")
"""From the begin of a name alone: a line of a megabyte may hold what a record holds."""


def _context() -> Any:
    # The provider stores its ids in the task's state store, which another run of the table could not read.
    return {}


def kill_submitting(job: EngineJob) -> None:
    """Kill a spark-submit of this machine."""
    # A spark-submit of a killed task would submit after this check.
    if is_of_this_host(job.host):
        kill_marked(job.request_path)


def as_unreported(message: str, error: BaseException) -> EngineError:
    """Return the error of a cluster that did not answer, or answered that the request is wrong or not allowed."""
    chain: BaseException | None = error
    while chain is not None:
        # requests puts the status into the response, the client of Kubernetes into the error.
        status = getattr(getattr(chain, "response", chain), "status_code", None) or getattr(chain, "status", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _ANSWERS_LATER:
            return EngineError(message)
        if isinstance(chain, ImportError):
            return EngineError(message)
        chain = chain.__cause__ or chain.__context__
    return EngineAwayError(message)

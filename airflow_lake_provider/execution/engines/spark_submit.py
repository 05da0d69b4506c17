"""Spark through spark-submit. The connection sets the place: client mode anywhere, cluster mode on YARN, Kubernetes."""

from __future__ import annotations

import os
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import login_of
from airflow_lake_provider.execution.engines.local_process import LocalJob
from airflow_lake_provider.execution.engines.packaging import application, submit_arguments, write_secret_conf

if TYPE_CHECKING:
    from airflow_lake_provider.execution.engines.engine import Death, Engine, EngineJob, Handle


# Imported on use: the provider's operator costs a second of each task.
_DRIVERS = MappingProxyType({"yarn": ("yarn", "YarnDriver"), "k8s": ("spark_cluster", "KubernetesDriver")})


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
        try:
            connection = SparkSubmitHook(conn_id=job.conn_id)._connection
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"connection {job.conn_id!r} cannot be used: {error}") from error
        master, mode = str(connection["master"]), connection["deploy_mode"]
        if mode != "cluster":
            return self._client
        for prefix, (module, name) in _DRIVERS.items():
            if master.startswith(prefix):
                driver: Engine = getattr(import_module(f"{__package__}.{module}"), name)()
                return driver
        raise ConfigError(
            f"connection {job.conn_id!r} sets deploy-mode cluster on {master}, where Spark runs no Python driver: "
            "use deploy-mode client there, or YARN or Kubernetes"
        )


class _ClientMode:
    def __init__(self) -> None:
        self._local = LocalJob()

    def start(self, job: EngineJob) -> Handle:
        hook = SparkSubmitHook(**submit_arguments(job), properties_file=write_secret_conf(job.conf, os.environ) or None)
        # It logs the command, with secrets masked. Its own `submit` would not return before the job's end.
        login = login_of(job.conf, hook._connection, job.conn_id)
        return self._local.start(job, hook._build_spark_submit_command(application()), login=login)

    def wait(self, handle: Handle) -> Death | None:
        return self._local.wait(handle)

    def stop(self, handle: Handle) -> None:
        self._local.stop(handle)

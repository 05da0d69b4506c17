"""The application for spark-submit: `run_services.py <path of the JobRequest JSON>`.

Runs every service of the request, one after another, and writes one JobResult. A request for a standing application
(`job_contract.WORK_URL`) has no service: the application pulls requests from the manager, until it is idle or old.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from airflow_lake_provider.errors import EngineError, LeaseLostError, ServiceRefusedError
from airflow_lake_provider.job_contract import (
    LAKE_PREFIX,
    TRAITS,
    WORK_URL,
    FailureKind,
    JobRequest,
    JobResult,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    from_json,
)
from lake_jobs.driver.application import jvm_pid, memory_of, run_application
from lake_jobs.driver.failure import classify, describe
from lake_jobs.driver.files import log_progress
from lake_jobs.driver.shutdown import DriverExit, lock_file_of
from lake_jobs.driver.standing import (
    ItemKind,
    StandingApplication,
    StandingSettings,
    WorkSource,
    ZoneGate,
    failed_result,
)
from lake_jobs.hudi.ancient_dates import copy_ancient_dates
from lake_jobs.hudi.java_errors import keep_java_errors
from lake_jobs.hudi.lock_file import find_causes
from lake_jobs.hudi.table import find_zone

RunService = Callable[[SparkSession, JobRequest, ServiceRequest], ServiceResult]


def find_job(name: str) -> RunService:
    """Return the function of a Spark job by its module and name below `lake_jobs`."""
    module, _, function = name.partition(":")
    found: RunService = getattr(importlib.import_module(f"lake_jobs.{module}"), function)
    return found


SERVICES: Mapping[Service, RunService] = MappingProxyType(
    {service: find_job(traits.job) for service, traits in TRAITS.items()}
)


_STANDING: list[StandingApplication[JobRequest, JobResult]] = []
"""The process's standing application, for the lock files that must be absent when it ends itself."""


def run_job(spark: SparkSession, request: JobRequest, find_cancelled: Callable[[], str] = str) -> JobResult:
    """Run all services of a request in its order; a failing one does not stop the others.

    Those that have not begun when `find_cancelled` returns a reason do not begin.
    """
    if WORK_URL in request.hudi_options:
        return run_standing(spark, request)
    # Read first: a service may take the JVM down with it, and the result is still to be written.
    application_id = str(spark.sparkContext.applicationId)
    memory = memory_of(spark)
    results = tuple(
        _failed(service, FailureKind.OTHER, f"it did not begin: {why}")
        if (why := find_cancelled())
        else run_service(spark, request, service)
        for service in request.services
    )
    return JobResult(request.job_id, results, application_id, memory)


def run_standing(spark: SparkSession, request: JobRequest) -> JobResult:
    """Run a standing application to its end."""
    gate = ZoneGate()

    def run_item(item: JobRequest, find_cancelled: Callable[[], str]) -> JobResult:
        with gate.enter(find_zone(spark, item.base_path)):
            return run_job(spark, item, find_cancelled)

    settings = StandingSettings.of(request.hudi_options)
    source = WorkSource(request.hudi_options)
    kind = ItemKind(partial(from_json, JobRequest), run_item, failed_result, lock_file_of)
    application = StandingApplication(source, settings, spark.sparkContext, kind, partial(find_end, spark))
    _STANDING.append(application)
    application_id = str(spark.sparkContext.applicationId)
    pid = jvm_pid(spark)
    try:
        application.run()
    except LeaseLostError as error:
        # Another application has these items, or is about to: this JVM must not write any more.
        DriverExit(pid, spark, "", application.lock_files).exit(str(error))
    except EngineError as error:
        # It writes no more, and releases no lock.
        DriverExit(pid).exit(str(error))
    return JobResult(request.job_id, (), application_id)


def find_end(spark: SparkSession) -> str:
    """Return why Spark has ended by itself, empty while it is there."""
    context: Any = spark.sparkContext
    try:
        # Spark ends its JVM when a thread of it is out of memory, and stops its context on the way.
        return "Spark's context was stopped" if context._jsc.sc().isStopped() else ""
    except Exception as error:  # noqa: BLE001 - py4j's errors have no common class, and all mean that no JVM answers
        return f"Spark's JVM does not answer ({type(error).__name__})"


def _lock_files() -> list[str]:
    return [file for application in _STANDING for file in application.lock_files()]


def run_service(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one service and return how it went; raise nothing but what ends the process."""
    # A task has them among Hudi's, because the tables file and a run's conf do.
    own = {key: value for key, value in job.hudi_options.items() if key.startswith(LAKE_PREFIX)}
    request = replace(request, options={**own, **request.options})
    started_at = datetime.now(UTC).isoformat()
    started = time.monotonic()
    keep_java_errors()
    log_progress(job.table_name, f"{request.service}, mode {request.mode}, job {job.job_id}")
    try:
        with copy_ancient_dates(spark):
            result = SERVICES[request.service](spark, job, request)
    except Py4JJavaError as error:
        traceback.print_exc()
        causes = find_causes(spark, job.base_path, {**job.hudi_options, **request.options}, error)
        message = f"table {job.table_name} at {job.base_path}: {describe(causes)}"
        result = _failed(request, classify(causes), message)
    except ServiceRefusedError as error:
        result = _failed(request, FailureKind.REFUSED, f"{error}")
    except Exception as error:  # noqa: BLE001 - the outermost loop: the other services of the job still run
        if type(error).__module__.startswith("py4j"):
            traceback.print_exc()
        result = _failed(request, FailureKind.OTHER, f"{error}")
    seconds = time.monotonic() - started
    log_progress(job.table_name, f"{request.service} {result.outcome} after {seconds:.1f} s {result.message}".rstrip())
    return replace(result, started_at=started_at, ended_at=datetime.now(UTC).isoformat())


def _failed(request: ServiceRequest, kind: FailureKind, message: str) -> ServiceResult:
    return ServiceResult(request.service, Outcome.FAILED, failure_kind=kind, message=message)


if __name__ == "__main__":
    sys.exit(run_application(sys.argv[1:], JobRequest, run_job, lock_file_of, _lock_files))

"""The application for spark-submit: `run_services.py <path of the JobRequest JSON>`.

Runs every service of the request, one after another, and writes one JobResult. Exit codes: 0 all services ended well,
1 at least one failed (the result says which), 2 there was no usable request or the result could not be written.
A driver that ends itself because its submitter is gone exits with 75.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import job_files
from archive import run_archive
from clean import run_clean
from clustering import run_clustering
from compaction import run_compaction
from driver_end import DriverEnd, lock_file_of
from failure_kind import causes_of, classify, describe
from indexing import run_indexing
from job_contract import (
    MEMORY_KEYS,
    FailureKind,
    JobRequest,
    JobResult,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    request_from_json,
    result_to_json,
)
from log_compaction import run_log_compaction
from metadata_compaction import run_metadata_compaction
from partition_ttl import run_ttl
from planned_service import ServiceRefusedError
from progress import say
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.sql import SparkSession
from rollback import run_rollback
from submitter_watch import watch_submitter

LOG_LEVEL = "spark.log.level"
# Hudi's INFO lines would drown ours, and these warn of what is meant: settings that it writes down, a lock that is
# tried again (one stack trace each time), a heartbeat that a plan never had. `--conf spark.log.level=INFO` brings all
# of it back.
DEFAULT_LOG_LEVEL = "WARN"
QUIET_LOGGERS = (
    "org.apache.hudi.client.heartbeat.HoodieHeartbeatClient",
    "org.apache.hudi.common.table.HoodieTableConfig",
    "org.apache.hudi.common.util.RetryHelper",
    "org.apache.hudi.config.HoodieWriteConfig",
)

RunService = Callable[[SparkSession, JobRequest, ServiceRequest], ServiceResult]

SERVICES: Mapping[Service, RunService] = MappingProxyType(
    {
        Service.COMPACTION: run_compaction,
        Service.CLUSTERING: run_clustering,
        Service.CLEAN: run_clean,
        Service.ARCHIVE: run_archive,
        Service.LOGCOMPACTION: run_log_compaction,
        Service.ROLLBACK: run_rollback,
        Service.TTL: run_ttl,
        Service.METACOMPACTION: run_metadata_compaction,
        Service.INDEXING: run_indexing,
    }
)

# What Hudi needs from a session, where spark-submit did not say otherwise.
SESSION_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.ui.showConsoleProgress": "false",
    }
)


def open_session() -> SparkSession:
    """Start Spark with spark-submit's settings over our defaults."""
    conf = SparkConf()
    quiet = not conf.contains(LOG_LEVEL)
    conf.setIfMissing(LOG_LEVEL, DEFAULT_LOG_LEVEL)
    for key, value in SESSION_DEFAULTS.items():
        conf.setIfMissing(key, value)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if quiet:
        log4j = spark._jvm.org.apache.logging.log4j
        for name in QUIET_LOGGERS:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    return spark


def run_job(spark: SparkSession, request: JobRequest) -> JobResult:
    """Run all services of a request in its order; a failing one does not stop the others."""
    # Asked for first: a service may take the JVM down with it, and the result is still to be written.
    application_id = str(spark.sparkContext.applicationId)
    settings = spark.sparkContext.getConf()
    memory = {key: size for key in MEMORY_KEYS if (size := settings.get(key))}
    results = tuple(run_service(spark, request, service) for service in request.services)
    return JobResult(request.job_id, results, application_id, memory)


def run_service(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one service and say how it went; raises nothing but what ends the process."""
    started_at, started = datetime.now(UTC).isoformat(), time.monotonic()
    say(job.table_name, f"{request.service}, mode {request.mode}, job {job.job_id}")
    try:
        result = SERVICES[request.service](spark, job, request)
    except Py4JJavaError as error:
        traceback.print_exc()
        causes = causes_of(error.java_exception)
        result = _failed(request, classify(causes), describe(causes))
    except ServiceRefusedError as error:
        result = _failed(request, FailureKind.REFUSED, f"{error}")
    except Exception as error:  # noqa: BLE001 - the outermost loop: the other services of the job still run
        if type(error).__module__.startswith("py4j"):
            traceback.print_exc()
        result = _failed(request, FailureKind.OTHER, f"{error}")
    seconds = time.monotonic() - started
    say(job.table_name, f"{request.service} {result.outcome} after {seconds:.1f} s {result.message}".rstrip())
    return replace(result, started_at=started_at, ended_at=datetime.now(UTC).isoformat())


def main(arguments: list[str]) -> int:
    """Read the request, run it, write the result; return the exit code."""
    if len(arguments) != 1:
        print("usage: spark-submit ... run_services.py <path of the request JSON>", file=sys.stderr)
        return 2
    try:
        spark = open_session()
        request = request_from_json(job_files.read_text(spark, arguments[0]))
    except Exception:  # noqa: BLE001 - the edge: whatever it is, nothing has been touched yet
        traceback.print_exc()
        print(f"lake: no usable request at {arguments[0]}, or Spark did not start", flush=True)
        return 2
    driver = DriverEnd(jvm_pid(spark), spark, lock_file_of(request))
    driver.end_at_sigterm()
    watch_submitter(request.submitter, driver.end)
    result = run_job(spark, request)
    try:
        job_files.write_text(spark, request.result_path, result_to_json(result))
    except Exception:  # noqa: BLE001 - the edge: the timeline tells what was done
        traceback.print_exc()
        return 2
    return 1 if any(service.outcome is Outcome.FAILED for service in result.services) else 0


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the session's JVM."""
    # "pid@host" on every Java that Spark runs on.
    return int(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName().split("@")[0])


def _failed(request: ServiceRequest, kind: FailureKind, message: str) -> ServiceResult:
    return ServiceResult(request.service, Outcome.FAILED, failure_kind=kind, message=message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

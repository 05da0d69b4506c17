"""One application from start to end: open Spark, read the request, run it, write the result, exit with a code.

The two scripts that spark-submit starts differ in their request and in what they run; everything else is here.
"""

from __future__ import annotations

import sys
import traceback
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO_CLUSTER,
    EXIT_UNUSABLE,
    HUDI_SPARK_CONF,
    MEMORY_KEYS,
    Submitter,
    from_json,
    to_json,
)
from lake_jobs.driver import files
from lake_jobs.driver.failure import causes_of, find_away
from lake_jobs.driver.java_names import prepare_java_names
from lake_jobs.driver.shutdown import DriverExit, exit_driver_when_orphaned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark import SparkContext

LOG_LEVEL = "spark.log.level"
# Hudi's INFO lines would drown the job's own, and these loggers warn of what is intended: settings that it writes down,
# a lock that is tried again (one stack trace each time), a heartbeat that a plan never had. `--conf
# spark.log.level=INFO` brings all of it back.
DEFAULT_LOG_LEVEL = "WARN"
QUIET_LOGGERS = (
    "org.apache.hudi.client.heartbeat.HoodieHeartbeatClient",
    "org.apache.hudi.common.table.HoodieTableConfig",
    "org.apache.hudi.common.util.RetryHelper",
    "org.apache.hudi.config.HoodieWriteConfig",
)
SESSION_DEFAULTS: Mapping[str, str] = MappingProxyType({**HUDI_SPARK_CONF, "spark.ui.showConsoleProgress": "false"})
"""What a session has where spark-submit did not say otherwise."""


class Request(Protocol):
    """What every request says."""

    @property
    def result_path(self) -> str:
        """Where the result belongs."""

    @property
    def submitter(self) -> Submitter | None:
        """The process that started the job."""


class Result(Protocol):
    """What every result says."""

    @property
    def has_failed(self) -> bool:
        """Whether the job did not do what was asked."""


_Request = TypeVar("_Request", bound=Request)


def run_application(
    arguments: list[str],
    request_class: type[_Request],
    run: Callable[[SparkSession, _Request], Result],
    lock_file_of: Callable[[_Request], str] = lambda _: "",
    more_lock_files: Callable[[], Sequence[str]] = tuple,
) -> int:
    """Run the request of the file that the arguments name; return the exit code (`job_contract.EXIT_*`).

    `run` raises nothing but what ends the process. `lock_file_of` names the file of the lock that a job may hold: the
    driver does not end itself while it is there, nor while one of `more_lock_files` is, which may change.
    """
    if len(arguments) != 1:
        print("usage: spark-submit ... APPLICATION <path of the request JSON>", file=sys.stderr)
        return EXIT_UNUSABLE
    try:
        spark = open_session()
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the table is untouched
        traceback.print_exc()
        away = find_away(causes_of(error.java_exception)) if isinstance(error, Py4JJavaError) else ""
        if away:
            print(f"lake: {away}", flush=True)
            return EXIT_NO_CLUSTER
        print("lake: Spark did not start", flush=True)
        return EXIT_UNUSABLE
    if spark.sparkContext.master.startswith("yarn"):
        # Spark itself says it only in the lines that are left out here.
        application_id = spark.sparkContext.applicationId
        print(
            f"lake: the containers' logs, once they have ended: yarn logs -applicationId {application_id}", flush=True
        )
    try:
        request = from_json(request_class, files.read_text(spark, arguments[0]))
    except Exception:  # noqa: BLE001 - the edge: whatever it is, the table is untouched
        traceback.print_exc()
        print(f"lake: no usable request at {arguments[0]}", flush=True)
        return EXIT_UNUSABLE
    prepare_java_names()
    driver_exit = DriverExit(jvm_pid(spark), spark, lock_file_of(request), more_lock_files)
    driver_exit.exit_at_sigterm()
    exit_driver_when_orphaned(request.submitter, driver_exit.exit)
    result = run(spark, request)
    try:
        files.write_text(spark, request.result_path, to_json(result))
    except Exception:  # noqa: BLE001 - the edge: the timeline, or the sink, shows what was done
        traceback.print_exc()
        return EXIT_UNUSABLE
    return EXIT_FAILED if result.has_failed else EXIT_DONE


def open_session() -> SparkSession:
    """Start Spark with spark-submit's settings over the defaults."""
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


def memory_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings of memory that are in force, wherever they came from."""
    return dict(_memory_of(spark.sparkContext))


@cache
def _memory_of(context: SparkContext) -> Mapping[str, str]:
    # Each call copies all settings, a call into the JVM each; a driver of many streams asks for every run.
    settings = context.getConf()
    return {key: size for key in MEMORY_KEYS if (size := settings.get(key))}


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the session's JVM."""
    # "pid@host" on every Java that Spark runs on.
    return int(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName().split("@")[0])

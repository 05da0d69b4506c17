"""Why a driver died that left no result: its last exception, of the lines that it printed."""

from __future__ import annotations

import pytest

from airflow_lake_provider.execution.engines.engine import Death, as_shortage, find_last_exception
from airflow_lake_provider.job_contract import FailureKind

JAVA = [
    'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be a positive number',
    "\tat org.apache.spark.deploy.SparkSubmit.doSubmit(SparkSubmit.scala:120)",
    "26/11/27 INFO ShutdownHookManager: Shutdown hook called",
]
CAUSED = [*JAVA[:2], "Caused by: java.io.FileNotFoundException: no such file: /a/b", "\tat java.io.X: y"]
NO_JVM = [
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
]
PYTHON = ["Traceback (most recent call last):", '  File "job.py", line 1', "ValueError: no such table"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(JAVA, "SparkException: Executor memory must be a positive number", id="java"),
        pytest.param(CAUSED, "FileNotFoundException: no such file: /a/b", id="innermost-cause"),
        pytest.param(PYTHON, "ValueError: no such table", id="python"),
        pytest.param(["26/11/27 ERROR X: java.lang.OutOfMemoryError: heap"], "OutOfMemoryError: heap", id="log-line"),
        pytest.param(
            ["Invalid maximum heap size: -Xmx0g", *NO_JVM], "no result: Invalid maximum heap size: -Xmx0g", id="no-jvm"
        ),
        pytest.param(NO_JVM, "no result: A fatal exception has occurred. Program will exit.", id="no-jvm-alone"),
        pytest.param(["Error: Unrecognized option: --x\n", ""], "no result: Unrecognized option: --x", id="option"),
        pytest.param(["all is well"], "its output is in the log", id="none"),
        pytest.param([], "its output is in the log", id="silent"),
    ],
)
def test_last_exception_is_the_reason(lines: list[str], says: str) -> None:
    assert find_last_exception(lines, 1).reason.endswith(says)
    assert find_last_exception(lines, 1).reason.startswith("the driver ended with code 1")
    assert find_last_exception(lines, -9).reason.startswith("the driver was killed by signal 9")


def test_jvm_without_memory_shows_behind_what_python_says_of_it() -> None:
    lines = ["java.lang.OutOfMemoryError: Java heap space", "Dumping heap", "py4j.protocol.Py4JNetworkError: Answer"]
    death = find_last_exception(lines, 1)
    assert (death.failure_kind, death.reason.endswith("Py4JNetworkError: Answer")) == (FailureKind.OUT_OF_MEMORY, True)
    assert find_last_exception(PYTHON, 1).failure_kind is FailureKind.OTHER
    known = Death("refused", FailureKind.REFUSED)
    assert as_shortage(known, lines) is known


def test_reason_is_bounded() -> None:
    assert len(find_last_exception([f"a.BadError: {'x' * 9999}"], 1).reason) == 500

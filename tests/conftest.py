"""Allowed roots of tests; `LAKE_DURATIONS` and `LAKE_OUTCOMES` name folders for how long each took and how it ended."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support import chosen_ports
from tests.support.durations import CPU_FOLDER, FAILED_FOLDER, Durations, read_cpu_s

seconds: Counter[str] = Counter()
cpu_s: Counter[str] = Counter()
outcomes: dict[str, str] = {}
reasons: dict[str, str] = {}
OUTCOMES = ["", "passed", "skipped", "failed"]
"""The later one of two counts."""

if importlib.util.find_spec("hypothesis"):  # the environment of Spark may lack it
    from hypothesis import HealthCheck, settings

    # A machine under load generates slowly, and a test that says nothing of time must not fail by it.
    settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("loaded")

chosen_ports.refuse_others()

# Operators start nothing outside these; a test of that sets its own.
os.environ.setdefault("AIRFLOW__LAKE__ALLOWED_ROOTS", f"/lake,{tempfile.gettempdir()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before_s = read_cpu_s()
    try:
        return (yield)
    finally:
        cpu_s[item.nodeid] += max(read_cpu_s() - before_s, 0.0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count set-up and teardown in: what a fixture costs is a test's cost as well."""
    seconds[report.nodeid] += report.duration
    # A test whose set-up or teardown fails has failed; one that is skipped says so in its set-up.
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = max(outcomes.get(report.nodeid, ""), report.outcome, key=OUTCOMES.index)
    _keep_reason(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported fails its whole tier, though none of its tests did."""
    _keep_reason(report)


def _keep_reason(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reasons[report.nodeid] = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)


def pytest_sessionfinish() -> None:
    folder = os.environ.get("LAKE_DURATIONS")
    if folder and (seconds or reasons):
        Durations(Path(folder)).save(seconds)
        Durations(Path(folder) / CPU_FOLDER).save(cpu_s)
        Durations(Path(folder) / FAILED_FOLDER).save(reasons)
    folder = os.environ.get("LAKE_OUTCOMES")
    if folder and outcomes:
        Durations(Path(folder)).save(outcomes)

"""How the task of a standing application ends when its application does: well only when it ended by itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError, ServiceRefusedError
from airflow_lake_provider.execution import job
from airflow_lake_provider.execution.engines.engine import Death, EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.execution.engines.warm import application_key
from airflow_lake_provider.job_contract import FailureKind, JobResult, to_json
from tests.support.engine_jobs import FakeEngine


class FakeLease:
    """A lease that is held all the time."""

    error = None
    token = "lease"

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> FakeLease:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require_held(self) -> None:
        pass


class StandingEngine(FakeEngine):
    """Ends by itself as `application_1`, or dies of `death`."""

    def wait(self, handle: Handle) -> Death | None:
        if self.death is None:
            write_text(
                handle.job.request.result_path, to_json(JobResult(handle.job.request.job_id, (), "application_1"))
            )
        return self.death


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandingEngine:
    engine = StandingEngine(external_id="application_1")
    hook = SimpleNamespace(
        get_application=lambda _: {"queue": "", "spark_conn_id": "yarn", "spark_conf": {}},
        find_address=lambda: ("http://m", "t"),
    )
    monkeypatch.setattr(job, "LakeHook", lambda *_: hook)
    monkeypatch.setattr(job, "LeaseKeeper", FakeLease)
    monkeypatch.setattr(job, "work_dir", lambda: str(tmp_path))
    monkeypatch.setattr(job, "create_engine", lambda _: engine)
    monkeypatch.setattr("airflow_lake_provider.execution.engines.job_files.resolve_secrets", dict)
    return engine


KEY = application_key("", "yarn", {})


def run() -> str:
    return job.run_standing_application(KEY, f"{KEY}.x", 1, "lake_default")


def test_application_that_ended_by_itself_is_named(engine: StandingEngine) -> None:
    assert run() == "application_1"
    assert isinstance(engine, FakeEngine)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.OTHER, EngineError),
        (FailureKind.REFUSED, ServiceRefusedError),
        (FailureKind.INFRASTRUCTURE, EngineAwayError),
    ],
)
def test_application_that_died_fails_its_task_with_the_reason(
    engine: StandingEngine, kind: FailureKind, error: type[Exception]
) -> None:
    engine.death = Death("YARN application application_1 ended as FAILED: killed", kind)
    with pytest.raises(error, match=f"standing application {KEY}: YARN application application_1 ended") as raised:
        run()
    assert type(raised.value) is error


def test_application_without_a_result_or_a_reason_fails_its_task(
    engine: StandingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: EngineJob) -> None:
        """Leave nothing."""

    monkeypatch.setattr(engine, "wait", wait)
    with pytest.raises(EngineError, match="ended without a result"):
        run()

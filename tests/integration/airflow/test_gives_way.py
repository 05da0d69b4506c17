"""The operator's way out when its clustering gives way to a writer, with an engine that plays a cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.contention import Clash, ClashKind
from airflow_lake_provider.conflict.service_watch import ServiceConflict
from airflow_lake_provider.errors import EngineError, ServiceFailedError
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import JobFolder, write_text
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.timeline import Timeline, build_timeline
from airflow_lake_provider.job_contract import (
    EXECUTOR_ENDED,
    FailureKind,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    to_json,
)
from tests.support.engine_jobs import engine_job

pytestmark = pytest.mark.integration

PLAN, WRITER = "20261121100000001", "20261121100000003"
CONFLICT = ServiceConflict(PLAN, (Clash(WRITER, "commit", ClashKind.MARKER, frozenset({b"Oslo/f1-0"})),), 7_000)
PATIENCE_S = 30.0


class Cluster:
    """An engine and its table: a clustering runs until it is ended, a withdrawal takes the plan away."""

    def __init__(self, *, loses_at_commit: bool) -> None:
        self.names = [f"{PLAN}.clustering.requested"]
        self.modes: list[Mode] = []
        self.options: list[dict[str, str]] = []
        self._loses = loses_at_commit
        self._ended = threading.Event()

    def read(self) -> Timeline:
        return build_timeline(Layout.V2, self.names)

    def start(self, job: EngineJob) -> Handle:
        (service,) = job.request.services
        self.modes.append(service.mode)
        self.options.append(dict(service.options))
        return Handle(job)

    def wait(self, handle: Handle) -> None:
        request = handle.job.request
        if request.services[0].mode is Mode.WITHDRAW:
            self.names.clear()
        elif self._loses:
            result = ServiceResult(
                Service.CLUSTERING, Outcome.FAILED, (PLAN,), (), FailureKind.CONFLICT, "Cannot resolve"
            )
            write_text(request.result_path, to_json(JobResult(request.job_id, (result,))))
        else:
            assert self._ended.wait(PATIENCE_S)
            raise EngineError("the job was killed")

    def stop(self, handle: Handle) -> None:
        self._ended.set()


class FakeHook:
    def acquire_executor(self, *_: Any, **__: Any) -> tuple[str, float]:
        return "token", 60.0

    def release_executor(self, *_: Any) -> None:
        """No other process asks for it."""


def execute(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, conflict: ServiceConflict | None
) -> None:
    from airflow_lake_provider.operators import table_service

    monkeypatch.setattr(table_service, "create_engine", lambda _: cluster)
    watch = None if conflict is None else SimpleNamespace(check=lambda _: conflict)
    policy = ConflictPolicy(enabled=conflict is not None, period_s=0.01, initial_delay_s=0.01)
    admission: Any = SimpleNamespace(policy=policy, watch=lambda _: watch)
    job = engine_job(tmp_path, wanted=ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE))
    operator = table_service.HudiTableServiceOperator(
        task_id="run_service", base_path="/lake/orders", service="compaction"
    )
    hook: Any = FakeHook()
    table: Any = SimpleNamespace(timeline=cluster.read, timeline_of=lambda _: cluster.read())
    operator._execute_job(hook, JobFolder(str(tmp_path), "run", 1), job, admission, table)


def test_clustering_that_the_watch_ends_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(loses_at_commit=False)
    with pytest.raises(ServiceFailedError, match=f"{PLAN} is stopped after .* is withdrawn and will be made again"):
        execute(tmp_path, cluster, monkeypatch, CONFLICT)
    assert cluster.modes == [Mode.SCHEDULE_AND_EXECUTE, Mode.WITHDRAW]
    assert cluster.options[1] == {EXECUTOR_ENDED: "true"}


def test_clustering_that_lost_at_its_commit_is_withdrawn_without_early_detection_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(loses_at_commit=True)
    with pytest.raises(ServiceFailedError, match=f"{PLAN} lost to a writer at its commit.* is withdrawn") as raised:
        execute(tmp_path, cluster, monkeypatch, None)
    assert raised.value.failure_kind == FailureKind.CONFLICT
    assert (cluster.modes, cluster.options[1]) == ([Mode.SCHEDULE_AND_EXECUTE, Mode.WITHDRAW], {})

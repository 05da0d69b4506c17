"""The engine of docs/engines.md, word for word, against a Livy that is played."""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import EngineError
from airflow_lake_provider.execution.engines.engine import GROUP, Engine, EngineJob, Handle, create_engine
from airflow_lake_provider.execution.engines.job_files import ExecutorRecord
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.job_contract import Service
from tests.integration.engines.fake_api import Answer, serve
from tests.support.engine_jobs import engine_job, never_lost

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(NAME, VALUE) = re.findall(r'^(\w+) = "([\w.]+:\w+)"$', PAGE, re.MULTILINE)[0]


@dataclass
class FakeLivy:
    """Batches by id, with how often each is still seen running; it never ends by itself when that is None."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    polls_until_end: int | None = 2

    def route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if method == "POST":
            self.batches.append({"id": len(self.batches), "state": "running", **body})
            return 201, self.batches[-1]
        if method == "DELETE":
            self.batches[int(path.rpartition("/")[2])]["state"] = "killed"
            return 200, {"msg": "deleted"}
        if self.polls_until_end is not None:
            self.polls_until_end -= 1
            if self.polls_until_end < 0:
                self.batches[-1]["state"] = "success"
        return 200, {"sessions": self.batches}


@pytest.fixture
def livy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLivy]:
    fake = FakeLivy()
    with serve(fake.route) as port:
        monkeypatch.setitem(os.environ, "LIVY_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setitem(os.environ, "LIVY_POLL_S", "0.01")
        yield fake


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Create the engine as an installed package's, by its documented entry point."""
    module_name = VALUE.partition(":")[0]
    package, module = types.ModuleType(module_name.partition(".")[0]), types.ModuleType(module_name)
    exec(compile(CODE, "docs/engines.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module_name, module)
    return create_engine(NAME, [EntryPoint(NAME, VALUE, GROUP)])


def run(folder: Path, job: EngineJob, engine: Engine) -> None:
    JobRun(job, ExecutorRecord(str(folder), "t", Service.COMPACTION), lambda _: engine).run(never_lost)


def test_job_runs_to_its_end(livy: FakeLivy, engine: Engine, tmp_path: Path) -> None:
    job = engine_job(tmp_path, engine=NAME, jars="/jars/hudi.jar")
    run(tmp_path, job, engine)
    (batch,) = livy.batches
    assert batch["args"] == [job.request_path]
    assert batch["file"].endswith("run_services.py")
    assert batch["jars"] == ["/jars/hudi.jar"]
    assert batch["state"] == "success"


def test_job_that_no_task_follows_any_more_is_ended_before_another_begins(
    livy: FakeLivy, engine: Engine, tmp_path: Path
) -> None:
    livy.polls_until_end = None
    left = engine_job(tmp_path, engine=NAME)
    ExecutorRecord(str(tmp_path), "t", Service.COMPACTION).begin(left)
    engine.start(left)
    engine.stop(Handle(left))
    livy.batches[0]["state"] = "running"
    livy.polls_until_end = 3
    run(tmp_path, engine_job(tmp_path, engine=NAME, run_id="other"), engine)
    assert [batch["state"] for batch in livy.batches] == ["killed", "success"]


def test_livy_that_does_not_answer_proves_nothing(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "LIVY_URL", "http://127.0.0.1:9")
    with pytest.raises(EngineError, match="does not answer"):
        engine.stop(Handle(engine_job(tmp_path)))

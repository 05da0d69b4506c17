"""Which work a standing application gets, and the engine `warm` against a manager that is played by a fake."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_lake_provider.errors import EngineError, ManagerUnreachableError
from airflow_lake_provider.execution.engines import warm
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle, create_engine
from airflow_lake_provider.execution.engines.packaging import standing_conf
from airflow_lake_provider.execution.engines.warm import (
    WarmEngine,
    application_key,
    choose_engine,
    expected_bytes,
    item_of,
)
from airflow_lake_provider.job_contract import JobRequest, JobResult, Mode, Service, ServiceRequest, to_json

MIB = 1024 * 1024


def request_of(
    service: Service = Service.COMPACTION, mode: Mode = Mode.EXECUTE, result_path: str = "/r", **options: str
) -> JobRequest:
    return JobRequest(
        "run/2", "/lake/orders", "orders", (ServiceRequest(service, mode),), result_path, hudi_options=options
    )


ROWS_EXPIRE = replace(
    request_of(), services=(ServiceRequest(Service.TTL, Mode.EXECUTE, options={"lake.ttl.column": "seen"}),)
)


@pytest.mark.parametrize(
    ("wanted", "request_", "size_bytes", "why", "engine"),
    [
        pytest.param("spark-submit", request_of(), 1, "", "spark-submit", id="named-engine-stays"),
        pytest.param("in-process", request_of(Service.CLUSTERING), 1, "", "in-process", id="any-named-engine-stays"),
        pytest.param("warm", request_of(), 10**12, "", "warm", id="warm-takes-any-size"),
        pytest.param("warm", request_of(Service.CLUSTERING), 1, "", "spark-submit", id="clustering-is-watched"),
        pytest.param("warm", request_of(Service.INDEXING), 1, "", "spark-submit", id="indexing-sets-the-session"),
        pytest.param("warm", request_of(), 1, "it needs more memory", "spark-submit", id="more-memory"),
        pytest.param("warm", request_of(key="secret://variable/x"), 1, "", "spark-submit", id="secrets-are-not-kept"),
        pytest.param("auto", request_of(), 256 * MIB, "", "warm", id="small"),
        pytest.param("auto", request_of(), 256 * MIB + 1, "", "spark-submit", id="large"),
        pytest.param("auto", request_of(), None, "", "spark-submit", id="size-not-known"),
        pytest.param("auto", request_of(Service.CLEAN), None, "", "warm", id="reads-no-data"),
        pytest.param("auto", request_of(Service.ARCHIVE), None, "", "warm", id="archive"),
        pytest.param("auto", request_of(Service.TTL), None, "", "warm", id="partitions-that-expire"),
        pytest.param("auto", ROWS_EXPIRE, None, "", "spark-submit", id="rows-that-expire"),
        pytest.param("auto", request_of(Service.CLUSTERING), 1, "", "spark-submit", id="auto-clustering"),
    ],
)
def test_choice(wanted: str, request_: JobRequest, size_bytes: int | None, why: str, engine: str) -> None:
    chosen, reason = choose_engine(wanted, request_, size_bytes, 256 * MIB, why)
    assert chosen == engine
    assert bool(reason) is (wanted in {"warm", "auto"})


@pytest.mark.parametrize(
    ("evidence", "size_bytes"),
    [
        ({"log_bytes": 10, "base_bytes": 5, "unsized_file_groups": 0}, 15),
        ({"log_bytes": 10, "base_bytes": 5, "unsized_file_groups": 1}, None),
        ({"log_bytes": 10}, None),
        ({}, None),
        (None, None),
    ],
)
def test_size_is_that_of_the_decision(evidence: Any, size_bytes: int | None) -> None:
    assert expected_bytes(evidence) == size_bytes


def test_applications_differ_by_queue_connection_and_settings() -> None:
    kinds = [("", "c", {}), ("q", "c", {}), ("", "d", {}), ("", "c", {"spark.x": "1"})]
    assert len({application_key(*kind) for kind in kinds}) == 4
    assert application_key("", "c", {"a": "1", "b": "2"}) == application_key("", "c", {"b": "2", "a": "1"})


@dataclass
class FakeHook:
    """The manager: answers in turn; an exception is raised."""

    answers: ClassVar[list[Any]] = []
    submitted: ClassVar[list[Any]] = []
    cancelled: ClassVar[list[str]] = []
    state: ClassVar[str] = "waiting"
    lake_conn_id: str = ""

    def submit_work(self, table_id: str, item: dict[str, Any]) -> str:
        self.submitted.append((table_id, item))
        return self.state

    def ask_work(self, questions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        empty = {"lines": [], "line_count": 0, "result": "", "message": ""}
        return {question["item_id"]: empty | answer for question in questions}

    def cancel_work(self, item_id: str, reason: str) -> None:
        self.cancelled.append(item_id)


@dataclass
class FakeSubmit:
    calls: list[str] = field(default_factory=list)

    def start(self, job: EngineJob) -> Handle:
        self.calls.append("start")
        return Handle(job)

    def wait(self, handle: Handle) -> None:
        self.calls.append("wait")

    def stop(self, handle: Handle) -> None:
        self.calls.append("stop")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> WarmEngine:
    monkeypatch.setattr(warm, "LakeHook", FakeHook)
    monkeypatch.setattr(warm, "ASK_INTERVAL_S", 0.001)
    FakeHook.answers, FakeHook.submitted, FakeHook.cancelled, FakeHook.state = [], [], [], "waiting"
    engine = WarmEngine()
    engine._alone = FakeSubmit()
    return engine


def job_of(folder: Path) -> EngineJob:
    request = request_of(result_path=str(folder / "result.json"))
    return EngineJob(
        "warm", "lake-compaction-orders", request, str(folder / "request.json"), "here", "spark", queue="q"
    )


def test_job_is_an_item_whose_lines_and_result_come_back(
    engine: WarmEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = to_json(JobResult("run/2", ()))
    FakeHook.answers = [
        {"state": "waiting"},
        ManagerUnreachableError("away for a moment"),
        {"state": "running", "lines": ["lake: orders: begins"], "line_count": 1},
        {"state": "ended", "result": result},
    ]
    job = job_of(tmp_path)
    handle = engine.start(job)
    engine.wait(handle)
    ((table_id, item),) = FakeHook.submitted
    assert item == item_of(job)
    assert (item["run_id"], item["try_number"], item["item_id"]) == ("run", 2, job.tag)
    assert table_id.startswith("orders-")
    assert handle.external_id == job.tag
    assert (tmp_path / "result.json").read_text(encoding="utf-8") == result
    assert "lake: orders: begins" in caplog.text


@pytest.mark.parametrize("at_begin", [True, False])
def test_item_that_is_to_run_alone_gets_its_own_spark_submit(
    engine: WarmEngine, tmp_path: Path, *, at_begin: bool
) -> None:
    FakeHook.state = "alone" if at_begin else "waiting"
    FakeHook.answers = [{"state": "running"}, {"state": "alone"}]
    engine.wait(engine.start(job_of(tmp_path)))
    assert isinstance(engine._alone, FakeSubmit)
    assert engine._alone.calls == ["start", "wait"]


def test_stop_returns_when_the_item_has_ended(engine: WarmEngine, tmp_path: Path) -> None:
    FakeHook.answers = [{"state": "running"}, {"state": "running"}, {"state": "ended"}]
    handle = engine.start(job_of(tmp_path))
    engine.stop(handle)
    assert FakeHook.cancelled == [handle.job.tag]
    assert len(FakeHook.answers) == 1


def test_item_that_does_not_end_is_an_error(
    engine: WarmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "END_PATIENCE_S", 0.05)
    FakeHook.answers = [{"state": "running"}]
    with pytest.raises(EngineError, match="does not end"):
        engine.stop(engine.start(job_of(tmp_path)))


def test_request_travels_whole(tmp_path: Path) -> None:
    assert json.loads(item_of(job_of(tmp_path))["request"])["base_path"] == "/lake/orders"


def test_engine_is_registered() -> None:
    assert isinstance(create_engine("warm", []), WarmEngine)


def test_standing_application_has_room_for_garbage_and_finds_its_jars_first() -> None:
    conf = standing_conf({"spark.driver.memory": "2g"}, "/jars/hudi.jar, file:///jars/more.jar")
    assert conf == {
        "spark.scheduler.mode": "FAIR",
        "spark.driver.memory": "2g",
        "spark.driver.defaultJavaOptions": "-XX:NewRatio=1",
        "spark.driver.extraClassPath": "/jars/hudi.jar:/jars/more.jar",
    }


@pytest.mark.parametrize(
    "own",
    [
        {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"},
        {"spark.driver.defaultJavaOptions": "-Dx=y"},
        {"spark.driver.extraClassPath": "/mine", "spark.scheduler.mode": "FIFO"},
    ],
)
def test_settings_of_users_are_the_standing_applications(own: dict[str, str]) -> None:
    conf = standing_conf(own, "/jars/hudi.jar")
    assert own.items() <= conf.items()
    assert len(conf.keys() & {"spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"}) == 1


def test_jars_on_another_store_are_on_no_class_path() -> None:
    assert "spark.driver.extraClassPath" not in standing_conf({}, "/jars/hudi.jar,s3a://jars/more.jar")
    assert "spark.driver.extraClassPath" not in standing_conf({}, "")

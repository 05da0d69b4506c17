"""A dry run says what would run as people read it, and no secret."""

from __future__ import annotations

import pytest

from airflow_lake_provider.execution.arguments import describe
from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest

PLAN = "20261121120005000"


def job_of(mode: Mode, *instants: str, engine: str = "spark-submit") -> EngineJob:
    request = JobRequest(
        "run/1",
        "/lake/or ders",
        "orders",
        (ServiceRequest(Service.COMPACTION, mode, instants),),
        "/work/result.json",
        {"hoodie.write.lock.provider": "Zk", "hoodie.aws.secret.key": "hush"},
    )
    conf = {"spark.executor.memory": "2g", "spark.hadoop.fs.s3a.access.key": "hush"}
    return EngineJob(engine, "lake-compaction-orders", request, "/work/re quest.json", "w1", "spark_default", conf)


def lines_of(job: EngineJob, *pending: str) -> dict[str, str]:
    lines = describe(job, pending).splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_dry_run_names_table_service_mode_command_and_settings() -> None:
    lines = lines_of(job_of(Mode.SCHEDULE_AND_EXECUTE))
    assert lines["table"] == "/lake/or ders (orders)"
    assert lines["service"] == "compaction, mode schedule_and_execute"
    assert lines["engine"] == "spark-submit, where connection spark_default points"
    assert lines["command"].startswith("spark-submit --name lake-compaction-orders --conf spark.serializer=")
    assert "--conf spark.executor.memory=2g" in lines["command"]
    assert lines["command"].endswith("run_services.py '/work/re quest.json'")
    assert lines["Hudi"] == "hoodie.write.lock.provider=Zk, hoodie.aws.secret.key=***"
    assert "hush" not in "".join(lines.values())


@pytest.mark.parametrize(
    ("job", "pending", "says"),
    [
        pytest.param(job_of(Mode.EXECUTE, PLAN), (PLAN, "2"), f"{PLAN} would be executed", id="named"),
        pytest.param(job_of(Mode.EXECUTE), (PLAN,), f"all pending ones would be executed: {PLAN}", id="pending"),
        pytest.param(job_of(Mode.EXECUTE), (), "none is pending", id="none"),
        pytest.param(
            job_of(Mode.SCHEDULE_AND_EXECUTE), (), "none is pending: a new one would be made and executed", id="new"
        ),
        pytest.param(job_of(Mode.SCHEDULE), (PLAN,), "a new one would be made", id="schedule"),
    ],
)
def test_dry_run_says_which_plans(job: EngineJob, pending: tuple[str, ...], says: str) -> None:
    assert lines_of(job, *pending)["plans"] == says


def test_dry_run_of_another_engine_names_it() -> None:
    assert lines_of(job_of(Mode.EXECUTE, engine="flink"))["command"] == "that of engine flink"

"""The exact command, option by option, as Hudi's FlinkCompactionConfig and FlinkClusteringConfig spell them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution.engines.flink import (
    FlinkCluster,
    build_command,
    find_complaint,
    ids_of,
    parse_duration_s,
)
from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest
from tests.support.engine_jobs import engine_job

RECORDINGS = Path(__file__).resolve().parents[3] / "recordings" / "flink"
CLUSTER = FlinkCluster("jobmanager:8081", "/jars/hudi-flink-bundle.jar")
JOB_ID = "0123456789abcdef0123456789abcdef"
COMPACTOR = "org.apache.hudi.sink.compact.HoodieFlinkCompactor"
CLUSTERING_JOB = "org.apache.hudi.sink.clustering.HoodieFlinkClusteringJob"


@pytest.mark.parametrize(
    ("wanted", "class_name", "hudi_arguments"),
    [
        pytest.param(
            ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE),
            COMPACTOR,
            ["--schedule", "--plan-select-strategy", "all"],
            id="compaction-new-plan",
        ),
        pytest.param(
            ServiceRequest(Service.COMPACTION, Mode.EXECUTE),
            COMPACTOR,
            ["--plan-select-strategy", "all"],
            id="compaction-pending-plans",
        ),
        pytest.param(
            ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, ("001", "002")),
            COMPACTOR,
            ["--plan-select-strategy", "instants", "--target-instants", "001,002"],
            id="compaction-named-plans",
        ),
        pytest.param(
            ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE),
            CLUSTERING_JOB,
            ["--schedule"],
            id="clustering-new-plan",
        ),
        pytest.param(
            ServiceRequest(Service.CLUSTERING, Mode.EXECUTE, ("003",)),
            CLUSTERING_JOB,
            ["--instant-time", "003"],
            id="clustering-named-plan",
        ),
    ],
)
def test_command(tmp_path: Path, wanted: ServiceRequest, class_name: str, hudi_arguments: list[str]) -> None:
    job = engine_job(tmp_path, wanted=wanted, conf={"parallelism.default": "4"})
    assert build_command(job, CLUSTER, JOB_ID) == [
        "flink",
        "run",
        "--detached",
        "--jobmanager",
        "jobmanager:8081",
        "-Dparallelism.default=4",
        f"-Dlake.job={job.tag}",
        f"-D$internal.pipeline.job-id={JOB_ID}",
        "--class",
        class_name,
        "/jars/hudi-flink-bundle.jar",
        "--path",
        "/lake/orders",
        *hudi_arguments,
        "--hoodie-conf",
        "hoodie.write.lock.provider=L",
    ]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (ServiceRequest(Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE), "no Flink job for clean"),
        (ServiceRequest(Service.COMPACTION, Mode.SCHEDULE), "execute what they schedule"),
        (ServiceRequest(Service.CLUSTERING, Mode.EXECUTE, ("001", "002")), "one clustering plan, not 001, 002"),
    ],
)
def test_what_hudis_flink_jobs_cannot_do_is_refused(tmp_path: Path, wanted: ServiceRequest, says: str) -> None:
    with pytest.raises(ServiceRefusedError, match=says):
        build_command(engine_job(tmp_path, wanted=wanted), CLUSTER, JOB_ID)


@pytest.mark.parametrize(
    ("recording", "complaint"),
    [
        ("refused_connection", "ConnectException: Connection refused"),
        ("timeout", "ConnectionIdleException: Channel became idle."),
        ("duplicate", "DuplicateJobSubmissionException: Job has already been submitted."),
        ("program_fails", 'NumberFormatException: For input string: "soon"'),
        ("no_jar", "JAR file does not exist: missing.jar"),
        ("unavailable", "ongoing leader election"),
    ],
)
def test_failed_submissions_name_their_cause(recording: str, complaint: str) -> None:
    printed = (RECORDINGS / f"run_{recording}.txt").read_text(encoding="utf-8")
    assert complaint in find_complaint(printed.splitlines())


def test_each_submission_of_a_job_has_an_id_of_its_own(tmp_path: Path) -> None:
    ids = ids_of(engine_job(tmp_path))
    assert len({*ids, *ids_of(engine_job(tmp_path, try_number=2))}) == 2 * len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", job_id) for job_id in ids)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50 s", 50), ("4000", 4), ("4000 ms", 4), ("2min", 120), ("1 h", 3600), ("PT1M", 50), ("1 fortnight", 50)],
)
def test_duration_as_flink_writes_it(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds

"""The exact command, option by option, as Hudi's FlinkCompactionConfig and FlinkClusteringConfig spell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution.engines.flink import FlinkCluster, build_command
from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest
from tests.support.engine_jobs import engine_job

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

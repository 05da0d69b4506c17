from __future__ import annotations

import json
from pathlib import Path

from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.execution.engines.job_files import ExecutorRecord
from airflow_lake_provider.job_contract import Service
from tests.support.engine_jobs import engine_job


def test_record_is_read_back_and_leaves_secrets_out(tmp_path: Path) -> None:
    record = ExecutorRecord(str(tmp_path), "t", Service.CLEAN)
    conf = {"spark.kubernetes.namespace": "lake", "spark.hadoop.fs.s3a.secret.key": "s3cret"}
    job = engine_job(tmp_path, conn_id="yarn", conf=conf)
    record.begin(job)
    found = record.find()
    assert found is not None
    assert (found.job.request, found.job.tag, found.job.conn_id) == (job.request, job.tag, "yarn")
    assert found.job.conf == {"spark.kubernetes.namespace": "lake"}
    assert found.external_id == ""
    assert "s3cret" not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    record.started(Handle(job, "application_1"))
    assert (record.find() or Handle(job)).external_id == "application_1"
    record.forget()
    record.forget()
    assert record.find() is None


def test_external_id_of_an_older_job_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    record = ExecutorRecord(str(tmp_path), "t", Service.CLEAN)
    record.begin(engine_job(tmp_path))
    record.started(Handle(engine_job(tmp_path), "application_1"))
    record.begin(engine_job(tmp_path, try_number=2))
    found = record.find()
    assert found is not None
    assert found.external_id == ""


def test_half_written_record_means_that_nothing_was_started(tmp_path: Path) -> None:
    record = ExecutorRecord(str(tmp_path), "t", Service.CLEAN)
    record.begin(engine_job(tmp_path))
    (path,) = tmp_path.rglob("job.json")
    whole = path.read_text()
    assert json.loads(whole)["engine"] == "fake"
    path.write_text(whole[: len(whole) // 2])
    assert record.find() is None

"""The job's files through Hadoop's FileSystem, as on HDFS or an object store; here it is Hadoop's own local one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from lake_jobs.driver import files as job_files

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(job_files, "find_local_path", lambda path: None)
    return f"file://{tmp_path}/jobs of today"


def test_file_is_written_whole_replaced_and_read_back(spark: SparkSession, store: str, tmp_path: Path) -> None:
    job_files.write_text(spark, f"{store}/result.json", "first")
    job_files.write_text(spark, f"{store}/result.json", "zweite Fassung: ß")
    assert job_files.read_text(spark, f"{store}/result.json") == "zweite Fassung: ß"
    names = [path.name for path in (tmp_path / "jobs of today").iterdir() if not path.name.endswith(".crc")]
    assert names == ["result.json"]


def test_absent_file_is_an_error(spark: SparkSession, store: str) -> None:
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        job_files.read_text(spark, f"{store}/none.json")

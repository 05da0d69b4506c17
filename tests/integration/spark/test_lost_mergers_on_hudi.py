"""Tables of version 6 whose rows an owner's class merges: Hudi 1.2 merges by the payload class in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, content, run

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.job_contract import FailureKind, Mode, Service
from airflow_lake_provider.replication.change import ChangeMode
from lake_jobs.replication.source import HudiSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_EVENT_TIME = "hoodie.record.merge.strategy.id=eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
BY_OWN_CLASS = "hoodie.compaction.record.merger.strategy=8b1f7e66-8f2c-4f57-8f0a-2d9d1c8f2a11"


def test_what_would_merge_rows_otherwise_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(version=6)
    folder = table.path / ".hoodie"
    properties = (folder / "hoodie.properties").read_text(encoding="utf-8")
    assert BY_EVENT_TIME in properties
    (folder / "hoodie.properties").write_text(properties.replace(BY_EVENT_TIME, BY_OWN_CLASS), encoding="utf-8")
    (folder / ".hoodie.properties.crc").unlink()
    before, files = content(spark, table), table.files()
    for service in (Service.COMPACTION, Service.LOGCOMPACTION, Service.CLUSTERING):
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert result.failure_kind is FailureKind.REFUSED, (service, result.message)
        assert "by the table's payload class in its place: leave compaction" in result.message
    with pytest.raises(SourceRefusedError, match="in its place, so its changes would not be"):
        HudiSource(spark, str(table.path), ChangeMode.LATEST)
    assert (content(spark, table), table.files()) == (before, files)

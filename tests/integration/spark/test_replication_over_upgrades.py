"""A stream that lags while a writer upgrades its table from version 6 to 9: nothing is lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.replication.change import Change
from airflow_lake_provider.replication.checkpoint import SnapshotProgress
from lake_jobs.replication.commit_reading import SliceReading
from lake_jobs.replication.source import HudiSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/spark/test_replication_on_hudi.py")
UPGRADE = {"hoodie.write.table.version": "9", "hoodie.write.auto.upgrade": "true"}


def version_of(lake: Lake) -> str:
    text = (Path(lake.path) / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("hoodie.table.version="))


def upgrade(lake: Lake, ts: int) -> None:
    """Write the first commit of version 9."""
    lake.options |= UPGRADE
    lake.write(lake.rows([4, 21], ts))
    assert version_of(lake) == "9"


@pytest.mark.parametrize("last", ["delete", "upsert"])
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_stream_that_lags_goes_on_over_an_upgrade_of_its_table(
    spark: SparkSession, tmp_path: Path, type: str, last: str
) -> None:
    lake = Lake(spark, tmp_path, type, 6, **{"hoodie.table.cdc.enabled": "false"})
    lake.write(lake.rows(range(8), 1))
    lake.write(lake.rows([0, 1], 2))
    assert lake.replicate().message == ""
    lake.write(lake.rows([2], 3), last)
    upgrade(lake, 4)
    result = lake.replicate()
    assert result.message == ""
    assert lake.replica() == lake.table()
    if type == "COW":
        assert (result.commits, result.snapshot_reason) == (2, "")
    else:
        assert "was not replicated before the table was upgraded to version 8 or later" in result.snapshot_reason
    lake.write(lake.rows([3], 5), "delete")
    lake.write(lake.rows([0, 30], 6))
    result = lake.replicate()
    assert (result.message, result.commits, result.snapshot_reason) == ("", 2, "")
    assert lake.replica() == lake.table()


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_stream_without_lag_needs_no_snapshot_after_an_upgrade(spark: SparkSession, tmp_path: Path, type: str) -> None:
    lake = Lake(spark, tmp_path, type, 6)
    lake.write(lake.rows(range(8), 1))
    lake.write(lake.rows([0, 1], 2))
    lake.write(lake.rows([2], 3), "delete")
    assert lake.replicate().message == ""
    upgrade(lake, 4)
    lake.write(lake.rows([3], 5), "delete")
    result = lake.replicate()
    assert (result.message, result.commits, result.snapshot_reason) == ("", 2, "")
    assert lake.replica() == lake.table()


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_snapshot_that_was_begun_before_an_upgrade_ends_after_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = Lake(spark, tmp_path, type, 6)
    lake.write(lake.rows(range(8), 1))
    lake.write(lake.rows([0, 1], 2))
    lake.write(lake.rows([2], 3), "delete")
    read = HudiSource.read_snapshot

    def dying(self: HudiSource, progress: SnapshotProgress) -> Iterator[Change]:
        for number, row in enumerate(read(self, progress)):
            assert number < 3, "the driver dies"
            yield row

    with monkeypatch.context() as planted:
        planted.setattr(HudiSource, "read_snapshot", dying)
        assert "the driver dies" in lake.replicate(snapshot_part_rows=2).message
    assert len(lake.replica()) == 2
    upgrade(lake, 4)
    lake.write(lake.rows([3], 5), "delete")
    assert lake.replicate(snapshot_part_rows=2).message == ""
    assert lake.replica() == lake.table()


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_upgrade_in_the_middle_of_a_run_ends_the_run_and_not_the_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = Lake(spark, tmp_path, type, 6, **{"hoodie.table.cdc.enabled": "false"})
    lake.write(lake.rows(range(8), 1))
    assert lake.replicate().message == ""
    lake.write(lake.rows([2], 2), "delete")
    lake.write(lake.rows([3], 3), "delete")
    compare, calls = SliceReading.find_differences, []

    def meanwhile(self: SliceReading, *given: Any) -> Any:
        if not calls:
            calls.append(given)
            upgrade(lake, 4)
        return compare(self, *given)

    with monkeypatch.context() as planted:
        planted.setattr(SliceReading, "find_differences", meanwhile)
        result = lake.replicate()
    assert "was of version 6 when the run began and is of version 9 now" in result.message
    assert result.commits == 0
    assert lake.replicate().message == ""
    assert lake.replica() == lake.table()

"""A file that a rollback left was read as committed once the rollback was archived.

Report: https://github.com/apache/hudi/issues/18783
Report: https://github.com/apache/hudi/pull/18795
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT


def fail_late(kept: KeptTable, has_markers: str) -> list[Path]:
    """Leave a write that died, roll it back, and let files of it appear afterwards; return them.

    The rollback finds those that have a marker: all, none, or only some, as the write had begun in one partition; then
    those of the others appear.
    """
    before, done = files_of(kept), completed_writes(kept)
    rows = dict(kept.rows)
    kept.write((i, CITIES[i % 2], 77.0, 77) for i in (0, 1, 2, 100, 101))
    kept.rows = rows
    written = {file: file.read_bytes() for file in files_of(kept) - before}
    (instant,) = completed_writes(kept) - done
    (completed,) = kept.table.timeline.glob(f"{instant}_*commit")
    completed.unlink()
    first_partition = [file for file in written if file.parent == min(written).parent]
    marked = {"all": list(written), "none": [], "some": first_partition}[has_markers]
    assert len(first_partition) < len(written)
    for file in marked:
        marker = kept.path / ".hoodie" / ".temp" / instant / file.parent.name / f"{file.name}.marker.CREATE"
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    rolled_back = run(kept.spark, kept.table.request(Mode.EXECUTE, instant, service=Service.ROLLBACK))
    assert rolled_back.outcome is Outcome.COMPLETED, rolled_back.message
    assert {file for file in written if not file.exists()} == set(marked)
    late = sorted(set(written) - set(marked)) or marked
    for file in late:
        file.write_bytes(written[file])
    return late


def files_of(kept: KeptTable) -> set[Path]:
    return {file for file in kept.path.glob("*/*_*") if not file.name.endswith(".crc")}


def completed_writes(kept: KeptTable) -> set[str]:
    return kept.table.completed("commit") | kept.table.completed("deltacommit")


@pytest.mark.parametrize(
    ("type", "has_markers"),
    [
        ("MOR", "some"),
        pytest.param("COW", "some", marks=pytest.mark.soak),
        pytest.param("MOR", "all", marks=pytest.mark.soak),
        pytest.param("COW", "all", marks=pytest.mark.soak),
        pytest.param("MOR", "none", marks=pytest.mark.soak),
        pytest.param("COW", "none", marks=pytest.mark.soak),
    ],
)
def test_they_stay_unseen(spark: SparkSession, tmp_path: Path, type: str, has_markers: str) -> None:
    options = {"hoodie.metadata.enable": "false", "hoodie.parquet.small.file.limit": "0"}
    kept = KeptTable(spark, tmp_path / "t", type, options=options)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    late = fail_late(kept, has_markers)
    for turn in range(2, 8):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(10, 14))
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
    for _ in range(2):
        held = kept.serve(Service.ARCHIVE, **ARCHIVE)
        kept.require_rows()
    named = [file.name for file in late if f"{file.parent.name}/{file.name} is left of the write" in held.message]
    assert named, held.message

    for file in late:
        file.unlink(missing_ok=True)
    assert kept.serve(Service.ARCHIVE, **ARCHIVE).outcome is Outcome.COMPLETED
    kept.require_rows()

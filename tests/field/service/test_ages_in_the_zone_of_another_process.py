"""Ages of commits, as retention by hours, were computed in the process's time zone, not the table's.

Report: https://github.com/apache/hudi/pull/8631
Report: https://github.com/apache/hudi/pull/8659
Report: https://github.com/apache/hudi/pull/9794
Verdict: right
"""

from __future__ import annotations

import json
import os
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy
from airflow_lake_provider.planner.decide import load_facts
from airflow_lake_provider.planner.table_view import TableViewCache

NOW_MS = int(datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
WRITERS = "America/New_York"


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("process", ["UTC", WRITERS, "Asia/Tokyo"])
def test_commits_of_the_last_hours_are_those_of_the_writers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, version: int
) -> None:
    """A commit every hour, named by a writer in New York; the manager runs somewhere else."""
    timeline = tmp_path / "t" / ".hoodie" / ("timeline" if version == 9 else "")
    timeline.mkdir(parents=True)
    (tmp_path / "t" / ".hoodie" / "hoodie.properties").write_text(
        f"hoodie.table.name=t\nhoodie.table.type=COPY_ON_WRITE\nhoodie.table.version={version}\n"
        f"hoodie.table.timeline.timezone=LOCAL\nhoodie.table.checksum={zlib.crc32(b'.t')}\n"
    )
    for hours in range(20, 0, -1):
        begun_ms = NOW_MS - hours * HOUR_MS
        requested, completed = (named(begun_ms + after_ms) for after_ms in (0, 5000))
        body = json.dumps({"operationType": "UPSERT", "partitionToWriteStats": {}})
        done = f"{requested}_{completed}.commit" if version == 9 else f"{requested}.commit"
        for name, text, made_ms in ((f"{requested}.commit.requested", "", begun_ms), (done, body, begun_ms + 5000)):
            (timeline / name).write_text(text)
            os.utime(timeline / name, ns=(made_ms * 10**6, made_ms * 10**6))
    policy = TablePolicy(
        clean=CleanPolicy(policy="hours", retained_hours=6),
        spark_conf={"spark.driver.extraJavaOptions": f"-Duser.timezone={WRITERS}"},
    )
    with monkeypatch.context() as patch:
        patch.setenv("TZ", process)
        time.tzset()
        views = TableViewCache()
        facts = load_facts(views, views.refresh(str(tmp_path / "t")), policy, NOW_MS)
        retained = facts.retained_by_policy(policy, NOW_MS)
        completed_times = [write.completed_time for write in facts.writes]
    time.tzset()
    # Those of six hours, one more, and two for commits that come meanwhile.
    assert retained == 6 + 3
    assert completed_times == [named(NOW_MS - hours * HOUR_MS + 5000) for hours in range(20, 0, -1)]


def named(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, ZoneInfo(WRITERS))
    return f"{moment:%Y%m%d%H%M%S}{time_ms % 1000:03d}"

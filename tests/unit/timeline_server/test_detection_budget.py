"""Virtual hours of a lake: what it costs to know each commit, and that a lost notice is found."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import SharedLimits
from tests.support.tables import HandMadeTable

TABLES = 300
MINUTES = 300
POLL_CALLS = 2
"""What a poll without anything shared costs at least: hoodie.properties and the listing."""


def instant_time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"


class Lake:
    """Tables that each commit once in 100 minutes, by chance; every hundredth notice is lost."""

    def __init__(self, folder: Path) -> None:
        self.random = random.Random(4)
        self.now_ms = int(datetime.now(UTC).timestamp() * 1000)
        self.timelines = SharedTimelines(SharedLimits(max_tables=TABLES), now_ms=lambda: self.now_ms)
        self.paths: list[str] = []
        self.commits: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        """Tables with a commit that was not announced, and when it was made."""
        self.found_after_ms: list[int] = []
        self.timelines.on_unannounced = lambda path, _: self._found(path)
        for number in range(TABLES):
            path = str(HandMadeTable.create(folder / f"t{number}").path)
            self.paths.append(path)
            self.commits[path] = 0
            for minutes in range(600, 0, -100):  # the intervals that its timeline shows
                self.commit(path, self.now_ms - minutes * 60_000)

    def commit(self, path: str, at_ms: int) -> str:
        requested = instant_time(at_ms - 500)
        file = Path(path) / ".hoodie" / "timeline" / f"{requested}_{instant_time(at_ms)}.deltacommit"
        if not file.exists():
            file.write_bytes(b"")
            self.commits[path] += 1
        return requested

    def minute(self) -> None:
        for _ in range(TABLES // 100):
            path = self.random.choice(self.paths)
            requested = self.commit(path, self.now_ms)
            if self.random.random() < 0.99:
                self.lost.pop(path, None)  # the next notice makes up for a lost one
                self.timelines.hint(path, [requested], is_by_writer=True)
            else:
                self.lost.setdefault(path, self.now_ms)
        for _ in range(6):
            self.work()
            self.now_ms += 10_000

    def work(self) -> None:
        while taken := self.timelines.due.take(self.now_ms, 1000):
            for path, is_hinted in taken:
                self.timelines.refresh_if_due(path, is_hinted=is_hinted)

    def _found(self, path: str) -> None:
        self.found_after_ms.append(self.now_ms - self.lost.pop(path))


def test_detection_of_one_percent_per_minute_costs_less_than_one_percent_of_polling(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for path in lake.paths:
        lake.timelines.register(path)
    for _ in range(3):
        lake.minute()  # the cold start is not a steady state
    for path in lake.paths:  # each writer was heard once
        lake.timelines.hint(path, [lake.commit(path, lake.now_ms)], is_by_writer=True)
    lake.work()
    calls = lake.timelines.calls
    before = calls.lists + calls.opens + calls.stats
    for _ in range(MINUTES):
        lake.minute()
    spent = calls.lists + calls.opens + calls.stats - before
    assert spent <= 0.01 * POLL_CALLS * TABLES * MINUTES
    for path in lake.paths:
        if path not in lake.lost:
            assert len(lake.timelines.snapshot(path).timeline.instants) == lake.commits[path]


def test_lost_notices_are_all_found_within_the_heartbeat(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for path in lake.paths:
        lake.timelines.register(path)
    for _ in range(MINUTES):
        lake.minute()
    assert lake.found_after_ms, "no notice was lost in this seed"
    begun_ms = lake.now_ms
    while lake.lost and lake.now_ms < begun_ms + 24 * 3_600_000:
        lake.now_ms += 60_000
        lake.work()
    assert lake.lost == {}
    assert max(lake.found_after_ms) <= lake.timelines.limits.heartbeat.most_announced_s * 1000 + 60_000

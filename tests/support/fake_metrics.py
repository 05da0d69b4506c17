"""Metrics that keep what they are given."""

from __future__ import annotations

from collections import Counter


class FakeMetrics:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.timings: dict[str, float] = {}
        self.gauges: dict[str, float] = {}

    def incr(self, name: str, count: int = 1) -> None:
        self.counts[name] += count

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def timing(self, name: str, duration_ms: float) -> None:
        self.timings[name] = duration_ms

"""The timeline server's metrics in Prometheus' text format. No label: table names would be without bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from airflow_lake_provider.view.shared_timelines import SharedTimelines

_COUNTERS = {
    "hints": "Hints taken",
    "hints_shown_already": "Hints that needed no look, because the timeline showed their instants",
    "changes": "Changes of a timeline that were seen",
    "loads": "Timelines that were loaded for the first time",
    "unannounced_commits": "Commits that no writer announced",
    "failed_looks": "Looks that failed",
    "gate_lies": "Folders whose modification time did not change with their children",
    "looks_list": "Looks that listed at once",
    "looks_gate": "Looks that asked the folder's time first",
    "looks_full": "Looks that also checked the properties",
    "looks_full_list": "Looks that listed at once and checked the properties",
    "looks_verify": "Sampled listings that check the folder's time",
}


def render_metrics(timelines: SharedTimelines) -> tuple[bytes, str]:
    """Return body and content type."""
    registry = CollectorRegistry()
    registry.register(_Timelines(timelines))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Timelines(Collector):
    def __init__(self, timelines: SharedTimelines) -> None:
        self._timelines = timelines

    def collect(self) -> Iterable[Metric]:
        """Read the numbers once."""
        timelines, counts = self._timelines, self._timelines.stats.read()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"lake_timeline_{name}", text, value=counts.get(name, 0))
        calls = CounterMetricFamily("lake_storage_calls", "Calls of the storage by kind", labels=["kind"])
        for kind, count in (
            ("list", timelines.calls.lists),
            ("open", timelines.calls.opens),
            ("stat", timelines.calls.stats),
        ):
            calls.add_metric([kind], count)
        yield calls
        yield CounterMetricFamily(
            "lake_timeline_evictions", "Timelines that had to leave the memory", value=timelines.memory.evictions
        )
        yield GaugeMetricFamily("lake_timeline_tables", "Tables that are known", value=len(timelines.memory))
        yield GaugeMetricFamily("lake_timeline_kept", "Timelines in memory", value=timelines.memory.kept)
        yield GaugeMetricFamily(
            "lake_timeline_kept_bytes", "Size of the timelines in memory", value=timelines.memory.kept_bytes()
        )
        yield GaugeMetricFamily(
            "lake_timeline_unreadable", "Tables whose last look failed", value=timelines.unreadable()
        )

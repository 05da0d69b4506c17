"""What each benchmark's full form is to reach on two idle cores, for the page and `make bench-all`.

An aim that cannot be reached has the measured reason with it: what its floor is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound of one figure of a benchmark, by its dotted key; with `peer`, of its ratio to another figure."""

    benchmark: str
    what: str
    """The figure in words, with its unit."""
    key: str
    bound: float
    peer: str = ""
    is_least: bool = False
    """Whether the figure is to be at least the bound, instead of at most."""
    reason: str = ""
    """Why it is missed, as measured."""

    def read(self, result: dict[str, Any]) -> float | None:
        """Return the figure; None when the run did not measure it."""
        value, peer = find_figure(result, self.key), find_figure(result, self.peer) if self.peer else 1.0
        return None if value is None or not peer else value / peer

    def is_met(self, value: float) -> bool:
        """Return whether a figure reaches the bound."""
        return value >= self.bound if self.is_least else value <= self.bound

    def describe(self, result: dict[str, Any]) -> str:
        """Return the aim next to the figure of a run: `p99 (ms): at most 20; 26.8, missed`."""
        value = self.read(result)
        wanted = f"{self.what}: at {'least' if self.is_least else 'most'} {self.bound:,g}"
        if value is None:
            return f"{wanted}; not measured"
        reason = f": {self.reason}" if self.reason else ""
        shown = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        return f"{wanted}; {shown}, {'met' if self.is_met(value) else f'missed{reason}'}"


def find_figure(result: dict[str, Any], key: str) -> float | None:
    """Return the figure by its dotted key; None when the run did not measure it."""
    value: Any = result
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return None if value is None else float(value)


ROUTES = ("asset_event", "dag_runs", "heartbeat", "xcom")
TOO_MUCH = "Airflow alone answers 50 of these requests/s at most here, and this is 32 of them and 40 notices"

AIMS = (
    Aim(
        "timeline", "10,000 instants (ms)", "ours_ms", 40,
        reason="listing 29,995 names takes 15 ms, splitting what may be the highest state 25, making instants 9",
    ),
    Aim(
        "timeline", "100,000 instants (ms)", "growth.100000.ours_ms", 300,
        reason="listing 299,995 names takes 160 ms, and Python's search for garbage 40 % of a load",
    ),
    Aim("notice", "PostgreSQL, p99 at 40 a second (ms)", "postgres.p99_ms", 20),
    Aim("notice", "PostgreSQL, lost", "postgres.lost", 0),
    Aim("notice", "PostgreSQL, without a loss (notices/s)", "postgres.most_per_s", 400, is_least=True),
    *(
        Aim(
            "neighbour",
            f"PostgreSQL, {route.replace('_', ' ')}, p99, {words} / absent",
            f"postgres.{state}.routes.{route}.p99_ms",
            bound,
            f"postgres.absent.routes.{route}.p99_ms",
            reason=TOO_MUCH if (state, route) == ("noticed", ROUTES[0]) else "",
        )
        for route in ROUTES
        for state, words, bound in (("idle", "idle", 1.05), ("noticed", "under notices", 1.5))
    ),
    Aim("neighbour", "PostgreSQL, as before after an overload (s)", "postgres.noticed.recovered_s", 5),
    Aim("latency", "task started, p95 (s)", "start_p95_s", 1),
    Aim("latency", "completed, p50 (s)", "done_p50_s", 2),
    Aim("latency", "completed, p95 (s)", "done_p95_s", 3),
    Aim("indexing", "build (times what a writer's own build adds)", "build_per_inline", 1.5),
    Aim("indexing", "longest wait for the lock (share of a commit)", "hold_per_commit", 0.1),
    Aim("conflict", "first set of 150,000 file groups (ms)", "own_filter_150k_ms", 30),
    Aim("page", "answer, p99 (ms)", "api_p99_ms", 60),
    Aim("page", "first rows (s)", "first_rows_s", 0.7),
    Aim("page", "script, packed (kB)", "bundle_kb", 80),
    Aim("replication", "rows (times Spark's sink)", "rows_per_s", 3, "spark_sink_rows_per_s", is_least=True),
    Aim(
        "replication", "40 columns (times Spark's sink)", "wide_rows_per_s", 2, "wide_spark_sink_rows_per_s",
        is_least=True,
    ),
    Aim("replication", "a sink that stores nothing (rows/s)", "noop_rows_per_s", 100_000, is_least=True),
    Aim("streams", "1,000 streams, lag p99 (s)", "1000.lag_p99_s", 5),
    Aim("batch", "a spark-submit each (times the standing application, wall)", "each_s", 20, "ours_s", is_least=True),
    Aim("batch", "a spark-submit each (times the standing application, CPU)", "each_cpu_s", 12, "ours_cpu_s",
        is_least=True),
    Aim("scale", "notice to run, p99 (s)", "fleet.calm.run_p99_s", 2),
    Aim("scale", "notice to run while a store hangs, p99 (s)", "fleet.hanging.run_p99_s", 2.5),
    Aim("guard", "work that the guard lets go to waste (share of the better of Hudi's)", "share", 0.2),
    Aim("verify", "sample, compaction (share of the run)", "compaction.sample_share", 0.05),
    Aim("mirror", "snapshot (rows/s)", "snapshot_rows_per_s", 100_000, is_least=True),
    Aim("mirror", "snapshot (share of psql copy)", "snapshot_of_copy", 0.5, is_least=True),
)  # fmt: skip
"""Of two idle cores: docs/benchmarks.md says what each was measured with."""


def aims_of(benchmark: str) -> tuple[Aim, ...]:
    """Return the aims of one benchmark."""
    return tuple(aim for aim in AIMS if aim.benchmark == benchmark)

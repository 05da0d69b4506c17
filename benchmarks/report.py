"""Write the generated part of `docs/benchmarks.md`, and its plots, from the recorded full forms.

    python -m benchmarks.report            # text and plots (make bench-report; needs matplotlib)
    python -m benchmarks.report --check    # compare the text and that each plot is there; draws nothing (make check)

A benchmark without a file in `benchmarks/results/` is "not recorded"; no number comes from anywhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
BEGIN, END = "<!-- begin: `make bench-report` writes this part -->", "<!-- end of the written part -->"


@dataclass(frozen=True, slots=True)
class Plot:
    """One bar chart: the figures of one unit. `bars` are labels and dotted keys of the result."""

    name: str
    axis: str
    """What the bars measure, with the unit."""
    bars: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """One chart with a point for each run: predicted against actual, both axes logarithmic. A run of which nothing was
    predicted or measured has no point."""

    name: str
    unit: str
    series: tuple[tuple[str, str], ...]
    """Labels, and dotted keys of lists of runs."""
    actual: int
    predicted: int
    """Places of the two figures in a run's list."""
    bar: float
    """The share of the actual figure by which the median prediction may be wrong; drawn as a band."""


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark of the page. `counts` are figures that need no picture."""

    benchmark: str
    question: str
    plots: tuple[Plot, ...]
    counts: tuple[tuple[str, str], ...] = ()
    scatters: tuple[Scatter, ...] = ()


RUNS_BY_SERVICE = (("compaction", "compaction.points"), ("clean", "clean.points"))

SECTIONS = (
    Section(
        "timeline",
        "How long does a timeline of 10,000 instants take to load?",
        (
            Plot(
                "timeline",
                "time to load (ms, median)",
                (
                    ("provider", "ours_ms"),
                    ("provider, one commit more", "ours_reload_ms"),
                    ("hudi-rs", "hudi_rs_ms"),
                    ("Hudi's metadata client, warm JVM", "jvm_ms"),
                ),
            ),
        ),
    ),
    Section(
        "notice",
        "How fast does the API server accept 40 notices a second, and does it lose one?",
        (
            Plot(
                "notice",
                "time to answer a notice (ms)",
                (
                    ("SQLite, p50", "sqlite.p50_ms"),
                    ("SQLite, p99", "sqlite.p99_ms"),
                    ("PostgreSQL, p50", "postgres.p50_ms"),
                    ("PostgreSQL, p99", "postgres.p99_ms"),
                ),
            ),
        ),
        (("lost, SQLite", "sqlite.lost"), ("lost, PostgreSQL", "postgres.lost")),
    ),
    Section(
        "detection",
        "What does it cost to notice commits in 10,000 tables, and how late are they noticed?",
        (
            Plot(
                "detection-cpu",
                "processor time per minute (CPU s/min)",
                (
                    ("polling each table", "poll.cpu_s"),
                    ("provider, commits announced", "push.cpu_s"),
                    ("provider, nothing announced", "heartbeat.cpu_s"),
                ),
            ),
            Plot(
                "detection-delay",
                "delay from commit to reader, p99 (s)",
                (
                    ("polling each table", "poll.delay_p99_s"),
                    ("provider, commits announced", "push.delay_p99_s"),
                    ("provider, nothing announced", "heartbeat.delay_p99_s"),
                ),
            ),
        ),
        (
            ("storage calls a minute, polling", "poll.fs_calls_per_min"),
            ("storage calls a minute, commits announced", "push.fs_calls_per_min"),
            ("bytes of memory for each table, commits announced", "push.bytes_per_table"),
            ("missed, polling", "poll.missed"),
            ("missed, commits announced", "push.missed"),
        ),
    ),
    Section(
        "namenode",
        "How many calls does an HDFS NameNode get from readers of timelines?",
        (
            Plot(
                "namenode",
                "client RPCs of the NameNode (calls/min)",
                (
                    ("each reader alone", "direct_ops"),
                    ("provider, each reader's own view", "gated_ops"),
                    ("provider, one timeline server", "served_ops"),
                ),
            ),
        ),
        (
            ("RPCs of one commit of Hudi's writer, embedded timeline server on", "hudi_embedded_ops_per_commit"),
            ("RPCs of one commit of Hudi's writer, off", "hudi_without_ops_per_commit"),
        ),
    ),
    Section(
        "latency",
        "How long from a commit's notice to its service?",
        (
            Plot(
                "latency",
                "time since the notice was answered (s, p50)",
                (
                    ("task started", "start_p50_s"),
                    ("plan on the timeline", "planned_p50_s"),
                    ("completed", "done_p50_s"),
                ),
            ),
        ),
        (("task started, p95 (s)", "start_p95_s"), ("completed, p95 (s)", "done_p95_s"), ("commits", "commits")),
    ),
    Section(
        "writer",
        "What do table services cost a writer of streamed upserts?",
        (
            Plot(
                "writer",
                "the writer's wall time (s, median)",
                (
                    ("no service", "none_s"),
                    ("Hudi, inline", "inline_s"),
                    ("Hudi, async", "async_s"),
                    ("provider, same machine", "managed_s"),
                    ("provider, same machine, niced", "managed_niced_s"),
                    ("provider, jobs elsewhere", "managed_elsewhere_s"),
                    ("provider, the same, synchronous clocks", "managed_elsewhere_synced_s"),
                ),
            ),
        ),
        (
            ("log files left, no service", "details.none.log_files"),
            ("log files left, provider on the same machine", "details.managed.log_files"),
        ),
    ),
    Section(
        "indexing",
        "By how much does an index build delay the longest commit of a writer, and how long does the builder's lock?",
        (
            Plot(
                "indexing",
                "delay of the longest commit (s)",
                (
                    ("provider, next to the writer", "writer_stall_s"),
                    ("provider, next to a streaming writer", "streaming.writer_stall_s"),
                    ("writer builds itself", "sync_stall_s"),
                ),
            ),
            Plot(
                "indexing-lock",
                "wait for a lock that the builder holds (s, p99 of all requests)",
                (
                    ("next to the writer", "writer_hold_p99_s"),
                    ("next to a streaming writer", "streaming.writer_hold_p99_s"),
                ),
            ),
        ),
        (
            ("build (s)", "build_s"),
            ("build next to a streaming writer (s)", "streaming.build_s"),
            ("build / what it adds to a writer's own commit", "build_per_inline"),
            ("the same, in seconds of processor", "cpu_per_inline"),
            ("usual commit (s)", "usual_commit_s"),
            ("longest wait for the lock / usual commit", "hold_per_commit"),
            ("the same, streaming writer", "streaming.hold_per_commit"),
            ("commits during the build", "commits_during_build"),
            ("build after kill -9 (s)", "recover_s"),
            ("lookup before (ms)", "lookup_before_ms"),
            ("lookup after (ms)", "lookup_after_ms"),
        ),
    ),
    Section(
        "conflict",
        "How long does one check for conflicting writers take, with 1,500 markers each?",
        (
            Plot(
                "conflict",
                "time of one check (ms, median)",
                (
                    ("provider, first", "first_ms"),
                    ("provider, nothing changed", "recheck_ms"),
                    ("plain reading of the files", "floor_ms"),
                    ("Hudi's checker, warm", "hudi_ms"),
                    ("Hudi's checker, first", "hudi_first_ms"),
                ),
            ),
        ),
        (
            ("first check of 150,000 markers (ms)", "first_150k_ms"),
            ("before it, once for each set of one's own 150,000 file groups (ms)", "own_filter_150k_ms"),
        ),
    ),
    Section(
        "ranking",
        "How much of the best possible benefit does an order get out of a budget that does not suffice?",
        tuple(
            Plot(
                f"ranking-{percent}",
                f"benefit with a budget of {percent} % (share of the knapsack's)",
                (
                    ("provider", f"budget_{percent}.ours"),
                    ("AutoComp's formula", f"budget_{percent}.autocomp"),
                    ("longest waiting", f"budget_{percent}.longest"),
                    ("first come, first served", f"budget_{percent}.fifo"),
                ),
            )
            for percent in (10, 30, 60)
        ),
        (
            ("when only files count: provider, budget of 30 %", "budget_30.files.ours"),
            ("when only files count: AutoComp's formula, budget of 30 %", "budget_30.files.autocomp"),
        ),
    ),
    Section(
        "page",
        "How fast do the Lake's pages answer for 10,000 tables while 40 notices a second arrive?",
        (
            Plot(
                "page",
                "time to answer a request of the pages (ms)",
                (("p50", "api_p50_ms"), ("p99", "api_p99_ms")),
            ),
        ),
        (
            ("tables", "tables"),
            ("first rows in the browser, empty cache, median (s)", "first_rows_s"),
            ("script of the pages, packed (kB)", "bundle_kb"),
        ),
    ),
    Section(
        "waste",
        "How many Spark seconds does a contended workload throw away?",
        (
            Plot(
                "waste",
                "Spark time thrown away (s)",
                (("Hudi's check at the commit", "at_commit_s"), ("provider", "ours_s")),
            ),
        ),
    ),
    Section(
        "replication",
        "How many changed rows a second reach Kafka?",
        (
            Plot(
                "replication",
                "throughput (rows/s)",
                (
                    ("provider, exactly once", "rows_per_s"),
                    ("Spark's Kafka sink, at least once", "spark_sink_rows_per_s"),
                    ("provider, a sink that stores nothing", "noop_rows_per_s"),
                    ("bare client", "raw_rows_per_s"),
                ),
            ),
            Plot(
                "replication-wide",
                "throughput, 40 columns (rows/s)",
                (
                    ("provider, exactly once", "wide_rows_per_s"),
                    ("Spark's Kafka sink, at least once", "wide_spark_sink_rows_per_s"),
                ),
            ),
        ),
        (("lost", "lost"), ("doubled", "duplicates"), ("one commit, p99 (s)", "lag_p99_s")),
    ),
    Section(
        "streams",
        "How late are 1, 20 and 200 streams of replication in one driver of two cores, with a commit a minute each?",
        (
            Plot(
                "streams-lag",
                "lag of a commit (s)",
                tuple(
                    (f"provider, {size} streams, {name}", f"{size}.lag_{name}_s")
                    for size in (1, 20, 200)
                    for name in ("p50", "p99")
                ),
            ),
            Plot(
                "streams-cpu",
                "processor time of a stream (CPU s/min)",
                tuple((f"provider, {size} streams", f"{size}.cpu_s_per_stream_minute") for size in (1, 20, 200)),
            ),
        ),
        tuple(
            (f"{label}, 200 streams", f"200.{key}")
            for label, key in (
                ("lag of a stream's first commit, p99 (s)", "first_lag_p99_s"),
                ("mean lag of the slowest stream (s)", "slowest_stream_s"),
                ("CPU of a commit, with the opening of all tables (s)", "cpu_s_per_commit"),
                ("commits", "commits"),
                ("lost", "lost"),
                ("failures", "failures"),
            )
        ),
    ),
    Section(
        "batch",
        "What does it take to serve many tiny tables?",
        (
            Plot(
                "batch",
                "all tables (s)",
                (
                    ("provider, standing application, wall", "ours_s"),
                    ("provider, a spark-submit each, wall", "each_s"),
                    ("one spark-submit in sequence, wall", "sequence_s"),
                    ("provider, standing application, CPU", "ours_cpu_s"),
                    ("provider, a spark-submit each, CPU", "each_cpu_s"),
                    ("one spark-submit in sequence, CPU", "sequence_cpu_s"),
                ),
            ),
        ),
        (
            ("tables", "tables"),
            ("provider, standing application, peak memory (MiB)", "ours_peak_mib"),
            ("provider, a spark-submit each, peak memory (MiB)", "each_peak_mib"),
        ),
    ),
    Section(
        "scale",
        "What does the manager cost with 100, 1,000 and 10,000 registered tables?",
        tuple(
            Plot(
                f"scale-{name}",
                axis,
                tuple((f"provider, {size:,} tables", f"{size}.{key}") for size in (100, 1_000, 10_000)),
            )
            for name, axis, key in (
                ("memory", "resident memory of the manager's process (MiB)", "resident_mib"),
                ("quiet", "a cycle in which nothing happens (CPU s)", "quiet_cpu_s"),
                ("cycle", "a cycle with 100 commits (CPU s)", "cycle_cpu_s"),
                ("database", "time in the database for each commit (ms)", "commit_database_ms"),
                ("parse", "parsing the shipped DAGs (s)", "parse_s"),
            )
        ),
        tuple(
            (f"{label}, {size:,} tables", f"{size}.{key}")
            for label, key in (
                ("bytes of memory for each table", "bytes_per_table"),
                ("statements of a quiet cycle", "quiet_statements"),
                ("rows written for each commit", "commit_rows"),
                ("statements for each commit", "commit_statements"),
                ("slowest statement (ms)", "slowest_query_ms"),
                ("first evaluation of a table (CPU ms)", "first_cpu_ms"),
            )
            for size in (100, 1_000, 10_000)
        )
        + tuple(
            (f"whole Airflow, 10,000 tables, {window}: {label}", f"fleet.{key}.{name}")
            for key, window in (("calm", "no fault"), ("hanging", "one of ten stores hangs"))
            for label, name in (
                ("notice to decision, p50 (s)", "decided_p50_s"),
                ("notice to decision, p99 (s)", "decided_p99_s"),
                ("notice to run, p50 (s)", "run_p50_s"),
                ("notice to run, p99 (s)", "run_p99_s"),
                ("commits", "commits"),
                ("due at once", "due"),
                ("lost", "lost"),
                ("CPU of the API server (s/min)", "api_cpu_s_per_min"),
                ("memory of the API server (MiB)", "api_resident_mib"),
                ("slowest statement on the provider's tables (ms)", "slowest_lake_query_ms"),
            )
        ),
    ),
    Section(
        "waiting",
        "What does Airflow itself spend on a service, while its engine works?",
        (
            Plot(
                "waiting-cpu",
                "Airflow's processor time for each service (CPU s)",
                (
                    ("provider, waits in the triggerer (warm)", "deferred_cpu_s"),
                    ("provider, holds a worker (spark-submit)", "held_cpu_s"),
                ),
            ),
            Plot(
                "waiting-memory",
                "memory while all services run, for each (MiB)",
                (
                    ("provider, waits in the triggerer (warm)", "deferred_resident_mib"),
                    ("provider, holds a worker (spark-submit)", "held_resident_mib"),
                ),
            ),
        ),
        (
            ("services at once", "services"),
            ("seconds that each works", "work_s"),
            ("in the triggerer: CPU of scheduler and workers (s)", "deferred_scheduler_cpu_s"),
            ("in the triggerer: CPU of the triggerer (s)", "deferred_triggerer_cpu_s"),
            ("in the triggerer: CPU of the API server (s)", "deferred_api_server_cpu_s"),
            ("holding a worker: CPU of scheduler and workers (s)", "held_scheduler_cpu_s"),
            ("holding a worker: CPU of the triggerer (s)", "held_triggerer_cpu_s"),
            ("holding a worker: CPU of the API server (s)", "held_api_server_cpu_s"),
        ),
    ),
    Section(
        "prediction",
        "How far are predicted seconds and bytes from what runs take?",
        (
            Plot(
                "prediction",
                "median of |predicted - actual| (share of actual)",
                (
                    ("provider, compaction, seconds", "compaction.seconds_error"),
                    ("provider, compaction, bytes written", "compaction.bytes_error"),
                    ("provider, clean, seconds", "clean.seconds_error"),
                    ("provider, clean, bytes freed", "clean.bytes_error"),
                ),
            ),
        ),
        (
            ("runs", "runs"),
            ("compaction, first three runs of a table: seconds", "compaction.first_seconds_error"),
            ("compaction, within the interval (share)", "compaction.inside"),
            ("clean, within the interval (share)", "clean.inside"),
        ),
        scatters=(
            Scatter("prediction-seconds", "seconds", RUNS_BY_SERVICE, actual=2, predicted=3, bar=0.40),
            Scatter("prediction-bytes", "bytes", RUNS_BY_SERVICE, actual=4, predicted=5, bar=0.25),
        ),
    ),
    Section(
        "engines",
        "How long does an engine take to start a job and end it?",
        (
            Plot(
                "engines",
                "start-up of a job (s, median)",
                (
                    ("provider, spark-submit, wall", "spark_submit_s"),
                    ("provider, spark-submit, CPU", "spark_submit_cpu_s"),
                    ("provider, in-process, wall", "in_process_s"),
                    ("provider, in-process, CPU", "in_process_cpu_s"),
                ),
            ),
        ),
    ),
)


def load_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded full forms by benchmark."""
    found = {}
    for section in SECTIONS:
        path = folder / f"{section.benchmark}.json"
        if path.exists():
            found[section.benchmark] = json.loads(path.read_text(encoding="utf-8"))
    return found


def find_recorded(results: dict[str, dict[str, Any]]) -> list[Section]:
    """Return the sections of the page that have a result."""
    return [section for section in SECTIONS if section.benchmark in results]


def find_figure(result: dict[str, Any], key: str) -> float | None:
    """Return the figure by its dotted key; None when the run did not measure it."""
    value: Any = result
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return float(value)


def points_of(scatter: Scatter, result: dict[str, Any]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return each series' label with its runs' (actual, predicted) figures above zero."""
    found = []
    for label, key in scatter.series:
        service, _, name = key.partition(".")
        runs = result.get(service, {}).get(name, [])
        pairs = [(float(run[scatter.actual]), float(run[scatter.predicted])) for run in runs]
        found.append((label, [pair for pair in pairs if min(pair) > 0]))
    return found


def measured(plot: Plot, result: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the labels and values of a plot that the run has measured."""
    return [(label, value) for label, key in plot.bars if (value := find_figure(result, key)) is not None]


def render(results: dict[str, dict[str, Any]]) -> str:
    """Return the generated part of the page."""
    return "\n\n".join(part for section in SECTIONS for part in _render(section, results.get(section.benchmark)))


def _render(section: Section, entry: dict[str, Any] | None) -> list[str]:
    head = [f"### {section.benchmark}", section.question]
    if entry is None:
        return [*head, f"Not recorded. `make bench NAME={section.benchmark} RECORD=1` records it, on an idle machine."]
    arguments = f" with `{' '.join(entry['arguments'])}`" if entry["arguments"] else ""
    origin = (
        f"`make bench NAME={section.benchmark}`{arguments}: {entry['date']}, commit {entry['commit']}, "
        f"{entry['machine']}; took {entry['took_s']} s."
    )
    drawn = [plot for plot in section.plots if measured(plot, entry["result"])]
    pictures = [f"![{section.benchmark}: {plot.axis}](benchmarks/{plot.name}.svg)" for plot in drawn]
    pictures += [
        f"![{section.benchmark}: {scatter.unit} predicted and actual, a point for each run; in the band the prediction "
        f"is wrong by at most {scatter.bar:.0%}](benchmarks/{scatter.name}.svg)"
        for scatter in section.scatters
    ]
    rows = [(f"{label}: {plot.axis}", value) for plot in drawn for label, value in measured(plot, entry["result"])]
    counts = [(label, find_figure(entry["result"], key)) for label, key in section.counts]
    lines = ["| figure | value |", "| --- | --- |"]
    lines += [f"| {label} | {value:,.6g} |" for label, value in [*rows, *counts] if value is not None]
    return [*head, origin, *pictures, "\n".join(lines)]


def start_drawing(name: str) -> Any:
    """Return matplotlib's pyplot, set so that the same figures give the same file, byte by byte."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10})
    from matplotlib import pyplot

    return pyplot


def draw_scatter(scatter: Scatter, series: list[tuple[str, list[tuple[float, float]]]], path: Path) -> None:
    """Draw predicted against actual figures."""
    pyplot = start_drawing(scatter.name)
    from matplotlib import ticker

    figure, axes = pyplot.subplots(figsize=(5.5, 4.5), layout="constrained")
    every = [value for _, pairs in series for pair in pairs for value in pair] or [1.0]
    ends = [min(every) / 1.3, max(every) * 1.3]
    axes.fill_between(
        ends, [end * (1 - scatter.bar) for end in ends], [end * (1 + scatter.bar) for end in ends], color="#e8eaf6"
    )
    axes.plot(ends, ends, color="#9aa0a6", linewidth=1)
    for (label, pairs), (color, marker) in zip(series, (("#4051b5", "o"), ("#00897b", "^")), strict=True):
        axes.scatter([actual for actual, _ in pairs], [predicted for _, predicted in pairs], s=16, color=color,
                     marker=marker, label=label, alpha=0.7)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(lambda value, _: f"{value:,.3g}")
        axis.set_minor_locator(ticker.NullLocator())
    axes.set(xlabel=f"actual {scatter.unit}", ylabel=f"predicted {scatter.unit}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw(plot: Plot, bars: list[tuple[str, float]], path: Path) -> None:
    """Draw one bar chart."""
    pyplot = start_drawing(plot.name)
    labels, values = [label for label, _ in bars], [value for _, value in bars]
    figure, axes = pyplot.subplots(figsize=(7.5, 0.9 + 0.38 * len(bars)), layout="constrained")
    drawn = axes.barh(
        labels, values, color=["#4051b5" if label.startswith("provider") else "#9aa0a6" for label in labels]
    )
    axes.bar_label(drawn, labels=[f"{value:,.4g}" for value in values], padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*values, 1e-9]) * 1.18)
    axes.set_xlabel(plot.axis)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def replace_part(page: str, part: str) -> str:
    """Return the page with its generated part replaced. Raises ValueError when the page has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def find_stale(results: dict[str, dict[str, Any]], page: Path, plots: Path) -> list[str]:
    """Return what of the page is not what the results say."""
    text = page.read_text(encoding="utf-8")
    stale = [] if replace_part(text, render(results)) == text else [f"{page.name} differs from the recorded results"]
    recorded = find_recorded(results)
    wanted = {
        plot.name
        for section in recorded
        for plot in section.plots
        if measured(plot, results[section.benchmark]["result"])
    } | {scatter.name for section in recorded for scatter in section.scatters}
    stale += [f"{name}.svg is missing" for name in sorted(wanted) if not (plots / f"{name}.svg").exists()]
    return stale + [f"{path.name} belongs to no result" for path in plots.glob("*.svg") if path.stem not in wanted]


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    results = load_results(RESULTS)
    if options.check:
        stale = find_stale(results, PAGE, PLOTS)
        for line in stale:
            print(f"docs/benchmarks: {line}: run `make bench-report` and commit it", file=sys.stderr)
        return 1 if stale else 0
    PAGE.write_text(replace_part(PAGE.read_text(encoding="utf-8"), render(results)), encoding="utf-8")
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    for section in find_recorded(results):
        result = results[section.benchmark]["result"]
        for plot in section.plots:
            if bars := measured(plot, result):
                draw(plot, bars, PLOTS / f"{plot.name}.svg")
        for scatter in section.scatters:
            draw_scatter(scatter, points_of(scatter, result), PLOTS / f"{scatter.name}.svg")
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(results)} of {len(SECTIONS)} benchmarks are recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What docs/benchmarks.md shows of each benchmark's full form: its question, plots and tables."""

from __future__ import annotations

from dataclasses import dataclass


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
class Growth:
    """One chart of cost against size, both axes logarithmic, with the power by which each cost grows."""

    name: str
    axis: str
    """The cost, with its unit."""
    size: str
    """What there is more of."""
    sizes: tuple[int, ...]
    series: tuple[tuple[str, str], ...]
    """Labels, and dotted keys in which `{}` is the size."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Figures that each of several cases has: a table without a picture."""

    case: str
    """What the rows are."""
    cases: tuple[tuple[str, str], ...]
    """Labels, and the dotted key before that of a figure."""
    figures: tuple[tuple[str, str], ...]
    """Labels with the unit, and keys within the case."""


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark of the page. `counts` are figures that need no picture, `arguments` those of its full form."""

    benchmark: str
    question: str
    plots: tuple[Plot, ...]
    counts: tuple[tuple[str, str], ...] = ()
    grids: tuple[Grid, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    growths: tuple[Growth, ...] = ()
    arguments: tuple[str, ...] = ()


DATABASE_OPERATIONS = (
    "notice",
    "loop: acquire and release a lease",
    "decision: active runs of a table",
    "sweep: waiting tables",
    "sweep: active runs with their tasks",
    "health",
    "page: first tables",
    "page: tables by text",
)
"""Of `benchmarks.database`, what is shown and compared."""

STREAMS = tuple((f"provider, {size:,} streams", str(size)) for size in (1, 20, 200, 1000))

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
        growths=(
            Growth(
                "timeline-growth",
                "time to load (ms)",
                "instants",
                (100, 1_000, 10_000, 100_000),
                (("provider", "growth.{}.ours_ms"), ("hudi-rs", "growth.{}.hudi_rs_ms")),
            ),
        ),
    ),
    Section(
        "notice",
        "How fast does the API server accept 40 notices a second, and does it lose one?",
        (
            Plot(
                "notice",
                "time to answer a notice, p99 (ms)",
                (("provider, PostgreSQL", "postgres.p99_ms"), ("provider, SQLite", "sqlite.p99_ms")),
            ),
        ),
        grids=(
            Grid(
                "database",
                (("PostgreSQL", "postgres"), ("SQLite", "sqlite")),
                (
                    ("p50 (ms)", "p50_ms"),
                    ("lost", "lost"),
                    ("at most (notices/s)", "most_per_s"),
                    ("Airflow's asset events, at most (events/s)", "peer_per_s"),
                ),
            ),
        ),
    ),
    Section(
        "neighbour",
        "How fast does Airflow answer its own requests without the provider, with it, and under notices?",
        (
            Plot(
                "neighbour",
                "heartbeat of a task, PostgreSQL, p99 (ms)",
                (
                    ("provider absent", "postgres.absent.routes.heartbeat.p99_ms"),
                    ("provider idle", "postgres.idle.routes.heartbeat.p99_ms"),
                    ("provider under notices", "postgres.noticed.routes.heartbeat.p99_ms"),
                ),
            ),
        ),
        grids=tuple(
            Grid(
                f"{name}, provider",
                (("absent", f"{key}.absent"), ("idle", f"{key}.idle"), ("under notices", f"{key}.noticed")),
                (
                    ("asset event, p99 (ms)", "routes.asset_event.p99_ms"),
                    ("list of runs, p99 (ms)", "routes.dag_runs.p99_ms"),
                    ("heartbeat, p99 (ms)", "routes.heartbeat.p99_ms"),
                    ("XCom, p99 (ms)", "routes.xcom.p99_ms"),
                    ("one request (CPU ms)", "cpu_ms_per_request"),
                    ("at most (requests/s)", "most_per_s"),
                    ("as before after an overload (s)", "recovered_s"),
                ),
            )
            for name, key in (("PostgreSQL", "postgres"), ("SQLite", "sqlite"))
        ),
    ),
    Section(
        "detection",
        "What does it cost to notice commits in 10,000 tables, and how late is it?",
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
        grids=(
            Grid(
                "10,000 tables",
                (("polling each", "poll"), ("provider, commits announced", "push")),
                (
                    ("storage calls (calls/min)", "fs_calls_per_min"),
                    ("memory for each (bytes)", "bytes_per_table"),
                    ("missed", "missed"),
                ),
            ),
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
            ("RPCs of a commit by Hudi, embedded timeline server on", "hudi_embedded_ops_per_commit"),
            ("the same, off", "hudi_without_ops_per_commit"),
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
        "How long does a writer wait for an index build, and for its lock?",
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
            ("the same, streaming writer (s)", "streaming.build_s"),
            ("build / what a writer's own build adds", "build_per_inline"),
            ("build / what a writer's own build adds, processor seconds", "cpu_per_inline"),
            ("usual commit (s)", "usual_commit_s"),
            ("longest wait for the lock / usual commit", "hold_per_commit"),
            ("longest wait for the lock / usual commit, streaming writer", "streaming.hold_per_commit"),
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
            ("before it, once for 150,000 own file groups (ms)", "own_filter_150k_ms"),
        ),
        growths=(
            Growth(
                "conflict-growth",
                "time of a first check (ms)",
                "markers of each writer",
                (1_500, 15_000, 150_000),
                (("provider", "growth.{}.first_ms"), ("plain reading of the files", "growth.{}.floor_ms")),
            ),
        ),
    ),
    Section(
        "ranking",
        "How much of the best possible benefit does an order get out of a tight budget?",
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
            ("only files count, budget of 30 %: provider", "budget_30.files.ours"),
            ("only files count, budget of 30 %: AutoComp's formula", "budget_30.files.autocomp"),
        ),
    ),
    Section(
        "page",
        "How fast do the Lake's pages answer for 10,000 tables under 40 notices a second?",
        (
            Plot(
                "page",
                "time to answer a request of the pages (ms)",
                (("p50", "api_p50_ms"), ("p99", "api_p99_ms")),
            ),
        ),
        (
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
        arguments=("--rows", "600000", "--commits", "30", "--wide-rows", "60000", "--wide-commits", "6"),
    ),
    Section(
        "streams",
        "How late are replication streams in one driver of two cores, with a commit a minute each?",
        (
            Plot(
                "streams-lag",
                "lag of a commit, p99 (s)",
                tuple((label, f"{size}.lag_p99_s") for label, size in STREAMS),
            ),
            Plot(
                "streams-cpu",
                "processor time of a stream (CPU s/min)",
                tuple((label, f"{size}.cpu_s_per_stream_minute") for label, size in STREAMS),
            ),
        ),
        growths=(
            Growth(
                "streams-growth",
                "processor time of all (CPU s)",
                "streams in one driver",
                (1, 20, 200, 1000),
                (("provider", "{}.total_cpu_s"),),
            ),
        ),
        grids=(
            Grid(
                "streams",
                tuple((size, size) for _, size in STREAMS),
                (
                    ("lag of a commit, p50 (s)", "lag_p50_s"),
                    ("first commit, p99 (s)", "first_lag_p99_s"),
                    ("slowest stream, mean (s)", "slowest_stream_s"),
                    ("CPU of a commit, with the opening of all tables (s)", "cpu_s_per_commit"),
                    ("commits", "commits"),
                    ("lost", "lost"),
                    ("failures", "failures"),
                ),
            ),
        ),
        arguments=("--sizes", "1", "20", "200", "1000", "--minutes", "1"),
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
            ("standing application, peak memory (MiB)", "ours_peak_mib"),
            ("a spark-submit each, peak memory (MiB)", "each_peak_mib"),
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
        growths=(
            Growth(
                "scale-growth",
                "processor time (CPU s)",
                "registered tables",
                (100, 1_000, 10_000),
                (
                    ("provider, a cycle in which nothing happens", "{}.quiet_cpu_s"),
                    ("provider, a cycle with 100 commits", "{}.cycle_cpu_s"),
                ),
            ),
        ),
        grids=(
            Grid(
                "tables",
                tuple((f"{size:,}", str(size)) for size in (100, 1_000, 10_000)),
                (
                    ("memory for each (bytes)", "bytes_per_table"),
                    ("statements of a quiet cycle", "quiet_statements"),
                    ("rows written for each commit", "commit_rows"),
                    ("statements for each commit", "commit_statements"),
                    ("slowest statement (ms)", "slowest_query_ms"),
                    ("first evaluation of one (CPU ms)", "first_cpu_ms"),
                ),
            ),
            Grid(
                "whole Airflow, 10,000 tables",
                (("no fault", "fleet.calm"), ("one of ten stores hangs", "fleet.hanging")),
                (
                    ("notice to decision, p50 (s)", "decided_p50_s"),
                    ("p99 (s)", "decided_p99_s"),
                    ("notice to run, p50 (s)", "run_p50_s"),
                    ("p99 (s)", "run_p99_s"),
                    ("commits", "commits"),
                    ("due at once", "due"),
                    ("lost", "lost"),
                    ("API server (CPU s/min)", "api_cpu_s_per_min"),
                    ("its memory (MiB)", "api_resident_mib"),
                    ("slowest statement on the provider's tables (ms)", "slowest_lake_query_ms"),
                ),
            ),
        ),
    ),
    Section(
        "waiting",
        "What does Airflow spend on a service while its engine works?",
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
        (("services at once", "services"), ("seconds that each works", "work_s")),
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
    Section(
        "guard",
        "How many seconds of Spark work does a conflict of writers throw away?",
        (
            Plot(
                "guard",
                "work of writes that did not commit (s)",
                (
                    ("Hudi's check at the commit", "at_commit_lost_s"),
                    ("Hudi's early detection", "early_lost_s"),
                    ("provider, guard", "guard_lost_s"),
                    ("provider, guard with a reservation", "reserved_lost_s"),
                ),
            ),
        ),
        (("writes that the guard ended", "guard_ended"), ("of the better of Hudi's (share)", "share")),
    ),
    Section(
        "yielding",
        "How often does an upsert lose that begins while a clustering of its file groups runs?",
        (
            Plot(
                "yielding",
                "upserts that Hudi refused (count)",
                tuple(
                    (f"{label}, a source that takes {source} s", f"{key}_{source}_s.lost")
                    for source in (0, 2, 5, 10)
                    for label, key in (("clustering alone", "hudi"), ("provider, gives way", "ours"))
                ),
            ),
        ),
        (("trials of each", "trials"),),
    ),
    Section(
        "verify",
        "What does it cost that services compare rows before they commit?",
        (
            Plot(
                "verify",
                "more processor time than without a comparison (share)",
                tuple(
                    (f"provider, {service}, {verify}", f"{service}.{verify}_share")
                    for service in ("compaction", "logcompaction", "clustering")
                    for verify in ("sample", "all")
                ),
            ),
        ),
        (("rows of the table", "rows"),),
    ),
    Section(
        "mirror",
        "How many rows a second reach PostgreSQL?",
        (
            Plot(
                "mirror",
                "rows into a table with a key (rows/s)",
                (
                    ("provider, snapshot", "snapshot_rows_per_s"),
                    ("provider, updates", "updates_rows_per_s"),
                    ("psql copy", "copy_rows_per_s"),
                ),
            ),
        ),
        (
            ("rows", "rows"),
            ("snapshot (share of psql copy)", "snapshot_of_copy"),
            ("updates (share of psql copy)", "updates_of_copy"),
        ),
        arguments=("--rows", "5000000"),
    ),
    Section(
        "database",
        "How many rows does each query visit in a metadata database with two million runs and 20,000 tables?",
        (),
        grids=(
            Grid(
                "query",
                tuple((name, name) for name in DATABASE_OPERATIONS),
                (("rows visited", "visited"), ("statements", "statements")),
            ),
        ),
    ),
)

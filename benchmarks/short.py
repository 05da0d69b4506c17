"""Has a benchmark become slower or costlier? Each one in a form of about a minute, against the recorded figures.

Only what another machine, or a busy one, shows as well is compared: counts, ratios to a peer of the same run, and CPU
seconds; never wall times. CPU seconds are divided by those of a fixed piece of work (`calibrate`), so that a slower
processor is not mistaken for slower code. All figures here are better when smaller. A figure that is more than a third
(and more than its own noise) above the recorded one has fallen: the run says so and ends with exit code 1. Fix it, or
explain it in CHANGELOG.md and record it again with `--record`, on an idle machine.

Recorded figures are in `benchmarks/results/short.json`, with commit, date and machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import BusyError, describe_origin, measure_busy_percent, require_idle
from benchmarks.sections import DATABASE_OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks" / "results" / "short.json"
LOGS = ROOT / ".work" / "bench-short"
FALLS_FROM = 4 / 3
TIMEOUT_S = 600.0
CALIBRATION_LOOPS = 3_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a benchmark's last line, by its dotted key; with `peer` its ratio to that of another key."""

    key: str
    peer: str = ""
    is_cpu: bool = False
    """CPU seconds, which are compared after calibration."""
    noise: float = 0.0
    """A difference up to this, in the figure's own unit, is none."""

    @property
    def name(self) -> str:
        """How the figure is called in the record and in the report."""
        return f"{self.key}/{self.peer}" if self.peer else self.key

    def read(self, result: dict[str, Any]) -> float:
        """Return the figure. Raises KeyError when the benchmark did not print it."""
        value = _at(result, self.key)
        return value / _at(result, self.peer) if self.peer else value


@dataclass(frozen=True, slots=True)
class ShortForm:
    """How a benchmark is run in about a minute, and which of its figures are compared."""

    benchmark: str
    arguments: tuple[str, ...]
    figures: tuple[Figure, ...]


TOTAL_CPU = Figure("total_cpu_s", is_cpu=True, noise=3.0)
"""User and system seconds of the benchmark and of what it started and waited for; Spark's JVM is not among them."""

FORMS = (
    ShortForm(
        "timeline",
        ("--sizes", "10000", "--runs", "7", "--without-jvm"),
        (Figure("ours_ms", "hudi_rs_ms", noise=0.1), Figure("ours_reload_ms", "hudi_rs_ms", noise=0.1)),
    ),
    ShortForm(
        "detection",
        ("--tables", "2000", "--minutes", "0.2", "--interval", "12", "--strategies", "push", "--rate", "0.05"),
        (
            Figure("push.cpu_s", is_cpu=True, noise=1.0),
            Figure("push.fs_calls_per_min", noise=40),
            Figure("push.missed"),
        ),
    ),
    ShortForm(
        "namenode",
        ("--tables", "40", "--rounds", "2", "--commits", "0"),
        (Figure("gated_ops", "direct_ops", noise=0.02), Figure("served_ops", "direct_ops", noise=0.01)),
    ),
    ShortForm(
        "conflict",
        ("--runs", "5", "--without-hudi"),
        (
            Figure("first_150k_ms", "plain_150k_ms", noise=0.3),
            Figure("first_calls", noise=2),
            Figure("recheck_calls", noise=2),
        ),
    ),
    ShortForm(
        "notice",
        ("--seconds", "18"),
        (
            Figure("sqlite.lost"),
            Figure("postgres.lost"),
            Figure("sqlite.peer_per_s", "sqlite.most_per_s", noise=0.02),
            Figure("postgres.peer_per_s", "postgres.most_per_s", noise=0.02),
            TOTAL_CPU,
        ),
    ),
    ShortForm(
        "neighbour",
        ("--databases", "postgres", "--seconds", "12", "--overload", "0"),
        (
            Figure("postgres.absent.most_per_s", "postgres.idle.most_per_s", noise=0.1),
            Figure("postgres.absent.most_per_s", "postgres.noticed.most_per_s", noise=0.3),
            Figure("postgres.noticed.cpu_ms_per_request", "postgres.absent.cpu_ms_per_request", noise=0.2),
        ),
    ),
    ShortForm(
        "replication",
        ("--rows", "60000", "--commits", "6"),
        (
            Figure("lost"),
            Figure("duplicates"),
            Figure("spark_sink_rows_per_s", "rows_per_s", noise=0.5),
        ),
    ),
    ShortForm(
        "streams",
        ("--sizes", "20", "--minutes", "0.4", "--interval", "8"),
        (
            Figure("20.lost"),
            Figure("20.failures"),
            Figure("20.cpu_s_per_commit", is_cpu=True, noise=0.05),
        ),
    ),
    ShortForm(
        "ranking",
        ("--lakes", "3"),
        tuple(Figure(f"budget_{share}.autocomp", f"budget_{share}.ours") for share in (10, 30, 60)),
    ),
    ShortForm(
        "database",
        ("--runs", "100000", "--tables", "5000"),
        tuple(Figure(f"{operation}.visited", noise=30) for operation in DATABASE_OPERATIONS),
    ),
    ShortForm(
        "page",
        ("--tables", "10000", "--requests", "300"),
        (
            Figure("bundle_kb", noise=1.0),
            Figure("request_cpu_ms", is_cpu=True, noise=2.0),
            Figure("opening_cpu_s", is_cpu=True, noise=0.2),
        ),
    ),
    ShortForm(
        "scale",
        ("--sizes", "300", "--commits", "30", "--fleet", "0", "--without-parse"),
        (
            Figure("300.first_cpu_ms", is_cpu=True, noise=4.0),
            Figure("300.cycle_cpu_s", is_cpu=True, noise=0.15),
            Figure("300.quiet_statements"),
            Figure("300.commit_statements", noise=0.5),
            Figure("300.commit_rows", noise=0.3),
        ),
    ),
    ShortForm(
        "engines",
        ("--rounds", "2"),
        (
            Figure("spark_submit_cpu_s", is_cpu=True, noise=2.0),
            Figure("in_process_cpu_s", "spark_submit_cpu_s", noise=0.1),
        ),
    ),
    ShortForm(
        "waste",
        ("--writers", "3", "--clusterings", "1"),
        (Figure("ours_s", noise=15.0),),
    ),
)


def calibrate() -> float:
    """Return the CPU seconds of a fixed piece of work: the best of five."""
    took = []
    for _ in range(5):
        began = time.process_time()
        total = 0
        for number in range(CALIBRATION_LOOPS):
            total += number ^ (total & 255)
        took.append(time.process_time() - began)
    return min(took)


def run(form: ShortForm) -> dict[str, Any]:
    """Run one benchmark; return its last line with `total_cpu_s`. Raises RuntimeError when it fails."""
    log_path = LOGS / f"{form.benchmark}.log"
    before = _children_cpu_s()
    with log_path.open("w", encoding="utf-8") as log:
        command = [sys.executable, "-m", f"benchmarks.{form.benchmark}", *form.arguments]
        process = subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=TIMEOUT_S
        )
    lines = log_path.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.startswith("{")]
    if process.returncode or not found:
        raise RuntimeError(f"{form.benchmark} ended with {process.returncode}; see {log_path}")
    result: dict[str, Any] = json.loads(found[-1])
    return result | {"total_cpu_s": round(_children_cpu_s() - before, 2)}


def compare(figure: Figure, now: float, recorded: float | None, speed: float) -> tuple[str, bool]:
    """Return a line's end, and whether the figure fell. `speed`: CPU seconds here per CPU second of the record."""
    if recorded is None:
        return f"{now:.3f} (not recorded)", False
    expected = recorded * speed if figure.is_cpu else recorded
    fell = now > expected * FALLS_FROM and now - expected > figure.noise
    change = f", x{now / expected:.2f}" if expected else ""
    return f"{now:.3f} (recorded {expected:.3f}{change}){'  FELL' if fell else ''}", fell


def main() -> int:
    """Run the named short forms, or all; compare, or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="benchmarks; all that have a short form unless named")
    parser.add_argument("--record", action="store_true", help="write the figures down instead of comparing them")
    options = parser.parse_args()
    unknown = set(options.names) - {form.benchmark for form in FORMS}
    if unknown:
        parser.error(f"no short form of {', '.join(sorted(unknown))}")
    if options.record:
        try:
            require_idle(measure_busy_percent())
        except BusyError as error:
            parser.error(str(error))
    LOGS.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    unit_s = calibrate()
    fallen: list[str] = []
    results: dict[str, Any] = {}
    for form in (form for form in FORMS if not options.names or form.benchmark in options.names):
        began = time.monotonic()
        result = run(form)
        figures = {figure.name: figure.read(result) for figure in form.figures}
        results[form.benchmark] = figures
        known = record.get(form.benchmark, {})
        for figure in form.figures:
            speed = unit_s / known["unit_s"] if known else 1.0
            line, fell = compare(figure, figures[figure.name], known.get("figures", {}).get(figure.name), speed)
            print(f"{form.benchmark:12} {figure.name:40} {line}", flush=True)
            fallen += [f"{form.benchmark} {figure.name}"] if fell else []
        print(f"{form.benchmark:12} took {time.monotonic() - began:.0f} s", flush=True)
        if options.record:
            record[form.benchmark] = _entry(form, figures, unit_s)
            RECORDED.parent.mkdir(exist_ok=True)
            RECORDED.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps({"figures": results, "fallen": fallen, "unit_s": round(unit_s, 4)}), flush=True)
    return 1 if fallen and not options.record else 0


def _entry(form: ShortForm, figures: dict[str, float], unit_s: float) -> dict[str, Any]:
    return {
        "arguments": list(form.arguments),
        **describe_origin(),
        "unit_s": round(unit_s, 4),
        "figures": {name: round(value, 4) for name, value in figures.items()},
    }


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _at(result: dict[str, Any], key: str) -> float:
    value: Any = result
    for part in key.split("."):
        value = value[part]
    return float(value)


if __name__ == "__main__":
    sys.exit(main())

"""How far are predicted seconds and bytes from what runs take? `make bench NAME=prediction`.

Real tables of different sizes, upserts of changing size between the runs, and `--runs` runs of compaction and of clean
on each, by the provider's jobs in one warm Spark session. Each run is predicted by `planner.price` before it begins,
from the decision's evidence and the records of the runs before it, the table's own and those of all tables, as the
manager does; then it is measured. Bytes are what a compaction writes, and what a clean frees: base and log files that
are gone after it. Errors are |predicted - actual| / actual.

`seconds_error`, `bytes_error`: the median over all runs of a service from its table's fourth run on, when the table has
records of its own; `first_...`: that of the first three runs, which rest on other tables or on the prior.
`inside`: the share of runs whose seconds lay within the interval.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy, CompactionPolicy
from airflow_lake_provider.job_contract import JobRequest, Outcome, Service, ServiceRequest
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.price import MIN_OWN, Operation, predict, work_of
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from local_stack import hudi_bundle

ROOT = Path(__file__).resolve().parent.parent
SERVICES = (Service.COMPACTION, Service.CLEAN)
SIZES = {"small": (400, 100), "middle": (20_000, 4_000), "large": (120_000, 20_000)}
"""Keys of a table, and the most rows of one upsert."""
SEED = 20261123


@dataclass
class Measured:
    """One run: what was predicted, and what it was."""

    table: str
    service: str
    number: int
    seconds: float
    predicted_s: float
    inside: bool
    bytes: float
    predicted_bytes: float


@dataclass
class History:
    """The records of all runs so far, the newest first."""

    own: dict[tuple[str, Service], list[Operation]] = field(default_factory=dict)
    fleet: dict[Service, list[Operation]] = field(default_factory=dict)

    def add(self, table: str, service: Service, operation: Operation) -> None:
        self.own.setdefault((table, service), []).insert(0, operation)
        self.fleet.setdefault(service, []).insert(0, operation)


def main() -> int:
    """Start Spark's Python, and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each service on each table")
    parser.add_argument("--tables", default=",".join(SIZES), help=f"of {', '.join(SIZES)}, apart by commas")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(run_all(options.tables.split(","), options.runs)))
        return 0
    command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.prediction", "--inside"]
    command += ["--runs", str(options.runs), "--tables", options.tables]
    return subprocess.run(command, cwd=ROOT, env=hudi_bundle.spark_env(), check=False).returncode


def run_all(names: list[str], runs: int) -> dict[str, Any]:
    """Run everything in one Spark session; return the closing figures."""
    sys.path.insert(0, str(ROOT / "spark_jobs"))
    from tests.support.spark_session import open_test_session

    folder = Path(tempfile.mkdtemp(prefix="lake-prediction-"))
    spark = open_test_session(folder / "session")
    history, found, chance = History(), [], random.Random(SEED)
    try:
        tables = {name: RealTable(spark, folder / name, name, *SIZES[name], chance) for name in names}
        for number in range(1, runs + 1):
            for table in tables.values():
                table.write_some()
                for service in SERVICES:
                    measured = run_one(table, service, number, history)
                    found.append(measured)
                    print(f"{measured}", file=sys.stderr, flush=True)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return summarise(found)


@dataclass
class RealTable:
    """A merge-on-read table, and its writer."""

    spark: Any
    path: Path
    name: str
    keys: int
    most_rows: int
    chance: random.Random
    commits: int = 0
    views: TableViewCache = field(default_factory=TableViewCache)
    last_runs: LastRuns = NO_LAST_RUNS

    def __post_init__(self) -> None:
        self._write(100)

    def write_some(self) -> None:
        """Commit one to three upserts of random size."""
        for _ in range(self.chance.randint(1, 3)):
            self._write(self.chance.randint(self.most_rows // 10, self.most_rows))

    def _write(self, rows: int) -> None:
        from local_stack import lake_writer

        written = lake_writer.WrittenTable(self.name, str(self.path), keys=self.keys, rows=rows)
        settings = lake_writer.write_options(written, self.commits, None, {})
        lake_writer.write_commit(self.spark, written, self.commits, settings)
        self.commits += 1

    def data_bytes(self) -> int:
        return sum(
            file.stat().st_size
            for file in self.path.rglob("*")
            if ".hoodie" not in file.parts and file.is_file() and not file.name.endswith(".crc")
        )


def run_one(table: RealTable, service: Service, number: int, history: History) -> Measured:
    """Decide, predict, run and measure one service of a table."""
    from importlib import import_module

    from airflow_lake_provider.hudi.pending import read_effect
    from airflow_lake_provider.storage.table_storage import open_storage
    from local_stack.lake_writer import MANAGED_LAKE

    lock = {key: value for key, value in MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}
    policy = TablePolicy(
        compaction=CompactionPolicy(delta_commits=1),
        clean=CleanPolicy(commits=1, retained_commits=1),
        hudi_options=lock,
    )
    now_ms = int(time.time() * 1000)
    facts = load_facts(table.views, table.views.refresh(str(table.path)), policy, now_ms)
    decisions = decide_now(table.views, facts, policy, now_ms, table.last_runs)
    decision = next(found for found in decisions if found.service is service)
    assert decision.verdict is Verdict.DUE, decision.reason
    price = predict(decision, history.own.get((table.name, service), []), history.fleet.get(service, []))
    request = JobRequest(
        f"{table.name}.{service}/{number}",
        str(table.path),
        table.name,
        (ServiceRequest(service, decision.mode, decision.plan_instants, dict(decision.options)),),
        "",
        lock,
    )
    before_bytes, began_s = table.data_bytes(), time.monotonic()
    (result,) = import_module("run_services").run_job(table.spark, request).services
    seconds = time.monotonic() - began_s
    assert result.outcome in {Outcome.COMPLETED, Outcome.NOTHING_TO_DO}, result.message
    effect = read_effect(open_storage(str(table.path)), result.completed_instants)
    freed_bytes = before_bytes - table.data_bytes()
    deletes = service is Service.CLEAN
    operation = Operation(
        work=work_of(service, decision.evidence),
        seconds=seconds,
        bytes=effect.written_bytes,
        files=effect.files_deleted if deletes else effect.files_before,
        points=price.benefit.points,
        expected_files=work_of(service, decision.evidence).items if price.benefit.files else 0.0,
        ended_ms=now_ms,
        found_nothing=result.outcome is Outcome.NOTHING_TO_DO,
    )
    history.add(table.name, service, operation)
    table.last_runs = table.last_runs.started(decision, request.job_id).ended(request.job_id, RunEnd.SUCCESS, now_ms)
    return Measured(
        table.name,
        service.value,
        number,
        round(seconds, 3),
        round(price.seconds.value, 3),
        price.seconds.low <= seconds <= price.seconds.high,
        freed_bytes if deletes else float(effect.written_bytes or 0),
        round(price.benefit.freed_bytes if deletes else price.bytes.value),
    )


def summarise(found: list[Measured]) -> dict[str, Any]:
    """Return errors by service, and each run for the plot."""
    figures: dict[str, Any] = {"runs": len(found)}
    for service in SERVICES:
        mine = [one for one in found if one.service == service.value]
        late = [one for one in mine if one.number > MIN_OWN]
        first = [one for one in mine if one.number <= MIN_OWN]
        figures[service.value] = {
            "seconds_error": error_of([(one.predicted_s, one.seconds) for one in late]),
            "bytes_error": error_of([(one.predicted_bytes, one.bytes) for one in late]),
            "first_seconds_error": error_of([(one.predicted_s, one.seconds) for one in first]),
            "first_bytes_error": error_of([(one.predicted_bytes, one.bytes) for one in first]),
            "inside": round(sum(one.inside for one in late) / max(1, len(late)), 2),
            "points": [
                [one.table, one.number, one.seconds, one.predicted_s, one.bytes, one.predicted_bytes] for one in mine
            ],
        }
    return figures


def error_of(pairs: list[tuple[float, float]]) -> float | None:
    """Return the median of |predicted - actual| / actual; None without runs. Nothing predicted of nothing is exact."""
    errors = [abs(predicted - actual) / actual if actual > 0 else float(predicted > 0) for predicted, actual in pairs]
    return round(median(errors), 3) if errors else None


if __name__ == "__main__":
    sys.exit(main())

"""Run the long form of every test, one step after another: `make soak`. It takes hours.

A step that fails keeps no other from running, and what has passed at this commit is left out when it is called again,
so that a machine that was switched off in between costs one step. The end names what failed; exit code 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tools.links import ROOT
from tools.tests import PytestCall

WORK = ROOT / ".work" / "soak"
RANDOM_SEED = "random"
"""A seed that is drawn by each call, and printed."""


class Which(StrEnum):
    """Which tests of a step's files run, as pytest's expression of marks."""

    ALL = ""
    SHORT = "not soak"
    MARKED = "soak"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of pytest: files or folders, and how long or how often, by environment variables."""

    paths: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    tests: Which = Which.ALL
    with_spark: bool = False
    """Whether Spark's Python runs it."""

    @property
    def name(self) -> str:
        """How the step is called in the output and in the record of what has passed."""
        settings = [f"{key}={value}" for key, value in self.environment.items()]
        return " ".join((*settings, *self.paths, *([f"({self.tests.name.lower()})"] if self.tests else [])))

    def command(self) -> list[str]:
        """Return the call of pytest."""
        return [*PytestCall(self.paths, ("-s", "-m", self.tests.value), self.with_spark).command()]


STEPS = (
    Step(("tests/field/tables",), with_spark=True),
    Step(("tests/hudi_faults",), with_spark=True),
    Step(("tests/field/service",)),
    Step(("tests/system/test_notices_survive.py",), {"LAKE_KILLS": "20"}),
    Step(("tests/system/test_crashes.py",), {"LAKE_ROUND_SEED": "0", "LAKE_ROUNDS": "50"}),
    Step(
        (
            "tests/system/test_behind_a_proxy.py",
            "tests/system/test_catalog_sync.py",
            "tests/system/test_celery_workers.py",
            "tests/system/test_conflict_watch.py",
            "tests/system/test_erase.py",
            "tests/system/test_fab_roles.py",
            "tests/system/test_loop_process.py",
            "tests/system/test_outage.py",
            "tests/system/test_overload.py",
            "tests/system/test_priority.py",
            "tests/system/test_readme.py",
            "tests/system/test_restore.py",
            "tests/system/test_rules_of_the_tables_file.py",
            "tests/system/test_run_as_user.py",
            "tests/system/test_timeline_server.py",
            "tests/system/test_upgrade.py",
            "tests/system/test_warm.py",
            "tests/system/test_warm_on_yarn.py",
        ),
        tests=Which.MARKED,
    ),
    Step(("tests/clusters",), {"LAKE_POD_RUNS": "100"}, tests=Which.MARKED),
    Step(("tests/integration/engines",), {"LAKE_PAUSE_ROUNDS": "50", "LAKE_YARN_KILLS": "3"}, tests=Which.MARKED),
    Step(("tests/system/test_asset_queue.py",), {"LAKE_PEER_ROUNDS": "10"}),
    Step(("tests/system/test_new_data_starts_dags.py",), {"LAKE_EVENT_ROUNDS": "10"}),
    Step(("tests/system/test_production_shape.py",), {"LAKE_TABLES": "60"}),
    Step(("tests/unit/timeline_server/test_shared_timelines.py",), {"LAKE_HISTORIES": "200"}),
    Step(("tests/integration/timeline_server/test_stream.py",), {"LAKE_SEEDS": "10"}),
    Step(("tests/integration/http",), {"LAKE_EXAMPLES": "1000"}),
    Step(("tests/unit/conflict",), {"LAKE_INTERLEAVINGS": "20000"}),
    Step(("tests/unit/hudi",), {"LAKE_CASES": "100000"}),
    Step(
        (
            "tests/unit/manager/test_the_adversary.py",
            "tests/unit/manager/test_liveness.py",
        ),
        {"LAKE_GAMES": "2000"},
    ),
    Step(("tests/simulation",), {"LAKE_SIMULATIONS": "10000", "LAKE_ORPHAN_HISTORIES": "10000"}),
    Step(
        (
            "tests/integration/replication/test_kill_matrix.py",
            "tests/integration/replication/test_kills_of_copies.py",
            "tests/integration/replication/test_made_tables.py",
        ),
        {"LAKE_REPLICATION_SEEDS": "30"},
    ),
    Step(("tests/system/test_replication.py",), {"LAKE_REPLICATION_KILLS": "10"}),
    Step(
        ("tests/integration/spark",),
        {"LAKE_REPLICATION_WORKLOAD_S": "7200", "LAKE_REPLICATION_WORKLOAD_KILLS": "40"},
        tests=Which.MARKED,
        with_spark=True,
    ),
    Step(
        ("tests/row_oracle",),
        {"LAKE_ROWS_S": "7200", "LAKE_ROWS_SEED": "RANDOM", "LAKE_ROWS_SHRINK_S": "1200"},
        with_spark=True,
    ),
    Step(
        ("tests/oracle",),
        {"LAKE_ORACLE_S": "7200", "LAKE_ORACLE_SEED": "RANDOM", "LAKE_ORACLE_SHRINK_S": "1200"},
        with_spark=True,
    ),
    Step(
        ("tests/oracle",),
        {
            "LAKE_ORACLE_STORE": "hdfs",
            "LAKE_ORACLE_S": "1800",
            "LAKE_ORACLE_SEED": "RANDOM",
            "LAKE_ORACLE_SHRINK_S": "1200",
        },
        tests=Which.SHORT,
        with_spark=True,
    ),
    Step(
        ("tests/oracle",),
        {
            "LAKE_ORACLE_STORE": "s3",
            "LAKE_ORACLE_S": "1800",
            "LAKE_ORACLE_SEED": "RANDOM",
            "LAKE_ORACLE_SHRINK_S": "1200",
        },
        tests=Which.SHORT,
        with_spark=True,
    ),
    Step(
        (
            "tests/integration/storage",
            "tests/integration/monitoring",
            "tests/integration/airflow/test_mariadb.py",
            "tests/integration/airflow/test_wheel.py",
            "tests/integration/replication/test_real_registry.py",
            "tests/integration/replication/test_buckets.py",
            "tests/integration/replication/test_target_histories.py",
            "tests/integration/replication/test_topic_histories.py",
            "tests/integration/replication/test_made_tables.py",
            "tests/integration/replication/test_mariadb.py",
        ),
        tests=Which.MARKED,
    ),
    Step(("tests/integration/spark/test_indexing_kills_on_hudi.py",), {"LAKE_INDEX_KILLS": "10"}, with_spark=True),
)


def draw_seeds(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a step's variables with a seed where one is to be drawn."""
    return {key: str(random.randrange(32_768)) if value == RANDOM_SEED else value for key, value in environment.items()}


def find_left(steps: Iterable[Step], passed: Iterable[str]) -> list[Step]:
    """Return the steps that have not passed."""
    done = set(passed)
    return [step for step in steps if step.name not in done]


def run_steps(steps: list[Step], passed: list[str], record: Path) -> list[str]:
    """Run the steps; write down each that passes, and return the names of those that fail."""
    failed = []
    for number, step in enumerate(steps, 1):
        environment = draw_seeds(step.environment)
        print(f"--- {number} of {len(steps)}: {step.name} {environment or ''}", flush=True)
        began_s = time.monotonic()
        done = subprocess.run(step.command(), cwd=ROOT, env={**os.environ, **environment}, check=False)
        print(f"--- ended with {done.returncode} after {time.monotonic() - began_s:.0f} s", flush=True)
        if done.returncode:
            failed.append(step.name)
            continue
        passed.append(step.name)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(passed, indent=1), encoding="utf-8")
    return failed


def main() -> int:
    """Run what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="also what has passed at this commit")
    parser.add_argument("--list", action="store_true", help="name what is left, and run nothing")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    record = WORK / f"{git.stdout.strip()}.json"
    passed = json.loads(record.read_text(encoding="utf-8")) if record.exists() and not options.again else []
    left = find_left(STEPS, passed)
    print(f"{len(passed)} of {len(STEPS)} steps have passed at {git.stdout.strip()}", flush=True)
    if options.list:
        print(*(step.name for step in left), sep="\n")
        return 0
    failed = run_steps(left, passed, record)
    print(*(f"failed: {name}" for name in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

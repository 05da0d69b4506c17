"""Run tiers of tests: `make test`, `make check` and the targets `test-...`.

python -m tools.tests NAME...    # one after another; the first that fails ends it
python -m tools.tests all        # what must land: side by side, each prints when it has ended; none keeps another back

A tier waits much of its time, for Spark's jobs and for Airflow's processes, so several side by side use both cores. The
end says how long each took, and how many CPU seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.links import ROOT

DEFAULT_JOBS = 5
"""Tiers side by side in `make test`: with fewer, two cores are idle for a part of the time."""
DEFAULT_PATIENCE = 5
"""How many times longer tests wait meanwhile."""


@dataclass(frozen=True, slots=True)
class PytestCall:
    """One call of pytest."""

    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    with_spark: bool = False
    """Whether Spark's Python runs it."""

    def command(self) -> tuple[str, ...]:
        """Return the command line."""
        python = ".venv-spark/bin/python" if self.with_spark else ".venv/bin/python"
        return (python, "-m", "pytest", *self.options, *self.paths)


Commands = tuple[tuple[str, ...], ...]


def _python(*words: str) -> tuple[str, ...]:
    return (".venv/bin/python", "-m", *words)


def _ignore(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"--ignore={folder}/{name}" for name in names)


CHECK: Commands = (
    (".venv/bin/ruff", "format", "--check", "."),
    (".venv/bin/ruff", "check", "."),
    (".venv/bin/mypy",),
    (".venv/bin/lint-imports",),
    _python("tools.links"),
    _python("tools.words"),
    _python("tools.house"),
    _python("tools.reference", "--check"),
    _python("tools.support", "--check"),
    _python("tools.cases", "--check"),
    _python("tools.frontend", "--check"),
    _python("benchmarks.report", "--check"),
)
SPARK = "tests/integration/spark"
SECOND_HALF = ("expression", "index", "replic", "snapshot", "standing", "streams", "writers", "zookeeper")
"""How the names of the files begin that a Spark session of their own runs; each half takes about as long."""


def split_spark_tests(root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the two halves of the tests of Spark jobs."""
    paths = sorted((root / SPARK).glob("test_*.py"))
    second = [path for path in paths if path.stem.removeprefix("test_").startswith(SECOND_HALF)]
    first = [path for path in paths if path not in second]
    return tuple(f"{SPARK}/{path.name}" for path in first), tuple(f"{SPARK}/{path.name}" for path in second)


def make_tiers(root: Path) -> dict[str, Commands]:
    """Return the commands of each tier. In `make test` they begin in this order: first those that wait most."""
    first, second = split_spark_tests(root)
    others = _ignore("tests/integration", "spark", "storage", "http", "timeline_server")
    whole_job = PytestCall((f"{SPARK}/test_real_processes.py",), ("-k", "whole_job"), with_spark=True)
    unit_others = PytestCall(("tests/unit",), _ignore("tests/unit", "manager")).command()
    return {
        "system": (PytestCall(("tests/system",)).command(),),
        "integration": (PytestCall(("tests/integration",), others).command(),),
        "spark-first": (PytestCall(first, with_spark=True).command(),),
        "spark-second": (PytestCall(second, with_spark=True).command(),),
        "servers": (PytestCall(("tests/integration/http", "tests/integration/timeline_server")).command(),),
        "storage": (PytestCall(("tests/integration/storage",)).command(),),
        "field": (
            PytestCall(("tests/field/tables",), with_spark=True).command(),
            PytestCall(("tests/field/service",)).command(),
        ),
        "oracle": (PytestCall(("tests/oracle", "tests/row_oracle"), with_spark=True).command(),),
        # More than half of the unit tests' time is the manager's.
        "unit-manager": (PytestCall(("tests/unit/manager",)).command(),),
        "unit-others": (unit_others,),
        "simulation": (PytestCall(("tests/simulation",)).command(),),
        "check": CHECK,
        "quick-others": (*CHECK, unit_others, whole_job.command()),
    }


QUICK = ("unit-manager", "quick-others")
GROUPS = {"unit": ("unit-manager", "unit-others", "simulation"), "spark": ("spark-first", "spark-second")}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a tier ended."""

    name: str
    returncode: int
    took_s: float
    cpu_s: float
    """Of its processes and those that they waited for."""


def run_tier(name: str, commands: Commands, output: IO[bytes] | None, environment: Mapping[str, str]) -> Ended:
    """Run the commands of a tier up to the first that fails."""
    began_s = time.monotonic()
    cpu_s = 0.0
    code = 0
    for command in commands:
        line = f"{' '.join(command)}\n".encode()
        (output or sys.stdout.buffer).write(line)
        (output or sys.stdout.buffer).flush()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s += used.ru_utime + used.ru_stime
        if code:
            break
    return Ended(name, code, time.monotonic() - began_s, cpu_s)


def run_side_by_side(tiers: Mapping[str, Commands], jobs: int, environment: Mapping[str, str]) -> list[Ended]:
    """Run tiers, `jobs` at a time; print the output of each when it has ended."""

    def run(name: str, output: IO[bytes]) -> Ended:
        return run_tier(name, tiers[name], output, environment)

    ended: list[Ended] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        outputs = {name: (Path(folder) / name).open("w+b") for name in tiers}
        try:
            for future in as_completed([pool.submit(run, name, outputs[name]) for name in tiers]):
                tier = future.result()
                ended.append(tier)
                with outputs[tier.name] as output:
                    output.seek(0)
                    sys.stdout.buffer.write(output.read())
                print(f"--- {describe(tier)}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return ended


def describe(one: Ended) -> str:
    """Return how a tier ended, in a line."""
    end = "passed" if one.returncode == 0 else f"failed ({one.returncode})"
    return f"{one.name:<14} {end} after {one.took_s:5.0f} s, {one.cpu_s:5.0f} CPU seconds"


def run_all(names: Sequence[str], jobs: int, environment: Mapping[str, str]) -> int:
    """Run tiers side by side; return the exit code."""
    tiers = make_tiers(ROOT)
    began_s = time.monotonic()
    ended = run_side_by_side({name: tiers[name] for name in names}, jobs, environment)
    took_s = time.monotonic() - began_s
    print(f"{len(ended)} tiers, {jobs} side by side: {took_s:.0f} s, {sum(one.cpu_s for one in ended):.0f} CPU seconds")
    print(*(describe(one) for one in ended), sep="\n", flush=True)
    return 1 if any(one.returncode for one in ended) else 0


def main(arguments: Sequence[str]) -> int:
    """Run the tiers that are named."""
    tiers = make_tiers(ROOT)
    if arguments == ["all"]:
        jobs = int(os.environ.get("LAKE_TIERS", DEFAULT_JOBS))
        environment = {"LAKE_PATIENCE": str(DEFAULT_PATIENCE)} | os.environ
        return run_all([name for name in tiers if name != "quick-others"], jobs, environment)
    if arguments == ["quick"]:
        return run_all(QUICK, len(QUICK), os.environ)
    names = [name for argument in arguments for name in GROUPS.get(argument, (argument,))]
    unknown = [name for name in names if name not in tiers]
    if unknown or not names:
        print(f"no tier {', '.join(unknown)}; known are all, quick, {', '.join((*GROUPS, *tiers))}", file=sys.stderr)
        return 2
    for name in names:
        code = run_tier(name, tiers[name], None, os.environ).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

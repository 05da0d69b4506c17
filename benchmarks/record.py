"""Run the full form of one benchmark and write its closing line down: `make bench NAME=x RECORD=1`.

`benchmarks/results/x.json` holds the line's figures with commit, date and machine; `make bench-report` makes
`docs/benchmarks.md` of these files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WATCHED_S = 5.0
MAX_BUSY_PERCENT = 15.0
"""Of all cores, before a benchmark begins; above it nothing is recorded."""


class BusyError(RuntimeError):
    """Something else works on the machine, so that figures would be its as well."""


def describe_origin() -> dict[str, str]:
    """Return where a figure comes from: commit (`+` when files differ from it), date, machine.

    The commit is the last one that changed more than documentation and recorded figures.
    """
    commit = _git("log", "-1", "--format=%h", "--", ".", ":!benchmarks/results", ":!docs")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results", ":!docs")
    return {
        "commit": f"{commit}+" if changed else commit,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }


def measure_busy_percent(seconds: float = WATCHED_S) -> float:
    """Return how much of all cores is in use, by watching for some seconds."""
    return psutil.cpu_percent(interval=seconds)


def require_idle(busy_percent: float) -> None:
    """Raise BusyError on a busy machine."""
    if busy_percent > MAX_BUSY_PERCENT:
        raise BusyError(
            f"something else uses {busy_percent:.0f} % of this machine's cores (at most {MAX_BUSY_PERCENT:.0f} % when "
            "figures are recorded): nothing is recorded; end it, or wait for it"
        )


def run_and_find_result(command: list[str]) -> dict[str, Any]:
    """Run a benchmark, pass its output on, return its closing JSON line. Raises RuntimeError when it has none."""
    closing = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line if line.startswith("{") else closing
    if process.returncode or not closing:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} and no result: nothing is recorded")
    result: dict[str, Any] = json.loads(closing)
    return result


def record(benchmark: str, arguments: list[str], results: Path = RESULTS) -> Path:
    """Run one benchmark and write its result; return the file. Raises BusyError, and RuntimeError without a result."""
    busy_percent = measure_busy_percent()
    require_idle(busy_percent)
    origin, began = describe_origin(), time.monotonic()
    result = run_and_find_result([sys.executable, "-m", f"benchmarks.{benchmark}", *arguments])
    entry = {
        "benchmark": benchmark,
        "arguments": arguments,
        **origin,
        "busy_percent_before": round(busy_percent),
        "took_s": round(time.monotonic() - began),
        "result": result,
    }
    path = results / f"{benchmark}.json"
    path.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
    return path


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")))
    options, arguments = parser.parse_known_args()
    try:
        path = record(options.benchmark, arguments)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"recorded in {path.relative_to(ROOT)}; `make bench-report` shows it in docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

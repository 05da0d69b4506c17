"""The ten slowest tests of all tiers, the ten with most CPU, and why each that failed did.

`python -m tests.support.durations .work/durations` prints them, failures last: a long log is read from its end.

On a machine that is busy with several tiers, a test's seconds say little of its own cost; its CPU seconds do.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHOWN = 10
CPU_FOLDER = "cpu"
"""Below the folder of the durations: a file per run of pytest with CPU seconds by test."""
FAILED_FOLDER = "failed"
"""The same with the reason of each test that failed."""
MAX_OF_A_REASON = 3000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Durations:
    """A folder with one file per run of pytest: seconds by test."""

    folder: Path

    def save(self, seconds: Mapping[str, float] | Mapping[str, str], run: int | None = None) -> None:
        """Write down one run of pytest, by default this process's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{os.getpid() if run is None else run}.json").write_text(
            json.dumps(dict(seconds)), encoding="utf-8"
        )

    def load(self) -> dict[str, Any]:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]
        return {test: found for file in files for test, found in file.items()}


def read_cpu_s() -> float:
    """Return the CPU seconds of this process, its living children, and all of their descendants that have ended.

    So a server of a whole module counts for the test during which it works; a job that a scheduler started counts when
    it ends. From `/proc`, without a search through all processes; 0 where there is none.
    """
    own = Path("/proc/self")
    try:
        children = " ".join(path.read_text() for path in own.glob("task/*/children")).split()
    except OSError:
        children = []
    return sum(_cpu_s_of(path) for path in (own, *(Path("/proc") / child for child in children)))


def _cpu_s_of(process: Path) -> float:
    try:
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def describe(seconds: Mapping[str, float], of: str = "seconds of set-up, test and teardown") -> str:
    """Return the sum of each tier and the tests with most seconds, the first one with the most."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]
    per_tier: Counter[str] = Counter()
    for test, took_s in seconds.items():
        per_tier[tier_of(test)] += took_s
    lines = [f"{len(seconds)} tests; {of}:"]
    lines += [f"{took_s:8.1f}  {tier}" for tier, took_s in per_tier.most_common()]
    lines += [f"the {len(slowest)} tests with most of them:"]
    return "\n".join(lines + [f"{took_s:8.1f}  {test}" for test, took_s in slowest])


def describe_failures(reasons: Mapping[str, str]) -> str:
    """Return each test that failed with its reason; the middle of a long one is left out."""
    lines = [f"{len(reasons)} tests failed" + (":" if reasons else "")]
    for test, reason in sorted(reasons.items()):
        half = MAX_OF_A_REASON // 2
        shown = reason if len(reason) <= MAX_OF_A_REASON else f"{reason[:half]}\n  [...]\n{reason[-half:]}"
        lines += [f"FAILED {test}", *(f"  {line}" for line in shown.splitlines())]
    return "\n".join(lines)


def tier_of(test: str) -> str:
    """Return the folder that names a test's tier: the second one, or the third of integration tests."""
    parts = Path(test.partition("::")[0]).parts
    return "/".join(parts[: 3 if parts[1:2] == ("integration",) else 2])


if __name__ == "__main__":
    print(describe(Durations(Path(sys.argv[1])).load()))
    print(describe(Durations(Path(sys.argv[1]) / CPU_FOLDER).load(), "CPU seconds"))
    print(describe_failures(Durations(Path(sys.argv[1]) / FAILED_FOLDER).load()))

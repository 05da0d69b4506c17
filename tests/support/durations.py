"""The ten slowest tests of all tiers: `python -m tests.support.durations .work/durations`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHOWN = 10


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

    def load(self) -> dict[str, float]:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]
        return {test: seconds for file in files for test, seconds in file.items()}


def describe(seconds: Mapping[str, float]) -> str:
    """Return the sum of each file and the slowest tests, slowest first."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]
    per_tier: Counter[str] = Counter()
    for test, took_s in seconds.items():
        per_tier[tier_of(test)] += took_s
    lines = [f"{len(seconds)} tests; seconds of set-up, test and teardown:"]
    lines += [f"{took_s:8.1f}  {tier}" for tier, took_s in per_tier.most_common()]
    lines += [f"the {len(slowest)} slowest tests:"]
    return "\n".join(lines + [f"{took_s:8.1f}  {test}" for test, took_s in slowest])


def tier_of(test: str) -> str:
    """Return the folder that names a test's tier: the second one, or the third of integration tests."""
    parts = Path(test.partition("::")[0]).parts
    return "/".join(parts[: 3 if parts[1:2] == ("integration",) else 2])


if __name__ == "__main__":
    print(describe(Durations(Path(sys.argv[1])).load()))

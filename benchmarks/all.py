"""Record the full form of every benchmark on one commit: `make bench-all`. It takes hours, on an idle machine.

One after another; what this commit has recorded already is left out, so that an interrupted run goes on where it was
(`--again` runs all). A busy machine ends it: nothing is recorded there. At the end stand the aims that are not met
(`benchmarks/aims.py`), and what failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.aims import AIMS, Aim
from benchmarks.record import RESULTS, BusyError, describe_origin, record
from benchmarks.report import load_results
from benchmarks.sections import SECTIONS, Section


def find_due(sections: Iterable[Section], results: dict[str, dict[str, Any]], commit: str) -> list[Section]:
    """Return the benchmarks without a record of the commit's full form."""

    def is_recorded(section: Section) -> bool:
        entry = results.get(section.benchmark, {})
        return (entry.get("commit"), tuple(entry.get("arguments", ()))) == (commit, section.arguments)

    return [section for section in sections if not is_recorded(section)]


def find_missed(aims: Iterable[Aim], results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each aim that a recorded figure misses, and for each figure that no run has measured."""
    lines = []
    for aim in aims:
        result = results.get(aim.benchmark, {}).get("result", {})
        value = aim.read(result)
        if value is None or not aim.is_met(value):
            lines.append(f"{aim.benchmark}: {aim.describe(result)}")
    return lines


def record_all(due: list[Section], folder: Path) -> list[str]:
    """Record each benchmark; return those that failed. Raises BusyError."""
    failed = []
    for number, section in enumerate(due, 1):
        print(f"--- {section.benchmark}, {number} of {len(due)}", flush=True)
        try:
            record(section.benchmark, list(section.arguments), folder)
        except BusyError:
            raise
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(section.benchmark)
    return failed


def main() -> int:
    """Record what is due; print what is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="also what this commit has recorded")
    parser.add_argument("--list", action="store_true", help="name what is due, and run nothing")
    options = parser.parse_args()
    commit = describe_origin()["commit"]
    if commit.endswith("+"):
        parser.error("files differ from the last commit: commit them, so that the figures are of one commit")
    due = list(SECTIONS) if options.again else find_due(SECTIONS, load_results(RESULTS), commit)
    print(f"{len(due)} of {len(SECTIONS)} benchmarks have no record of {commit}: ", end="")
    print(", ".join(section.benchmark for section in due) or "none")
    failed = []
    if not options.list:
        try:
            failed = record_all(due, RESULTS)
        except BusyError as error:
            print(error, file=sys.stderr)
            return 1
    for line in find_missed(AIMS, load_results(RESULTS)):
        print(line)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

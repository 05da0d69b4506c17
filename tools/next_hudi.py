"""Try another Hudi: `make next-hudi VERSION=1.3.0` or `BUNDLE=path`, and print what changed.

It runs on that bundle: a comparison of the settings that Hudi knows, the probes of Hudi's faults
(`tools/hudi_faults.toml`), the public reports about tables, and both oracles for a time. Each step leaves a log and its
results in `.work/next-hudi/`; a step that has ended is not repeated, so that a stopped run goes on (AGAIN=1: from the
beginning). Exit code 1 when something changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from local_stack import hudi_bundle
from local_stack.maven_central import DownloadError
from tools.hudi_faults import Fault, load_faults
from tools.links import ROOT

WORK = ROOT / ".work" / "next-hudi"
DEFAULT_ORACLE_S = 600
_SETTING = re.compile(rb"hoodie\.[a-z0-9_]+(?:\.[a-z0-9_]+)+")
_NAMED = re.compile(r"""["'](hoodie\.[a-z0-9_]+(?:\.[a-z0-9_]+)+)["']""")


@dataclass(frozen=True, slots=True)
class NextStep:
    """One call of pytest with another bundle."""

    name: str
    tests: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    marks: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a test ended: the last line of what it said, empty where it passed."""

    outcome: str
    message: str = ""


def make_steps(faults: Iterable[Fault], oracle_s: int) -> tuple[NextStep, ...]:
    """Return the steps: first what takes minutes."""
    probes = tuple(dict.fromkeys(probe for fault in faults for probe in fault.probes))
    oracle = {"LAKE_ORACLE_S": str(oracle_s), "LAKE_ORACLE_SEED": "1"}
    rows = {"LAKE_ROWS_S": str(oracle_s), "LAKE_ROWS_SEED": "1"}
    by_folder: dict[str, list[str]] = {}
    for probe in probes:
        by_folder.setdefault(str(Path(probe.partition("::")[0]).parent), []).append(probe)
    # Each folder has a `conftest` of its own, which its tests import by that name.
    return (
        *(NextStep(f"probes of {folder}", tuple(tests)) for folder, tests in by_folder.items()),
        NextStep("field cases", ("tests/field/tables",)),
        NextStep("oracle", ("tests/oracle",), oracle, "not soak"),
        NextStep("row oracle", ("tests/row_oracle",), rows, "not soak"),
    )


def list_settings(jar: Path) -> set[str]:
    """Return every setting of Hudi that a class of a bundle spells out."""
    found: set[str] = set()
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("org/apache/hudi/") and name.endswith(".class"):
                found |= {match.decode() for match in _SETTING.findall(archive.read(name))}
    return found


def list_named_settings(root: Path) -> set[str]:
    """Return the settings that the package and the jobs spell out."""
    files = [path for folder in ("airflow_lake_provider", "spark_jobs") for path in (root / folder).rglob("*.py")]
    return {name for path in files for name in _NAMED.findall(path.read_text(encoding="utf-8"))}


def find_lost_settings(named: set[str], ours: set[str], theirs: set[str]) -> list[str]:
    """Return the settings that the provider names, and only the default bundle knows."""
    return sorted(named & ours - theirs)


def version_of(jar: Path) -> str:
    """Return the version of Hudi that a bundle's manifest names, or else its file name."""
    with zipfile.ZipFile(jar) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode() if "META-INF/MANIFEST.MF" in archive.namelist() else ""
    named = re.search(r"^Implementation-Version: *(\d\S*)", manifest, re.MULTILINE)
    found = named or re.search(r"-(\d+\.\d+\.\d+\S*)\.jar$", jar.name)
    return found.group(1) if found else "unknown"


def read_endings(report: Path) -> dict[str, Ending]:
    """Return how each test of a report in JUnit's form ended, by its node id."""
    endings = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
        file = case.get("classname", "").replace(".", "/")
        outcome = "passed" if problem is None else "failed" if problem.tag == "error" else problem.tag
        message = "" if problem is None else problem.get("message", "").strip()
        endings[f"{file}.py::{case.get('name', '')}"] = Ending(outcome.replace("failure", "failed"), message)
    return endings


def judge(version: str, faults: Iterable[Fault], endings: Mapping[str, Ending]) -> Iterator[str]:
    """Yield what changed: faults that their probes no longer see or see again, and other tests that failed."""
    probes: set[str] = set()
    for fault in faults:
        probes |= set(fault.probes)
        expected = fault.is_expected_in(version)
        for probe in fault.probes:
            found = [ending for name, ending in endings.items() if is_of(name, probe)]
            failed = [ending for ending in found if ending.outcome == "failed"]
            if not [ending for ending in found if ending.outcome != "skipped"]:
                yield f"not seen: no result of {probe}"
            elif failed and expected is not False:
                yield f"fixed? {fault.row}\n    {probe}\n    {shorten(failed[0].message)}"
            elif not failed and not expected:
                since = "before it was known" if expected is None else "again"
                yield f"there {since}: {fault.row}\n    {probe}"
    for name, ending in endings.items():
        if ending.outcome == "failed" and not any(is_of(name, probe) for probe in probes):
            yield f"fails: {name}\n    {shorten(ending.message)}"


def is_of(name: str, test: str) -> bool:
    """Return whether a result is one of a test, or of one of its parameters."""
    return name == test or name.startswith(f"{test}[")


def shorten(message: str, width: int = 400) -> str:
    """Return the beginning of a message on one line."""
    text = " ".join(message.split())
    return text if len(text) <= width else f"{text[:width]}..."


def run_step(step: NextStep, jar: Path, folder: Path) -> dict[str, Ending] | None:
    """Run a step unless it has ended before, and return how its tests ended; None where pytest reported nothing."""
    name = re.sub(r"\W+", "-", step.name)
    report = folder / f"{name}.xml"
    if not report.exists():
        part = folder / f"{name}.part.xml"
        part.unlink(missing_ok=True)
        command = [str(hudi_bundle.SPARK_PYTHON), "-m", "pytest", "-m", step.marks, f"--junitxml={part}", *step.tests]
        environment = {**os.environ, **step.environment, hudi_bundle.BUNDLE_VARIABLE: str(jar), "PYTHONPATH": str(ROOT)}
        # What another Hudi gives is no result of the supported one.
        for recorded in ("LAKE_OUTCOMES", "LAKE_DURATIONS"):
            environment.pop(recorded, None)
        with (folder / f"{name}.log").open("wb") as log:
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
        if done.returncode not in (0, 1) or not part.exists():
            return None
        part.replace(report)
    return read_endings(report)


def run_steps(steps: Sequence[NextStep], jar: Path, folder: Path) -> tuple[dict[str, Ending], list[str]]:
    """Run the steps, and return how all tests ended, and the names of the steps that did not run."""
    endings: dict[str, Ending] = {}
    broken = []
    for number, step in enumerate(steps, 1):
        began_s = time.monotonic()
        print(f"--- {number} of {len(steps)}: {step.name}", flush=True)
        found = run_step(step, jar, folder)
        if found is None:
            broken.append(step.name)
        endings |= found or {}
        failed = sum(ending.outcome == "failed" for ending in (found or {}).values())
        print(f"    {len(found or {})} tests, {failed} failed, {time.monotonic() - began_s:.0f} s", flush=True)
    return endings, broken


def find_folder(jar: Path) -> Path:
    """Return the folder of a bundle's results: one for each content of the bundle and each commit."""
    with jar.open("rb") as file:
        address = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return WORK / f"{jar.stem}-{address}-{commit}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--version", help="a version whose bundle local_stack/jars.sha256 lists")
    which.add_argument("--bundle", type=Path, help="a bundle's path")
    parser.add_argument("--oracle-s", type=int, default=DEFAULT_ORACLE_S, help="seconds of each oracle")
    parser.add_argument("--only", default="", help="only steps whose name contains this")
    parser.add_argument("--again", action="store_true", help="also what has ended at this commit")
    options = parser.parse_args()
    try:
        jar = options.bundle.resolve() if options.bundle else hudi_bundle.fetch(options.version)
        version = version_of(jar)
    except (DownloadError, OSError, zipfile.BadZipFile) as error:
        print(f"there is no such bundle: {error}", file=sys.stderr)
        return 2
    folder = find_folder(jar)
    folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        for report in folder.glob("*.xml"):
            report.unlink()
    faults = load_faults()
    steps = [step for step in make_steps(faults, options.oracle_s) if options.only in step.name]
    print(f"Hudi {version}, {jar}; logs in {folder}", flush=True)
    endings, broken = run_steps(steps, jar, folder)
    lost = find_lost_settings(
        list_named_settings(ROOT), list_settings(hudi_bundle.jar_of(hudi_bundle.VERSION)), list_settings(jar)
    )
    run = {test for step in steps for test in step.tests}
    asked = [fault for fault in faults if not fault.probes or run & set(fault.probes)]
    changes = [
        *(f"this Hudi does not know the setting {name}" for name in lost),
        *(f"did not run: {name}, see its log" for name in broken),
        *judge(version, asked, endings),
    ]
    (folder / "changes.json").write_text(json.dumps(changes, indent=1), encoding="utf-8")
    unprobed = [fault.row for fault in faults if not fault.probes]
    print(f"{len(changes)} changes against Hudi {hudi_bundle.VERSION}", *changes, sep="\n- ")
    print(f"without a probe: {len(unprobed)}", *unprobed, sep="\n- ")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())

"""Put a server's jars in place with Maven, once."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from local_stack.processes import SingleServer

FETCH_TIMEOUT_S = 900


class JarsMissingError(RuntimeError):
    """The jars cannot be fetched; the message names the reason."""


def fetch_jars(pom: Path, lib: Path) -> Path:
    """Resolve a pom's artifacts into `lib` unless it exists. Raises JarsMissingError."""
    if lib.is_dir():
        return lib
    _require_maven()
    lib.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fetch-", dir=lib.parent))
    try:
        command = ["mvn", "-B", "-q", "-f", str(pom), f"-Dmaven.repo.local={scratch / 'repository'}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'lib'}", "-DincludeScope=runtime"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if run.returncode != 0:
            raise JarsMissingError(f"cannot resolve {pom}: {find_cause(run.stdout + run.stderr)}")
        # All of them or none: an existing folder counts as complete.
        (scratch / "lib").rename(lib)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return lib


def find_cause(said: str) -> str:
    """Return the first error in Maven's output, which repeats it and adds advice; the end of it where there is none."""
    errors = (line.partition("[ERROR]")[2].strip() for line in said.splitlines() if "[ERROR]" in line)
    return next(filter(None, errors), said[-1000:])


def run_server(doc: str, fetch: Callable[[], Path], folder: Path, make: Callable[[Path], SingleServer]) -> int:
    """Run the command line of a server of jars: `--fetch` puts them in place, else it serves; return the exit code."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--fetch", action="store_true", help="only put the jars in place")
    parser.add_argument("--folder", type=Path, default=folder, help="folder of the server's files")
    options = parser.parse_args()
    try:
        lib = fetch()
    except JarsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    if options.fetch:
        print(lib)
    else:
        make(options.folder.resolve()).serve()
    return 0


def _require_maven() -> None:
    """Install Debian's Maven where it is missing and that is possible. Raises JarsMissingError."""
    if shutil.which("mvn") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise JarsMissingError("mvn is missing: install Maven (and Java 17) to run the tests on HDFS and Kafka")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "maven"]):
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)

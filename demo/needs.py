"""Say what `make demo` needs of this machine, and refuse in one sentence where something is missing.

It runs before anything is installed, by whichever Python the machine has: it needs nothing but Python.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GIB = 1 << 30
PYTHON = (3, 11)
JAVA = 17
INSTALLED_GIB = 4.0
"""Both environments, jars and download caches."""
STORY_GIB = 0.5
MEMORY_GIB = 5.0
"""The story's processes have 3.7 GiB together at their peak."""
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
"""Where a container says how much it may take."""


@dataclass(frozen=True)
class Machine:
    """What the demo found; None where the machine does not say it."""

    python: tuple[int, int]
    has_venv: bool
    java: int | None
    has_maven: bool
    free_disk_bytes: int
    free_memory_bytes: int | None


def find_lack(machine: Machine, *, is_installed: bool) -> str | None:
    """Return what is missing, as a sentence with what to do."""
    disk_gib = STORY_GIB + (0.0 if is_installed else INSTALLED_GIB)
    if machine.python < PYTHON:
        return f"Python {_dotted(PYTHON)} is needed and this is {_dotted(machine.python)}: make demo PYTHON=python3.11"
    if not machine.has_venv and not is_installed:
        return "this Python has no venv: install it (Debian: python3-venv)"
    if machine.java is None:
        return f"there is no java in JAVA_HOME or on the PATH: install Java {JAVA} (Debian: openjdk-17-jdk-headless)"
    if machine.java != JAVA:
        return f"Java {JAVA} is needed and this one is {machine.java}: set JAVA_HOME to Java {JAVA}"
    if machine.free_disk_bytes < disk_gib * GIB:
        return f"{disk_gib:.1f} GiB of disk are needed and {_gib(machine.free_disk_bytes)} are free below {ROOT}"
    if machine.free_memory_bytes is not None and machine.free_memory_bytes < MEMORY_GIB * GIB:
        free = _gib(machine.free_memory_bytes)
        return f"{MEMORY_GIB:.1f} GiB of memory are needed and {free} are available: end something that uses memory"
    return None


def describe(machine: Machine, *, is_installed: bool) -> str:
    """Return what the demo takes, in one or two lines."""
    disk = f"{STORY_GIB:.1f} GiB of disk" if is_installed else f"{INSTALLED_GIB + STORY_GIB:.1f} GiB of disk"
    minutes = "4 minutes" if is_installed else "8 minutes, of which 4 download and install"
    text = (
        f"the demo takes about {minutes}, {disk}, {MEMORY_GIB:.0f} GiB of memory, and free ports that it chooses itself"
    )
    if not machine.has_maven:
        text += (
            "\nwithout Maven (mvn) there is no Kafka broker, and the part about changes in Kafka is reported as failed"
        )
    return text


def read_machine(root: Path = ROOT) -> Machine:
    """Return what this machine has."""
    return Machine(
        python=sys.version_info[:2],
        has_venv=_has_venv(),
        java=_java(),
        has_maven=shutil.which("mvn") is not None,
        free_disk_bytes=shutil.disk_usage(root).free,
        free_memory_bytes=_free_memory_bytes(),
    )


def parse_memory(text: str) -> int | None:
    """Return the bytes that Linux gives to new processes without swapping."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def parse_java(said: str) -> int | None:
    """Return the major version in what `java -version` prints."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return None if found is None else int(found[1])


def _has_venv() -> bool:
    return all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))


def _java() -> int | None:
    # Spark's scripts ask this variable first.
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    return parse_java(
        subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    )


def _free_memory_bytes() -> int | None:
    found = [parse_memory(MEMINFO.read_text(encoding="utf-8"))] if MEMINFO.exists() else []
    try:
        most, taken = ((CGROUP / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        found.append(int(most) - int(taken))
    except (OSError, ValueError):
        pass  # No container, or one without a limit.
    return min((size for size in found if size is not None), default=None)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def main() -> int:
    is_installed = all((ROOT / name / ".installed").exists() for name in (".venv/bin", ".venv-spark"))
    machine = read_machine()
    print(describe(machine, is_installed=is_installed), flush=True)
    lack = find_lack(machine, is_installed=is_installed)
    if lack is not None:
        print(f"the demo cannot run: {lack}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

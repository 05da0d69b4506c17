"""`make demo` says what it needs before it installs anything, and refuses where something is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from demo.needs import (
    GIB,
    INSTALLED_GIB,
    MEMORY_GIB,
    ROOT,
    STORY_GIB,
    Machine,
    describe,
    find_lack,
    parse_java,
    parse_memory,
)

GOOD = Machine(
    python=(3, 11),
    has_venv=True,
    java=17,
    has_maven=True,
    free_disk_bytes=int((INSTALLED_GIB + STORY_GIB) * GIB),
    free_memory_bytes=int(MEMORY_GIB * GIB),
)

LACKS: list[tuple[dict[str, Any], str]] = [
    ({"python": (3, 10)}, "Python 3.11 is needed and this is 3.10"),
    ({"has_venv": False}, "this Python has no venv"),
    ({"java": None}, "there is no java"),
    ({"java": 21}, "Java 17 is needed and this one is 21"),
    ({"free_disk_bytes": GIB}, "of disk are needed and 1.0 GiB are free"),
    ({"free_memory_bytes": 2 * GIB}, "of memory are needed and 2.0 GiB are available"),
]


@pytest.mark.parametrize(("lack", "said"), LACKS, ids=[said for _, said in LACKS])
def test_what_is_missing_is_one_sentence(lack: dict[str, Any], said: str) -> None:
    found = find_lack(replace(GOOD, **lack), is_installed=False)
    assert found is not None
    assert said in found
    assert "\n" not in found


def test_machine_with_all_of_it_is_taken() -> None:
    assert find_lack(GOOD, is_installed=False) is None
    assert find_lack(replace(GOOD, free_memory_bytes=None, has_maven=False), is_installed=False) is None


def test_what_is_installed_needs_no_room_again() -> None:
    assert find_lack(replace(GOOD, free_disk_bytes=GIB, has_venv=False), is_installed=True) is None


def test_demo_says_what_it_takes() -> None:
    text = describe(GOOD, is_installed=False)
    for unit in ("minutes", "of disk", "of memory", "ports"):
        assert unit in text
    assert "mvn" not in text
    assert "mvn" in describe(replace(GOOD, has_maven=False), is_installed=False)


def test_versions_and_memory_are_read() -> None:
    assert parse_java('openjdk version "17.0.15" 2025-04-15') == 17
    assert parse_java('java version "1.8.0_202"') == 8
    assert parse_java("zsh: no such file") is None
    assert parse_memory("MemTotal: 9 kB\nMemAvailable:   2048 kB\n") == 2048 * 1024
    assert parse_memory("MemTotal: 9 kB\n") is None


def test_it_runs_with_nothing_but_python() -> None:
    # -S: without any installed package.
    command = [sys.executable, "-S", "-m", "demo.needs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("the demo takes about"), done.stderr
    assert done.stderr == "" or done.stderr.startswith("the demo cannot run: ")


def test_make_asks_before_it_installs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ndemo: demo-needs install " in makefile

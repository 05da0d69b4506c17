"""Which compaction the demo takes for running, and that a driver that ends by itself ends no kill."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from demo.parts import find_compaction, kill_all


def test_compaction_that_is_executed_is_found_among_those_that_have_ended(tmp_path: Path) -> None:
    """From table version 8 on, a completed compaction leaves its inflight file."""
    for name in ("1.compaction.requested", "1.compaction.inflight", "1_2.commit", "3.compaction.requested"):
        (tmp_path / name).touch()
    assert find_compaction(tmp_path) == ""
    (tmp_path / "3.compaction.inflight").touch()
    assert find_compaction(tmp_path) == "3"


def test_process_that_has_ended_meanwhile_keeps_no_other_from_being_killed() -> None:
    ended, runs = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    found = [psutil.Process(ended.pid), psutil.Process(runs.pid)]
    ended.kill()
    ended.wait()
    assert kill_all(found)
    assert runs.wait(timeout=10) != 0
    assert not kill_all(found)

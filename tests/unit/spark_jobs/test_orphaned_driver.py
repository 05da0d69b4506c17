"""The watch on the submitting process, with real processes that are really killed."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_lake_provider.job_contract import Submitter
from lake_jobs.driver.shutdown import exit_driver_when_orphaned, is_alive

HERE = socket.gethostname()
PATIENCE_S = 10.0


def stat_line(pid: int, *, state: str = "S", start_ticks: int = 4711, name: str = "a (b) c") -> str:
    """Print a line as the kernel does; the command's name is the one field that may hold spaces and parentheses."""
    return f"{pid} ({name}) {state} " + " ".join(["0"] * 18) + f" {start_ticks} 0 0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(stat_line(42))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "alive"),
    [
        pytest.param(stat_line(42), True, id="runs"),
        pytest.param(stat_line(42, start_ticks=4712), False, id="id-used-again"),
        pytest.param(stat_line(42, state="Z"), False, id="zombie"),
        pytest.param(stat_line(42, name=") Z 1 2"), True, id="name-that-imitates-the-fields"),
        pytest.param("", False, id="just-going"),
    ],
)
def test_alive_means_this_very_process(proc: Path, line: str, alive: bool) -> None:
    (proc / "42" / "stat").write_text(line)
    assert is_alive(Submitter(HERE, 42, 4711), proc) is alive


def test_absent_process_is_not_alive(proc: Path) -> None:
    assert not is_alive(Submitter(HERE, 43, 4711), proc)


@pytest.mark.parametrize(
    "submitter",
    [
        pytest.param(None, id="none-given"),
        pytest.param(Submitter("elsewhere.invalid", 43, 1), id="another-host"),
    ],
)
def test_nothing_is_watched_that_cannot_be_seen(proc: Path, submitter: Submitter | None) -> None:
    assert exit_driver_when_orphaned(submitter, exit_driver=pytest.fail, proc=proc) is None


def test_nothing_is_watched_where_there_is_no_proc(tmp_path: Path) -> None:
    assert exit_driver_when_orphaned(Submitter(HERE, 43, 1), exit_driver=pytest.fail, proc=tmp_path / "none") is None


def test_submitter_that_is_gone_already_is_reported_at_once(proc: Path) -> None:
    reasons: list[str] = []
    exit_driver_when_orphaned(Submitter(HERE, 43, 1), reasons.append, proc=proc)
    assert reasons == [f"the submitting process 43 on {HERE} has ended"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_killed_submitter_is_noticed_even_as_a_zombie() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    submitter = Submitter(HERE, worker.pid, int(fields[19]))
    ended = threading.Event()
    reasons: list[str] = []
    stop = exit_driver_when_orphaned(submitter, lambda reason: (reasons.append(reason), ended.set()), interval_s=0.02)
    assert stop is not None
    assert not ended.wait(0.2)
    os.kill(worker.pid, 9)
    # Not reaped yet: it is a zombie now.
    assert ended.wait(PATIENCE_S)
    worker.wait()
    assert reasons == [f"the submitting process {worker.pid} on {HERE} has ended"]

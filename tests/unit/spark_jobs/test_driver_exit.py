"""A driver ends where no lock file is left behind, with processes that are really stopped and killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest
from lake_jobs.driver.shutdown import EXIT_ORPHANED, LOCK_TIMEOUT_S, lock_file_of

FILE_LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
# Plays the JVM: it holds the lock for most of the time.
BUSY = """
import os, sys, time
while True:
    open(sys.argv[1], "x").close()
    time.sleep(0.1)
    os.unlink(sys.argv[1])
    time.sleep(0.005)
"""
DRIVER = """
import subprocess, sys, time
from lake_jobs.driver.shutdown import DriverExit
jvm = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
DriverExit(jvm.pid, None, sys.argv[1]).exit_at_sigterm()
print(jvm.pid, flush=True)
time.sleep(120)
"""


def end_driver(lock: Path, jvm_program: str = BUSY) -> tuple[int, int, str]:
    """Start a driver, ask it to end after a while; return its exit code, its JVM's id and what it said."""
    env = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-c", DRIVER, str(lock), jvm_program]
    driver = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    jvm_pid = int(driver.stdout.readline())
    time.sleep(0.3)
    driver.send_signal(signal.SIGTERM)
    # Asked again, as the lease does: it ends once.
    driver.send_signal(signal.SIGTERM)
    said, _ = driver.communicate(timeout=600)
    return driver.returncode, jvm_pid, said


def is_gone(pid: int, patience_s: float = 10.0) -> bool:
    """Whether a process that was killed is gone: the kernel takes a moment."""
    deadline_s = time.monotonic() + patience_s
    while not (gone := _has_ended(pid)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return gone


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("attempt", range(5))
def test_jvm_that_takes_and_gives_back_the_lock_leaves_none(tmp_path: Path, attempt: int) -> None:
    lock = tmp_path / "lock"
    code, jvm_pid, said = end_driver(lock)
    assert code == EXIT_ORPHANED
    assert is_gone(jvm_pid)
    assert not lock.exists()
    assert said.count("SIGTERM arrived") == 1


def test_lock_that_another_holds_for_good_is_left_and_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    began_s = time.monotonic()
    code, jvm_pid, said = end_driver(lock, "import time; time.sleep(120)")
    assert time.monotonic() - began_s < LOCK_TIMEOUT_S + 10
    assert code == EXIT_ORPHANED
    assert is_gone(jvm_pid)
    assert lock.exists()
    assert str(lock) in said
    assert "hoodie.write.lock.filesystem.expire" in said


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, ""),
        ({"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}, ""),
        ({"hoodie.write.lock.provider": FILE_LOCK}, "file:///lake/orders/.hoodie/lock"),
        ({"hoodie.write.lock.provider": FILE_LOCK, "hoodie.write.lock.filesystem.path": "/locks/"}, "/locks/lock"),
    ],
)
def test_lock_file_is_where_hudi_puts_it(options: dict[str, str], path: str) -> None:
    services = (ServiceRequest(Service.COMPACTION, Mode.EXECUTE),)
    request = JobRequest("run/1", "file:///lake/orders", "orders", services, "/result", hudi_options=options)
    assert lock_file_of(request) == path

"""Ends the driver at a moment without the table's lock, so that no writer waits for a lock that no process releases.

Hudi's FileSystemBasedLockProvider leaves its lock file behind when its JVM is killed, and an empty file does not name
its owner. A request to the JVM to end does not help: it goes on writing meanwhile, and a Hudi client that ends without
the lock deletes the lock file of its holder. So the driver stops the JVM, and kills it when there is no lock file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import EXIT_ORPHANED
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_PATH
from lake_jobs.driver.files import find_local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import JobRequest, Submitter

LOCK_TIMEOUT_S = 8.0
STOP_TIMEOUT_S = 1.0
OUTPUT_GRACE_S = 0.2
PROC = Path("/proc")
_PAUSE_S = 0.02


def lock_file_of(request: JobRequest) -> str:
    """Return the path of the lock file of a job's table; empty when its lock is no file."""
    options = request.hudi_options
    if not options.get(LOCK_PROVIDER, "").endswith(".FileSystemBasedLockProvider"):
        return ""
    folder = options.get(WRITE_LOCK_FILESYSTEM_PATH) or f"{request.base_path.rstrip('/')}/.hoodie"
    return f"{folder.rstrip('/')}/lock"


class DriverExit:
    """Ends JVM and Python of this driver, once, from any thread."""

    def __init__(
        self,
        jvm_pid: int,
        spark: SparkSession | None = None,
        lock_file: str = "",
        more_lock_files: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Name the JVM. The lock files must be absent before the end; `spark` reaches one on another store.

        `more_lock_files` returns those of the tables that a standing application serves at that moment.
        """
        self._jvm_pid = jvm_pid
        self._spark = spark
        self._lock_file = lock_file
        self._more_lock_files = more_lock_files
        self._begun = threading.Lock()

    def exit(self, reason: str) -> None:
        """End the driver; it leaves on the timeline what a crash leaves, and the retry resumes it.

        Neither spark.stop() nor sys.exit() works: both wait for the Java call that the main thread is blocked in.
        """
        if not self._begun.acquire(blocking=False):
            return
        # Whatever the check for the lock waits for, the driver ends in time.
        latest = threading.Timer(LOCK_TIMEOUT_S + STOP_TIMEOUT_S, self._kill)
        latest.daemon = True
        latest.start()
        _print_line(f"{reason}; this driver ends now, a retry resumes its plan")
        # In client mode it is the JVM that copies Python's output to the log.
        time.sleep(OUTPUT_GRACE_S)
        self._kill(is_locked=not self._wait_without_lock())

    def exit_at_sigterm(self) -> None:
        """From now on SIGTERM ends the driver. Call it in the main thread."""
        # In a thread of its own: the main thread is in the middle of a call to Java.
        signal.signal(
            signal.SIGTERM,
            lambda *_: threading.Thread(target=self.exit, args=("SIGTERM arrived",), name="driver-exit").start(),
        )

    def _wait_without_lock(self) -> bool:
        """Wait for a moment without the lock; True means that no lock file exists, and a local JVM stands still."""
        files = [file for file in (self._lock_file, *self._more_lock_files()) if file]
        if not files:
            return True
        local = [path for file in files if (path := find_local_path(file)) is not None]
        remote = [file for file in files if find_local_path(file) is None]
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if not any(path.exists() for path in local) and not any(map(self._exists_on_store, remote)):
                # The JVM may acquire the lock this very moment, unless it stands still.
                if not local or (_stop(self._jvm_pid) and not any(path.exists() for path in local)):
                    return True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._jvm_pid, signal.SIGCONT)
            time.sleep(_PAUSE_S)
        return False

    def _exists_on_store(self, lock_file: str) -> bool:
        if self._spark is None:
            return False
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(lock_file)
        return bool(path.getFileSystem(self._spark._jsc.hadoopConfiguration()).exists(path))

    def _kill(self, *, is_locked: bool = True) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._jvm_pid, signal.SIGKILL)
        if is_locked:
            names = ", ".join(file for file in (self._lock_file, *self._more_lock_files()) if file)
            _print_line(
                f"the lock {names} existed all the time: if it was this driver's, writers wait until it is "
                "as old as hoodie.write.lock.filesystem.expire says"
            )
        os._exit(EXIT_ORPHANED)


def _stop(pid: int) -> bool:
    """Stop a process; True when all its threads stand still."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if all(_stands_still(stat) for stat in (PROC / str(pid) / "task").glob("*/stat")):
            return True
        time.sleep(_PAUSE_S / 4)
    return False


def _stands_still(stat: Path) -> bool:
    try:
        # The name stands in parentheses and may contain anything; the state follows it.
        return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] in "TtZX"
    except (OSError, IndexError):
        return True


def _print_line(text: str) -> None:
    # The reader of this output may have ended as well.
    with contextlib.suppress(OSError, ValueError):
        print(f"lake: {text}", flush=True)


# --- Ends the driver when the process that submitted it has ended, so that a retry is alone with the table (G2).
#
# Spark itself does not notice: spark-submit and its JVM live on as orphans when an Airflow worker is killed.

INTERVAL_S = 2.0


def is_alive(submitter: Submitter, proc: Path = PROC) -> bool:
    """Return whether this very process runs: the same id with another start time is another process.

    A zombie counts as ended.
    """
    try:
        text = (proc / str(submitter.pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The command's name stands in parentheses and may contain anything; the fields after it are fixed.
    fields = text.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in ("Z", "X") and int(fields[19]) == submitter.start_ticks


def exit_driver_when_orphaned(
    submitter: Submitter | None,
    exit_driver: Callable[[str], None],
    interval_s: float = INTERVAL_S,
    proc: Path = PROC,
) -> threading.Event | None:
    """Call `exit_driver(reason)` in a daemon thread as soon as the submitter has ended.

    Set the returned event to stop watching.

    Returns None, and watches nothing, when there is no submitter, when it runs on another host (a cluster-mode driver)
    or when this host has no /proc. For a submitter that has ended already, the call comes before this
    function returns.
    """
    if submitter is None or submitter.host != socket.gethostname() or not (proc / "self").exists():
        return None
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(interval_s):
            if not is_alive(submitter, proc):
                exit_driver(_reason(submitter))
                return

    if not is_alive(submitter, proc):
        exit_driver(_reason(submitter))
    else:
        threading.Thread(target=loop, name="submitter-watch", daemon=True).start()
    return stop


def _reason(submitter: Submitter) -> str:
    return f"the submitting process {submitter.pid} on {submitter.host} has ended"

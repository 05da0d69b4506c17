"""Ends the driver at a moment without the table's lock, so that no writer waits for a lock that nobody gives back.

Hudi's FileSystemBasedLockProvider leaves its lock file behind when its JVM is killed, and an empty file does not say
whose it is. Asking the JVM to end does not help: it goes on writing meanwhile, and a Hudi client that ends without the
lock deletes the lock file of whoever holds it. So the JVM is stopped, and killed when there is no lock file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job_files import find_local_path

if TYPE_CHECKING:
    from job_contract import JobRequest
    from pyspark.sql import SparkSession

LOCK_PATIENCE_S = 8.0
STOP_PATIENCE_S = 1.0
OUTPUT_GRACE_S = 0.2
EXIT_CODE = 75  # EX_TEMPFAIL: try again
PROC = Path("/proc")
_PAUSE_S = 0.02


def lock_file_of(request: JobRequest) -> str:
    """Return the path of the lock file of a job's table; empty when its lock is no file."""
    options = request.hudi_options
    if not options.get("hoodie.write.lock.provider", "").endswith(".FileSystemBasedLockProvider"):
        return ""
    folder = options.get("hoodie.write.lock.filesystem.path") or f"{request.base_path.rstrip('/')}/.hoodie"
    return f"{folder.rstrip('/')}/lock"


class DriverEnd:
    """Ends JVM and Python of this driver, once, from any thread."""

    def __init__(self, jvm_pid: int, spark: SparkSession | None = None, lock_file: str = "") -> None:
        """Name the JVM. `lock_file` is waited for; `spark` answers for one that is not on this machine."""
        self._jvm_pid = jvm_pid
        self._spark = spark
        self._lock_file = lock_file
        self._begun = threading.Lock()

    def end(self, reason: str) -> None:
        """End the driver; what is left inflight is what a crash leaves, and the retry takes it up.

        Neither spark.stop() nor sys.exit() will do: both wait for the Java call that the main thread is blocked in.
        """
        if not self._begun.acquire(blocking=False):
            return
        # Whatever the check for the lock waits for, the driver ends in time.
        latest = threading.Timer(LOCK_PATIENCE_S + STOP_PATIENCE_S, self._kill)
        latest.daemon = True
        latest.start()
        _say(f"{reason}; this driver ends now, a retry takes its plan up")
        # In client mode it is the JVM that copies Python's output to the log.
        time.sleep(OUTPUT_GRACE_S)
        self._kill(is_locked=not self._wait_without_lock())

    def end_at_sigterm(self) -> None:
        """From now on SIGTERM ends the driver. Call it in the main thread."""
        # In a thread of its own: the main thread is in the middle of a call to Java.
        signal.signal(
            signal.SIGTERM,
            lambda *_: threading.Thread(target=self.end, args=("asked to end",), name="driver-end").start(),
        )

    def _wait_without_lock(self) -> bool:
        """Wait for a moment without the lock; True with the JVM stopped, where it can be, and no lock file there."""
        if not self._lock_file:
            return True
        local = find_local_path(self._lock_file)
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        while time.monotonic() < deadline_s:
            if local is None:
                if not self._exists_on_store():
                    return True
            elif not local.exists():
                # It may take the lock this very moment: only what stands still takes none.
                if _stop(self._jvm_pid) and not local.exists():
                    return True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._jvm_pid, signal.SIGCONT)
            time.sleep(_PAUSE_S)
        return False

    def _exists_on_store(self) -> bool:
        if self._spark is None:
            return False
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self._lock_file)
        return bool(path.getFileSystem(self._spark._jsc.hadoopConfiguration()).exists(path))

    def _kill(self, *, is_locked: bool = True) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._jvm_pid, signal.SIGKILL)
        if is_locked:
            _say(
                f"the lock {self._lock_file} was there all the time: if it was this driver's, writers wait until it is "
                "as old as hoodie.write.lock.filesystem.expire says"
            )
        os._exit(EXIT_CODE)


def _stop(pid: int) -> bool:
    """Stop a process; True when all its threads stand still."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + STOP_PATIENCE_S
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


def _say(text: str) -> None:
    # The reader of our output may be gone as well.
    with contextlib.suppress(OSError, ValueError):
        print(f"lake: {text}", flush=True)

"""Ends the driver when the process that submitted it is gone, so that a retry is alone with the table (G2).

Spark itself does not notice: spark-submit and its JVM live on as orphans when an Airflow worker is killed.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from job_contract import Submitter

INTERVAL_S = 2.0
PROC = Path("/proc")


def is_alive(submitter: Submitter, proc: Path = PROC) -> bool:
    """Tell whether this very process runs: the same id with another start time is another process, a zombie is none."""
    try:
        text = (proc / str(submitter.pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The command's name stands in parentheses and may contain anything; the fields after it are fixed.
    fields = text.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in ("Z", "X") and int(fields[19]) == submitter.start_ticks


def watch_submitter(
    submitter: Submitter | None,
    end: Callable[[str], None],
    interval_s: float = INTERVAL_S,
    proc: Path = PROC,
) -> threading.Event | None:
    """Call `end(reason)` in a daemon thread as soon as the submitter is gone; set the returned event to stop watching.

    Returns None, and watches nothing, when there is no submitter, when it runs on another host (a cluster-mode driver)
    or when this host has no /proc. A submitter that is gone already is reported before this function returns.
    """
    if submitter is None or submitter.host != socket.gethostname() or not (proc / "self").exists():
        return None
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(interval_s):
            if not is_alive(submitter, proc):
                end(_reason(submitter))
                return

    if not is_alive(submitter, proc):
        end(_reason(submitter))
    else:
        threading.Thread(target=loop, name="submitter-watch", daemon=True).start()
    return stop


def _reason(submitter: Submitter) -> str:
    return f"the submitting process {submitter.pid} on {submitter.host} is gone"

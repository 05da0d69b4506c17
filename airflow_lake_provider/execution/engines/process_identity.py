"""The identity of a process on a machine, so that another process can verify that it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")
END_PATIENCE_S = 10.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A unique process: operating systems reuse ids, and each container numbers its processes from 1."""

    boot_id: str
    """Of the machine's start: another id is another machine, or the same one after a restart."""
    pid_namespace: str
    """Of the container: only there is the process visible."""
    pid: int
    start_ticks: int

    @property
    def is_here(self) -> bool:
        """Whether this process can see the other one, and so verify that it has ended."""
        here = this_process()
        return here is not None and (here.boot_id, here.pid_namespace) == (self.boot_id, self.pid_namespace)

    @property
    def is_alive(self) -> bool:
        """Whether a process that is here still runs; a zombie does not. When unknown, it counts as running."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        fields = _stat_fields(self.pid)
        return fields is None or (fields[0] not in ("Z", "X") and int(fields[19]) == self.start_ticks)

    def kill(self, patience_s: float = END_PATIENCE_S) -> bool:
        """Kill -9 a process that is here; return whether it has ended within `patience_s`."""
        deadline_s = time.monotonic() + patience_s
        while self.is_alive:
            if time.monotonic() > deadline_s:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        return True


def this_process() -> ProcessIdentity | None:
    """Return this process; None where /proc does not show it."""
    start_ticks = find_start_ticks(os.getpid())
    try:
        boot_id = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        pid_namespace = os.readlink(PROC / "self" / "ns" / "pid")
    except OSError:
        return None
    return None if start_ticks is None else ProcessIdentity(boot_id, pid_namespace, os.getpid(), start_ticks)


def identity_to_text(identity: ProcessIdentity) -> str:
    """Return a process as JSON."""
    return json.dumps(asdict(identity))


def identity_from_text(text: str) -> ProcessIdentity | None:
    """Return what `identity_to_text` wrote; None when the text is incomplete."""
    try:
        body = json.loads(text)
        return ProcessIdentity(
            str(body["boot_id"]), str(body["pid_namespace"]), int(body["pid"]), int(body["start_ticks"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def find_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine's start; None where /proc does not show it."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def _stat_fields(pid: int) -> list[str] | None:
    """Return what follows the command's name in /proc/<pid>/stat; None when that cannot be read."""
    try:
        # The name is in parentheses and may contain anything; the fields after it are fixed.
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None

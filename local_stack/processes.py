"""Start processes in groups of their own, wait until they answer, stop all of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE = float(os.environ.get("LAKE_PATIENCE", "1"))
"""Every deadline is for a machine that has little else to do; on a busy one it is multiplied."""


class NotReadyError(RuntimeError):
    """A server did not become ready; the message holds the end of its log."""


_PORTS = range(15_000, 32_000)
"""Below those that Linux gives to outgoing connections (32768 and up unless set): one of these could take a port
between its choice and the server's start."""


def free_port() -> int:
    """Return a free port of the loopback address. Raises NotReadyError when there is none."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NotReadyError(f"none of 100 ports between {_PORTS[0]} and {_PORTS[-1]} is free")


@dataclass(slots=True)
class ServerProcess:
    """One started process, the leader of its own group, with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log_path: Path
    must_end: bool = False

    def log_tail(self, lines: int = 40) -> str:
        text = self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def alive(self) -> bool:
        return self.process.poll() is None

    def has_ended_by_itself(self) -> bool:
        """Whether it ended without `stop` or `kill`."""
        return not self.alive() and not self.must_end

    def kill(self) -> None:
        """Kill -9 the whole group together, as a crash does."""
        self.must_end = True
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the group, and do not wait for it."""
        self.must_end = True
        _signal_group(self.process.pid, signal.SIGTERM)

    def stop(self, grace_s: float = 15.0) -> None:
        """Send SIGTERM to the group, then kill what is left of it."""
        if not self.must_end:
            self.terminate()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and (self.alive() or _group_alive(self.process.pid)):
            time.sleep(0.1)
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()


class SingleServer(ABC):
    """A server of one process, with the two ways to end it."""

    server: ServerProcess | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """What clients connect to."""

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    def serve(self) -> None:
        """Start it, print its address, and stop it when this command gets an interrupt or SIGTERM."""
        # Otherwise the server would outlive this command.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self.start()
            print(self.address, flush=True)
            while self.server is not None and self.server.alive():
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def kill(self) -> None:
        """Kill -9, as a crash does."""
        if self.server is not None:
            self.server.kill()
            self.server = None


class ServerGroup(SingleServer):
    """Servers that need each other: started in their order, ended in the reverse one."""

    def __init__(self, *members: SingleServer) -> None:
        self.members = members

    @property
    def address(self) -> str:
        return " ".join(member.address for member in self.members)

    def start(self) -> None:
        """Start them one after the other, each when the one before it serves. Raises what they raise."""
        for member in self.members:
            member.start()
        self.server = self.members[-1].server

    def stop(self) -> None:
        for member in reversed(self.members):
            member.stop()
        self.server = None

    def kill(self) -> None:
        for member in reversed(self.members):
            member.kill()
        self.server = None


def start(
    name: str,
    command: Sequence[str],
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> ServerProcess:
    """Start a command in a session of its own; its output goes to the log."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    return ServerProcess(name, process, log_path)


def accepts_connections(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a process listens on this port of this machine."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def wait_until(ready: Callable[[], bool], timeout_s: float, what: str, servers: Sequence[ServerProcess] = ()) -> None:
    """Wait until `ready` is true; raise NotReadyError when a server dies or the time is over."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not ready():
        dead = [server for server in servers if not server.alive()]
        if dead or time.monotonic() > deadline:
            why = f"{dead[0].name} ended" if dead else f"not within {timeout_s:.0f} s"
            tails = "\n".join(f"--- {server.name}\n{server.log_tail()}" for server in (dead or servers))
            raise NotReadyError(f"{what}: {why}\n{tails}")
        time.sleep(0.2)


def pause(pid: int, timeout_s: float = 10.0) -> None:
    """Stop a process as a paused machine does, and wait until none of its threads runs.

    The signal alone is not enough: on a busy machine threads continue, and answer, until one of them has received it.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise NotReadyError(f"process {pid} still runs {timeout_s:.0f} s after SIGSTOP")
        time.sleep(0.001)


def resume(pid: int) -> None:
    """Continue a paused process."""
    os.kill(pid, signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    try:
        # The state is the first field after the name, which may hold anything but is in parentheses.
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except FileNotFoundError:
        return True


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True

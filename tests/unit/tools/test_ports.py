"""Ports of the servers that tests, demo and benchmarks start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from local_stack import processes

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not OUTGOING.exists(), reason="only Linux says which ports outgoing connections take")
def test_port_of_a_server_is_none_that_an_outgoing_connection_takes() -> None:
    first, last = map(int, OUTGOING.read_text(encoding="utf-8").split())
    assert not [port for port in {processes.free_port() for _ in range(50)} if first <= port <= last]


def test_port_that_is_taken_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    port = processes.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(processes, "_PORTS", [port] * 100)
        with pytest.raises(processes.NotReadyError, match="is free"):
            processes.free_port()
    assert processes.free_port() == port

"""Tests talk to servers of theirs alone: where a service has its usual port, one of the machine's own may listen."""

from __future__ import annotations

import os
import socket
from typing import Any

USUAL = frozenset({5432, 8080, 8081, 8090, 8793, 8794, 9092})
"""PostgreSQL, Airflow, Flink, the timeline server, logs of tasks and triggers, Kafka: no test starts anything there."""
ELSEWHERE = ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__LAKE__MANAGER_URL")
LOGS = ("AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT", "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT")
"""An API server in a test asks there for the log of a task that it does not find."""
refusing = socket.socket()
"""Bound and not listened on: it refuses every connection, and is ours as long as the tests run."""


def refuse_others() -> None:
    """Keep this process from the usual ports, and say that Airflow is where no server answers.

    Airflow's own default is port 8080.
    """
    refusing.bind(("127.0.0.1", 0))
    os.environ["AIRFLOW__API__BASE_URL"] = f"http://127.0.0.1:{refusing.getsockname()[1]}"
    for name in LOGS:
        os.environ[name] = str(refusing.getsockname()[1])
    for name in ELSEWHERE:
        os.environ.pop(name, None)
    socket.socket.connect = _connect  # type: ignore[method-assign]


_original = socket.socket.connect


def _connect(self: socket.socket, address: Any, /) -> None:
    if isinstance(address, tuple) and address[1] in USUAL:
        raise AssertionError(f"a test connects to port {address[1]}, which it did not choose: {address}")
    _original(self, address)

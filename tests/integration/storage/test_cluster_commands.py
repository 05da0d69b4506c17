"""The clusters of `local_stack`, each by its one command: on the loopback address only, and nothing is left behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import psutil
import pytest

from local_stack import hadoop, hdfs
from local_stack.processes import start, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_yarn.py")]

ROOT = Path(__file__).resolve().parents[3]
PRINTS = {
    "yarn": ("hdfs://", "http://127.0.0.1:", "HADOOP_CONF_DIR="),
    "failover": ("hdfs://lake", "HADOOP_CONF_DIR="),
    "kerberos": ("hdfs://", "KRB5_CONFIG=", "keytab="),
    # By the name in its principal: a ticket is for that.
    "secure-yarn": ("hdfs://", "http://localhost:", "KRB5_CONFIG=", "keytab="),
}


def working_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a folder, as every daemon and container does."""
    found = [
        process for process in psutil.process_iter(["cwd"]) if Path(process.info["cwd"] or "/").is_relative_to(folder)
    ]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("cluster", PRINTS)
def test_command_starts_a_cluster_of_this_machine_and_leaves_nothing_behind(tmp_path: Path, cluster: str) -> None:
    if not (hadoop.LIB.is_dir() and hdfs.LIB.is_dir()) and (
        shutil.which("mvn") is None or shutil.which("java") is None
    ):
        pytest.skip("the clusters need Maven and Java 17")
    folder = tmp_path / "cluster"
    command = [sys.executable, "-m", "local_stack.clusters", cluster, "--folder", str(folder)]
    server = start(cluster, command, tmp_path / "log", cwd=ROOT)
    try:
        # An address is printed when all of it serves.
        wait_until(lambda: "HADOOP_CONF_DIR=" in server.log_tail(1), 240, cluster, [server])
        assert all(part in server.log_tail(1) for part in PRINTS[cluster])
        daemons = psutil.Process(server.process.pid).children(recursive=True)
        assert daemons
        addresses = {
            socket.laddr.ip.removeprefix("::ffff:")
            for process in daemons
            for socket in process.net_connections("inet")
            if socket.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
        server.terminate()
        server.process.wait(timeout=60)
        assert working_in(folder) == []
        assert not [process for process in daemons if process.is_running()]
    finally:
        server.kill()
        hadoop.kill_left(folder)

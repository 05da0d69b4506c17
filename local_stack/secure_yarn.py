"""A real YARN and HDFS in a Kerberos realm on the loopback address: both take no client without a ticket.

`python -m local_stack.secure_yarn` starts a KDC, HDFS and YARN, prints their addresses, and runs until it is
interrupted; with `--fetch` it only puts Hadoop's jars in place.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from local_stack.hadoop import WORK, fetch
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.kerberos import LocalKerberos
from local_stack.maven import run_server
from local_stack.processes import ServerProcess, SingleServer
from local_stack.yarn import LocalYarn


@dataclass
class SecureYarn(SingleServer):
    """All three, in an absolute folder. `ticket_s` is how long a ticket lives."""

    folder: Path
    ticket_s: int = 86_400
    server: ServerProcess | None = None

    def __post_init__(self) -> None:
        self.realm = LocalKerberos(self.folder / "kdc", ticket_s=self.ticket_s)
        self.hdfs = HdfsDaemons(self.folder / "hdfs", realm=self.realm)
        self.yarn = LocalYarn(self.folder / "yarn", self.hdfs.url, realm=self.realm)

    @property
    def address(self) -> str:
        return f"{self.hdfs.url} {self.yarn.address} {self.realm.address}"

    def start(self) -> None:
        """Start them one after the other. Raises JarsMissingError, NotReadyError."""
        self.realm.start()
        self.hdfs.start()
        self.yarn.start()
        self.server = self.yarn.server

    def stop(self) -> None:
        self.yarn.stop()
        self.hdfs.stop()
        self.realm.stop()

    def kill(self) -> None:
        self.stop()


if __name__ == "__main__":
    sys.exit(run_server(str(__doc__), fetch, WORK / "secure-yarn", SecureYarn))

"""A real ZooKeeper for Hudi's locks, on the loopback address unless it gets another: out of Spark's own jars.

`python -m local_stack.zookeeper` starts one, prints its address and runs until it is interrupted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.hudi_bundle import WORK, BundleError, find_spark_home
from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

START_TIMEOUT_S = 30
# A session ends after at least two ticks without a sign of its client.
TICK_MS = 500


@dataclass
class LocalZooKeeper(SingleServer):
    """One server in an absolute folder. It keeps its port and its nodes over a kill and a second start."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None
    host: str = "127.0.0.1"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def lock_options(self, session_timeout_ms: int = 60_000) -> dict[str, str]:
        """Return Hudi's settings for locks here, one for each base path."""
        return {
            "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
            "hoodie.write.lock.provider": (
                "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider"
            ),
            "hoodie.write.lock.zookeeper.url": self.address,
            "hoodie.write.lock.zookeeper.session_timeout_ms": str(session_timeout_ms),
        }

    def start(self) -> None:
        """Start it and wait until it answers. Raises BundleError, NotReadyError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.folder}/data\nclientPort={self.port}\nclientPortAddress={self.host}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n",
            encoding="utf-8",
        )
        jars = find_spark_home() / "jars"
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        self.server = start("zookeeper", command, self.folder / "zookeeper.log", cwd=self.folder)
        wait_until(lambda: accepts_connections(self.port, self.host), START_TIMEOUT_S, "ZooKeeper", [self.server])


def main() -> int:
    try:
        LocalZooKeeper(WORK / "zookeeper").serve()
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

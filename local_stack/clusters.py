"""Hadoop's clusters of this machine, one command each: they listen on the loopback address and leave nothing behind.

`python -m local_stack.clusters yarn` starts a YARN on an HDFS, `secure-yarn` the same in a Kerberos realm, `kerberos`
an HDFS in a realm, and `failover` an HDFS of two NameNodes. The command prints the addresses when all of it serves, and
runs until it is interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from local_stack.hadoop import WORK
from local_stack.hdfs import LocalHdfs
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.kerberos import LocalKerberos
from local_stack.maven import JarsMissingError
from local_stack.processes import ServerGroup, SingleServer
from local_stack.yarn import LocalYarn


class YarnOnHdfs(ServerGroup):
    """A YARN and the HDFS below it, in an absolute folder."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.hdfs = LocalHdfs(folder / "hdfs")
        self.yarn = LocalYarn(folder / "yarn", self.hdfs.url, nodes=nodes)
        super().__init__(self.hdfs, self.yarn)


class SecureHdfs(ServerGroup):
    """An HDFS that takes no client without a ticket, and its realm. `ticket_s` is how long a ticket lives."""

    def __init__(self, folder: Path, ticket_s: int = 86_400) -> None:
        self.realm = LocalKerberos(folder / "kdc", ticket_s=ticket_s)
        self.hdfs = HdfsDaemons(folder / "hdfs", realm=self.realm)
        super().__init__(self.realm, self.hdfs)


class SecureYarn(SecureHdfs):
    """That, and a YARN of the realm."""

    def __init__(self, folder: Path, ticket_s: int = 86_400) -> None:
        super().__init__(folder, ticket_s)
        self.yarn = LocalYarn(folder / "yarn", self.hdfs.url, realm=self.realm)
        self.members = (*self.members, self.yarn)


CLUSTERS: Mapping[str, Callable[[Path], SingleServer]] = MappingProxyType(
    {
        "yarn": YarnOnHdfs,
        "secure-yarn": SecureYarn,
        "kerberos": SecureHdfs,
        "failover": lambda folder: HdfsDaemons(folder, name_nodes=2),
    }
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", choices=CLUSTERS)
    parser.add_argument("--folder", type=Path, help="folder of the cluster's files")
    options = parser.parse_args()
    folder: Path = options.folder or WORK / options.cluster
    try:
        CLUSTERS[options.cluster](folder.resolve()).serve()
    except JarsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Kerberos realm on the loopback address: Hadoop's own test KDC, and the settings of daemons and clients.

`local_stack.clusters` has the commands that start one with an HDFS, or an HDFS and a YARN, in it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.hadoop import START_TIMEOUT_S, Daemons, DaemonServer
from local_stack.processes import ServerProcess, accepts_connections, free_port, wait_until

KDC = "org.apache.hadoop.minikdc.MiniKdc"
REALM = "LAKE.TEST"
HOST = "localhost"
CLIENT = "lake"
_SERVICES = ("hdfs", "yarn", "HTTP")


@dataclass
class LocalKerberos(DaemonServer):
    """One realm in an absolute folder, with a keytab that holds the services' keys and the client's."""

    folder: Path
    port: int = field(default_factory=free_port)
    ticket_s: int = 86_400
    """How long a ticket lives that a client asks for."""
    server: ServerProcess | None = None

    def __post_init__(self) -> None:
        self.daemons = Daemons(self.folder)

    @property
    def address(self) -> str:
        return f"KRB5_CONFIG={self.config} keytab={self.keytab} principal={self.client}"

    @property
    def client(self) -> str:
        return f"{CLIENT}@{REALM}"

    @property
    def config(self) -> Path:
        """The clients' krb5.conf."""
        return self.folder / "client" / "krb5.conf"

    @property
    def keytab(self) -> Path:
        return self.folder / "all.keytab"

    @property
    def jvm_options(self) -> tuple[str, ...]:
        return (f"-Djava.security.krb5.conf={self.config}",)

    def start(self) -> None:
        """Start the KDC and wait until it answers. Raises JarsMissingError, NotReadyError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        organisation, _, domain = REALM.partition(".")
        properties = self.folder / "kdc.properties"
        properties.write_text(
            f"org.name={organisation}\norg.domain={domain}\nkdc.bind.address={HOST}\nkdc.port={self.port}\n", "utf-8"
        )
        principals = [CLIENT, *(f"{service}/{HOST}" for service in _SERVICES)]
        arguments = [str(self.folder), str(properties), str(self.keytab), *principals]
        self.daemons.start("kdc", KDC, {}, arguments)
        self.server = self.daemons.running["kdc"]
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f" ticket_lifetime = {self.ticket_s}s\n"
            f"[realms]\n {REALM} = {{\n  kdc = {HOST}:{self.port}\n }}\n[domain_realm]\n {HOST} = {REALM}\n",
            encoding="utf-8",
        )
        wait_until(self._has_started, START_TIMEOUT_S, "the KDC", [self.server])

    def _has_started(self) -> bool:
        # The keytab is written after the server has started, and exists for a moment without its keys.
        is_written = self.server is not None and "created keytab" in self.server.log_tail()
        return is_written and accepts_connections(self.port)

    def hdfs_settings(self) -> dict[str, str]:
        """Return what makes HDFS take no client without a ticket."""
        keytab, web = str(self.keytab), f"HTTP/{HOST}@{REALM}"
        daemons = {"dfs.namenode": "hdfs", "dfs.datanode": "hdfs"}
        own: dict[str, str] = {}
        for prefix, service in daemons.items():
            own |= {f"{prefix}.kerberos.principal": f"{service}/{HOST}@{REALM}", f"{prefix}.keytab.file": keytab}
        return own | {
            **self.client_settings(),
            "hadoop.security.authorization": "true",
            "dfs.block.access.token.enable": "true",
            "dfs.web.authentication.kerberos.principal": web,
            "dfs.web.authentication.kerberos.keytab": keytab,
            # A DataNode without root's ports, for tests.
            "ignore.secure.ports.for.testing": "true",
            "dfs.permissions.enabled": "false",
        }

    def yarn_settings(self) -> dict[str, str]:
        """Return what makes YARN take no client without a ticket, neither by RPC nor by its pages and REST APIs."""
        secret = self.folder / "http-secret"
        secret.write_text("of the cookies", "utf-8")
        own = {
            "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": f"HTTP/{HOST}@{REALM}",
            "hadoop.http.authentication.kerberos.keytab": str(self.keytab),
            "hadoop.http.authentication.signature.secret.file": str(secret),
        }
        for daemon in ("resourcemanager", "nodemanager"):
            own |= {f"yarn.{daemon}.principal": f"yarn/{HOST}@{REALM}", f"yarn.{daemon}.keytab": str(self.keytab)}
        return self.client_settings() | own

    def fetch(self, url: str, timeout_s: int = 10) -> str:
        """Return what a web server of the realm answers the client; empty when it does not. By curl's SPNEGO."""
        own = {"KRB5_CONFIG": self.config, "KRB5_CLIENT_KTNAME": self.keytab, "KRB5CCNAME": "MEMORY:"}
        command = ["curl", "--silent", "--fail", "--max-time", str(timeout_s), "--negotiate", "--user", ":", url]
        env = os.environ | {key: str(value) for key, value in own.items()}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout

    @staticmethod
    def client_settings() -> dict[str, str]:
        """Return Hadoop's settings for clients."""
        return {
            "hadoop.security.authentication": "kerberos",
            "dfs.namenode.kerberos.principal": f"hdfs/{HOST}@{REALM}",
            "yarn.resourcemanager.principal": f"yarn/{HOST}@{REALM}",
        }


def with_another_key(keytab: Path, target: Path) -> Path:
    """Write a keytab with the same principals and other keys, as an old one is after the keys have changed."""
    content = bytearray(keytab.read_bytes())
    position = 2
    while position + 4 <= len(content):
        size = int.from_bytes(content[position : position + 4], "big", signed=True)
        end = position + 4 + abs(size)
        # An entry ends in its key and, mostly, four bytes of the key's version.
        content[end - 12 : end - 4] = bytes(8)
        position = end
    target.write_bytes(content)
    return target


def settings_of(realm: LocalKerberos | None) -> Mapping[str, str]:
    """Return the daemons' settings in a realm; none without one."""
    return {} if realm is None else realm.hdfs_settings()

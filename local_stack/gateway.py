"""nginx with TLS of a private authority before several servers.

It is Debian's, unpacked below `.work` and not installed. `python -m local_stack.gateway` fetches it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from local_stack.debian_packages import DebianPackages
from local_stack.processes import ServerProcess, free_port, start, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "gateway"
SUITE = "bookworm"


def unpack() -> Path:
    """Return the folder of the program; fetch it if it is missing. Raises PackagesMissingError."""
    return DebianPackages(WORK.resolve(), SUITE).unpack(("nginx",))


@dataclass(frozen=True)
class Authority:
    """A private authority with one certificate, for 127.0.0.1."""

    certificate: Path
    """Of the authority, which clients trust."""
    server_certificate: Path
    server_key: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Return a new authority whose files are in the folder."""
        own_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        own = _sign("Lake's test authority", own_key, None, own_key)
        server = _sign("127.0.0.1", server_key, own, own_key)
        files = cls(folder / "authority.pem", folder / "server.pem", folder / "server.key")
        files.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        files.server_certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
        files.server_key.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def trust_store(self) -> Path:
        """Return the authority as a store that a JVM trusts, with the password `changeit`."""
        store = self.certificate.with_suffix(".p12")
        if not store.exists():
            words = ("-importcert", "-noprompt", "-alias", "lake", "-storetype", "PKCS12", "-storepass", "changeit")
            files = ("-file", str(self.certificate), "-keystore", str(store))
            subprocess.run([str(_find_keytool()), *words, *files], check=True, capture_output=True)
        return store


def _find_keytool() -> Path:
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("Java is missing: keytool makes the trust store of a JVM")
    return Path(java).resolve().parent / "keytool"


def _sign(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None, by: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(by, hashes.SHA256())
    )


@dataclass
class Gateway:
    """nginx with TLS before several servers; what one of them does not answer, another one does."""

    folder: Path
    authority: Authority
    backends: Sequence[int]
    """Ports of 127.0.0.1."""
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, also after `kill`."""
        programs = unpack()
        conf = self.folder / "nginx.conf"
        conf.write_text(self._settings(), encoding="utf-8")
        self.server = start(
            "nginx",
            [str(programs / "usr" / "sbin" / "nginx"), "-e", "stderr", "-p", str(self.folder), "-c", str(conf)],
            self.folder / "nginx.log",
            cwd=self.folder,
        )
        wait_until(lambda: answers(self.port), 30, "nginx", [self.server])

    def kill(self) -> None:
        """Kill -9 of all its processes."""
        if self.server is not None:
            self.server.kill()

    def _settings(self) -> str:
        servers = "".join(f"    server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;\n" for port in self.backends)
        places = "".join(
            f"  {kind}_temp_path {self.folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi")
        )
        return (
            "daemon off;\nmaster_process on;\nworker_processes 1;\n"
            f"pid {self.folder}/nginx.pid;\nevents {{ worker_connections 512; }}\n"
            f"http {{\n{places}  access_log off;\n"
            # The long poll of sensors waits for up to a minute, and large commits send large notices.
            "  client_max_body_size 64m;\n  proxy_read_timeout 120s;\n"
            f"  upstream airflow {{\n{servers}  }}\n"
            f"  server {{\n    listen 127.0.0.1:{self.port} ssl;\n"
            f"    ssl_certificate {self.authority.server_certificate};\n"
            f"    ssl_certificate_key {self.authority.server_key};\n"
            "    location / {\n      proxy_pass http://airflow;\n      proxy_http_version 1.1;\n"
            "      proxy_connect_timeout 2s;\n"
            # A request that a killed server had begun is sent to the other one, as production does for idempotent ones.
            "      proxy_next_upstream error timeout http_502 http_503;\n"
            "      proxy_set_header Host $http_host;\n      proxy_set_header Connection '';\n"
            "      proxy_set_header X-Forwarded-Proto https;\n"
            "      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    }\n  }\n}\n"
        )


def answers(port: int) -> bool:
    """Whether something accepts connections at a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    print(unpack())

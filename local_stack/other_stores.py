"""Stores that stand in for those of clouds, on the loopback address: GCS, Azure Blob, and a second one for S3.

`python -m local_stack.other_stores` builds them once, with the clients that fsspec needs for two of them (nothing to do
when they are there): fake-gcs-server and gofakes3 from Go's module proxy, Azurite from npm, the clients from PyPI.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local_stack.object_store import HttpStore, S3Store, ServerMissingError
from local_stack.processes import accepts_connections, start, wait_until

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".work" / "stores"
CLIENTS = WORK / "python"
"""gcsfs and adlfs; behind the pinned packages on `sys.path`."""
UV = ROOT / ".venv" / "bin" / "uv"
GO_PROGRAMS = {
    "fake-gcs-server": "github.com/fsouza/fake-gcs-server@v1.56.1",
    "gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0",
}
AZURITE = "azurite@3.35.0"
PACKAGES = ("gcsfs", "adlfs", "fsspec")
START_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 1800
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = base64.b64encode(b"for these tests alone").decode()


def build(folder: Path = WORK) -> None:
    """Make what is not there yet. Raises ServerMissingError."""
    env = os.environ | {"GOBIN": str(folder / "bin"), "CGO_ENABLED": "0"}
    for name, module in GO_PROGRAMS.items():
        if not (folder / "bin" / name).exists():
            _run(["go", "install", module], env)
    if not (folder / "azurite" / "node_modules" / "azurite").exists():
        (folder / "azurite").mkdir(parents=True, exist_ok=True)
        (folder / "azurite" / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder / "azurite"), AZURITE], env)
    if not (folder / "python").exists():
        part = folder / "python.part"
        shutil.rmtree(part, ignore_errors=True)
        install = ["pip", "install", "--quiet", "--python", sys.executable, "--target", str(part)]
        _run([str(UV), *install, "-c", str(ROOT / "constraints" / "airflow.txt"), *PACKAGES], env)
        part.replace(folder / "python")


def _run(command: Sequence[str], env: Mapping[str, str]) -> None:
    if shutil.which(command[0]) is None:
        raise ServerMissingError(f"{command[0]} is missing")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise ServerMissingError(f"{' '.join(command[:3])} failed: {done.stderr[-1000:]}")


class _OtherStore(HttpStore):
    """One server, in a folder of its own."""

    @property
    def command(self) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers. Raises ServerMissingError, NotReadyError."""
        build()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server = start(type(self).__name__, self.command, self.folder / "server.log", self._env, cwd=self.folder)
        wait_until(lambda: accepts_connections(self.port), START_TIMEOUT_S, type(self).__name__, [self.server])

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"}


class FakeGcs(_OtherStore):
    """fake-gcs-server, its objects in memory."""

    @property
    def command(self) -> list[str]:
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-external-url", self.endpoint]
        return [str(WORK / "bin" / "fake-gcs-server"), "-backend", "memory", *place]

    @property
    def storage_options(self) -> dict[str, Any]:
        """Return gcsfs's options."""
        return {"endpoint_url": self.endpoint, "token": "anon", "project": "local"}

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/storage/v1/b", method="POST")
        request.data = json.dumps({"name": name}).encode()
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10):
            return


class Azurite(_OtherStore):
    """Azurite's blob service, its blobs in memory."""

    @property
    def command(self) -> list[str]:
        program = WORK / "azurite" / "node_modules" / ".bin" / "azurite-blob"
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        return [
            str(program),
            *place,
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--silent",
            "--disableTelemetry",
        ]

    @property
    def storage_options(self) -> dict[str, str]:
        """Return adlfs's options."""
        address = f"BlobEndpoint={self.endpoint}/{AZURE_ACCOUNT}"
        account = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY}"
        return {"connection_string": f"DefaultEndpointsProtocol=http;{account};{address};"}


class GoFakeS3(_OtherStore, S3Store):
    """gofakes3, its objects in memory. It checks no signature."""

    @property
    def command(self) -> list[str]:
        return [str(WORK / "bin" / "gofakes3"), "-host", f"127.0.0.1:{self.port}", "-backend", "memory"]


def main() -> int:
    try:
        build()
    except ServerMissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Images in place of those that docker/ names, for machines that reach Debian's, Python's and Go's packages alone.

Each has the user, the folders, the variables and the entrypoint's words of the one it stands for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from local_stack.debian_packages import DebianPackages, find_mirror
from local_stack.docker_engine import LocalDocker

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
SUITES = ("bookworm", "trixie")
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "PYTHON_IMAGE": "lake-stand-in/python:3.11.2",
        "AIRFLOW_IMAGE": "lake-stand-in/airflow:3.3.2",
        "POSTGRES_IMAGE": "lake-stand-in/postgres:17",
        "ZOOKEEPER_IMAGE": "lake-stand-in/zookeeper:3.9",
        "OBJECT_STORE_IMAGE": "lake-stand-in/object_store:1.2",
    }
)
"""The variables of docker/.env.example with the stand-ins' names, in the order in which they are built."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class ProgramMissingError(RuntimeError):
    """A stand-in cannot be built without a program of the machine; the message names it."""


def build_all(docker: LocalDocker) -> None:
    """Build what is not there yet. Raises PackagesMissingError, ProgramMissingError, RuntimeError."""
    for suite in SUITES:
        if not docker.has_image(f"lake-debian:{suite}"):
            _import_debian(docker, suite)
    for tag in VARIABLES.values():
        if not docker.has_image(tag):
            _build(docker, tag)


def _import_debian(docker: LocalDocker, suite: str) -> None:
    packages = DebianPackages(docker.folder / "bookworm", "bookworm").unpack(["debootstrap"])
    with tempfile.TemporaryDirectory(dir=docker.folder) as scratch:
        root, archive = Path(scratch, "root"), Path(scratch, "root.tar")
        env = os.environ | {"DEBOOTSTRAP_DIR": str(packages / "usr" / "share" / "debootstrap")}
        command = [str(packages / "usr" / "sbin" / "debootstrap"), "--variant=minbase", suite, str(root), find_mirror()]
        subprocess.run(command, env=env, check=True, timeout=1800, stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True, timeout=600)
        docker.run("import", str(archive), f"lake-debian:{suite}", timeout_s=600)


def _build(docker: LocalDocker, tag: str) -> None:
    name = tag.partition("/")[2].partition(":")[0]
    with tempfile.TemporaryDirectory(dir=docker.folder) as scratch:
        context = Path(scratch, name)
        shutil.copytree(FOLDER / name, context)
        if name == "python":
            shutil.copy(os.environ.get("SSL_CERT_FILE", CERTIFICATES), context / "certificates.crt")
        if name == "airflow":
            shutil.copy(ROOT / "docker" / "airflow.txt", context)
        if name == "object_store":
            _build_store(context, docker.folder / "go")
        docker.build(context, tag)


def _build_store(folder: Path, caches: Path) -> None:
    if shutil.which("go") is None:
        raise ProgramMissingError("the object store is built by Go: install it, or name an image in OBJECT_STORE_IMAGE")
    env = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod -modcacherw",
        "GOCACHE": str(caches / "build"),
        "GOMODCACHE": str(caches / "modules"),
    }
    command = ["go", "build", "-trimpath", "-o", "gofakes3", "github.com/johannesboyne/gofakes3/cmd/gofakes3"]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=1800)

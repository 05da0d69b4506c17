"""Programs out of Debian's packages, unpacked into a folder: nothing of the machine changes, no service starts.

The machine must be a Debian or Ubuntu: its own sources say where packages are.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 600


class PackagesMissingError(RuntimeError):
    """A package cannot be had here; the message has what apt printed."""


@dataclass(frozen=True)
class DebianPackages:
    """The packages of one suite, in an absolute folder."""

    folder: Path
    suite: str

    @property
    def programs(self) -> Path:
        """Return the folder that they are unpacked into."""
        return self.folder / "unpacked"

    def unpack(self, names: Sequence[str]) -> Path:
        """Return the folder with the packages' files, those that are there as they are."""
        missing = [name for name in names if not (self.folder / f"{name}.done").exists()]
        if not missing:
            return self.programs
        self._update()
        for name in missing:
            for old in self.folder.glob(f"{name}_*.deb"):
                old.unlink()
            self._run("apt-get", *self._options(), "download", name)
            (package,) = self.folder.glob(f"{name}_*.deb")
            self._run("dpkg-deb", "--extract", str(package), str(self.programs))
            (self.folder / f"{name}.done").touch()
        return self.programs

    def _update(self) -> None:
        for part in ("lists/partial", "cache/archives/partial", "unpacked"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "debian.sources").write_text(
            f"Types: deb\nURIs: {find_mirror()}\nSuites: {self.suite}\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            encoding="utf-8",
        )
        self._run("apt-get", *self._options(), "update")

    def _options(self) -> list[str]:
        settings = {
            "Dir::Etc::sourcelist": self.folder / "debian.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
        }
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def _run(self, *command: str) -> None:
        ran = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        if ran.returncode:
            raise PackagesMissingError(f"{' '.join(command[:1])} of {self.suite}: {ran.stderr[-2000:]}")


def libraries_of(programs: Path) -> dict[str, str]:
    """Return the environment in which unpacked programs find the libraries that were unpacked with them."""
    folders = sorted({str(library.parent) for library in programs.rglob("*.so*")})
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)}


def find_mirror() -> str:
    """Return the address of this machine's mirror of Debian. Raises PackagesMissingError."""
    try:
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackagesMissingError(f"no Debian: {error}") from error
    for line in listed.splitlines():
        label, _, address = line.partition(" ")
        if label == "Debian":
            return address
    raise PackagesMissingError("apt's sources name no mirror of Debian")

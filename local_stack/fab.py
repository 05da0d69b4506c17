"""A real Airflow with the auth manager of FAB, in an environment of its own with the versions of the stack's image.

`python -m local_stack.fab` makes the environment below `.work`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from local_stack.airflow import LocalAirflow

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "fab"
PINS = ROOT / "docker" / "airflow.txt"
AUTH_MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
PASSWORD = "a long pass phrase of a test"
"""Of every user."""


def make_environment() -> Path:
    """Return the folder of the programs; make the environment if it is missing, or has other versions."""
    programs = WORK / "venv" / "bin"
    wanted = hashlib.sha256(PINS.read_bytes()).hexdigest()
    made_of = WORK / "made-of"
    if made_of.exists() and made_of.read_text(encoding="utf-8") == wanted:
        return programs
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(WORK / "venv")], check=True)
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(PINS)], check=True)
    # For its entry points alone: PYTHONPATH leads to the modules of this checkout.
    subprocess.run([*install, "--no-deps", "--editable", str(ROOT)], check=True)
    made_of.write_text(wanted, encoding="utf-8")
    return programs


@dataclass
class FabAirflow(LocalAirflow):
    """An Airflow below a path and behind a proxy with TLS, whose users and roles FAB keeps."""

    path: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def bin(self) -> Path:
        """Return the folder of the programs."""
        return WORK / "venv" / "bin"

    def env(self) -> dict[str, str]:
        """Return the whole environment of every component."""
        return super().env() | {"AIRFLOW__CORE__AUTH_MANAGER": AUTH_MANAGER, **self.settings}

    def flags_of(self, component: str) -> tuple[str, ...]:
        """Return the flags: without that of the API server a login leads back to http."""
        return ("--proxy-headers",) if component == "api-server" else super().flags_of(component)

    def run(self, *words: str) -> None:
        """Run a command of Airflow's. Raises RuntimeError."""
        command = [str(self.bin() / "airflow"), *words]
        ran = subprocess.run(command, env=self.env(), cwd=self.home, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"airflow {' '.join(words[:2])}: {ran.stdout[-2000:]}\n{ran.stderr[-3000:]}")

    def add_user(self, name: str, role: str) -> None:
        """Add a user of one role."""
        names = ("--username", name, "--firstname", name, "--lastname", name, "--email", f"{name}@example.org")
        self.run("users", "create", *names, "--role", role, "--password", PASSWORD)


if __name__ == "__main__":
    print(make_environment())
